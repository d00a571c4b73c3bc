// SPDX-License-Identifier: Apache-2.0
// Rows of JSON to fine-tune on: their kinds, and what each says in one form.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json.h"

namespace anabatic::io {

// What is wrong with all rows alike, such as a model without a chat template: it is told once.
class WrongForAllRows : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

enum class RowKind : std::uint8_t {
  kText,           // {"text"}
  kMessages,       // {"messages": [{role, content, ...}]}
  kConversations,  // {"conversations": [{from, value}]}
  kInstruction,    // {instruction, input, output}
  kCompletion,     // {"prompt", "completion"}: strings, or lists of messages
  kPreference      // {"prompt", "chosen", "rejected"}
};

// The fields of the kind, for people: {"prompt", "completion"}.
std::string_view describe(RowKind kind);

// A row of JSON, whose objects keep the order of their members. InvalidArgument says what was
// expected, and which fields the object has.
OrderedJson parse_row(std::string_view record);

// The kind that the fields of an object say. InvalidArgument for none and for more than one.
RowKind kind_of_row(const OrderedJson& row);

// One row in the form that is encoded: a text, or a row of messages.
struct TrainingRow {
  std::string text{};            // the prompt, and what follows it
  std::size_t prompt_bytes = 0;  // of the text; 0: there is no prompt
  bool is_chat = false;
  OrderedJson chat{};                // {"messages", "tools", ...}, whatever kind the row was
  std::size_t first_completion = 0;  // the message with which the completion begins
};

// InvalidArgument naming the field for one of another type, for no messages, for none of the
// assistant, and for one without role or content. What else messages may have is for their template
// to read. Rows of preferences are read_preference's.
TrainingRow read_row(OrderedJson row, RowKind kind, const std::string& text_field);

// A prompt and two completions of it: texts, or lists of messages.
struct PreferenceRow {
  bool is_chat = false;
  OrderedJson prompt, chosen, rejected;
  OrderedJson others{};  // of a chat: the row's "tools" and the like
};

// Without a prompt of their own, messages that both lists begin with are the prompt.
// InvalidArgument as above, also for completions that are equal, and for weights in messages.
PreferenceRow read_preference(OrderedJson row);

}  // namespace anabatic::io
