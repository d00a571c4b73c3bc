// SPDX-License-Identifier: Apache-2.0
// Maps file tensors to parts of states, and imports and exports by that map. One map serves import,
// export and gradients: whatever the order of a file's rows, each row is a contiguous part of one
// state, or a column of it where the file has matrices transposed.
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

namespace anabatic::io {
struct TensorEntry;
}

namespace anabatic::model {

// `count` elements of a state from element `offset` on, row-major.
struct WeightPiece {
  std::string state;
  std::int64_t offset = 0, count = 0;
  // What follows matters where files have the rows in another order.
  std::int64_t row_elements = 0;
  HeadRows heads{};
  std::int64_t rows_in_turn = 0;  // where pieces alternate
};

// A file tensor: the elements of its pieces, one after the other, are its elements in row-major
// order.
struct FileTensor {
  std::string name;
  DType dtype = DType::kFloat32;  // in the source
  std::vector<std::int64_t> shape;
  std::vector<WeightPiece> pieces;
  std::size_t num_alternating = 1;  // of so many pieces the file has some rows of each in turn
  bool is_transposed = false;       // that order is of the transposed matrices
  // A matrix that is packed in this grid (model/compressed_tensors.h); `dtype` does not count then.
  std::optional<WeightGrid> grid{};

  std::int64_t num_elements() const;
};

struct WeightMap {
  std::size_t spelling = 0;         // of ModelSpec::spellings
  std::vector<FileTensor> tensors;  // in the order of the forward pass
};

// The map for a model without files: the family's first spelling, in the config's dtype, routers
// perhaps in f32. All are f32 where the config names no dtype that can be written.
WeightMap make_weight_map(const ModelConfig& config);
WeightMap make_weight_map(const ModelConfig& config, std::size_t spelling, DType dtype);

// The map of the files in DIR, which may be a .safetensors file: spelling and dtypes as found.
// InvalidArgument lists every tensor that is missing, surplus, or of another shape or dtype.
WeightMap read_weight_map(const ModelConfig& config, const std::filesystem::path& directory);

// A parameter that was read from its repeated tensor (a tied embedding from the head) gets its own
// file name, which older readers look for.
void use_own_names(const ModelConfig& config, WeightMap& map);

// Write and read elements [first, first + values.size()) of a state, row-major.
using StateWriter =
    std::function<void(std::string_view state, std::int64_t first, std::span<const float> values)>;
using StateReader =
    std::function<void(std::string_view state, std::int64_t first, std::span<float> values)>;

// Calls body(state, first element in it, place of that among the tensor's elements before any
// transposition, count) for the contiguous parts of states that a tensor holds, in its order.
void for_runs(const FileTensor& tensor,
              const std::function<void(std::string_view state, std::int64_t in_state,
                                       std::int64_t at, std::int64_t count)>& body);

// The elements of a tensor as files have them, block by block.
void read_in_file_order(const FileTensor& tensor, const StateReader& read,
                        const std::function<void(std::span<const float>)>& take);

// Fills every parameter from the files, or from a GGUF file; errors as read_weight_map. With tied
// embeddings an `lm_head.weight` in the files must equal the embedding, or be there instead of it.
// A tensor that differs from the directory's checksums is an error.
WeightMap import_weights(const ModelConfig& config, const std::filesystem::path& directory,
                         const StateWriter& write);

enum class SaveDType : std::uint8_t { kSource, kFloat32 };

// The dtype that most elements are saved in, the wider of equal ones. Those in MXFP4 do not count.
DType dominant_dtype(const WeightMap& map, SaveDType dtype);
// The same for the files in DIR; empty without files, or without a dtype of weights in them.
std::optional<DType> stored_dtype(const std::filesystem::path& directory);
// A dtype as config.json spells it: "bfloat16".
std::string_view config_name(DType dtype);

// Writes model.safetensors, or shards and an index, into an existing directory. Values round to
// nearest even. Tensors of other files in `others` are written byte for byte. As many as `threads`
// call `read` at once, each for another tensor. Returns the checksums of the files.
io::ChecksumManifest export_weights(const WeightMap& map, const std::filesystem::path& directory,
                                    SaveDType dtype, const StateReader& read,
                                    const io::SafetensorsWriterOptions& options = {},
                                    std::span<const io::TensorEntry* const> others = {},
                                    int threads = 1);

}  // namespace anabatic::model
