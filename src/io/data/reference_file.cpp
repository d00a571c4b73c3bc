// SPDX-License-Identifier: Apache-2.0
#include "io/data/reference_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <system_error>

#include "base/error.h"
#include "io/crc32c.h"

namespace anabatic::io {
namespace {

constexpr std::array kReferenceMagic = {'A', 'N', 'B', 'R', 'E', 'F', 'R', '1'};

struct ReferenceHeader {
  std::array<char, 8> magic = kReferenceMagic;
  std::uint64_t num_tokens = 0;
  std::array<char, 32> key{};
  std::uint32_t crc = 0, zero = 0;
};
static_assert(sizeof(ReferenceHeader) == 56);

ReferenceHeader header_of(const std::string& key, std::int64_t num_tokens, std::uint32_t crc) {
  ReferenceHeader header{.num_tokens = static_cast<std::uint64_t>(num_tokens)};
  ANABATIC_CHECK(key.size() == header.key.size(), "[reference] key '{}'", key);
  std::ranges::copy(key, header.key.begin());
  header.crc = crc;
  return header;
}

}  // namespace

std::filesystem::path ReferenceFile::path_of(const IndexedFile& tokens) {
  return std::filesystem::path(tokens.bin_path()).replace_extension(".reference");
}

std::optional<ReferenceFile> ReferenceFile::find(const std::filesystem::path& path,
                                                 const std::string& key, std::int64_t num_tokens) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  ReferenceFile found;
  found.file_ = MappedFile(path);
  const std::span<const std::byte> bytes = found.file_.bytes();
  if (bytes.size() !=
      sizeof(ReferenceHeader) + static_cast<std::size_t>(num_tokens) * sizeof(float))
    return std::nullopt;
  const std::span<const std::byte> values = bytes.subspan(sizeof(ReferenceHeader));
  const ReferenceHeader wanted = header_of(key, num_tokens, crc32c(values));
  if (std::memcmp(bytes.data(), &wanted, sizeof wanted) != 0) return std::nullopt;
  found.values_ = {reinterpret_cast<const float*>(values.data()),
                   static_cast<std::size_t>(num_tokens)};
  return found;
}

void ReferenceFile::read(std::int64_t begin, std::span<float> values) const {
  std::ranges::copy(values_.subspan(static_cast<std::size_t>(begin), values.size()),
                    values.begin());
}

ReferenceFileWriter::ReferenceFileWriter(const std::filesystem::path& path, std::string key,
                                         std::int64_t num_tokens)
    : path_(path), key_(std::move(key)), num_tokens_(num_tokens), file_(File::create(partial())) {
  file_.resize(static_cast<std::int64_t>(sizeof(ReferenceHeader)) +
               num_tokens * std::int64_t{sizeof(float)});
}

ReferenceFileWriter::~ReferenceFileWriter() {
  if (finished_) return;
  std::error_code ignored;
  std::filesystem::remove(partial(), ignored);
}

std::filesystem::path ReferenceFileWriter::partial() const {
  return std::filesystem::path(path_) += ".partial";
}

void ReferenceFileWriter::write(std::int64_t begin, std::span<const float> values) const {
  file_.write_at(
      static_cast<std::int64_t>(sizeof(ReferenceHeader)) + begin * std::int64_t{sizeof(float)},
      std::as_bytes(values));
}

void ReferenceFileWriter::finish() {
  const std::uint32_t crc = [&] {
    const MappedFile written(partial());
    return crc32c(written.bytes().subspan(sizeof(ReferenceHeader)));
  }();
  const ReferenceHeader header = header_of(key_, num_tokens_, crc);
  file_.write_at(0, std::as_bytes(std::span(&header, 1)));
  file_.sync();
  file_.close();
  rename_file(partial(), path_);
  finished_ = true;
}

}  // namespace anabatic::io
