// SPDX-License-Identifier: Apache-2.0
// Regular expressions of tokenizer.json: the syntax, characters and matches of Oniguruma.
#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace anabatic::io::tokenizer {

struct Match {
  std::size_t begin = 0;  // bytes
  std::size_t end = 0;
};

// Buffers for a match; one for each thread.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  struct Handles;
  std::unique_ptr<Handles> handles_;
};

class RegexAutomaton;

// Runs a RegexAutomaton where the pattern allows it, which is several times as fast, else libonig.
class Regex {
 public:
  enum class Engine { kAny, kOniguruma };

  // `where` names the pattern in errors: Unsupported if it cannot be compiled.
  Regex(std::string_view pattern, std::string_view where, Engine engine = Engine::kAny);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  bool has_automaton() const { return automaton_ != nullptr; }

  // The first match at or after `start` of `text` (valid UTF-8), which may be empty.
  bool find(std::string_view text, std::size_t start, RegexScratch& scratch, Match& match) const;
  // The first match of all; of it the first group that took part, if there is one. For an engine of
  // kOniguruma.
  bool find_group(std::string_view text, RegexScratch& scratch, Match& match) const;

 private:
  // By Oniguruma; a match is in the scratch's region then.
  bool search(std::string_view text, std::size_t start, RegexScratch& scratch) const;
  struct Code;
  std::unique_ptr<Code> code_;
  std::unique_ptr<const RegexAutomaton> automaton_;
  std::string where_;
};

// All matches from left to right. An empty match directly after the last match is skipped.
class MatchCursor {
 public:
  MatchCursor(const Regex& regex, std::string_view text, RegexScratch& scratch)
      : regex_(regex), text_(text), scratch_(scratch) {}
  MatchCursor(const MatchCursor&) = delete;
  MatchCursor& operator=(const MatchCursor&) = delete;
  bool next(Match& match);

 private:
  const Regex& regex_;
  std::string_view text_;
  RegexScratch& scratch_;
  std::size_t position_ = 0;
  std::size_t last_end_ = std::string_view::npos;
};

// The patterns that a SentencePiece model is written with are matched by hand: as regular
// expressions they take most of the time of encoding.
inline constexpr std::string_view kSpaceMark = "\u2581";

// Spaces at the start, spaces and marks at the end, and all but the last space of a run. `mark` is
// kSpaceMark or a space.
std::string extra_spaces_pattern(std::string_view mark);
// The mark of such a pattern; nothing for another pattern.
std::optional<std::string_view> mark_of_extra_spaces(std::string_view pattern);
// Appends to `result` what that pattern leaves of `text`. False if the first character goes.
bool append_without_extra_spaces(std::string_view text, std::string_view mark, std::string& result);

// A run of marks and what follows up to the next one.
std::string words_pattern(std::string_view mark);
std::optional<std::string_view> mark_of_words(std::string_view pattern);

}  // namespace anabatic::io::tokenizer
