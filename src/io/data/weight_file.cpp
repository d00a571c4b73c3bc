// SPDX-License-Identifier: Apache-2.0
#include "io/data/weight_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <system_error>

#include "base/error.h"
#include "io/crc32c.h"

namespace anabatic::io {
namespace {

constexpr std::array kWeightsMagic = {'A', 'N', 'B', 'W', 'G', 'H', 'T', '1'},
                     kPairsMagic = {'A', 'N', 'B', 'P', 'A', 'I', 'R', '1'};
constexpr std::size_t kFlushBytes = std::size_t{1} << 20;

struct Header {
  std::array<char, 8> magic = kWeightsMagic;
  std::uint64_t num_tokens = 0, num_documents = 0;
  std::uint32_t index_crc = 0, table_size = 0;
  std::array<float, kMostWeights> table{};
};
static_assert(sizeof(Header) == 32 + 4 * kMostWeights);

std::uint32_t crc_of(const std::filesystem::path& path) {
  const MappedFile index(path);
  return crc32c(index.bytes());
}

}  // namespace

std::filesystem::path weights_path(const IndexedPaths& pair) {
  return std::filesystem::path(pair.bin).replace_extension(".weights");
}

WeightFile::WeightFile(const IndexedPaths& pair) : file_(weights_path(pair)) {
  const std::string name = file_.path().string();
  const std::span<const std::byte> bytes = file_.bytes();
  Header header;
  ANABATIC_REQUIRE(bytes.size() >= sizeof(header),
                   "[weights] {}: expected at least {} bytes, got {}", name, sizeof(header),
                   bytes.size());
  std::memcpy(&header, bytes.data(), sizeof(header));
  is_of_pairs_ = header.magic == kPairsMagic;
  ANABATIC_REQUIRE(is_of_pairs_ || header.magic == kWeightsMagic,
                   "[weights] {}: expected a file of weights, got another kind", name);
  ANABATIC_REQUIRE(header.table_size <= kMostWeights,
                   "[weights] {}: expected a table of at most {} weights, got {}", name,
                   kMostWeights, header.table_size);
  const IndexedFile tokens(pair);
  ANABATIC_REQUIRE(
      header.num_tokens == static_cast<std::uint64_t>(tokens.num_tokens()) &&
          header.num_documents == static_cast<std::uint64_t>(tokens.num_documents()) &&
          header.index_crc == crc_of(pair.idx),
      "[weights] {}: expected the weights of {}, with {} tokens in {} documents, got those of "
      "another index, with {} tokens in {} documents",
      name, pair.idx.string(), tokens.num_tokens(), tokens.num_documents(), header.num_tokens,
      header.num_documents);
  ANABATIC_REQUIRE(bytes.size() - sizeof(header) == header.num_tokens,
                   "[weights] {}: expected {} bytes for as many tokens, got {}", name,
                   header.num_tokens, bytes.size() - sizeof(header));
  ANABATIC_REQUIRE(!is_of_pairs_ || tokens.num_documents() % 2 == 0,
                   "[weights] {}: expected two completions a pair, got {} documents", name,
                   tokens.num_documents());
  indices_ = {reinterpret_cast<const std::uint8_t*>(bytes.data() + sizeof(header)),
              header.num_tokens};
  table_ = header.table;
  for (std::size_t i = 0; i < header.table_size; ++i)
    ANABATIC_REQUIRE(
        std::isfinite(table_[i]) && table_[i] >= 0,
        "[weights] {}: expected weights of at least 0, got {} in place {} of the table", name,
        table_[i], i);
  const auto beyond = std::find_if(indices_.begin(), indices_.end(),
                                   [&](std::uint8_t index) { return index >= header.table_size; });
  ANABATIC_REQUIRE(beyond == indices_.end(),
                   "[weights] {}: token {}: expected a place below {} of the table, got {}", name,
                   beyond - indices_.begin(), header.table_size, *beyond);
}

void WeightFile::read(std::int64_t begin, std::span<float> weights) const {
  for (std::size_t i = 0; i < weights.size(); ++i)
    weights[i] = table_[indices_[static_cast<std::size_t>(begin) + i]];
}

std::int64_t WeightFile::num_trained(std::int64_t begin, std::int64_t end) const {
  std::int64_t count = 0;
  for (std::int64_t i = begin; i < end; ++i)
    count += table_[indices_[static_cast<std::size_t>(i)]] != 0 ? 1 : 0;
  return count;
}

WeightFileWriter::WeightFileWriter(const IndexedPaths& pair, bool is_durable, bool is_of_pairs)
    : pair_(pair),
      is_durable_(is_durable),
      is_of_pairs_(is_of_pairs),
      file_(File::create(partial())) {
  buffer_.resize(sizeof(Header));
}

WeightFileWriter::~WeightFileWriter() {
  if (finished_) return;
  std::error_code ignored;
  std::filesystem::remove(partial(), ignored);
}

std::filesystem::path WeightFileWriter::partial() const {
  return weights_path(pair_) += ".partial";
}

std::uint8_t WeightFileWriter::index_of(float weight) {
  const auto [place, is_new] = places_.try_emplace(weight, std::uint8_t{0});
  if (!is_new) return place->second;
  ANABATIC_REQUIRE(table_.size() < kMostWeights,
                   "[weights] expected at most {} different weights, got one more: {}",
                   kMostWeights, weight);
  place->second = static_cast<std::uint8_t>(table_.size());
  table_.push_back(weight);
  return place->second;
}

void WeightFileWriter::append(std::span<const float> weights) {
  for (std::size_t i = 0; i < weights.size();) {
    std::size_t end = i + 1;
    while (end < weights.size() && weights[end] == weights[i]) ++end;
    buffer_.insert(buffer_.end(), end - i, static_cast<std::byte>(index_of(weights[i])));
    i = end;
  }
  num_tokens_ += std::ssize(weights);
  if (buffer_.size() < kFlushBytes) return;
  file_.write(buffer_);
  buffer_.clear();
}

void WeightFileWriter::finish(std::int64_t num_documents) {
  file_.write(buffer_);
  Header header{.magic = is_of_pairs_ ? kPairsMagic : kWeightsMagic,
                .num_tokens = static_cast<std::uint64_t>(num_tokens_),
                .num_documents = static_cast<std::uint64_t>(num_documents),
                .index_crc = crc_of(pair_.idx),
                .table_size = static_cast<std::uint32_t>(table_.size())};
  std::ranges::copy(table_, header.table.begin());
  file_.write_at(0, std::as_bytes(std::span(&header, 1)));
  if (is_durable_) file_.sync();
  file_.close();
  rename_file(partial(), weights_path(pair_));
  finished_ = true;
}

}  // namespace anabatic::io
