// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <vector>

#include "base/error.h"
#include "io/tokenizer/regex.h"
#include "io/tokenizer/unicode.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace anabatic::io::tokenizer {
namespace {

// What stands inside a PCRE2 class for \w and \s of Oniguruma. PCRE2's own \w lacks marks and
// letter numbers, its \s adds U+180E. The numbers of Latin-1 are in \w but not in [:word:].
constexpr std::string_view kPosixWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
constexpr std::string_view kWord =
    "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";
constexpr std::string_view kSpace =
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"
    "\\x{205f}\\x{3000}";
constexpr std::string_view kHex = "0-9A-Fa-f";
constexpr int kMaxDepth = 50;

// A set of characters: the intersection of terms, each a union of items and nested sets.
struct ClassExpression {
  struct Term {
    std::string items;
    std::vector<ClassExpression> nested;
  };
  bool negated = false;
  std::vector<Term> terms{1};
};

ClassExpression negated_items(std::string_view items) {
  ClassExpression expression;
  expression.negated = true;
  expression.terms[0].items = items;
  return expression;
}

std::string print(const ClassExpression& expression);

// An expression for one character of the term.
std::string print_term(const ClassExpression::Term& term) {
  std::string items = term.items;
  std::string alternatives;
  for (const ClassExpression& nested : term.nested) {
    if (!nested.negated && nested.terms.size() == 1 && nested.terms[0].nested.empty())
      items += nested.terms[0].items;
    else
      alternatives.append("|").append(print(nested));
  }
  if (alternatives.empty()) return fmt::format("[{}]", items);
  if (items.empty()) return fmt::format("(?:{})", alternatives.substr(1));
  return fmt::format("(?:[{}]{})", items, alternatives);
}

std::string print(const ClassExpression& expression) {
  std::string text;
  for (std::size_t i = 1; i < expression.terms.size(); ++i)
    text.append("(?=").append(print_term(expression.terms[i])).append(")");
  text += print_term(expression.terms[0]);
  if (!expression.negated) return expression.terms.size() == 1 ? text : fmt::format("(?:{})", text);
  if (expression.terms.size() == 1 && text[0] == '[') return fmt::format("[^{}", text.substr(1));
  return fmt::format("(?:(?!{})(?s:.))", text);
}

bool compiles(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : pattern_(pattern), where_(where) {}

  std::string translate() {
    while (at_ < pattern_.size()) element();
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw Unsupported(fmt::format("[tokenizer] {}: {} at byte {} of the regular expression `{}`",
                                  where_, what, at_, pattern_));
  }
  bool ahead(std::string_view text) const { return pattern_.substr(at_, text.size()) == text; }

  void atom(std::string_view text) {
    atom_ = out_.size();
    out_ += text;
  }

  void element() {
    const char c = pattern_[at_];
    if (c == '\\') {
      escape();
    } else if (c == '[') {
      atom(print(character_class(0)));
    } else if (c == '(') {
      group();
    } else if (c == ')') {
      ++at_;
      out_ += ')';
      if (!groups_.empty()) {
        atom_ = groups_.back();
        groups_.pop_back();
      }
    } else if (c == '{') {
      braces();
    } else if (c == '?' || c == '*' || c == '+' || c == '|') {
      out_ += c;
      ++at_;
    } else {
      std::size_t length = 0;
      decode_utf8(pattern_, at_, length);
      atom(pattern_.substr(at_, length));
      at_ += length;
    }
  }

  void group() {
    groups_.push_back(out_.size());
    out_ += '(';
    ++at_;
    if (!ahead("?")) return;
    out_ += '?';
    ++at_;
    // Options: Ruby's m is "dot matches all", which PCRE2 calls s.
    const std::size_t end = pattern_.find_first_not_of("imx-", at_);
    if (end == std::string_view::npos || end == at_ ||
        (pattern_[end] != ':' && pattern_[end] != ')'))
      return;
    for (; at_ < end; ++at_) out_ += pattern_[at_] == 'm' ? 's' : pattern_[at_];
  }

  // In Ruby {n,m}+ repeats the repetition, {n}? makes it optional, {,n} is {0,n}.
  void braces() {
    const std::size_t close = pattern_.find('}', at_);
    const std::string_view inside =
        close == std::string_view::npos ? "" : pattern_.substr(at_ + 1, close - at_ - 1);
    const bool is_interval = !inside.empty() && inside != "," &&
                             inside.find_first_not_of("0123456789,") == std::string_view::npos;
    if (!is_interval) {
      atom("\\{");
      ++at_;
      return;
    }
    const char next = close + 1 < pattern_.size() ? pattern_[close + 1] : '\0';
    const bool wraps = next == '+' || (next == '?' && inside.find(',') == std::string_view::npos);
    if (wraps) out_.insert(atom_, "(?:");
    out_ += '{';
    if (inside[0] == ',') out_ += '0';
    out_ += inside;
    out_ += '}';
    if (wraps) out_ += ')';
    at_ = close + 1;
  }

  void escape() {
    if (at_ + 1 >= pattern_.size()) refuse("a lone \\");
    const auto wrap = [&](std::string_view items, bool negated) {
      atom(fmt::format("[{}{}]", negated ? "^" : "", items));
      at_ += 2;
    };
    switch (pattern_[at_ + 1]) {
      case 'w':
      case 'W':
        return wrap(kWord, pattern_[at_ + 1] == 'W');
      case 's':
      case 'S':
        return wrap(kSpace, pattern_[at_ + 1] == 'S');
      case 'h':
      case 'H':
        return wrap(kHex, pattern_[at_ + 1] == 'H');
      case 'b':
        atom(fmt::format("(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))", kWord));
        at_ += 2;
        return;
      case 'B':
        atom(fmt::format("(?:(?<=[{0}])(?=[{0}])|(?<![{0}])(?![{0}]))", kWord));
        at_ += 2;
        return;
      case 'O':
        atom("(?s:.)");
        at_ += 2;
        return;
      default:
        atom(plain_escape());
    }
  }

  // An escape that means the same inside and outside of a class.
  std::string plain_escape() {
    if (at_ + 1 >= pattern_.size()) refuse("a lone \\");
    const char kind = pattern_[at_ + 1];
    if (kind == 'p' || kind == 'P') return property();
    if (kind == 'u') {
      const std::string_view digits = pattern_.substr(at_ + 2, 4);
      if (digits.size() < 4 ||
          digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos)
        refuse("expected four hexadecimal digits after \\u");
      at_ += 6;
      return fmt::format("\\x{{{}}}", digits);
    }
    std::size_t length = 0;
    decode_utf8(pattern_, at_ + 1, length);
    std::string text(pattern_.substr(at_, 1 + length));
    if (length > 1) text.erase(0, 1);
    at_ += 1 + length;
    return text;
  }

  std::string property() {
    const std::size_t close = pattern_.find('}', at_);
    if (at_ + 2 >= pattern_.size() || pattern_[at_ + 2] != '{' || close == std::string_view::npos)
      refuse("expected a property in braces");
    bool negated = pattern_[at_ + 1] == 'P';
    std::string_view name = pattern_.substr(at_ + 3, close - at_ - 3);
    if (!name.empty() && name[0] == '^') {
      negated = !negated;
      name.remove_prefix(1);
    }
    at_ = close + 1;
    static constexpr std::array<std::array<std::string_view, 2>, 9> kLong{{{"Letter", "L"},
                                                                           {"Mark", "M"},
                                                                           {"Number", "N"},
                                                                           {"Punctuation", "P"},
                                                                           {"Symbol", "S"},
                                                                           {"Separator", "Z"},
                                                                           {"Other", "C"},
                                                                           {"Digit", "Nd"},
                                                                           {"Punct", "P"}}};
    for (const auto& [long_name, short_name] : kLong)
      if (name == long_name) name = short_name;
    const char* letter = negated ? "\\P" : "\\p";
    // PCRE2 reads a bare script name as Script_Extensions.
    if (name.size() > 2 && compiles(fmt::format("\\p{{sc:{}}}", name)))
      return fmt::format("{}{{sc:{}}}", letter, name);
    return fmt::format("{}{{{}}}", letter, name);
  }

  bool posix_class(ClassExpression::Term& term) {
    const std::size_t close = pattern_.find(":]", at_);
    if (!ahead("[:") || close == std::string_view::npos) return false;
    std::string_view name = pattern_.substr(at_ + 2, close - at_ - 2);
    const bool negated = !name.empty() && name[0] == '^';
    if (negated) name.remove_prefix(1);
    static constexpr std::array<std::array<std::string_view, 2>, 8> kPosix{
        {{"alpha", "\\p{Alphabetic}"},
         {"alnum", "\\p{Alphabetic}\\p{Nd}"},
         {"upper", "\\p{Uppercase}"},
         {"lower", "\\p{Lowercase}"},
         {"digit", "\\p{Nd}"},
         {"space", kSpace},
         {"punct", "\\p{P}\\p{S}"},
         {"word", kPosixWord}}};
    std::string items = fmt::format("[:{}:]", name);
    for (const auto& [posix, mapped] : kPosix)
      if (name == posix) items = mapped;
    if (negated)
      term.nested.push_back(negated_items(items));
    else
      term.items += items;
    at_ = close + 2;
    return true;
  }

  bool class_escape(ClassExpression::Term& term) {
    const char kind = at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\0';
    std::string_view items;
    if (kind == 'w' || kind == 'W') items = kWord;
    if (kind == 's' || kind == 'S') items = kSpace;
    if (kind == 'h' || kind == 'H') items = kHex;
    if (items.empty()) return false;
    if (kind < 'a')
      term.nested.push_back(negated_items(items));
    else
      term.items += items;
    at_ += 2;
    return true;
  }

  ClassExpression character_class(int depth) {
    if (depth > kMaxDepth) refuse("character classes nested too deep");
    ClassExpression expression;
    ++at_;
    if (ahead("^")) {
      expression.negated = true;
      ++at_;
    }
    for (bool is_first = true;; is_first = false) {
      if (at_ >= pattern_.size()) refuse("an unclosed character class");
      ClassExpression::Term& term = expression.terms.back();
      if (pattern_[at_] == ']' && !is_first) {
        ++at_;
        break;
      }
      if (ahead("&&")) {
        at_ += 2;
        expression.terms.emplace_back();
      } else if (pattern_[at_] == '[') {
        if (!posix_class(term)) term.nested.push_back(character_class(depth + 1));
      } else if (pattern_[at_] == '\\') {
        if (!class_escape(term)) term.items += plain_escape();
      } else {
        std::size_t length = 0;
        decode_utf8(pattern_, at_, length);
        if (pattern_[at_] == ']' || pattern_[at_] == '^') term.items += '\\';
        term.items += pattern_.substr(at_, length);
        at_ += length;
      }
    }
    for (const ClassExpression::Term& term : expression.terms)
      if (term.items.empty() && term.nested.empty()) refuse("an empty character class");
    return expression;
  }

  std::string_view pattern_;
  std::string_view where_;
  std::size_t at_ = 0;
  std::string out_;
  std::size_t atom_ = 0;             // where the last atom starts in out_
  std::vector<std::size_t> groups_;  // starts of the open groups in out_
};

}  // namespace

std::string translate_regex(std::string_view pattern, std::string_view where) {
  return Translator(pattern, where).translate();
}

}  // namespace anabatic::io::tokenizer
