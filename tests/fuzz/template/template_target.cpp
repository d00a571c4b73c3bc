// SPDX-License-Identifier: Apache-2.0
// A chat template renders a conversation, or is refused; its spans cover the text.
#include "base/json.h"
#include "fuzz/fuzz_target.h"
#include "io/template/python_text.h"
#include "io/template/template.h"

using namespace anabatic;

namespace {

const OrderedJson& conversation() {
  static const OrderedJson context = OrderedJson::parse(R"({
    "messages": [
      {"role": "system", "content": " Be kind.\n"},
      {"role": "user", "content": "Grüße \"x\" <b>", "name": "Ada"},
      {"role": "assistant", "content": "", "reasoning_content": "hm\n", "tool_calls": [
        {"function": {"name": "f", "arguments": {"a": 1, "b": [true, null, 2.5], "c": {"d": "é"}}}}]},
      {"role": "tool", "content": "{\"t\": 1}"},
      {"role": "assistant", "content": [{"type": "text", "text": "done"}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "add_generation_prompt": true, "bos_token": "<s>", "n": 7, "s": "some text", "l": [3, 1, 2]})");
  return context;
}

void check(const io::RenderedText& rendered) {
  std::size_t end = 0;
  for (const io::TextSpan& span : rendered.spans) {
    fuzz::require(span.end > end || (span.end == end && span.message >= 0),
                  "spans that are not empty but where a field is");
    fuzz::require(span.message < 5, "a message of the conversation");
    end = span.end;
  }
  fuzz::require(end == rendered.text.size(), "spans that cover the text");
  fuzz::require(io::jinja::is_valid_utf8(rendered.text), "UTF-8");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view source = fuzz::view(data, size);
  return fuzz::read_or_refuse(
      source,
      [&] {
        std::tm now{};
        now.tm_mday = 1;
        return io::ChatTemplate::parse(source).render(conversation(), now);
      },
      check);
}
