// SPDX-License-Identifier: Apache-2.0
#include "train/chat/chat.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "train/config/precision_keys.h"
#include "train/objective/run_model.h"
#include "train/tokenize.h"

namespace anabatic::train {
namespace {

constexpr std::array<std::string_view, 4> kFields{"messages", "tools", "documents",
                                                  "chat_template_kwargs"};
constexpr std::int64_t kLargestFile = std::int64_t{1} << 26;

RunConfig of_conversation(RunConfig run) {
  ANABATIC_REQUIRE(!run.model.path.empty(), "[generate] expected model.path, got none");
  run.data.append_eos = io::AddToken::kNever;  // a prompt is continued
  return with_inference_precision(without_mtp(run));
}

}  // namespace

Chat::Chat(const RunConfig& run)
    : session_(of_conversation(run), false),
      tokenizer_(io::Tokenizer::load(tokenizer_folder_or_file(run.model.path))),
      encoder_(run, tokenizer_),
      special_(special_tokens_of(session_.run(), &tokenizer_, session_.config().eos_token_ids)),
      stops_(encoder_.stops_of(special_.stops)),
      generator_(session_) {
  log_warnings(special_);
}

std::string Chat::answer(const OrderedJson& row,
                         const std::function<void(const std::string&)>& emit) {
  const RangedText prompt = encoder_.prompt_of(row);
  std::vector<std::int32_t> ids = tokenizer_.encode_with_begins(prompt.text, prompt.ranges).ids;
  special_.document.put_before(ids, 0);
  // The answer alone, as transformers decodes it: without a space that a tokenizer puts before it.
  io::TokenStream stream(tokenizer_, true);
  std::string whole;
  const auto say = [&](const std::string& piece) {
    whole += piece;
    emit(piece);
  };
  generator_.run(ids, stops_, [&](std::int32_t token) { say(stream.push(token)); });
  say(stream.finish());
  return whole;
}

OrderedJson read_conversation(const std::string& file) {
  OrderedJson row;
  try {
    row = OrderedJson::parse(read_file(file, kLargestFile));
  } catch (const OrderedJson::exception& error) {
    throw InvalidArgument(fmt::format("[generate] {}: expected JSON: {}", file, error.what()));
  }
  if (row.is_array()) row = {{"messages", std::move(row)}};
  ANABATIC_REQUIRE(row.is_object() && row.contains("messages"),
                   "[generate] {}: expected a list of messages, or an object with messages, got {}",
                   file, show_json_briefly(Json(row)));
  for (const auto& [name, value] : row.items())
    ANABATIC_REQUIRE(std::ranges::find(kFields, name) != kFields.end(),
                     "[generate] {}: expected no fields but messages, tools, documents and "
                     "chat_template_kwargs, got {}",
                     file, name);
  return row;
}

}  // namespace anabatic::train
