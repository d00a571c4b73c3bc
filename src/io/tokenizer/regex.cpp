// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/regex.h"

#include <oniguruma.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "io/tokenizer/onig_encoding.h"
#include "io/tokenizer/regex_automaton.h"
#include "io/tokenizer/unicode.h"

namespace anabatic::io::tokenizer {
namespace {

// Backtracking entries of some 40 bytes at most, so that a long text cannot take all memory.
constexpr unsigned kMaxStackEntries = 1u << 22;

std::string message_of(int code, OnigErrorInfo* info) {
  OnigUChar buffer[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int length =
      info ? onig_error_code_to_str(buffer, code, info) : onig_error_code_to_str(buffer, code);
  return {reinterpret_cast<const char*>(buffer), static_cast<std::size_t>(length)};
}

Match match_of(const OnigRegion& region, int group) {
  return {static_cast<std::size_t>(region.beg[group]), static_cast<std::size_t>(region.end[group])};
}

// Outside of brackets Hugging Face's version reads \p{Word} as \w, which has more of Latin-1.
std::string respell_word(std::string_view pattern) {
  std::string result;
  std::size_t depth = 0;  // of brackets
  for (std::size_t at = 0; at < pattern.size();) {
    const std::string_view rest = pattern.substr(at);
    if (rest[0] == '\\' && rest.size() > 1) {
      const std::size_t close = rest.find('}');
      std::string name;
      if (depth == 0 && (rest[1] == 'p' || rest[1] == 'P') && close != std::string_view::npos)
        name = rest.substr(2, close - 2);
      for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
      const bool is_word = name == "{word" || name == "{^word";
      const bool is_negated = (rest[1] == 'P') != (name == "{^word");
      result += is_word ? (is_negated ? "\\W" : "\\w") : rest.substr(0, 2);
      at += is_word ? close + 1 : 2;
      continue;
    }
    std::size_t length = 1;
    if (rest[0] == '[') {
      ++depth;
      // A bracket that closes nothing yet is a character.
      if (rest.substr(1, 1) == "]") length = 2;
      if (rest.substr(1, 2) == "^]") length = 3;
    } else if (rest[0] == ']' && depth > 0) {
      --depth;
    }
    result += rest.substr(0, length);
    at += length;
  }
  return result;
}

}  // namespace

struct RegexScratch::Handles {
  OnigRegion* region = nullptr;
  OnigMatchParam* limits = nullptr;
  ~Handles() {
    if (region) onig_region_free(region, 1);
    if (limits) onig_free_match_param(limits);
  }
};

RegexScratch::RegexScratch() : handles_(std::make_unique<Handles>()) {
  onig_encoding();  // starts the library
  handles_->region = onig_region_new();
  handles_->limits = onig_new_match_param();
  if (!handles_->region || !handles_->limits)
    throw ResourceError("[tokenizer] no memory for the regular expression engine");
  onig_initialize_match_param(handles_->limits);
  onig_set_match_stack_limit_size_of_match_param(handles_->limits, kMaxStackEntries);
}

RegexScratch::~RegexScratch() = default;

struct Regex::Code {
  regex_t* code = nullptr;
  ~Code() {
    if (code) onig_free(code);
  }
};

Regex::Regex(std::string_view pattern, std::string_view where, Engine engine)
    : code_(std::make_unique<Code>()), where_(where) {
  const std::string spelled = respell_word(pattern);
  const auto* text = reinterpret_cast<const OnigUChar*>(spelled.data());
  OnigErrorInfo info{};
  const int result = onig_new(&code_->code, text, text + spelled.size(), ONIG_OPTION_NONE,
                              onig_encoding(), ONIG_SYNTAX_ONIGURUMA, &info);
  if (result != ONIG_NORMAL) {
    throw Unsupported(fmt::format("{}: the regular expression `{}` does not compile: {}", where,
                                  pattern, message_of(result, &info)));
  }
  if (engine == Engine::kAny) automaton_ = RegexAutomaton::build(spelled);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

bool Regex::find(std::string_view text, std::size_t start, RegexScratch& scratch,
                 Match& match) const {
  if (automaton_) return automaton_->find(text, start, match);
  if (!search(text, start, scratch)) return false;
  match = match_of(*scratch.handles_->region, 0);
  return true;
}

bool Regex::find_group(std::string_view text, RegexScratch& scratch, Match& match) const {
  ANABATIC_CHECK(automaton_ == nullptr, "[regex] an automaton has no groups");
  if (!search(text, 0, scratch)) return false;
  const OnigRegion& region = *scratch.handles_->region;
  int group = 1;
  while (group < region.num_regs && region.beg[group] == ONIG_REGION_NOTPOS) ++group;
  match = match_of(region, group < region.num_regs ? group : 0);
  return true;
}

bool Regex::search(std::string_view text, std::size_t start, RegexScratch& scratch) const {
  if (text.size() > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    throw Unsupported(
        fmt::format("{}: expected at most 2 GiB of text in one piece for this pattern, "
                    "got {} bytes",
                    where_, text.size()));
  }
  const auto* begin = reinterpret_cast<const OnigUChar*>(text.data());
  const OnigUChar* end = begin + text.size();
  OnigRegion* region = scratch.handles_->region;
  const int result = onig_search_with_param(code_->code, begin, end, begin + start, end, region,
                                            ONIG_OPTION_NONE, scratch.handles_->limits);
  if (result == ONIG_MISMATCH) return false;
  if (result < 0) {
    throw Unsupported(
        fmt::format("{}: matching failed at byte {} of a text of {}: {}; a pattern with nested "
                    "repetitions may take forever on such a text",
                    where_, start, text.size(), message_of(result, nullptr)));
  }
  return true;
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

namespace {

std::optional<std::string_view> mark_of(std::string_view pattern,
                                        std::string (*pattern_of)(std::string_view mark)) {
  for (const std::string_view mark : {kSpaceMark, std::string_view(" ")})
    if (pattern == pattern_of(mark)) return mark;
  return std::nullopt;
}

}  // namespace

std::string extra_spaces_pattern(std::string_view mark) {
  return fmt::format("\\A +|(?: |{})+\\z| (?= )", mark);
}

std::optional<std::string_view> mark_of_extra_spaces(std::string_view pattern) {
  return mark_of(pattern, extra_spaces_pattern);
}

bool append_without_extra_spaces(std::string_view text, std::string_view mark,
                                 std::string& result) {
  const std::size_t begin = std::min(text.find_first_not_of(' '), text.size());
  std::size_t end = text.size();
  for (std::string_view rest = text.substr(begin); !rest.empty();
       rest = text.substr(begin, end - begin)) {
    if (rest.back() == ' ')
      --end;
    else if (rest.ends_with(mark))
      end -= mark.size();
    else
      break;
  }
  std::size_t copied = begin;
  for (std::size_t at = text.find(' ', begin); at < end; at = text.find(' ', at + 1)) {
    if (text[at + 1] != ' ') continue;  // the last character before `end` is no space
    result.append(text, copied, at - copied);
    copied = at + 1;
  }
  result.append(text, copied, end - copied);
  return text.empty() || (begin == 0 && end > 0);
}

std::string words_pattern(std::string_view mark) { return fmt::format("{0}+[^{0}]*", mark); }

std::optional<std::string_view> mark_of_words(std::string_view pattern) {
  return mark_of(pattern, words_pattern);
}

}  // namespace anabatic::io::tokenizer
