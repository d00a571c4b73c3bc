// SPDX-License-Identifier: Apache-2.0
#include "io/data/chunks.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/error.h"

namespace anabatic::io {
namespace {

const utf8proc_uint8_t* bytes_of(std::string_view text) {
  return reinterpret_cast<const utf8proc_uint8_t*>(text.data());
}

// The code point at `position`, or -1 if the bytes there are no valid UTF-8.
utf8proc_int32_t code_point_at(std::string_view text, std::size_t position) {
  utf8proc_int32_t code = -1;
  const std::string_view rest = text.substr(position, 4);
  utf8proc_iterate(bytes_of(rest), static_cast<utf8proc_ssize_t>(rest.size()), &code);
  return code;
}

utf8proc_int32_t code_point_before(std::string_view text, std::size_t position) {
  for (std::size_t length = 1; length <= 4 && length <= position; ++length) {
    const auto byte = static_cast<unsigned char>(text[position - length]);
    if ((byte & 0xC0) == 0x80) continue;
    utf8proc_int32_t code = -1;
    const auto used = utf8proc_iterate(bytes_of(text) + position - length,
                                       static_cast<utf8proc_ssize_t>(length), &code);
    return used == static_cast<utf8proc_ssize_t>(length) ? code : -1;
  }
  return -1;
}

bool is_unicode_space(utf8proc_int32_t code) {
  if ((code >= 0x09 && code <= 0x0D) || code == 0x85) return true;
  const utf8proc_category_t category = utf8proc_category(code);
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
         category == UTF8PROC_CATEGORY_ZP;
}

bool is_letter_or_number(utf8proc_int32_t code) {
  const utf8proc_category_t category = utf8proc_category(code);
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) ||
         (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
}

// `place` > 0 follows a newline.
bool is_safe(std::string_view text, std::size_t place) {
  const utf8proc_int32_t before = code_point_before(text, place - 1);
  if (before < 0 || is_unicode_space(before)) return false;
  const utf8proc_int32_t after = code_point_at(text, place);
  return after >= 0 && is_letter_or_number(after);
}

std::size_t last_resort(std::string_view window, std::size_t first, std::size_t limit) {
  for (std::size_t i = first; i < limit; ++i) {
    if (window[i - 1] == '\n' && window[i] != '\n') return i;
  }
  std::size_t place = limit;
  while (place > limit - 3 && (static_cast<unsigned char>(window[place]) & 0xC0) == 0x80) --place;
  return place;
}

}  // namespace

std::optional<std::size_t> next_chunk(std::string_view window, std::int64_t window_begin,
                                      bool at_end) {
  // The next multiple of kChunkBytes, as an offset in the window.
  const auto first = static_cast<std::size_t>(kChunkBytes - window_begin % kChunkBytes);
  const std::size_t limit = first + static_cast<std::size_t>(kMaxChunkBytes - kChunkBytes);
  // A place is judged only when the four bytes after it are there, or the end is.
  const std::size_t known =
      at_end ? window.size() : window.size() - std::min<std::size_t>(window.size(), 4);
  std::size_t place = first;
  while (place < std::min(known, limit)) {
    const std::size_t newline = window.find('\n', place - 1);
    if (newline == std::string_view::npos) break;
    place = newline + 1;
    if (place >= std::min(known, limit)) break;
    if (is_safe(window, place)) return place;
    ++place;
  }
  if (known > limit) return last_resort(window, first, limit);
  return at_end ? std::optional(window.size()) : std::nullopt;
}

bool TextChunkReader::fill() { return append_part(source_, buffer_) == kPartBytes; }

bool TextChunkReader::next(std::string& chunk) {
  if (done_) return false;
  bool more = fill();
  std::optional<std::size_t> length;
  while (!(length = next_chunk(buffer_, begin_, !more))) more = fill();
  done_ = !more && *length == buffer_.size();
  chunk.assign(buffer_, 0, *length);
  buffer_.erase(0, *length);
  begin_ += static_cast<std::int64_t>(*length);
  return true;
}

}  // namespace anabatic::io
