// SPDX-License-Identifier: Apache-2.0
// What an import read, with the hashes that it computes in passing: for a manifest.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "model/weights.h"

namespace anabatic::model {

struct ImportedTensor {
  FileTensor tensor;  // its pieces say where it went; none for a tensor that no parameter reads
  std::string dtype;  // as the files spell it
  std::uint64_t checksum = 0;  // XXH3 of its bytes
};

struct ImportRecord {
  std::vector<ImportedTensor> used;      // in the order in which they were read
  std::vector<ImportedTensor> repeated;  // equal to one of those
  std::vector<ImportedTensor> ignored;
  std::vector<ImportedTensor> dropped;  // of layers of multi-token prediction that are left out
};

// Takes groups of MXFP4 as files hold them, elements [first, first + 2 · pairs.size()) of a state.
// False: it wants their values.
using Mxfp4Writer =
    std::function<bool(std::string_view state, std::int64_t first, std::span<const std::byte> pairs,
                       std::span<const std::byte> scales)>;

// As import_weights of weights.h, which records nothing. Bytes are read once: an ignored tensor
// is hashed, and a repeated one has the hash of its twin. With more than one thread `write` is
// called by several at once, for other elements each; a GGUF file is read by one.
WeightMap import_weights(const ModelConfig& config, const std::filesystem::path& directory,
                         const StateWriter& write, ImportRecord& record, int threads = 1,
                         const Mxfp4Writer& write_mxfp4 = {});

}  // namespace anabatic::model
