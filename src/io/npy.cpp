// SPDX-License-Identifier: Apache-2.0
#include "io/npy.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "base/text.h"

namespace anabatic::io {
namespace {

constexpr std::string_view kNpyMagic = "\x93NUMPY";
constexpr std::int64_t kMostNpyBytes = std::int64_t{1} << 31;

// The header's dictionary, as Python writes it: {'descr': '|b1', 'fortran_order': False, 'shape':
// (4, 4), }.
class NpyHeader {
 public:
  NpyHeader(std::string_view text, std::string_view place) : rest_(text), place_(place) {
    expect("{");
    while (!take("}")) {
      const std::string_view key = quoted();
      expect(":");
      if (key == "descr" && !descr_) {
        descr_ = quoted();
      } else if (key == "fortran_order" && !is_fortran_) {
        is_fortran_ = take("True");
        if (!*is_fortran_) expect("False");
      } else if (key == "shape" && !shape_) {
        read_shape();
      } else {
        refuse();
      }
      if (!take(",")) {
        expect("}");
        break;
      }
    }
    skip_spaces();
    if (!rest_.empty() || !descr_ || !is_fortran_ || !shape_) refuse();
  }

  std::string_view descr() const { return *descr_; }
  bool is_fortran() const { return *is_fortran_; }
  const std::vector<std::int64_t>& shape() const { return *shape_; }

 private:
  [[noreturn]] void refuse() const {
    throw InvalidArgument(fmt::format(
        "{}: expected a header of descr, fortran_order and shape, got another", place_));
  }
  void skip_spaces() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\n'))
      rest_.remove_prefix(1);
  }
  bool take(std::string_view word) {
    skip_spaces();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  void expect(std::string_view word) {
    if (!take(word)) refuse();
  }
  std::string_view quoted() {
    skip_spaces();
    if (rest_.empty() || (rest_.front() != '\'' && rest_.front() != '"')) refuse();
    const std::size_t end = rest_.find(rest_.front(), 1);
    if (end == std::string_view::npos) refuse();
    const std::string_view text = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return text;
  }
  void read_shape() {
    shape_.emplace();
    expect("(");
    while (!take(")")) {
      std::int64_t size = 0;
      skip_spaces();
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), size);
      if (error != std::errc{} || size < 0) refuse();
      rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
      shape_->push_back(size);
      if (!take(",")) {
        expect(")");
        break;
      }
    }
  }

  std::string_view rest_, place_;
  std::optional<std::string_view> descr_;
  std::optional<bool> is_fortran_;
  std::optional<std::vector<std::int64_t>> shape_;
};

}  // namespace

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

BoolArray parse_npy_bool(std::string_view bytes, std::string_view place) {
  const auto byte = [&](std::size_t i) {
    return static_cast<std::size_t>(static_cast<unsigned char>(bytes[i]));
  };
  ANABATIC_REQUIRE(
      bytes.size() >= 10 && bytes.starts_with(kNpyMagic) && byte(6) >= 1 && byte(6) <= 3,
      "{}: expected a .npy file, got other bytes", place);
  const std::size_t begin = byte(6) == 1 ? 10 : 12;
  ANABATIC_REQUIRE(bytes.size() >= begin, "{}: ends within its header", place);
  std::size_t length = byte(8) + (byte(9) << 8);
  if (begin == 12) length += (byte(10) << 16) + (byte(11) << 24);
  ANABATIC_REQUIRE(length <= bytes.size() - begin, "{}: ends within its header", place);
  const NpyHeader header(bytes.substr(begin, length), place);
  ANABATIC_REQUIRE(header.descr() == "|b1" || header.descr() == "?",
                   "{}: expected dtype bool (|b1), got {}", place, header.descr());
  ANABATIC_REQUIRE(!header.is_fortran(), "{}: expected row-major order, got fortran_order", place);
  BoolArray array{.shape = header.shape(), .values = {}};
  const std::string_view data = bytes.substr(begin + length);
  const auto size = static_cast<std::int64_t>(data.size());
  std::int64_t count = 1;
  for (const std::int64_t dim : array.shape) {
    ANABATIC_REQUIRE(dim == 0 || count <= kMostNpyBytes / dim,
                     "{}: expected at most {} elements, got shape {}", place, kMostNpyBytes,
                     shape_text(array.shape));
    count *= dim;
  }
  ANABATIC_REQUIRE(count == size, "{}: expected {} bytes of shape {}, got {}", place, count,
                   shape_text(array.shape), size);
  array.values.assign(data.begin(), data.end());
  ANABATIC_REQUIRE(
      std::all_of(array.values.begin(), array.values.end(), [](auto value) { return value <= 1; }),
      "{}: expected bytes of 0 and 1, got others", place);
  return array;
}

BoolArray read_npy_bool(const std::filesystem::path& path) {
  return parse_npy_bool(read_file(path, kMostNpyBytes), path.string());
}

std::string to_npy(const BoolArray& array) {
  std::string shape = fmt::format("{}", fmt::join(array.shape, ", "));
  if (array.shape.size() == 1) shape += ",";
  std::string header =
      fmt::format("{{'descr': '|b1', 'fortran_order': False, 'shape': ({}), }}", shape);
  constexpr std::size_t kPrefix = 10, kAlignment = 64;  // of the data
  while ((kPrefix + header.size() + 1) % kAlignment != 0) header += ' ';
  header += '\n';
  std::string bytes(kNpyMagic);
  bytes += '\x01';
  bytes += '\0';
  bytes += static_cast<char>(header.size() & 0xFF);
  bytes += static_cast<char>(header.size() >> 8);
  bytes += header;
  bytes.append(array.values.begin(), array.values.end());
  return bytes;
}

}  // namespace anabatic::io
