// SPDX-License-Identifier: Apache-2.0
#include "io/data/fingerprint.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/rounding.h"
#include "io/data/indexed_file.h"
#include "io/file.h"
#include "io/parallel.h"

namespace anabatic::io {
namespace {

constexpr std::int64_t kWholeBytes = std::int64_t{4} << 20;  // hashed whole up to this size
constexpr std::int64_t kEndBytes = std::int64_t{64} << 10;   // of head and tail
constexpr std::int64_t kSampleBytes = 4096;
constexpr std::int64_t kSamples = 256;
constexpr std::int64_t kBlockBytes = std::int64_t{4} << 20;  // part of the definition of the hash
constexpr std::int64_t kHashedBytes = std::int64_t{1} << 20;

class Hash {
 public:
  Hash() : state_(XXH3_createState(), XXH3_freeState) { XXH3_128bits_reset(state_.get()); }

  void add(std::span<const std::byte> bytes) {
    XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
  }
  void add(const File& file, std::int64_t begin, std::int64_t count) {
    buffer_.resize(static_cast<std::size_t>(std::min(count, kHashedBytes)));
    for (std::int64_t done = 0; done < count;) {
      const auto part = std::span(buffer_).first(static_cast<std::size_t>(
          std::min<std::int64_t>(count - done, static_cast<std::int64_t>(buffer_.size()))));
      file.read_at(begin + done, part);
      add(part);
      done += static_cast<std::int64_t>(part.size());
    }
  }
  XXH128_hash_t value() const { return XXH3_128bits_digest(state_.get()); }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
  std::vector<std::byte> buffer_;
};

std::string hexadecimal(const XXH128_hash_t& hash) {
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

// Opening a pipe waits for its other end, so its kind is looked at first.
File open_regular(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    throw ResourceError(
        fmt::format("[data] {}: expected a file, got a folder, pipe or device", path.string()));
  return File::open(path);
}

}  // namespace

FileFingerprint fingerprint(const std::filesystem::path& path) {
  const File file = open_regular(path);
  const std::int64_t size = file.size();
  Hash hash;
  hash.add(std::as_bytes(std::span(&size, 1)));
  if (size <= kWholeBytes) {
    hash.add(file, 0, size);
  } else {
    hash.add(file, 0, kEndBytes);
    const std::int64_t between = size - 2 * kEndBytes - kSampleBytes;
    for (std::int64_t i = 0; i < kSamples; ++i)
      hash.add(file, kEndBytes + between / kSamples * i, kSampleBytes);
    hash.add(file, size - kEndBytes, kEndBytes);
  }
  return {path, size, hexadecimal(hash.value())};
}

std::vector<FileFingerprint> data_fingerprints(std::span<const std::filesystem::path> files) {
  std::vector<FileFingerprint> result;
  for (const std::filesystem::path& file : files) {
    if (const auto pair = indexed_pair(file)) {
      result.push_back(fingerprint(pair->bin));
      result.push_back(fingerprint(pair->idx));
    } else {
      result.push_back(fingerprint(file));
    }
  }
  return result;
}

std::string content_hash(const std::filesystem::path& path, int threads) {
  const File file = open_regular(path);
  const std::int64_t size = file.size();
  std::vector<XXH128_canonical_t> blocks(static_cast<std::size_t>(ceil_div(size, kBlockBytes)));
  parallel_tasks(static_cast<std::int64_t>(blocks.size()), threads, [&](std::int64_t block) {
    Hash hash;
    const std::int64_t begin = block * kBlockBytes;
    hash.add(file, begin, std::min(kBlockBytes, size - begin));
    XXH128_canonicalFromHash(&blocks[static_cast<std::size_t>(block)], hash.value());
  });
  if (file.size() != size)
    throw ResourceError(fmt::format("[data] {}: expected {} bytes, as when reading began, got {}",
                                    path.string(), size, file.size()));
  Hash whole;
  whole.add(std::as_bytes(std::span(&size, 1)));
  whole.add(std::as_bytes(std::span(blocks)));
  return hexadecimal(whole.value());
}

std::string content_hash(std::string_view bytes) {
  return hexadecimal(XXH3_128bits(bytes.data(), bytes.size()));
}

}  // namespace anabatic::io
