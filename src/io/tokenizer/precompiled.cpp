// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/precompiled.h"

#include <cstring>

#include "base/base64.h"
#include "base/error.h"
#include "io/tokenizer/graphemes.h"
#include "io/tokenizer/tokenizer.h"
#include "io/tokenizer/unicode.h"

namespace anabatic::io::tokenizer {
namespace {

// So that a damaged map cannot blow a text up.
constexpr std::size_t kLongestReplacement_bytes = 1024;

std::string decode_field(const JsonNode& node) {
  auto bytes = decode_base64(node.as_string());
  if (!bytes) node.refuse("base64");
  return std::move(*bytes);
}

}  // namespace

CharacterMap::CharacterMap(std::string_view blob, const std::string& place) {
  std::uint32_t num_bytes = 0;
  if (blob.size() >= sizeof num_bytes) std::memcpy(&num_bytes, blob.data(), sizeof num_bytes);
  if (num_bytes < 4 || num_bytes % 4 != 0 || num_bytes > blob.size() - 4) {
    throw InvalidArgument(
        fmt::format("{}: expected the size of a trie, a multiple of 4 that {} bytes hold, got {}",
                    place, blob.size() < 4 ? 0 : blob.size() - 4, num_bytes));
  }
  units_.resize(num_bytes / 4);
  std::memcpy(units_.data(), blob.data() + 4, num_bytes);
  replacements_ = blob.substr(4 + num_bytes);
  if (const auto bad = find_invalid_utf8(replacements_)) {
    throw InvalidArgument(fmt::format("{}: expected replacements in UTF-8, got the byte 0x{:02X}",
                                      place, static_cast<unsigned char>(replacements_[*bad])));
  }
  check(place);
}

// Every leaf that a search can end at has a replacement.
void CharacterMap::check(const std::string& place) const {
  std::vector<bool> is_seen(units_.size());
  std::vector<std::uint32_t> open{offset(units_[0])};
  while (!open.empty()) {
    const std::uint32_t base = open.back();
    open.pop_back();
    for (std::uint32_t byte = 1; byte < 256; ++byte) {
      const std::uint32_t at = base ^ byte;
      if (at >= units_.size() || is_seen[at] || label(units_[at]) != byte) continue;
      is_seen[at] = true;
      const std::uint32_t next = at ^ offset(units_[at]);
      if (has_leaf(units_[at]))
        check_leaf(next, place);
      else
        open.push_back(next);
    }
  }
}

void CharacterMap::check_leaf(std::uint32_t at, const std::string& place) const {
  const std::uint32_t value = at < units_.size() ? units_[at] & 0x7FFFFFFFu : 0;
  const bool starts_character = value < replacements_.size() &&
                                (static_cast<unsigned char>(replacements_[value]) & 0xC0) != 0x80;
  if (at < units_.size() && starts_character &&
      std::strlen(replacements_.c_str() + value) <= kLongestReplacement_bytes)
    return;
  throw InvalidArgument(fmt::format(
      "{}: expected leaves of the trie that point at replacements of at most {} bytes among the {} "
      "bytes of them, got {} at unit {} of {}",
      place, kLongestReplacement_bytes, replacements_.size(), value, at, units_.size()));
}

bool CharacterMap::find_shortest(std::string_view text, std::string_view& replacement) const {
  std::uint32_t at = offset(units_[0]);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    at ^= byte;
    if (byte == 0 || at >= units_.size() || label(units_[at]) != byte) return false;
    const std::uint32_t unit = units_[at];
    at ^= offset(unit);
    if (!has_leaf(unit)) continue;
    replacement = replacements_.c_str() + (units_[at] & 0x7FFFFFFFu);
    return true;
  }
  return false;
}

Precompiled::Precompiled(const JsonNode& node)
    : map_(decode_field(node.at("precompiled_charsmap")), node.at("precompiled_charsmap").place()) {
  std::string_view replacement;
  for (std::size_t i = 0; i < is_kept_.size(); ++i) {
    const char c = static_cast<char>(i);
    is_kept_[i] = !map_.find_shortest({&c, 1}, replacement);
  }
}

// Clusters of at most five bytes are looked up as a whole first, as Hugging Face does.
void Precompiled::append_mapped(std::string_view cluster, std::string& result) const {
  constexpr std::size_t kLongestWhole = 5;
  std::string_view replacement;
  if (cluster.size() <= kLongestWhole && map_.find_shortest(cluster, replacement)) {
    result += replacement;
    return;
  }
  for (std::size_t at = 0; at < cluster.size();) {
    const std::string_view character =
        cluster.substr(at, utf8_length(static_cast<unsigned char>(cluster[at])));
    result += map_.find_shortest(character, replacement) ? replacement : character;
    at += character.size();
  }
}

void Precompiled::apply(std::string& text) const {
  std::string result;
  result.reserve(text.size() + text.size() / 8);
  const auto is_ascii = [&](std::size_t i) {
    return (static_cast<unsigned char>(text[i]) & 0x80) == 0;
  };
  // Of ASCII characters only CR and LF make a cluster.
  const auto stands_alone = [&](std::size_t i) {
    return is_ascii(i) && text[i] != '\r' && (i + 1 == text.size() || is_ascii(i + 1));
  };
  const std::string_view all = text;
  for (std::size_t at = 0, end = 0; at < text.size(); at = end) {
    while (end < text.size() && stands_alone(end) && is_kept_[static_cast<std::size_t>(text[end])])
      ++end;
    result += all.substr(at, end - at);
    if (end == text.size()) break;
    at = end;
    end = stands_alone(at) ? at + 1 : grapheme_end(text, at);
    append_mapped(all.substr(at, end - at), result);
  }
  text = std::move(result);
}

}  // namespace anabatic::io::tokenizer
