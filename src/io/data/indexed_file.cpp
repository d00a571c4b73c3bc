// SPDX-License-Identifier: Apache-2.0
#include "io/data/indexed_file.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>

#include "base/error.h"

namespace anabatic::io {
namespace {

constexpr std::int64_t kHeaderBytes = 9 + 8 + 1 + 8 + 8;
constexpr std::int64_t kMarkDocuments = 512;
constexpr std::int64_t kBlockEntries = std::int64_t{1} << 16;  // of an array of the index

// Arrays in the index follow a 34-byte header, hence lie unaligned.
template <class T>
T load(std::span<const std::byte> bytes, std::int64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// body(first, count) for consecutive blocks of [0, total).
template <class Body>
void for_blocks(std::int64_t total, const Body& body) {
  for (std::int64_t first = 0; first < total; first += kBlockEntries)
    body(first, std::min(kBlockEntries, total - first));
}

std::vector<std::byte> read_entries(const PairPool::Pin& pin, std::int64_t array,
                                    std::int64_t first, std::int64_t count, std::int64_t width) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count * width));
  pin.read_idx(array + first * width, bytes);
  return bytes;
}

TokenType checked_type(std::uint8_t code, const std::filesystem::path& path) {
  switch (code) {
    case 1:
    case 2:
    case 3:
    case 4:
    case 5:
    case 8:
      return static_cast<TokenType>(code);
    default:
      throw InvalidArgument(
          fmt::format("[idx] {}: expected an integer dtype code (1, 2, 3, 4, 5 or 8), got {}",
                      path.string(), code));
  }
}

template <class T>
void widen(std::span<const std::byte> raw, std::span<std::int64_t> ids) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = load<T>(raw, static_cast<std::int64_t>(i * sizeof(T)));
  }
}

}  // namespace

std::filesystem::path with_suffix(const std::filesystem::path& prefix, const char* suffix) {
  std::filesystem::path path = prefix;
  path += suffix;
  return path;
}

std::int64_t size_bytes(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
    case TokenType::kInt8:
      return 1;
    case TokenType::kInt16:
    case TokenType::kUint16:
      return 2;
    case TokenType::kInt32:
      return 4;
    case TokenType::kInt64:
      return 8;
  }
  throw InvalidArgument("[bin] unknown token type");
}

TokenType token_type_for(std::int64_t vocab_size) {
  return vocab_size < 65500 ? TokenType::kUint16 : TokenType::kInt32;
}

std::optional<IndexedPaths> indexed_pair(const std::filesystem::path& path) {
  std::string suffix = path.extension().string();
  for (char& byte : suffix)
    byte = static_cast<char>(std::tolower(static_cast<unsigned char>(byte)));
  std::filesystem::path prefix = path;
  if (suffix == ".bin" || suffix == ".idx")
    prefix = path.parent_path() / path.stem();
  else if (std::filesystem::is_regular_file(path))
    return std::nullopt;
  const auto find = [&](const char* lower, const char* upper) {
    if (path.extension() != lower && suffix == lower && std::filesystem::is_regular_file(path))
      return path;
    const std::filesystem::path named = with_suffix(prefix, lower);
    return std::filesystem::is_regular_file(named) ? named : with_suffix(prefix, upper);
  };
  IndexedPaths paths{find(".bin", ".BIN"), find(".idx", ".IDX")};
  if (std::filesystem::is_regular_file(paths.bin) && std::filesystem::is_regular_file(paths.idx))
    return paths;
  return std::nullopt;
}

IndexedFile::IndexedFile(const std::filesystem::path& prefix)
    : IndexedFile(IndexedPaths{with_suffix(prefix, ".bin"), with_suffix(prefix, ".idx")}) {}

IndexedFile::IndexedFile(const IndexedPaths& paths)
    : pair_(new PooledPair{.bin = paths.bin, .idx = paths.idx}) {
  PairPool::stamp(*pair_);
  read_header();
  check_sequences();
  check_documents();
  mark_documents();
}

void IndexedFile::read_header() {
  const std::string path = pair_->idx.string();
  const std::int64_t size = pair_->idx_stamp.bytes;
  ANABATIC_REQUIRE(size >= kHeaderBytes, "[idx] {}: expected at least {} bytes, got {}", path,
                   kHeaderBytes, size);
  std::array<std::byte, kHeaderBytes> bytes;
  PairPool::Pin(PairPool::instance(), *pair_).read_idx(0, bytes);
  ANABATIC_REQUIRE(std::memcmp(bytes.data(), kIndexMagic.data(), kIndexMagic.size()) == 0,
                   "[idx] {}: expected the magic MMIDIDX, got something else; is it a Megatron "
                   "index?",
                   path);
  const auto version = load<std::uint64_t>(bytes, 9);
  ANABATIC_REQUIRE(version == 1, "[idx] {}: expected version 1, got {}", path, version);
  type_ = checked_type(load<std::uint8_t>(bytes, 17), pair_->idx);
  const auto sequences = load<std::uint64_t>(bytes, 18);
  const auto indices = load<std::uint64_t>(bytes, 26);
  // Bounding both counts by the file size first keeps the sum below free of overflow.
  const auto limit = static_cast<std::uint64_t>(size);
  ANABATIC_REQUIRE(sequences <= limit / 12 && indices <= limit / 8,
                   "[idx] {}: expected counts that fit {} bytes, got {} sequences and {} document "
                   "indices",
                   path, size, sequences, indices);
  // Sequence modes (one byte each) may follow for multimodal data; they are not read.
  const std::uint64_t needed =
      static_cast<std::uint64_t>(kHeaderBytes) + 12 * sequences + 8 * indices;
  ANABATIC_REQUIRE(needed <= limit, "[idx] {}: expected {} bytes for {} sequences, got {}", path,
                   needed, sequences, size);
  num_sequences_ = static_cast<std::int64_t>(sequences);
  num_document_indices_ = static_cast<std::int64_t>(indices);
}

void IndexedFile::check_sequences() {
  const PairPool::Pin pin(PairPool::instance(), *pair_);
  const std::int64_t width = size_bytes(type_);
  const std::int64_t bin_bytes = pair_->bin_stamp.bytes;
  std::int64_t expected = 0;
  for_blocks(num_sequences_, [&](std::int64_t first, std::int64_t count) {
    const std::vector<std::byte> lengths = read_entries(pin, kHeaderBytes, first, count, 4),
                                 pointers = read_entries(pin, kHeaderBytes + 4 * num_sequences_,
                                                         first, count, 8);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto length = load<std::int32_t>(lengths, 4 * i);
      const auto pointer = load<std::int64_t>(pointers, 8 * i);
      ANABATIC_REQUIRE(length >= 0, "[idx] {}: sequence {} has a negative length {}",
                       pair_->idx.string(), first + i, length);
      ANABATIC_REQUIRE(pointer == expected,
                       "[idx] {}: expected sequence {} at byte {} (right after the one before), "
                       "got {}",
                       pair_->idx.string(), first + i, expected, pointer);
      expected += length * width;
      ANABATIC_REQUIRE(expected <= bin_bytes,
                       "[idx] {}: sequence {} ends at byte {}, but {} has {} bytes",
                       pair_->idx.string(), first + i, expected, pair_->bin.string(), bin_bytes);
    }
  });
  ANABATIC_REQUIRE(expected == bin_bytes, "[idx] {}: expected {} of {} bytes, got {}",
                   pair_->idx.string(), pair_->bin.string(), expected, bin_bytes);
  num_tokens_ = expected / width;
}

void IndexedFile::check_documents() {
  num_documents_ = num_document_indices_ <= 1 ? num_sequences_ : num_document_indices_ - 1;
  if (num_document_indices_ == 0) return;
  const PairPool::Pin pin(PairPool::instance(), *pair_);
  std::int64_t previous = 0;
  bool is_same = true;
  for_blocks(num_document_indices_, [&](std::int64_t first, std::int64_t count) {
    const std::vector<std::byte> indices =
        read_entries(pin, kHeaderBytes + 12 * num_sequences_, first, count, 8);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t d = first + i;
      const auto sequence = load<std::int64_t>(indices, 8 * i);
      const bool ok = (d == 0 ? sequence == 0 : sequence >= previous) && sequence <= num_sequences_;
      ANABATIC_REQUIRE(ok,
                       "[idx] {}: expected document indices that rise from 0 to {}, got {} at "
                       "place {}",
                       pair_->idx.string(), num_sequences_, sequence, d);
      is_same = is_same && sequence == d;
      previous = sequence;
    }
  });
  ANABATIC_REQUIRE(num_document_indices_ == 1 || previous == num_sequences_,
                   "[idx] {}: expected document indices that end at {}, got {}",
                   pair_->idx.string(), num_sequences_, previous);
  is_document_a_sequence_ = num_document_indices_ == 1 || is_same;
}

void IndexedFile::mark_documents() {
  marks_.reserve(static_cast<std::size_t>(num_documents_ / kMarkDocuments + 1));
  for (std::int64_t d = 0; d < num_documents_; d += kMarkDocuments)
    marks_.push_back(document_begin(d));
}

std::int64_t IndexedFile::document_begin(std::int64_t document) const {
  std::int64_t begin = 0;
  document_begins(document, std::span(&begin, 1));
  return begin;
}

void IndexedFile::document_begins(std::int64_t first, std::span<std::int64_t> begins) const {
  const PairPool::Pin pin(PairPool::instance(), *pair_);
  const auto read_numbers = [&](std::int64_t array, std::int64_t place,
                                std::span<std::int64_t> numbers) {
    pin.read_idx(array + 8 * place, std::as_writable_bytes(numbers));
  };
  const std::int64_t pointers = kHeaderBytes + 4 * num_sequences_;
  const std::int64_t width = size_bytes(type_);
  if (is_document_a_sequence_) {
    // The position after the last document has no pointer.
    const auto stored = static_cast<std::size_t>(
        std::clamp<std::int64_t>(num_documents_ - first, 0, std::ssize(begins)));
    if (stored > 0) read_numbers(pointers, first, begins.first(stored));
    for (std::int64_t& begin : begins.first(stored)) begin /= width;
    std::ranges::fill(begins.subspan(stored), num_tokens_);
    return;
  }
  read_numbers(kHeaderBytes + 12 * num_sequences_, first, begins);
  for (std::int64_t& begin : begins) {
    const std::int64_t sequence = begin;
    begin = num_tokens_ * width;
    if (sequence < num_sequences_) read_numbers(pointers, sequence, std::span(&begin, 1));
    begin /= width;
  }
}

std::int64_t IndexedFile::document_of(std::int64_t token) const {
  ANABATIC_REQUIRE(token >= 0 && token < num_tokens_,
                   "[idx] {}: expected a token position below {}, got {}", pair_->idx.string(),
                   num_tokens_, token);
  // The last document that begins at or before the token; empty ones before it begin there too.
  const std::int64_t mark = std::ranges::upper_bound(marks_, token) - marks_.begin() - 1;
  const std::int64_t first = mark * kMarkDocuments;
  std::array<std::int64_t, kMarkDocuments> buffer;
  const std::span begins = std::span(buffer).first(
      static_cast<std::size_t>(std::min(kMarkDocuments, num_documents_ - first)));
  document_begins(first, begins);
  return first + (std::ranges::upper_bound(begins, token) - begins.begin()) - 1;
}

void IndexedFile::read_raw(std::int64_t begin, std::span<std::byte> out) const {
  const std::int64_t width = size_bytes(type_);
  ANABATIC_CHECK(
      begin >= 0 && begin * width + static_cast<std::int64_t>(out.size()) <= num_tokens_ * width,
      "[bin] read of {} bytes at token {} of {}", out.size(), begin, num_tokens_);
  PairPool::Pin(PairPool::instance(), *pair_).read_bin(begin * width, out);
}

void IndexedFile::read(std::int64_t begin, std::span<std::int64_t> ids,
                       std::span<std::byte> scratch) const {
  const std::span<std::byte> raw =
      scratch.first(ids.size() * static_cast<std::size_t>(size_bytes(type_)));
  read_raw(begin, raw);
  switch (type_) {
    case TokenType::kUint8:
      return widen<std::uint8_t>(raw, ids);
    case TokenType::kInt8:
      return widen<std::int8_t>(raw, ids);
    case TokenType::kInt16:
      return widen<std::int16_t>(raw, ids);
    case TokenType::kInt32:
      return widen<std::int32_t>(raw, ids);
    case TokenType::kInt64:
      return widen<std::int64_t>(raw, ids);
    case TokenType::kUint16:
      return widen<std::uint16_t>(raw, ids);
  }
}

}  // namespace anabatic::io
