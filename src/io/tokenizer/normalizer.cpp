// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <cstdlib>

#include "base/error.h"
#include "io/tokenizer/precompiled.h"
#include "io/tokenizer/unicode.h"
#include "io/tokenizer/unicode_versions.h"

namespace anabatic::io::tokenizer {
namespace {

class UnicodeForm final : public Normalizer {
 public:
  explicit UnicodeForm(int options) : options_(options) {}

  // ASCII never changes and never composes with the character before it. So only the other runs are
  // normalised, each with the ASCII character before it.
  bool apply(std::string& text, bool, RegexScratch&) const override {
    const auto is_ascii = [&](std::size_t i) {
      return (static_cast<unsigned char>(text[i]) & 0x80) == 0;
    };
    std::size_t at = 0;
    while (at < text.size() && is_ascii(at)) ++at;
    if (at == text.size()) return true;
    std::string result;
    result.reserve(text.size());
    std::size_t copied = 0;
    while (at < text.size()) {
      const std::size_t begin = at > 0 ? at - 1 : 0;
      std::size_t end = at;
      while (end < text.size() && !is_ascii(end)) ++end;
      result.append(text, copied, begin - copied);
      append_normalised(std::string_view(text).substr(begin, end - begin), result);
      copied = end;
      at = end;
      while (at < text.size() && is_ascii(at)) ++at;
    }
    result.append(text, copied);
    text = std::move(result);
    return true;
  }

 private:
  // Characters that the tables of Hugging Face do not decompose or order yet stay as they are.
  void append_normalised(std::string_view run, std::string& result) const {
    std::size_t begin = 0, length = 0;
    for (std::size_t at = 0; at < run.size(); at += length) {
      const char32_t c = decode_utf8(run, at, length);
      const bool stays = lacks_combining_class(c) ||
                         ((options_ & UTF8PROC_COMPAT) != 0 && lacks_compatibility_form(c)) ||
                         ((options_ & UTF8PROC_DECOMPOSE) != 0 && lacks_canonical_form(c));
      if (!stays) continue;
      append_mapped(run.substr(begin, at - begin), result);
      result += run.substr(at, length);
      begin = at + length;
    }
    append_mapped(run.substr(begin), result);
  }

  void append_mapped(std::string_view run, std::string& result) const {
    if (run.empty()) return;
    utf8proc_uint8_t* mapped = nullptr;
    const utf8proc_ssize_t length =
        utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(run.data()),
                     static_cast<utf8proc_ssize_t>(run.size()), &mapped,
                     static_cast<utf8proc_option_t>(options_));
    if (length < 0) {
      throw ResourceError(fmt::format("[tokenizer] cannot normalise a run of {} bytes: {}",
                                      run.size(), utf8proc_errmsg(length)));
    }
    result.append(reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(length));
    std::free(mapped);
  }

  int options_;
};

class Lowercase final : public Normalizer {
 public:
  bool apply(std::string& text, bool, RegexScratch&) const override {
    std::string result;
    result.reserve(text.size());
    std::size_t length = 0;
    for (std::size_t at = 0; at < text.size(); at += length) {
      const char32_t c = decode_utf8(text, at, length);
      if (c == 0x130) {  // the only character whose full lower case is longer than one
        result += "i\xCC\x87";
      } else {
        const char32_t newer = new_lowercase(c);
        append_utf8(result, newer != 0 ? newer
                                       : static_cast<char32_t>(
                                             utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
      }
    }
    text = std::move(result);
    return true;
  }
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  bool apply(std::string& text, bool is_continuation, RegexScratch&) const override {
    if (!text.empty() && !is_continuation) text.insert(0, prefix_);
    return true;
  }

 private:
  std::string prefix_;
};

class ReplaceAll final : public Normalizer {
 public:
  explicit ReplaceAll(const JsonNode& node) : replace_(node) {}
  bool apply(std::string& text, bool is_continuation, RegexScratch& scratch) const override {
    std::string result;
    const bool keeps_start = replace_.apply(text, scratch, result, is_continuation);
    text = std::move(result);
    return keeps_start;
  }

 private:
  Replace replace_;
};

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  bool apply(std::string& text, bool, RegexScratch&) const override {
    std::size_t begin = 0, end = text.size(), length = 0;
    while (left_ && begin < end && is_whitespace(decode_utf8(text, begin, length))) begin += length;
    while (right_ && end > begin) {
      const std::size_t last = previous_character(text, end);
      if (!is_whitespace(decode_utf8(text, last, length))) break;
      end = last;
    }
    text = text.substr(begin, end - begin);
    return begin == 0;
  }

 private:
  bool left_;
  bool right_;
};

class CharacterMapping final : public Normalizer {
 public:
  explicit CharacterMapping(const JsonNode& node) : map_(node) {}
  bool apply(std::string& text, bool, RegexScratch&) const override {
    map_.apply(text);
    return true;
  }

 private:
  Precompiled map_;
};

// Keeps, drops or replaces each character: `change` gives the new one, 0 to drop it.
class CharacterFilter final : public Normalizer {
 public:
  explicit CharacterFilter(char32_t (*change)(char32_t)) : change_(change) {}
  bool apply(std::string& text, bool, RegexScratch&) const override {
    std::string result;
    result.reserve(text.size());
    bool keeps_start = true;
    std::size_t length = 0;
    for (std::size_t at = 0; at < text.size(); at += length) {
      const char32_t c = decode_utf8(text, at, length);
      // NUL stays: no filter drops it.
      const char32_t changed = c == 0 ? 0 : change_(c);
      if (changed != 0 || c == 0)
        append_utf8(result, changed);
      else if (at == 0)
        keeps_start = false;
    }
    text = std::move(result);
    return keeps_start;
  }

 private:
  char32_t (*change_)(char32_t);
};

// The rules that neural machine translation at Google began with.
char32_t change_for_nmt(char32_t c) {
  const auto is_in = [c](char32_t first, char32_t last) { return c >= first && c <= last; };
  if (is_in(1, 8) || c == 0xB || is_in(0xE, 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F) return 0;
  const bool is_space = is_in(9, 0xD) || c == 0x1680 || is_in(0x200B, 0x200F) || c == 0x2028 ||
                        c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
  return is_space ? U' ' : c;
}

char32_t drop_mark(char32_t c) { return c >= 0x300 && is_mark_of_unicode_10(c) ? 0 : c; }

class ByteLevelSymbols final : public Normalizer {
 public:
  bool apply(std::string& text, bool, RegexScratch&) const override {
    std::string result;
    result.reserve(2 * text.size());
    append_byte_symbols(text, result);
    text = std::move(result);
    return true;
  }
};

void append_normalizers(const JsonNode& node, int depth, Normalizers& chain) {
  if (depth > kMaxDepth) node.unsupported("a Sequence nested this deep");
  const std::string type = type_of(node);
  constexpr int kForm = UTF8PROC_STABLE;
  const auto add = [&](auto normalizer) { chain.push_back(std::move(normalizer)); };
  if (type == "Sequence") {
    for (const JsonNode& item : node.at("normalizers").items())
      append_normalizers(item, depth + 1, chain);
  } else if (type == "NFC") {
    add(std::make_unique<UnicodeForm>(kForm | UTF8PROC_COMPOSE));
  } else if (type == "NFD") {
    add(std::make_unique<UnicodeForm>(kForm | UTF8PROC_DECOMPOSE));
  } else if (type == "NFKC") {
    add(std::make_unique<UnicodeForm>(kForm | UTF8PROC_COMPOSE | UTF8PROC_COMPAT));
  } else if (type == "NFKD") {
    add(std::make_unique<UnicodeForm>(kForm | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT));
  } else if (type == "Lowercase") {
    add(std::make_unique<Lowercase>());
  } else if (type == "Prepend") {
    add(std::make_unique<Prepend>(node.at("prepend").as_string()));
  } else if (type == "Replace") {
    add(std::make_unique<ReplaceAll>(node));
  } else if (type == "Strip") {
    add(std::make_unique<Strip>(node.at("strip_left").as_bool(), node.at("strip_right").as_bool()));
  } else if (type == "Precompiled") {
    add(std::make_unique<CharacterMapping>(node));
  } else if (type == "Nmt") {
    add(std::make_unique<CharacterFilter>(change_for_nmt));
  } else if (type == "StripAccents") {
    add(std::make_unique<CharacterFilter>(drop_mark));
  } else if (type == "ByteLevel") {
    add(std::make_unique<ByteLevelSymbols>());
  } else {
    node.unsupported(fmt::format("the normalizer `{}`", type));
  }
}

}  // namespace

Replace::Replace(const JsonNode& node) : content_(node.at("content").as_string()) {
  const JsonNode pattern = node.at("pattern");
  if (const auto literal = pattern.find("String")) {
    literal_ = literal->as_string();
  } else {
    const JsonNode regex = pattern.at("Regex");
    regex_ = std::make_unique<Regex>(regex.as_string(), regex.place());
    if (content_.empty()) mark_ = mark_of_extra_spaces(regex.as_string()).value_or("");
  }
  if (!regex_ && literal_.empty()) pattern.unsupported("an empty string to replace");
}

bool Replace::apply(std::string_view text, RegexScratch& scratch, std::string& result,
                    bool is_continuation) const {
  if (!mark_.empty()) return append_without_extra_spaces(text, mark_, result);
  bool keeps_start = true;
  const auto take = [&](std::size_t begin, std::size_t end, std::size_t& copied) {
    if (begin == 0) {
      keeps_start = !content_.empty() && is_one_character(text.substr(0, end));
    }
    result.append(text.substr(copied, begin - copied));
    result += content_;
    copied = end;
  };
  result.reserve(result.size() + text.size() + text.size() / 4);
  std::size_t copied = 0;
  if (regex_) {
    MatchCursor matches(*regex_, text, scratch);
    for (Match match; matches.next(match);)
      if (match.end > 0 || !is_continuation) take(match.begin, match.end, copied);
  } else {
    for (std::size_t at = text.find(literal_); at != std::string_view::npos;
         at = text.find(literal_, copied))
      take(at, at + literal_.size(), copied);
  }
  result.append(text.substr(copied));
  return keeps_start;
}

Normalizers load_normalizers(const JsonNode& node) {
  Normalizers chain;
  append_normalizers(node, 0, chain);
  return chain;
}

}  // namespace anabatic::io::tokenizer
