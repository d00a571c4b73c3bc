// SPDX-License-Identifier: Apache-2.0
// A model family: the defaults of its config.json, and a function that makes the list of layers and
// the names in files from it. `families()` is the table.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/config_reader.h"
#include "model/model.h"

namespace anabatic::model {

// Defaults of transformers' config class, for fields that a config.json leaves out.
struct FamilyDefaults {
  std::int64_t vocab_size, hidden_size;
  std::int64_t intermediate_size;  // 0: 4 · hidden_size; -1: the class has none
  std::int64_t num_hidden_layers, num_attention_heads;
  std::int64_t num_key_value_heads;  // 0: as many as attention heads
  std::int64_t head_dim;             // 0: hidden_size / num_attention_heads
  std::int64_t max_position_embeddings;
  double rms_norm_eps;
  double rope_theta;                        // 0: no heads rotate
  std::int64_t bos_token_id, eos_token_id;  // -1: none
  const char* head_dim_key = "head_dim";
  std::int64_t pad_token_id = -1;
  double partial_rotary_factor = 0;  // 0: whole heads rotate, whatever a config says
  bool is_tied = false;              // tie_word_embeddings
  bool has_rope_alpha = false;       // rope type dynamic may have `alpha`
  const char* hidden_act = "silu";
  bool is_gated = true;  // hidden_act is of a gate, which multiplies up
};

// Fields that every family has.
struct CommonFields {
  std::int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0, num_key_value_heads = 0, head_dim = 0;
  std::int64_t max_position_embeddings = 0;
  spec::Activation activation{};  // of gate and up, or of up alone; by hidden_act

  // Blocks of these sizes, without biases, norms or windows.
  Gqa attention() const;
  Mlp mlp() const;
};

struct Family {
  std::string_view model_type;
  FamilyDefaults defaults;
  // Reads the other fields and fills spec.layers and spec.spellings. What common fields fill in
  // `config` is there already.
  void (*read)(ConfigReader& reader, const CommonFields& fields, ModelConfig& config);
  // Configs of another model_type that name this class under `architectures` are of the family too.
  std::string_view architecture = "";
  // Its own names of common fields.
  std::span<const FieldName> field_names{};
};

// One file each, in families/.
extern const Family kDeepseekV2, kDeepseekV3, kDots1, kErnie45Moe, kFlexOlmo, kGlm4Moe,
    kGlm4MoeLite, kGpt2, kGptOss, kGraniteMoe, kGraniteMoeShared, kHunyuanV1Moe, kLlama, kMinimaxM2,
    kMistral, kMixtral, kOlmo2, kOlmoe, kPanguUltraMoe, kQwen2, kQwen2Moe, kQwen3, kQwen3Moe,
    kSolarOpen;

std::span<const Family* const> families();  // all, by model_type
// Both null when there is none.
const Family* find_family(std::string_view model_type);
const Family* find_family_of_class(std::string_view architecture);

// Shared by families.
void read_attention_bias(ConfigReader& reader, Gqa& attention);
// A field that files call by either name; a problem where both differ.
std::int64_t read_either(ConfigReader& reader, const char* key, const char* other_key,
                         std::int64_t fallback, Range range);
// `sliding_window`; null or absent means the fallback (0: none).
std::int64_t read_sliding_window(ConfigReader& reader, std::int64_t fallback);
// Whether a layer has a window where no `layer_types` says so, by max_window_layers.
using SlidesByDefault = bool (*)(std::int64_t layer, std::int64_t max_window_layers);
inline bool slides_from(std::int64_t layer, std::int64_t max_window_layers) {
  return layer >= max_window_layers;
}
// Each layer's window: `window` (0: none has one) for the layers of `layer_types`, or by default.
// max_window_layers has this default.
std::vector<std::int64_t> layer_windows(ConfigReader& reader, const CommonFields& fields,
                                        std::int64_t window, std::int64_t max_window_layers,
                                        SlidesByDefault slides);
// The same by `use_sliding_window`, for the layers of `layer_types`, or by default.
std::vector<std::int64_t> read_layer_windows(ConfigReader& reader, const CommonFields& fields,
                                             SlidesByDefault slides = slides_from);
// Whether each layer has experts, by decoder_sparse_step unless mlp_only_layers lists it.
std::vector<bool> read_sparse_layers(ConfigReader& reader, const CommonFields& fields,
                                     const Moe& moe);
// An MoE block. Also sets the default losses of routers in `config`. `other_key` is another name of
// `key`, or null.
Moe read_experts(ConfigReader& reader, const CommonFields& fields, ModelConfig& config,
                 const char* key, const char* other_key, const Moe& defaults,
                 double aux_loss_coef = 0.001);
// A problem where a family whose layers all have experts has none.
void require_experts(ConfigReader& reader, const char* key, const Moe& moe);
// `n_group` groups of experts, of which `topk_group` are open to a token; defaults are those of the
// router's form, whose group_score is set.
void read_groups(ConfigReader& reader, Moe& moe);
// `routed_scaling_factor`, which is more than 0.
double read_routed_scale(ConfigReader& reader, double fallback);
// The MoE block of deepseek_v3 and its relatives: sigmoids, a correction bias, groups by their two
// best experts, and shared experts in one MLP. `defaults`: experts, width, top_k, the router's
// form.
Moe read_biased_experts(ConfigReader& reader, const CommonFields& fields, const Moe& defaults,
                        std::int64_t shared_experts = 0);
// A problem where a token would choose more experts than there are.
void require_enough_experts(ConfigReader& reader, const char* key, const Moe& moe);
// Layers of multi-token prediction like this one. `num_nextn_predict_layers` of them, which
// transformers' classes call num_mtp_layers; files may hold none. To be called after the layers.
void read_mtp_layers(ConfigReader& reader, ModelConfig& config, const LayerSpec& layer,
                     std::int64_t fallback);
// These spellings where files call the MLP of shared experts so.
std::vector<Spelling> with_shared_experts(std::vector<Spelling> spellings,
                                          const std::string& file = "mlp.shared_experts");
// A tensor for each expert, called w1, w3 and w2, as transformers wrote them up to version 4.
Spelling numbered_experts(const std::string& block);
// All experts of a layer in two tensors, gate_up_proj [E, 2 · width, hidden] and down_proj.
Spelling fused_experts(const std::string& block);

// rope_theta + rope_scaling, or rope_parameters.
spec::Rope read_rope(ConfigReader& reader, const CommonFields& fields,
                     const FamilyDefaults& defaults);

}  // namespace anabatic::model
