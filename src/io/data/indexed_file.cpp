// SPDX-License-Identifier: Apache-2.0
#include "io/data/indexed_file.h"

#include <cctype>
#include <cstring>
#include <limits>
#include <system_error>

#include "base/error.h"

namespace anabatic::io {
namespace {

constexpr char kMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
constexpr std::int64_t kHeaderBytes = 9 + 8 + 1 + 8 + 8;

// Arrays in the index follow a 34-byte header, hence lie unaligned.
template <class T>
T load(std::span<const std::byte> bytes, std::int64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

std::filesystem::path with_suffix(const std::filesystem::path& prefix, const char* suffix) {
  std::filesystem::path path = prefix;
  path += suffix;
  return path;
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

template <class T>
void narrow(std::span<const std::int32_t> ids, std::vector<std::byte>& out) {
  for (const std::int32_t id : ids) {
    const T value = static_cast<T>(id);
    ANABATIC_REQUIRE(static_cast<std::int64_t>(value) == id,
                     "[bin] expected token ids that fit {} bytes, got {}", sizeof(T), id);
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    out.insert(out.end(), bytes, bytes + sizeof(T));
  }
}

}  // namespace

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
    : index_(paths.idx), bin_(File::open(paths.bin)) {
  const std::span<const std::byte> bytes = index_.bytes();
  const std::string path = index_.path().string();
  const auto size = static_cast<std::int64_t>(bytes.size());
  ANABATIC_REQUIRE(size >= kHeaderBytes, "[idx] {}: expected at least {} bytes, got {}", path,
                   kHeaderBytes, size);
  ANABATIC_REQUIRE(std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) == 0,
                   "[idx] {}: expected the magic MMIDIDX, got something else; is it a Megatron "
                   "index?",
                   path);
  const auto version = load<std::uint64_t>(bytes, 9);
  ANABATIC_REQUIRE(version == 1, "[idx] {}: expected version 1, got {}", path, version);
  type_ = checked_type(load<std::uint8_t>(bytes, 17), index_.path());
  const auto sequences = load<std::uint64_t>(bytes, 18);
  const auto indices = load<std::uint64_t>(bytes, 26);
  // Bounding both counts by the file size first keeps the sum below free of overflow.
  const auto limit = static_cast<std::uint64_t>(size);
  ANABATIC_REQUIRE(sequences <= limit / 12 && indices <= limit / 8,
                   "[idx] {}: expected counts that fit {} bytes, got {} sequences and {} document "
                   "indices",
                   path, size, sequences, indices);
  // Sequence modes (one byte each) may follow for multimodal data; they are not read.
  const std::uint64_t expected = kHeaderBytes + sequences * 12 + indices * 8;
  ANABATIC_REQUIRE(limit == expected || limit == expected + sequences,
                   "[idx] {}: expected {} bytes for {} sequences and {} document indices, got {}",
                   path, expected, sequences, indices, size);
  num_sequences_ = static_cast<std::int64_t>(sequences);
  num_document_indices_ = static_cast<std::int64_t>(indices);
  check_sequences();
  check_documents();
}

void IndexedFile::check_sequences() {
  const std::span<const std::byte> bytes = index_.bytes();
  const std::int64_t width = size_bytes(type_);
  const std::int64_t bin_bytes = bin_.size();
  std::int64_t expected = 0;
  for (std::int64_t s = 0; s < num_sequences_; ++s) {
    const auto length = load<std::int32_t>(bytes, kHeaderBytes + 4 * s);
    const auto pointer = load<std::int64_t>(bytes, kHeaderBytes + 4 * num_sequences_ + 8 * s);
    ANABATIC_REQUIRE(length >= 0, "[idx] {}: sequence {} has a negative length {}",
                     index_.path().string(), s, length);
    ANABATIC_REQUIRE(pointer == expected,
                     "[idx] {}: expected sequence {} at byte {} (right after the one before), got "
                     "{}",
                     index_.path().string(), s, expected, pointer);
    expected += length * width;
    ANABATIC_REQUIRE(expected <= bin_bytes,
                     "[idx] {}: sequence {} ends at byte {}, but {} has {} bytes",
                     index_.path().string(), s, expected, bin_.path().string(), bin_bytes);
  }
  ANABATIC_REQUIRE(expected == bin_bytes, "[idx] {}: expected {} of {} bytes, got {}",
                   index_.path().string(), bin_.path().string(), expected, bin_bytes);
  num_tokens_ = expected / width;
}

void IndexedFile::check_documents() {
  if (num_document_indices_ <= 1) {
    num_documents_ = num_sequences_;
    if (num_document_indices_ == 0) return;
  } else {
    num_documents_ = num_document_indices_ - 1;
  }
  const std::int64_t base = kHeaderBytes + 12 * num_sequences_;
  std::int64_t previous = 0;
  for (std::int64_t d = 0; d < num_document_indices_; ++d) {
    const auto sequence = load<std::int64_t>(index_.bytes(), base + 8 * d);
    const bool ok = (d == 0 ? sequence == 0 : sequence >= previous) && sequence <= num_sequences_;
    ANABATIC_REQUIRE(ok,
                     "[idx] {}: expected document indices that rise from 0 to {}, got {} at place "
                     "{}",
                     index_.path().string(), num_sequences_, sequence, d);
    previous = sequence;
  }
  ANABATIC_REQUIRE(num_document_indices_ == 1 || previous == num_sequences_,
                   "[idx] {}: expected document indices that end at {}, got {}",
                   index_.path().string(), num_sequences_, previous);
}

std::int64_t IndexedFile::sequence_begin(std::int64_t sequence) const {
  if (sequence == num_sequences_) return num_tokens_;
  return load<std::int64_t>(index_.bytes(), kHeaderBytes + 4 * num_sequences_ + 8 * sequence) /
         size_bytes(type_);
}

std::int64_t IndexedFile::document_begin(std::int64_t document) const {
  if (num_document_indices_ <= 1) return sequence_begin(document);
  return sequence_begin(
      load<std::int64_t>(index_.bytes(), kHeaderBytes + 12 * num_sequences_ + 8 * document));
}

std::int64_t IndexedFile::document_of(std::int64_t token) const {
  ANABATIC_REQUIRE(token >= 0 && token < num_tokens_,
                   "[idx] {}: expected a token position below {}, got {}", index_.path().string(),
                   num_tokens_, token);
  // The last document that begins at or before the token; empty ones before it begin there too.
  std::int64_t low = 0;
  std::int64_t high = num_documents_;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (document_begin(middle) <= token ? low : high) = middle;
  }
  return low;
}

void IndexedFile::read_raw(std::int64_t begin, std::span<std::byte> out) const {
  const std::int64_t width = size_bytes(type_);
  ANABATIC_CHECK(
      begin >= 0 && begin * width + static_cast<std::int64_t>(out.size()) <= num_tokens_ * width,
      "[bin] read of {} bytes at token {} of {}", out.size(), begin, num_tokens_);
  bin_.read_at(begin * width, out);
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

IndexedFileWriter::IndexedFileWriter(const std::filesystem::path& prefix, TokenType type)
    : prefix_(prefix), type_(type), bin_(File::create(with_suffix(prefix, ".bin.partial"))) {}

IndexedFileWriter::~IndexedFileWriter() {
  if (finished_) return;
  std::error_code ignored;
  std::filesystem::remove(with_suffix(prefix_, ".bin.partial"), ignored);
  std::filesystem::remove(with_suffix(prefix_, ".idx.partial"), ignored);
}

void IndexedFileWriter::append(std::span<const std::int32_t> ids) {
  constexpr std::int64_t kLongest = std::numeric_limits<std::int32_t>::max();
  const auto count = static_cast<std::int64_t>(ids.size());
  ANABATIC_REQUIRE(open_tokens_ + count <= kLongest,
                   "[bin] {}: document {} is longer than {} tokens, the most that an index can "
                   "hold",
                   prefix_.string(), lengths_.size(), kLongest);
  switch (type_) {
    case TokenType::kUint8:
      narrow<std::uint8_t>(ids, buffer_);
      break;
    case TokenType::kInt8:
      narrow<std::int8_t>(ids, buffer_);
      break;
    case TokenType::kInt16:
      narrow<std::int16_t>(ids, buffer_);
      break;
    case TokenType::kInt32:
      narrow<std::int32_t>(ids, buffer_);
      break;
    case TokenType::kInt64:
      narrow<std::int64_t>(ids, buffer_);
      break;
    case TokenType::kUint16:
      narrow<std::uint16_t>(ids, buffer_);
      break;
  }
  open_tokens_ += count;
  num_tokens_ += count;
  if (buffer_.size() >= (std::size_t{1} << 20)) flush();
}

void IndexedFileWriter::end_document() {
  lengths_.push_back(static_cast<std::int32_t>(open_tokens_));
  open_tokens_ = 0;
}

void IndexedFileWriter::flush() {
  bin_.write(buffer_);
  buffer_.clear();
}

void IndexedFileWriter::write_index() {
  const File index = File::create(with_suffix(prefix_, ".idx.partial"));
  const auto put = [&]<class T>(T value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    buffer_.insert(buffer_.end(), bytes, bytes + sizeof(T));
    if (buffer_.size() >= (std::size_t{1} << 20)) {
      index.write(buffer_);
      buffer_.clear();
    }
  };
  for (const char c : kMagic) put(c);
  const auto count = static_cast<std::uint64_t>(lengths_.size());
  put(std::uint64_t{1});
  put(static_cast<std::uint8_t>(type_));
  put(count);
  put(count + 1);
  for (const std::int32_t length : lengths_) put(length);
  std::int64_t pointer = 0;
  for (const std::int32_t length : lengths_) {
    put(pointer);
    pointer += length * size_bytes(type_);
  }
  for (std::uint64_t d = 0; d <= count; ++d) put(static_cast<std::int64_t>(d));
  index.write(buffer_);
  buffer_.clear();
  index.sync();
}

void IndexedFileWriter::finish() {
  ANABATIC_CHECK(open_tokens_ == 0, "[bin] {} tokens of a document that was not ended",
                 open_tokens_);
  flush();
  bin_.sync();
  write_index();
  // An index never stands beside a .bin that is not its own.
  std::filesystem::remove(with_suffix(prefix_, ".idx"));
  std::filesystem::rename(with_suffix(prefix_, ".bin.partial"), with_suffix(prefix_, ".bin"));
  std::filesystem::rename(with_suffix(prefix_, ".idx.partial"), with_suffix(prefix_, ".idx"));
  finished_ = true;
  const std::filesystem::path folder = prefix_.parent_path();
  sync_directory(folder.empty() ? std::filesystem::path(".") : folder);
}

}  // namespace anabatic::io
