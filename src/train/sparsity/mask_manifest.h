// SPDX-License-Identifier: Apache-2.0
// Which weights of a checkpoint, or of a converted model, are sparse: anabatic.sparsity.json in its
// directory, or FILE.sparsity.json next to a GGUF file. Tensors of files are dense; what is absent
// are zeroes of them.
//
//   {"parameters": {"layers.0.experts.down.weight":
//                   {"pattern": "block32", "transposable": false, "density": 0.25}},
//    "tensors": [{"tensor": "model.layers.0.mlp.experts.0.down_proj.weight",
//                 "parameters": ["layers.0.experts.down.weight"], "pattern": "block32",
//                 "density": 0.25, "elements": 786432, "zeros": 589824}]}
//
// `density` is that of the mask: the share of its blocks, or weights, that are present. `zeros` are
// counted in the file that was written.
#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "spec/sparsity.h"
#include "train/model_session.h"

namespace anabatic::train {

inline constexpr const char* kMaskManifestFile = "anabatic.sparsity.json";

struct SparseParameter {
  spec::SparsityPattern pattern = spec::SparsityPattern::kBlock32;
  bool is_transposable = false;
  double density = 1;
  bool operator==(const SparseParameter&) const = default;
};
using SparseParameters = std::map<std::string, SparseParameter, std::less<>>;

// What the masks of a session say; empty without any.
SparseParameters sparse_parameters(ModelSession& session);

// Where the manifest of a model directory or file is.
std::filesystem::path mask_manifest_path(const std::filesystem::path& model);
// Reads the model that was written at `model` and counts its zeroes. Parameters that it has not are
// left out.
void write_mask_manifest(const std::filesystem::path& file, const SparseParameters& parameters,
                         const std::filesystem::path& model);
// Nothing where there is none. InvalidArgument where it does not say what it has to.
std::optional<SparseParameters> find_sparse_parameters(const std::filesystem::path& model);

}  // namespace anabatic::train
