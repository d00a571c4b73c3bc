// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"
#include "io/tokenizer/unicode.h"
#include "io/tokenizer/unicode_versions.h"

namespace anabatic::io::tokenizer {
namespace {

constexpr std::size_t kJitStackStart_bytes = 32 * 1024;
constexpr std::size_t kJitStackLimit_bytes = 16 * 1024 * 1024;

std::string message_of(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

struct RegexScratch::Handles {
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  ~Handles() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

RegexScratch::RegexScratch() : handles_(std::make_unique<Handles>()) {
  handles_->data = pcre2_match_data_create(1, nullptr);
  handles_->context = pcre2_match_context_create(nullptr);
  handles_->stack = pcre2_jit_stack_create(kJitStackStart_bytes, kJitStackLimit_bytes, nullptr);
  if (!handles_->data || !handles_->context || !handles_->stack)
    throw ResourceError("[tokenizer] no memory for the regular expression engine");
  pcre2_jit_stack_assign(handles_->context, nullptr, handles_->stack);
}

RegexScratch::~RegexScratch() = default;

struct Regex::Code {
  pcre2_code* code = nullptr;
  bool is_jit = false;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::string_view pattern, std::string_view where)
    : code_(std::make_unique<Code>()), where_(where) {
  const std::string translated = translate_regex(pattern, where);
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (!context) throw ResourceError("[tokenizer] no memory for a regular expression");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                              &error, &offset, context.get());
  if (!code_->code) {
    throw Unsupported(
        fmt::format("[tokenizer] {}: the regular expression `{}` (for PCRE2: `{}`) "
                    "does not compile: {} at byte {}",
                    where, pattern, translated, message_of(error), offset));
  }
  code_->is_jit = pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE) == 0;
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

bool Regex::find(std::string_view text, std::size_t start, RegexScratch& scratch,
                 Match& match) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  pcre2_match_data* data = scratch.handles_->data;
  const int result = code_->is_jit
                         ? pcre2_jit_match(code_->code, subject, text.size(), start,
                                           PCRE2_NO_UTF_CHECK, data, scratch.handles_->context)
                         : pcre2_match(code_->code, subject, text.size(), start, PCRE2_NO_UTF_CHECK,
                                       data, scratch.handles_->context);
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0) {
    throw Unsupported(fmt::format("[tokenizer] {}: matching failed at byte {} of a text of {}: {}",
                                  where_, start, text.size(), message_of(result)));
  }
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data);
  match = {bounds[0], bounds[1]};
  return true;
}

MatchCursor::MatchCursor(const Regex& regex, std::string_view text, RegexScratch& scratch)
    : regex_(regex), text_(text), scratch_(scratch) {
  if (replace_new_characters(text, known_)) text_ = known_;
}

bool MatchCursor::next(Match& match) {
  while (position_ <= text_.size()) {
    if (!regex_.find(text_, position_, scratch_, match)) return false;
    if (match.end > match.begin || match.end != last_end_) {
      position_ = match.end;
      last_end_ = match.end;
      return true;
    }
    position_ +=
        position_ < text_.size() ? utf8_length(static_cast<unsigned char>(text_[position_])) : 1;
  }
  return false;
}

}  // namespace anabatic::io::tokenizer
