// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/onig_encoding.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "base/error.h"
#include "io/tokenizer/unicode_additions.h"

namespace anabatic::io::tokenizer {
namespace {

constexpr int kFirstNewClass = 1 << 16;

// Letters whose other case is new since Unicode 14, upper case first.
struct CasePair {
  char32_t upper;
  char32_t lower;
};
std::vector<CasePair> new_case_pairs() {
  std::vector<CasePair> pairs = {
      {0x1C89, 0x1C8A}, {0xA7CB, 0x264}, {0xA7CC, 0xA7CD}, {0xA7DA, 0xA7DB}, {0xA7DC, 0x19B}};
  for (char32_t c = 0x10D50; c <= 0x10D65; ++c) pairs.push_back({c, c + 0x20});
  return pairs;
}

CodeRanges normalised(CodeRanges ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const CodeRange& a, const CodeRange& b) { return a.first < b.first; });
  CodeRanges result;
  for (const CodeRange& range : ranges) {
    if (!result.empty() && range.first <= result.back().last + 1)
      result.back().last = std::max(result.back().last, range.last);
    else
      result.push_back(range);
  }
  return result;
}

CodeRanges difference(const CodeRanges& ranges, const CodeRanges& removed) {
  CodeRanges result;
  for (CodeRange rest : ranges) {
    bool is_gone = false;
    for (const CodeRange& hole : removed) {
      if (hole.last < rest.first || hole.first > rest.last) continue;
      if (hole.first > rest.first) result.push_back({rest.first, hole.first - 1});
      is_gone = hole.last >= rest.last;
      if (is_gone) break;
      rest.first = hole.last + 1;
    }
    if (!is_gone) result.push_back(rest);
  }
  return result;
}

int plain_class_of(std::string_view name) {
  OnigEncoding utf8 = ONIG_ENCODING_UTF8;
  std::string text(name);
  auto* begin = reinterpret_cast<OnigUChar*>(text.data());
  return utf8->property_name_to_ctype(utf8, begin, begin + text.size());
}

CodeRanges plain_ranges(int number) {
  OnigCodePoint single_bytes = 0;
  const OnigCodePoint* ranges = nullptr;
  CodeRanges result;
  if (ONIG_ENCODING_UTF8->get_ctype_code_range(static_cast<OnigCtype>(number), &single_bytes,
                                               &ranges) != 0)
    return result;
  for (OnigCodePoint i = 0; i < ranges[0]; ++i)
    result.push_back({ranges[1 + 2 * i], ranges[2 + 2 * i]});
  return result;
}

// The classes that differ from libonig's, by number.
class NewClasses {
 public:
  NewClasses() {
    int next = kFirstNewClass;
    for (const PropertyAddition& addition : property_additions()) {
      const int known = plain_class_of(addition.name);
      numbers_[std::string(addition.name)] = known >= 0 ? known : next++;
      changes_[std::string(addition.name)] = addition.changes;
    }
    for (const PropertyAddition& addition : property_additions())
      store(numbers_.at(std::string(addition.name)), whole(addition.name));
    // [[:punct:]] holds symbols as well there, \p{Punct} does not.
    store(ONIGENC_CTYPE_PUNCT, whole("posixpunct"));
    numbers_["punct"] = numbers_.at("p");
    for (const auto& [number, ranges] : stored_)
      if (number <= ONIGENC_MAX_STD_CTYPE) standard_[static_cast<std::size_t>(number)] = &ranges;
  }

  // The number of a property in any spelling.
  int number_of(std::string_view name) const {
    std::string key;
    for (const char c : name) {
      if (c == ' ' || c == '-' || c == '_') continue;
      key += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
    const auto found = numbers_.find(key);
    return found != numbers_.end() ? found->second : plain_class_of(name);
  }

  // In Oniguruma's form, the number of ranges first; null where libonig's own holds.
  const std::vector<OnigCodePoint>* find(OnigCtype number) const {
    if (number < standard_.size()) return standard_[number];
    const auto found = stored_.find(static_cast<int>(number));
    return found == stored_.end() ? nullptr : &found->second;
  }

 private:
  struct Change {
    CodeRanges added;
    CodeRanges removed;
  };

  Change change_of(std::string_view name) const {
    Change change;
    const auto add_all = [](CodeRanges& to, const CodeRanges& more) {
      to.insert(to.end(), more.begin(), more.end());
    };
    std::string_view rest = changes_.at(std::string(name));
    while (!rest.empty()) {
      const std::string_view word = rest.substr(0, rest.find(' '));
      rest.remove_prefix(std::min(rest.size(), word.size() + 1));
      const std::string_view other = word.substr(1);
      if (word[0] == '@') {
        add_all(change.added, change_of(other).added);
      } else if (word[0] == '!') {
        add_all(change.removed, change_of(other).added);
      } else if (word[0] == '=') {
        add_all(change.added, whole(other));
      } else if (word[0] == '-') {
        change.removed.push_back(range(other));
      } else {
        change.added.push_back(range(word));
      }
    }
    change.added = normalised(std::move(change.added));
    change.removed = normalised(std::move(change.removed));
    return change;
  }

  static CodeRange range(std::string_view text) {
    const auto dash = text.find('-');
    const auto number = [](std::string_view digits) {
      return static_cast<char32_t>(std::stoul(std::string(digits), nullptr, 16));
    };
    const char32_t first = number(text.substr(0, dash));
    return {first, dash == std::string_view::npos ? first : number(text.substr(dash + 1))};
  }

  CodeRanges whole(std::string_view name) const {
    const int number = numbers_.at(std::string(name));
    CodeRanges ranges = number < kFirstNewClass ? plain_ranges(number) : CodeRanges{};
    const Change change = change_of(name);
    ranges.insert(ranges.end(), change.added.begin(), change.added.end());
    return difference(normalised(std::move(ranges)), change.removed);
  }

  void store(int number, const CodeRanges& ranges) {
    std::vector<OnigCodePoint>& flat = stored_[number];
    flat.assign(1, static_cast<OnigCodePoint>(ranges.size()));
    for (const CodeRange& range : ranges) {
      flat.push_back(range.first);
      flat.push_back(range.last);
    }
  }

  std::map<std::string, int> numbers_;
  std::map<std::string, std::string_view> changes_;
  std::map<int, std::vector<OnigCodePoint>> stored_;
  std::array<const std::vector<OnigCodePoint>*, ONIGENC_MAX_STD_CTYPE + 1> standard_{};
};

const NewClasses& new_classes() {
  static const NewClasses kClasses;
  return kClasses;
}

const std::map<OnigCodePoint, OnigCodePoint>& new_cases() {
  static const auto kCases = [] {
    std::map<OnigCodePoint, OnigCodePoint> cases;
    for (const CasePair& pair : new_case_pairs()) {
      cases[pair.upper] = pair.lower;
      cases[pair.lower] = pair.upper;
    }
    return cases;
  }();
  return kCases;
}

int property_name_to_ctype(OnigEncoding, OnigUChar* begin, OnigUChar* end) {
  return new_classes().number_of(
      {reinterpret_cast<const char*>(begin), static_cast<std::size_t>(end - begin)});
}

int is_code_ctype(OnigCodePoint code, OnigCtype number) {
  const std::vector<OnigCodePoint>* ranges = new_classes().find(number);
  const bool is_standard = number <= ONIGENC_MAX_STD_CTYPE;
  if (!ranges || (is_standard && code < kLatin1End))
    return ONIG_ENCODING_UTF8->is_code_ctype(code, number);
  std::size_t low = 0, high = (*ranges)[0];
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    if (code > (*ranges)[2 + 2 * middle])
      low = middle + 1;
    else
      high = middle;
  }
  return low < (*ranges)[0] && code >= (*ranges)[1 + 2 * low] ? 1 : 0;
}

int get_ctype_code_range(OnigCtype number, OnigCodePoint* single_bytes,
                         const OnigCodePoint* ranges[]) {
  const std::vector<OnigCodePoint>* changed = new_classes().find(number);
  const OnigCtype known = changed ? OnigCtype{ONIGENC_CTYPE_WORD} : number;
  const int result = ONIG_ENCODING_UTF8->get_ctype_code_range(known, single_bytes, ranges);
  if (changed) *ranges = changed->data();
  return result;
}

int apply_all_case_fold(OnigCaseFoldType flag, OnigApplyAllCaseFoldFunc apply, void* argument) {
  int result = ONIG_ENCODING_UTF8->apply_all_case_fold(flag, apply, argument);
  for (const auto& [from, to] : new_cases()) {
    if (result != 0) break;
    OnigCodePoint other = to;
    result = apply(from, &other, 1, argument);
  }
  return result;
}

int get_case_fold_codes_by_str(OnigCaseFoldType flag, const OnigUChar* at, const OnigUChar* end,
                               OnigCaseFoldCodeItem items[]) {
  OnigEncoding utf8 = ONIG_ENCODING_UTF8;
  if (at < end && at + utf8->mbc_enc_len(at) <= end) {
    const auto found = new_cases().find(utf8->mbc_to_code(at, end));
    if (found != new_cases().end()) {
      items[0] = {};
      items[0].byte_len = utf8->mbc_enc_len(at);
      items[0].code_len = 1;
      items[0].code[0] = found->second;
      return 1;
    }
  }
  return utf8->get_case_fold_codes_by_str(flag, at, end, items);
}

}  // namespace

OnigEncoding onig_encoding() {
  static OnigEncodingType encoding = [] {
    OnigEncoding utf8 = ONIG_ENCODING_UTF8;
    if (onig_initialize(&utf8, 1) != ONIG_NORMAL)
      throw ResourceError("[tokenizer] the regular expression engine does not start");
    new_classes();
    new_cases();
    OnigEncodingType changed = *utf8;
    changed.property_name_to_ctype = property_name_to_ctype;
    changed.is_code_ctype = is_code_ctype;
    changed.get_ctype_code_range = get_ctype_code_range;
    changed.apply_all_case_fold = apply_all_case_fold;
    changed.get_case_fold_codes_by_str = get_case_fold_codes_by_str;
    return changed;
  }();
  return &encoding;
}

CodeRanges ranges_of_class(int number) {
  OnigCodePoint single_bytes = 0;
  const OnigCodePoint* ranges = nullptr;
  CodeRanges result;
  if (number < 0 || onig_encoding()->get_ctype_code_range(static_cast<OnigCtype>(number),
                                                          &single_bytes, &ranges) != 0)
    return result;
  for (OnigCodePoint i = 0; i < ranges[0]; ++i)
    result.push_back({ranges[1 + 2 * i], ranges[2 + 2 * i]});
  return result;
}

}  // namespace anabatic::io::tokenizer
