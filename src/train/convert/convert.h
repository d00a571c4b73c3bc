// SPDX-License-Identifier: Apache-2.0
// Writes a model anew, in another format, dtype, spelling or size of shards, and proves that
// nothing was lost: every tensor is accounted for, every value is compared, logits before and after
// stand in the manifest.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "io/block_types.h"
#include "train/convert/manifest.h"
#include "train/convert/upcycle.h"

namespace anabatic::train {

struct ConvertOptions {
  bool writes_gguf = false;      // a GGUF file; else a Hugging Face directory
  std::optional<DType> dtype{};  // of all tensors of a directory; none: each keeps its own
  // Of the matrices of a GGUF file; null: their own. MXFP4 is of experts alone, there and in a
  // directory.
  const io::BlockType* block_type = nullptr;
  bool packs_weights = false;  // a directory for compressed-tensors, of a run that trained its grid
  // How files of experts are spelled: a tensor for each expert, or one for all. None: as they came.
  std::optional<bool> fuses_experts{};
  std::int64_t max_shard_bytes = 5'000'000'000;
  bool keeps_mtp = true;                    // layers of multi-token prediction
  bool compares_logits = true;              // loads both models whole
  std::optional<UpcycleOptions> upcycle{};  // the result is a mixture of experts
  std::string adapter{};                    // a directory of PEFT's to merge; empty: none
  // An adapter that was trained with quantization: the weights under it are written in its grid,
  // and it is not merged. Empty: none.
  std::string grid_of{};
};

// `source` is a directory or a GGUF file. `destination` must not exist or be empty. It appears
// under its name only when it is whole and was read back. InvalidArgument lists tensors that are
// missing, surplus or of another shape. Weights that a run trained on a grid (trained_grid.h) are
// written in it, where the format has it. So are those under an adapter. With an adapter that is
// merged, sums are rounded to it. Unsupported lists what a GGUF file of the model's architecture
// cannot say, and names a family that has no MXFP4.
Manifest convert(const std::filesystem::path& source, const std::filesystem::path& destination,
                 const ConvertOptions& options);

// What disagrees in a directory or GGUF file that has a manifest, a line each: tensors and their
// hashes; with `source`, its tensors too and every value; with `reference`, logits. Empty if all is
// well. `reference` is a safetensors file of input_ids i64[1,S] and logits f32[1,S,V].
std::vector<std::string> check_manifest(const std::filesystem::path& path,
                                        const std::optional<std::filesystem::path>& source,
                                        const std::optional<std::filesystem::path>& reference);

}  // namespace anabatic::train
