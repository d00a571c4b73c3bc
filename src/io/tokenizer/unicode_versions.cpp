// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/unicode_versions.h"

#include <algorithm>
#include <array>
#include <bitset>

#include "io/tokenizer/unicode.h"

namespace anabatic::io::tokenizer {
namespace {

enum Category { kCf, kLl, kLm, kLo, kLoHan, kLu, kMc, kMn, kNd, kNo, kPd, kPo, kSm, kSo };

// A character of the category in Unicode 14, in three and in four bytes of UTF-8 (0: not needed).
constexpr std::array<std::array<char32_t, 2>, 14> kOlder{{{0, 0x110BD},
                                                          {0x1E01, 0x10428},
                                                          {0, 0x16B40},
                                                          {0, 0x10000},
                                                          {0, 0x20000},
                                                          {0x1E00, 0x10400},
                                                          {0x903, 0x11000},
                                                          {0x900, 0x11001},
                                                          {0, 0x104A0},
                                                          {0, 0x10107},
                                                          {0, 0x10EAD},
                                                          {0x166E, 0x10A50},
                                                          {0, 0x1D6C1},
                                                          {0x2400, 0x1F600}}};

struct CategoryRange {
  char32_t first;
  char32_t last;
  Category category;
};

// Assigned by Unicode 15.0, 15.1 and 16.0, or (U+1171E) given another category.
constexpr CategoryRange kNew[] = {
    {0x897, 0x897, kMn},        {0xCF3, 0xCF3, kMc},        {0xECE, 0xECE, kMn},
    {0x1B4E, 0x1B4F, kPo},      {0x1B7F, 0x1B7F, kPo},      {0x1C89, 0x1C89, kLu},
    {0x1C8A, 0x1C8A, kLl},      {0x2427, 0x2429, kSo},      {0x2FFC, 0x2FFF, kSo},
    {0x31E4, 0x31E5, kSo},      {0x31EF, 0x31EF, kSo},      {0xA7CB, 0xA7CC, kLu},
    {0xA7CD, 0xA7CD, kLl},      {0xA7DA, 0xA7DA, kLu},      {0xA7DB, 0xA7DB, kLl},
    {0xA7DC, 0xA7DC, kLu},      {0x105C0, 0x105F3, kLo},    {0x10D40, 0x10D49, kNd},
    {0x10D4A, 0x10D4D, kLo},    {0x10D4E, 0x10D4E, kLm},    {0x10D4F, 0x10D4F, kLo},
    {0x10D50, 0x10D65, kLu},    {0x10D69, 0x10D6D, kMn},    {0x10D6E, 0x10D6E, kPd},
    {0x10D6F, 0x10D6F, kLm},    {0x10D70, 0x10D85, kLl},    {0x10D8E, 0x10D8F, kSm},
    {0x10EC2, 0x10EC4, kLo},    {0x10EFC, 0x10EFF, kMn},    {0x1123F, 0x11240, kLo},
    {0x11241, 0x11241, kMn},    {0x11380, 0x11389, kLo},    {0x1138B, 0x1138B, kLo},
    {0x1138E, 0x1138E, kLo},    {0x11390, 0x113B5, kLo},    {0x113B7, 0x113B7, kLo},
    {0x113B8, 0x113BA, kMc},    {0x113BB, 0x113C0, kMn},    {0x113C2, 0x113C2, kMc},
    {0x113C5, 0x113C5, kMc},    {0x113C7, 0x113CA, kMc},    {0x113CC, 0x113CD, kMc},
    {0x113CE, 0x113CE, kMn},    {0x113CF, 0x113CF, kMc},    {0x113D0, 0x113D0, kMn},
    {0x113D1, 0x113D1, kLo},    {0x113D2, 0x113D2, kMn},    {0x113D3, 0x113D3, kLo},
    {0x113D4, 0x113D5, kPo},    {0x113D7, 0x113D8, kPo},    {0x113E1, 0x113E2, kMn},
    {0x116D0, 0x116E3, kNd},    {0x1171E, 0x1171E, kMc},    {0x11B00, 0x11B09, kPo},
    {0x11BC0, 0x11BE0, kLo},    {0x11BE1, 0x11BE1, kPo},    {0x11BF0, 0x11BF9, kNd},
    {0x11F00, 0x11F01, kMn},    {0x11F02, 0x11F02, kLo},    {0x11F03, 0x11F03, kMc},
    {0x11F04, 0x11F10, kLo},    {0x11F12, 0x11F33, kLo},    {0x11F34, 0x11F35, kMc},
    {0x11F36, 0x11F3A, kMn},    {0x11F3E, 0x11F3F, kMc},    {0x11F40, 0x11F40, kMn},
    {0x11F41, 0x11F41, kMc},    {0x11F42, 0x11F42, kMn},    {0x11F43, 0x11F4F, kPo},
    {0x11F50, 0x11F59, kNd},    {0x11F5A, 0x11F5A, kMn},    {0x1342F, 0x1342F, kLo},
    {0x13439, 0x1343F, kCf},    {0x13440, 0x13440, kMn},    {0x13441, 0x13446, kLo},
    {0x13447, 0x13455, kMn},    {0x13460, 0x143FA, kLo},    {0x16100, 0x1611D, kLo},
    {0x1611E, 0x16129, kMn},    {0x1612A, 0x1612C, kMc},    {0x1612D, 0x1612F, kMn},
    {0x16130, 0x16139, kNd},    {0x16D40, 0x16D42, kLm},    {0x16D43, 0x16D6A, kLo},
    {0x16D6B, 0x16D6C, kLm},    {0x16D6D, 0x16D6F, kPo},    {0x16D70, 0x16D79, kNd},
    {0x18CFF, 0x18CFF, kLo},    {0x1B132, 0x1B132, kLo},    {0x1B155, 0x1B155, kLo},
    {0x1CC00, 0x1CCEF, kSo},    {0x1CCF0, 0x1CCF9, kNd},    {0x1CD00, 0x1CEB3, kSo},
    {0x1D2C0, 0x1D2D3, kNo},    {0x1DF25, 0x1DF2A, kLl},    {0x1E030, 0x1E06D, kLm},
    {0x1E08F, 0x1E08F, kMn},    {0x1E4D0, 0x1E4EA, kLo},    {0x1E4EB, 0x1E4EB, kLm},
    {0x1E4EC, 0x1E4EF, kMn},    {0x1E4F0, 0x1E4F9, kNd},    {0x1E5D0, 0x1E5ED, kLo},
    {0x1E5EE, 0x1E5EF, kMn},    {0x1E5F0, 0x1E5F0, kLo},    {0x1E5F1, 0x1E5FA, kNd},
    {0x1E5FF, 0x1E5FF, kPo},    {0x1F6DC, 0x1F6DC, kSo},    {0x1F774, 0x1F776, kSo},
    {0x1F77B, 0x1F77F, kSo},    {0x1F7D9, 0x1F7D9, kSo},    {0x1F8B2, 0x1F8BB, kSo},
    {0x1F8C0, 0x1F8C1, kSo},    {0x1FA75, 0x1FA77, kSo},    {0x1FA87, 0x1FA89, kSo},
    {0x1FA8F, 0x1FA8F, kSo},    {0x1FAAD, 0x1FAAF, kSo},    {0x1FABB, 0x1FABF, kSo},
    {0x1FAC6, 0x1FAC6, kSo},    {0x1FACE, 0x1FACF, kSo},    {0x1FADA, 0x1FADC, kSo},
    {0x1FADF, 0x1FADF, kSo},    {0x1FAE8, 0x1FAE9, kSo},    {0x1FAF7, 0x1FAF8, kSo},
    {0x1FBCB, 0x1FBEF, kSo},    {0x2B739, 0x2B739, kLoHan}, {0x2EBF0, 0x2EE5D, kLoHan},
    {0x31350, 0x323AF, kLoHan},
};

struct Range {
  char32_t first;
  char32_t last;
};

constexpr Range kNewNumbers[] = {
    {0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9},
    {0x11DE0, 0x11DE9}, {0x16130, 0x16139}, {0x16D70, 0x16D79},
    {0x16FF4, 0x16FF6}, {0x1CCF0, 0x1CCF9}, {0x1E5F1, 0x1E5FA},
};
constexpr Range kUnknownPunctuation[] = {
    {0x61D, 0x61D},     {0x9FD, 0x9FD},     {0xA76, 0xA76},     {0xC77, 0xC77},
    {0xC84, 0xC84},     {0x1B7D, 0x1B7E},   {0x2E43, 0x2E4F},   {0x2E52, 0x2E5D},
    {0x10EAD, 0x10EAD}, {0x10F55, 0x10F59}, {0x10F86, 0x10F89}, {0x1144B, 0x1144F},
    {0x1145A, 0x1145B}, {0x1145D, 0x1145D}, {0x11660, 0x1166C}, {0x116B9, 0x116B9},
    {0x1183B, 0x1183B}, {0x11944, 0x11946}, {0x119E2, 0x119E2}, {0x11A3F, 0x11A46},
    {0x11A9A, 0x11A9C}, {0x11A9E, 0x11AA2}, {0x11B00, 0x11B09}, {0x11C41, 0x11C45},
    {0x11C70, 0x11C71}, {0x11EF7, 0x11EF8}, {0x11F43, 0x11F4F}, {0x11FFF, 0x11FFF},
    {0x12FF1, 0x12FF2}, {0x16E97, 0x16E9A}, {0x16FE2, 0x16FE2}, {0x1E95E, 0x1E95F},
};
constexpr Range kNoCompatibilityForm[] = {
    {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},   {0xAB69, 0xAB69},
    {0x10781, 0x10785}, {0x10787, 0x107B0}, {0x107B2, 0x107BA},
    {0x1E030, 0x1E06D}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9},
};

template <class Table>
auto find_in(const Table& table, char32_t c) {
  const auto found =
      std::upper_bound(std::begin(table), std::end(table), c,
                       [](char32_t x, const auto& range) { return x < range.first; });
  if (found == std::begin(table) || c > std::prev(found)->last) return std::end(table);
  return std::prev(found);
}

// Blocks of 64 characters of the basic plane that hold new ones: most text is in none.
const std::bitset<1024>& new_blocks() {
  static const std::bitset<1024> kBlocks = [] {
    std::bitset<1024> blocks;
    for (const CategoryRange& range : kNew)
      for (char32_t c = range.first; c <= range.last && c < 0x10000; ++c) blocks.set(c >> 6);
    return blocks;
  }();
  return kBlocks;
}

}  // namespace

bool replace_new_characters(std::string_view text, std::string& known) {
  const std::bitset<1024>& blocks = new_blocks();
  bool is_replaced = false;
  std::size_t length = 0;
  for (std::size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at]);
    if (lead < 0xE0) {  // none has less than three bytes
      ++at;
      continue;
    }
    const char32_t c = decode_utf8(text, at, length);
    at += length;
    if (c < 0x10000 && !blocks[c >> 6]) continue;
    const auto found = find_in(kNew, c);
    if (found == std::end(kNew)) continue;
    if (!is_replaced) known = text;
    is_replaced = true;
    std::string older;
    append_utf8(older, kOlder[found->category][length - 3]);
    known.replace(at - length, length, older);
  }
  return is_replaced;
}

bool is_new_number(char32_t c) { return find_in(kNewNumbers, c) != std::end(kNewNumbers); }

bool is_unknown_punctuation(char32_t c) {
  return find_in(kUnknownPunctuation, c) != std::end(kUnknownPunctuation);
}

bool lacks_compatibility_form(char32_t c) {
  return find_in(kNoCompatibilityForm, c) != std::end(kNoCompatibilityForm);
}

bool lacks_canonical_form(char32_t c) { return c == 0x11938; }

char32_t new_lowercase(char32_t c) {
  if (c >= 0x10D50 && c <= 0x10D65) return c + 0x20;
  if (c >= 0x16EA0 && c <= 0x16EB8) return c + 0x1B;
  switch (c) {
    case 0x1C89:
    case 0xA7CC:
    case 0xA7CE:
    case 0xA7D2:
    case 0xA7D4:
    case 0xA7DA:
      return c + 1;
    case 0xA7CB:
      return 0x264;
    case 0xA7DC:
      return 0x19B;
    default:
      return 0;
  }
}

}  // namespace anabatic::io::tokenizer
