// SPDX-License-Identifier: Apache-2.0
// Which file tensor holds which part of which state, and import and export by that map. A file
// tensor is always a row of contiguous pieces of states, so one map serves both ways, and gradients
// too.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/checksums.h"
#include "io/safetensors_writer.h"
#include "model/model.h"

namespace anabatic::model {

// `count` elements of a state from element `offset` on, row-major.
struct WeightPiece {
  std::string state;
  std::int64_t offset = 0, count = 0;
};

// A file tensor: its pieces, one after the other, are its elements in row-major order.
struct FileTensor {
  std::string name;
  DType dtype = DType::kFloat32;  // in the source
  std::vector<std::int64_t> shape;
  std::vector<WeightPiece> pieces;
};

struct WeightMap {
  std::size_t spelling = 0;         // of ModelSpec::spellings
  std::vector<FileTensor> tensors;  // in the order of the forward pass
};

// The map for a model without files: the family's first spelling, in the config's dtype (f32 when
// it names none that the engine writes).
WeightMap make_weight_map(const ModelConfig& config);
WeightMap make_weight_map(const ModelConfig& config, std::size_t spelling, DType dtype);

// The map of the files in DIR, which may be a .safetensors file: spelling and dtypes as found.
// InvalidArgument lists every tensor that is missing, surplus, or of another shape or dtype.
WeightMap read_weight_map(const ModelConfig& config, const std::filesystem::path& directory);

// A repeated tensor that stood alone for a parameter (a head for its tied embedding) gets the
// parameter's own name, which older readers look for.
void use_own_names(const ModelConfig& config, WeightMap& map);

// Takes and gives elements [first, first + values.size()) of a state, row-major.
using StateWriter =
    std::function<void(std::string_view state, std::int64_t first, std::span<const float> values)>;
using StateReader =
    std::function<void(std::string_view state, std::int64_t first, std::span<float> values)>;

// Fills every parameter from the files; errors as read_weight_map. With tied embeddings an
// `lm_head.weight` in the files must equal the embedding, or stand in for it. Where the directory
// has checksums of its files, a tensor that is not as it was written is an error too.
WeightMap import_weights(const ModelConfig& config, const std::filesystem::path& directory,
                         const StateWriter& write);

enum class SaveDType : std::uint8_t { kSource, kFloat32 };

// The dtype that most elements are saved in; of equals the wider one.
DType dominant_dtype(const WeightMap& map, SaveDType dtype);
// Likewise of the files in DIR; nothing when there are none, or none in a dtype of weights.
std::optional<DType> stored_dtype(const std::filesystem::path& directory);
// A dtype as config.json spells it: "bfloat16".
std::string_view config_name(DType dtype);

// Writes model.safetensors, or shards and an index, into an existing directory. Values round to
// nearest even. Returns the checksums of the files.
io::ChecksumManifest export_weights(const WeightMap& map, const std::filesystem::path& directory,
                                    SaveDType dtype, const StateReader& read,
                                    const io::SafetensorsWriterOptions& options = {});

}  // namespace anabatic::model
