// SPDX-License-Identifier: Apache-2.0
// A Megatron .idx that is read places every token in one document, and samples can be cut.
#include <algorithm>
#include <array>
#include <cstring>

#include "fuzz/fuzz_target.h"
#include "io/data/dataset.h"

using namespace anabatic;

namespace {

constexpr std::int64_t kMostTokens = 256;  // that are looked at
constexpr std::int64_t kLength = 4;        // of a sample

template <class T>
T load(std::string_view bytes, std::size_t offset) {
  T value{};
  if (offset + sizeof(T) <= bytes.size()) std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// The size of the .bin that an index asks for: the last sequence's pointer and length say.
std::int64_t asked_bytes(std::string_view idx) {
  const auto sequences = load<std::uint64_t>(idx, 18);
  if (sequences == 0 || sequences > idx.size()) return 0;
  const auto count = static_cast<std::size_t>(sequences);
  const int type = load<std::uint8_t>(idx, 17);
  const std::int64_t width = type == 5 ? 8 : type == 4 ? 4 : type == 3 || type == 8 ? 2 : 1;
  const std::int64_t pointer = load<std::int64_t>(idx, 34 + 4 * count + 8 * (count - 1));
  const std::int64_t length = load<std::int32_t>(idx, 34 + 4 * (count - 1));
  return std::clamp<std::int64_t>(pointer, 0, 1 << 30) + std::max<std::int64_t>(0, length * width);
}

void check(const io::Dataset& dataset) {
  const io::IndexedFile& tokens = dataset.files().front().tokens;
  for (std::int64_t token = 0; token < std::min(tokens.num_tokens(), kMostTokens); ++token) {
    const std::int64_t document = tokens.document_of(token);
    fuzz::require(document >= 0 && document < tokens.num_documents(), "a document of the file");
    fuzz::require(
        tokens.document_begin(document) <= token && token < tokens.document_begin(document + 1),
        "the document that holds the token");
  }
  std::array<std::array<std::int32_t, kLength>, 6> rows;
  io::SampleScratch scratch;
  for (std::int64_t s = 0; s < std::min(dataset.num_samples(), kMostTokens / kLength); ++s) {
    const io::SampleCounts counts =
        dataset.read(s, 0, {rows[0], rows[1], rows[2], rows[3], rows[4], rows[5]}, scratch);
    for (std::int64_t i = 0; i < kLength; ++i)
      fuzz::require(dataset.locate(s, i).has_value() == (i < counts.tokens), "padding at the end");
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static fuzz::MemoryFile idx, bin;
  const std::string_view bytes = fuzz::view(data, size);
  idx.write(bytes);
  bin.resize(0);
  bin.resize(asked_bytes(bytes));
  return fuzz::read_or_refuse(
      bytes,
      [] {
        // Before the braces: g++ 12 destroys members twice where a later one throws.
        io::IndexedFile tokens(io::IndexedPaths{bin.path(), idx.path()});
        std::vector<io::TokenFile> files;
        files.push_back({{.path = bin.path()}, std::move(tokens)});
        return io::Dataset(std::move(files), {.sequence_length = kLength, .vocab_size = 1});
      },
      check);
}
