// SPDX-License-Identifier: Apache-2.0
// Chat templates: the Jinja that they use, rendered as transformers does, with the source of every
// character of the result.
#pragma once
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace anabatic::io {

// Neighbouring characters that one source wrote; none where a field of a message is an empty text.
// The template wrote them where `field` is null: as
// literals, as what it formats, or as a variable whose name ends in `_token`.
struct TextSpan {
  std::size_t end = 0;                 // byte offset; a span begins where the one before ends
  const std::string* field = nullptr;  // a key of `messages[message]`, or of the whole context
  std::int32_t message = -1;           // -1: another variable, named by `field`
  bool is_generated = false;           // inside {% generation %}
};

struct RenderedText {
  std::string text;
  std::vector<TextSpan> spans;  // cover the text; fields are keys of the context that was rendered
};

// What strftime_now() formats; nothing: the local time.
using RenderTime = std::optional<std::tm>;

// A compiled template is constant: threads may render it at once.
class ChatTemplate {
 public:
  // `name` stands for the file in errors. InvalidArgument with line and column for what jinja2
  // refuses as well, Unsupported for what only this interpreter lacks.
  static ChatTemplate parse(std::string_view source, std::string_view name = "chat template");

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // `context` is an object of variables; it must outlive the spans.
  RenderedText render(const nlohmann::ordered_json& context, const RenderTime& now = {}) const;

  bool has_generation_blocks() const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace anabatic::io
