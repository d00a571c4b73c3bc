// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <limits>
#include <system_error>

#include "base/error.h"
#include "io/data/indexed_file.h"

namespace anabatic::io {
namespace {

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

IndexedFileWriter::IndexedFileWriter(const std::filesystem::path& prefix, TokenType type,
                                     bool is_durable)
    : prefix_(prefix),
      type_(type),
      is_durable_(is_durable),
      bin_(File::create(with_suffix(prefix, ".bin.partial"))) {}

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
  File index = File::create(with_suffix(prefix_, ".idx.partial"));
  const auto put = [&]<class T>(T value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    buffer_.insert(buffer_.end(), bytes, bytes + sizeof(T));
    if (buffer_.size() >= (std::size_t{1} << 20)) {
      index.write(buffer_);
      buffer_.clear();
    }
  };
  for (const char c : kIndexMagic) put(c);
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
  if (is_durable_) index.sync();
  index.close();
}

void IndexedFileWriter::finish() {
  ANABATIC_CHECK(open_tokens_ == 0, "[bin] {} tokens of a document that was not ended",
                 open_tokens_);
  flush();
  if (is_durable_) bin_.sync();
  bin_.close();
  write_index();
  // An index must never be next to the .bin of another write.
  std::filesystem::remove(with_suffix(prefix_, ".idx"));
  rename_file(with_suffix(prefix_, ".bin.partial"), with_suffix(prefix_, ".bin"));
  rename_file(with_suffix(prefix_, ".idx.partial"), with_suffix(prefix_, ".idx"));
  finished_ = true;
  if (!is_durable_) return;
  const std::filesystem::path folder = prefix_.parent_path();
  sync_directory(folder.empty() ? std::filesystem::path(".") : folder);
}

}  // namespace anabatic::io
