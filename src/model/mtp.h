// SPDX-License-Identifier: Apache-2.0
// Multi-token prediction: layers after those of a model, each of which predicts a token further on.
// DeepSeek-V3, https://arxiv.org/abs/2412.19437, section 2.2.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"
#include "model/layers.h"

namespace anabatic::model {

// What one layer reads; depths count from 1.
struct MtpInputs {
  ir::ValueId tokens = ir::kNoValue;     // i32[T]: the token `depth` rows further on
  ir::ValueId documents = ir::kNoValue;  // i32[T]: -1 where the document has no such token
};

// With e the embedding of a layer's token and h the hidden state after the final norm, or that
// of the layer before:  h' = norm(layer(W_e norm(e) + W_h norm(h))). Returns the logits of each h'.
std::vector<ir::ValueId> add_mtp(ModelBuilder& builder, const LayerInputs& inputs,
                                 const std::vector<MtpInputs>& of_layers, const ModelValues& model,
                                 std::vector<RouterOutputs>& routers);

// Returns `objective` plus options.mtp_coef times the mean of the layers' losses, which is the
// output mtp_loss. Depth d has the inputs `mtp_tokens.d`, `mtp_documents.d` and `mtp_labels.d`
// i32[T], and `inverse_mtp_labels.d` f32[], which counts the labels of the whole step. Adds the
// outputs expert_load.N.
ir::ValueId add_mtp_loss(ModelBuilder& builder, const BuildOptions& options,
                         const LayerInputs& inputs, const ModelValues& model,
                         ir::ValueId objective);

// "mtp_tokens.1".
std::string mtp_input(std::string_view name, std::int64_t depth);

// Whether files hold any tensor of config.mtp_layers.
bool holds_mtp(const ModelConfig& config, const io::SafetensorsDirectory& files);
// The same for DIR; false without files.
bool holds_mtp(const ModelConfig& config, const std::filesystem::path& directory);
// Makes config.mtp_layers a part of the model. Counts include them where they are trained.
void take_mtp(ModelConfig& config, bool are_trained);
// The text of a config.json, changed to name no such layers.
std::string without_mtp(const std::string& config);

// The layer of multi-token prediction that a tensor belongs to, of those that the model leaves out;
// -1: none.
std::int64_t left_out_layer(const ModelConfig& config, std::string_view tensor);

}  // namespace anabatic::model
