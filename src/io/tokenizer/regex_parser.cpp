// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/regex_parser.h"

#include <algorithm>
#include <array>
#include <map>

#include "io/tokenizer/json_fields.h"
#include "io/tokenizer/onig_encoding.h"
#include "io/tokenizer/unicode.h"

namespace anabatic::io::tokenizer {
namespace {

using Kind = RegexNode::Kind;
using Preference = RegexNode::Preference;

constexpr int kMaxRepeats = 1000;
constexpr char32_t kSurrogates = 0xD800;
constexpr char32_t kSurrogatesEnd = 0xE000;

int class_number(std::string_view name) {
  std::string text(name);
  auto* begin = reinterpret_cast<OnigUChar*>(text.data());
  return onig_encoding()->property_name_to_ctype(onig_encoding(), begin, begin + text.size());
}

bool is_punctuation_mark(char c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
         (c >= '{' && c <= '~');
}

// Reads until the first thing that is not regular, which sets has_failed_.
class Parser {
 public:
  explicit Parser(std::string_view pattern) : pattern_(pattern) {}

  std::optional<ParsedRegex> parse() {
    ParsedRegex result;
    result.root = alternatives(0);
    if (has_failed_ || at_ != pattern_.size()) return std::nullopt;
    result.atoms = std::move(atoms_);
    return result;
  }

 private:
  bool ahead(std::string_view text) const { return pattern_.substr(at_, text.size()) == text; }
  bool take(std::string_view text) {
    if (!ahead(text)) return false;
    at_ += text.size();
    return true;
  }
  RegexNode fail() {
    has_failed_ = true;
    return {};
  }

  RegexNode alternatives(int depth) {
    RegexNode node{.kind = Kind::kAlternatives};
    if (depth > kMaxDepth) return fail();
    do node.children.push_back(sequence(depth));
    while (!has_failed_ && take("|"));
    return node;
  }

  RegexNode sequence(int depth) {
    RegexNode node{.kind = Kind::kSequence};
    while (!has_failed_ && at_ < pattern_.size() && !ahead("|") && !ahead(")"))
      node.children.push_back(item(depth));
    return node;
  }

  RegexNode item(int depth) {
    if (take("(?=")) return look_ahead(false);
    if (take("(?!")) return look_ahead(true);
    RegexNode node = ahead("(") ? group(depth) : atom();
    return has_failed_ ? node : repeat(std::move(node));
  }

  RegexNode look_ahead(bool is_negated) {
    RegexNode node = ignores_case_ ? fail() : atom();
    node.kind = Kind::kAhead;
    node.is_negated = is_negated;
    if (has_failed_ || !take(")") || (at_ < pattern_.size() && is_quantifier(pattern_[at_])))
      return fail();
    return node;
  }

  RegexNode group(int depth) {
    // Letters of one group that fold to one character together are not looked for in two.
    if (ignores_case_) return fail();
    if (take("(?i:"))
      ignores_case_ = true;
    else if (!take("(?:") && (ahead("(?") || ahead("(*") || !take("(")))
      return fail();
    RegexNode node = alternatives(depth + 1);
    ignores_case_ = false;
    return take(")") ? node : fail();
  }

  static bool is_quantifier(char c) { return c == '?' || c == '*' || c == '+' || c == '{'; }

  RegexNode repeat(RegexNode node) {
    if (at_ >= pattern_.size() || !is_quantifier(pattern_[at_])) return node;
    if (ignores_case_ || node.may_be_empty()) return fail();
    RegexNode repeated{.kind = Kind::kRepeat};
    const char c = pattern_[at_];
    if (c == '{') {
      if (!interval(repeated)) return fail();
    } else {
      ++at_;
      repeated.min = c == '+' ? 1 : 0;
      repeated.max = c == '?' ? 1 : RegexNode::kUnbounded;
      if (take("?"))
        repeated.preference = Preference::kLazy;
      else if (take("+"))
        repeated.preference = Preference::kPossessive;
    }
    if (at_ < pattern_.size() && is_quantifier(pattern_[at_])) return fail();
    repeated.children.push_back(std::move(node));
    return repeated;
  }

  bool interval(RegexNode& repeated) {
    ++at_;
    const auto number = [&](int otherwise) {
      const std::size_t begin = at_;
      int value = 0;
      for (; at_ < pattern_.size() && pattern_[at_] >= '0' && pattern_[at_] <= '9'; ++at_)
        value = std::min(10 * value + (pattern_[at_] - '0'), kMaxRepeats + 1);
      return at_ == begin ? otherwise : value;
    };
    const bool has_min = !ahead(",");
    repeated.min = number(has_min ? kMaxRepeats + 1 : 0);
    repeated.max = repeated.min;
    if (take(",")) repeated.max = number(has_min ? RegexNode::kUnbounded : 0);
    const bool is_ordered =
        repeated.max == RegexNode::kUnbounded || (repeated.max >= repeated.min && repeated.max > 0);
    return is_ordered && repeated.min <= kMaxRepeats && repeated.max <= kMaxRepeats && take("}");
  }

  RegexNode atom() {
    if (at_ >= pattern_.size()) return fail();
    const std::size_t begin = at_;
    std::vector<char32_t> bounds;
    const char c = pattern_[at_];
    if (ignores_case_) {
      if (!folded_character(bounds)) return fail();
    } else if (c == '[') {
      character_class(bounds, 0);
    } else if (c == '\\') {
      escape(bounds);
    } else if (c == '^' || c == '$' || c == '(' || is_quantifier(c)) {
      return fail();
    } else if (c == '.') {
      ++at_;
    } else {
      character(bounds);
    }
    if (has_failed_) return {};
    std::string text(pattern_.substr(begin, at_ - begin));
    return {.kind = Kind::kAtom,
            .atom = number_of(ignores_case_ ? "(?i:" + text + ")" : text, std::move(bounds))};
  }

  std::size_t number_of(const std::string& text, std::vector<char32_t> bounds) {
    const auto [found, is_new] = numbers_.try_emplace(text, atoms_.size());
    if (!is_new) return found->second;
    // Latin-1 has rules of its own, surrogates cannot be tried.
    for (char32_t c = 0; c <= kLatin1End; ++c) bounds.push_back(c);
    bounds.insert(bounds.end(), {kSurrogates, kSurrogatesEnd});
    std::sort(bounds.begin(), bounds.end());
    bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
    atoms_.push_back({text, std::move(bounds)});
    return found->second;
  }

  char32_t character(std::vector<char32_t>& bounds) {
    std::size_t length = 0;
    const char32_t c = decode_utf8(pattern_, at_, length);
    at_ += length;
    bounds.push_back(c);
    bounds.push_back(c + 1);
    return c;
  }

  // A literal in (?i:) that stands for single characters only, as `ss` does not.
  bool folded_character(std::vector<char32_t>& bounds) {
    if (std::string_view("\\[](){}.^$?*+|").find(pattern_[at_]) != std::string_view::npos)
      return false;
    const auto* text = reinterpret_cast<const OnigUChar*>(pattern_.data());
    std::array<OnigCaseFoldCodeItem, ONIGENC_GET_CASE_FOLD_CODES_MAX_NUM> items{};
    const int count = onig_encoding()->get_case_fold_codes_by_str(
        onig_get_default_case_fold_flag(), text + at_, text + pattern_.size(), items.data());
    const std::size_t begin = at_;
    character(bounds);
    for (int i = 0; i < count; ++i) {
      const OnigCaseFoldCodeItem& item = items[static_cast<std::size_t>(i)];
      if (item.code_len != 1 || static_cast<std::size_t>(item.byte_len) != at_ - begin)
        return false;
      bounds.push_back(item.code[0]);
      bounds.push_back(item.code[0] + 1);
    }
    return count >= 0;
  }

  void add_class(int number, std::vector<char32_t>& bounds) {
    if (number < 0) has_failed_ = true;
    for (const CodeRange& range : ranges_of_class(number)) {
      bounds.push_back(range.first);
      bounds.push_back(range.last + 1);
    }
  }

  // An escape that stands for one character, the same inside and outside of a class.
  void escape(std::vector<char32_t>& bounds) {
    const char kind = at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\0';
    at_ += 2;
    switch (kind) {
      case 'p':
      case 'P':
        return property(bounds);
      case 'd':
      case 'D':
        return add_class(ONIGENC_CTYPE_DIGIT, bounds);
      case 's':
      case 'S':
        return add_class(ONIGENC_CTYPE_SPACE, bounds);
      case 'w':
      case 'W':
        return add_class(ONIGENC_CTYPE_WORD, bounds);
      case 'h':
      case 'H':
        return add_class(ONIGENC_CTYPE_XDIGIT, bounds);
      case 'u': {
        const std::string digits(pattern_.substr(std::min(at_, pattern_.size()), 4));
        if (digits.size() < 4) break;
        bounds.push_back(static_cast<char32_t>(std::strtoul(digits.c_str(), nullptr, 16)));
        bounds.push_back(bounds.back() + 1);
        at_ += 4;
        return;
      }
      default:
        if (std::string_view("nrtfvae").find(kind) != std::string_view::npos) return;
        if (is_punctuation_mark(kind) && kind != '<' && kind != '>' && kind != '`' && kind != '\'')
          return;
    }
    has_failed_ = true;
  }

  void property(std::vector<char32_t>& bounds) {
    const std::size_t close = pattern_.find('}', at_);
    if (!take("{") || close == std::string_view::npos) {
      has_failed_ = true;
      return;
    }
    take("^");
    add_class(class_number(pattern_.substr(at_, close - at_)), bounds);
    at_ = close + 1;
  }

  void character_class(std::vector<char32_t>& bounds, int depth) {
    take("[");
    take("^");
    if (ahead("]") || depth > kMaxDepth) has_failed_ = true;
    while (!has_failed_ && !take("]")) {
      if (at_ >= pattern_.size())
        has_failed_ = true;
      else if (ahead("[:"))
        posix_class(bounds);
      else if (ahead("["))
        character_class(bounds, depth + 1);
      else if (ahead("\\"))
        escape(bounds);
      else
        character(bounds);
    }
  }

  void posix_class(std::vector<char32_t>& bounds) {
    take("[:");
    take("^");
    const std::size_t close = pattern_.find(":]", at_);
    if (close == std::string_view::npos) {
      has_failed_ = true;
      return;
    }
    const std::string_view name = pattern_.substr(at_, close - at_);
    add_class(name == "punct" ? ONIGENC_CTYPE_PUNCT : class_number(name), bounds);
    at_ = close + 2;
  }

  std::string_view pattern_;
  std::size_t at_ = 0;
  bool ignores_case_ = false;
  bool has_failed_ = false;
  std::vector<RegexAtom> atoms_;
  std::map<std::string, std::size_t> numbers_;
};

}  // namespace

bool RegexNode::may_be_empty() const {
  const auto is_empty = [](const RegexNode& child) { return child.may_be_empty(); };
  switch (kind) {
    case Kind::kAtom:
      return false;
    case Kind::kAhead:
      return true;
    case Kind::kSequence:
      return std::all_of(children.begin(), children.end(), is_empty);
    case Kind::kAlternatives:
      return std::any_of(children.begin(), children.end(), is_empty);
    case Kind::kRepeat:
      break;
  }
  return min == 0 || children[0].may_be_empty();
}

std::optional<ParsedRegex> parse_regular(std::string_view pattern) {
  return Parser(pattern).parse();
}

}  // namespace anabatic::io::tokenizer
