// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/graphemes.h"

#include <utf8proc.h>

#include "io/tokenizer/unicode.h"
#include "io/tokenizer/unicode_versions.h"

namespace anabatic::io::tokenizer {
namespace {

int class_of(char32_t c) {
  if (is_new_grapheme_part(c)) return UTF8PROC_BOUNDCLASS_EXTEND;
  if (c == 0x113D1) return UTF8PROC_BOUNDCLASS_PREPEND;  // since Unicode 16
  if (c == 0x11A3A) return UTF8PROC_BOUNDCLASS_OTHER;    // no longer PREPEND
  return static_cast<int>(utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->boundclass);
}

bool is_control(int c) {
  return c == UTF8PROC_BOUNDCLASS_CR || c == UTF8PROC_BOUNDCLASS_LF ||
         c == UTF8PROC_BOUNDCLASS_CONTROL;
}

// InCB Linker, the viramas that join consonants.
bool is_conjunct_linker(char32_t c) {
  switch (c) {
    case 0x94D:
    case 0x9CD:
    case 0xACD:
    case 0xB4D:
    case 0xC4D:
    case 0xD4D:
    case 0x1039:
    case 0x17D2:
    case 0x1A60:
    case 0x1B44:
    case 0x1BAB:
    case 0xA9C0:
    case 0xAAF6:
      return true;
    default:
      return false;
  }
}

bool extends(int c) { return c == UTF8PROC_BOUNDCLASS_EXTEND || c == UTF8PROC_BOUNDCLASS_ZWJ; }

// The characters of a cluster so far.
class Cluster {
 public:
  explicit Cluster(char32_t c) { add(c, class_of(c)); }

  // Adds the next character unless a new cluster starts with it.
  bool take(char32_t c) {
    const int next = class_of(c);
    if (!joins(c, next)) return false;
    add(c, next);
    return true;
  }

 private:
  bool joins(char32_t c, int next) const {
    if (last_ == UTF8PROC_BOUNDCLASS_CR) return next == UTF8PROC_BOUNDCLASS_LF;
    if (is_control(last_) || is_control(next)) return false;
    if (extends(next) || next == UTF8PROC_BOUNDCLASS_SPACINGMARK) return true;
    if (last_ == UTF8PROC_BOUNDCLASS_PREPEND || joins_syllable(next)) return true;
    if (has_linker_ && is_conjunct_consonant(c)) return true;
    if (next == UTF8PROC_BOUNDCLASS_EXTENDED_PICTOGRAPHIC)
      return is_pictographic_ && last_ == UTF8PROC_BOUNDCLASS_ZWJ;
    return next == UTF8PROC_BOUNDCLASS_REGIONAL_INDICATOR && has_odd_indicators_;
  }

  // Hangul.
  bool joins_syllable(int next) const {
    const bool is_vowel = next == UTF8PROC_BOUNDCLASS_V, is_final = next == UTF8PROC_BOUNDCLASS_T;
    switch (last_) {
      case UTF8PROC_BOUNDCLASS_L:
        return is_vowel || next == UTF8PROC_BOUNDCLASS_L || next == UTF8PROC_BOUNDCLASS_LV ||
               next == UTF8PROC_BOUNDCLASS_LVT;
      case UTF8PROC_BOUNDCLASS_LV:
      case UTF8PROC_BOUNDCLASS_V:
        return is_vowel || is_final;
      case UTF8PROC_BOUNDCLASS_LVT:
      case UTF8PROC_BOUNDCLASS_T:
        return is_final;
      default:
        return false;
    }
  }

  void add(char32_t c, int next) {
    last_ = next;
    has_odd_indicators_ = next == UTF8PROC_BOUNDCLASS_REGIONAL_INDICATOR && !has_odd_indicators_;
    if (!extends(next)) is_pictographic_ = next == UTF8PROC_BOUNDCLASS_EXTENDED_PICTOGRAPHIC;
    if (is_conjunct_consonant(c)) {
      is_conjunct_ = true;
      has_linker_ = false;
    } else if (is_conjunct_linker(c)) {
      has_linker_ = is_conjunct_;
    } else if (!extends(next) || c == 0x200C) {
      is_conjunct_ = has_linker_ = false;
    }
  }

  int last_ = UTF8PROC_BOUNDCLASS_START;
  bool has_odd_indicators_ = false;
  bool is_pictographic_ = false;  // a pictograph, then only what extends it
  bool is_conjunct_ = false;      // an Indic consonant, then only what extends it
  bool has_linker_ = false;       // and among that a virama
};

}  // namespace

std::size_t grapheme_end(std::string_view text, std::size_t at) {
  std::size_t length = 0;
  Cluster cluster(decode_utf8(text, at, length));
  at += length;
  while (at < text.size() && cluster.take(decode_utf8(text, at, length))) at += length;
  return at;
}

}  // namespace anabatic::io::tokenizer
