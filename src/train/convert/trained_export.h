// SPDX-License-Identifier: Apache-2.0
// In what form a conversion writes weights that were trained on a grid: in that one, or not at all.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "model/gguf_export.h"
#include "model/weights.h"
#include "train/convert/trained_grid.h"

namespace anabatic::train {

// The grid that a conversion writes weights in: that of `grid_of`, or of an adapter that is merged,
// or of the source. Nothing where there is none. InvalidArgument where `grid_of` has none.
std::optional<TrainedGrid> grid_of_conversion(const std::filesystem::path& source,
                                              const std::string& adapter,
                                              const std::string& grid_of);
// InvalidArgument lists weights of an adapter's grid that a model does not have.
void require_weights(const model::WeightMap& map, const TrainedGrid& trained,
                     const std::string& adapter);

// InvalidArgument where a directory that is packed, or has experts in MXFP4, cannot hold what was
// trained; packed weights have to be trained. `source` is for messages.
void require_directory_form(const std::optional<TrainedGrid>& trained, bool packs_weights,
                            bool is_mxfp4, const std::string& source);

// Puts the trained weights of a map into their grid. Unsupported lists those that are no matrix of
// a file as they are in the model.
void pack_trained(model::WeightMap& map, const TrainedGrid& trained);
// InvalidArgument lists weights of a map with blocks of MXFP4 that were not trained on that grid,
// or the other way round.
void require_trained_blocks(const model::WeightMap& map, const TrainedGrid& trained);
// Modules of a map with a matrix that is not packed.
std::vector<std::string> unpacked_modules(const model::WeightMap& map);

// The type of a GGUF file for the trained weights; `type` and `dtype` are asked for, of others too.
// InvalidArgument where there is none, or where another is asked for.
model::GgufParameterType gguf_type_of(const std::optional<TrainedGrid>& trained,
                                      const io::BlockType* type, std::optional<DType> dtype,
                                      const std::string& source);

}  // namespace anabatic::train
