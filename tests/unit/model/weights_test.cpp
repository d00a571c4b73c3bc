// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "io/safetensors.h"
#include "model/float_conversion.h"
#include "model/weight_files.h"
#include "unit/model/model_files.h"

namespace anabatic::model {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;

States empty_like(const States& states) {
  States copy = states;
  for (auto& [name, values] : copy) std::fill(values.begin(), values.end(), -1.0f);
  return copy;
}

const std::vector<std::string>& models() {
  static const std::vector<std::string> list{
      small_json("llama", R"("attention_bias": true, "mlp_bias": true)"),
      small_json("qwen2"),
      small_json("qwen3", R"("tie_word_embeddings": true)"),
      small_json("mixtral"),
      small_json("qwen3_moe", R"("mlp_only_layers": [1])"),
      small_json("deepseek_v2", R"("mlp_bias": true, "attention_bias": true)"),
      small_json("minimax_m2"),
      small_json("glm4_moe", R"("use_qk_norm": true)"),
      small_json("glm4_moe_lite", R"("attention_bias": true)"),
      small_json("pangu_ultra_moe"),
      small_json("ernie4_5_moe"),
      small_json("gpt2"),
      small_json("ernie4_5_moe", R"("use_bias": true)"),
      small_json("hunyuan_v1_moe", R"("attention_bias": true)"),
      small_json("deepseek_v3", R"("q_lora_rank": null)"),
      small_json("flex_olmo"),
      small_json("gpt_oss"),
      small_json("granitemoe"),
      small_json("granitemoeshared", R"("tie_word_embeddings": true)"),
      small_json("olmo2"),
      small_json("olmoe", R"("attention_bias": true)"),
      small_json("solar_open", R"("attention_bias": true)")};
  return list;
}

TEST(Weights, ImportGivesWhatExportWroteInEverySpelling) {
  for (const std::string& json : models()) {
    const ModelConfig config = config_from(json);
    for (std::size_t spelling = 0; spelling < config.spec.spellings.size(); ++spelling) {
      if (spelling == mxfp4_spelling(config)) continue;  // which rounds
      const States states = random_states(config, 3);
      const io::TempDirectory folder;
      export_weights(make_weight_map(config, spelling, DType::kFloat32), folder.path(),
                     SaveDType::kSource, values_of(states), {.max_shard_bytes = 2000});
      States got = empty_like(states);
      const WeightMap found = import_weights(config, folder.path(), buffers_of(got));
      EXPECT_EQ(got, states);
      EXPECT_EQ(found.spelling, spelling) << json;
    }
  }
}

TEST(Weights, NamesPerExpertTensorsAsTheFamiliesDo) {
  const auto names = [](const std::string& family, std::size_t spelling) {
    std::map<std::string, std::vector<std::int64_t>> shapes;
    for (const FileTensor& tensor :
         make_weight_map(config_from(small_json(family)), spelling, DType::kFloat32).tensors)
      shapes[tensor.name] = tensor.shape;
    return shapes;
  };
  using Shape = std::vector<std::int64_t>;
  auto mixtral = names("mixtral", 0);
  EXPECT_EQ(mixtral.at("model.layers.2.block_sparse_moe.experts.3.w1.weight"), (Shape{10, 12}));
  EXPECT_EQ(mixtral.at("model.layers.2.block_sparse_moe.experts.3.w2.weight"), (Shape{12, 10}));
  EXPECT_EQ(mixtral.at("model.layers.0.block_sparse_moe.gate.weight"), (Shape{4, 12}));
  EXPECT_EQ(mixtral.at("model.layers.0.self_attn.k_proj.weight"), (Shape{8, 12}));
  EXPECT_EQ(mixtral.at("model.layers.1.post_attention_layernorm.weight"), (Shape{12}));
  EXPECT_EQ(mixtral.at("lm_head.weight"), (Shape{11, 12}));
  auto qwen3 = names("qwen3_moe", 0);
  EXPECT_EQ(qwen3.at("model.layers.0.mlp.experts.5.down_proj.weight"), (Shape{12, 5}));
  EXPECT_EQ(qwen3.at("model.layers.0.self_attn.q_norm.weight"), (Shape{4}));
  auto fused = names("qwen3_moe", 1);
  EXPECT_EQ(fused.at("model.layers.0.mlp.experts.gate_up_proj"), (Shape{6, 10, 12}));
  EXPECT_EQ(fused.at("model.layers.0.mlp.experts.down_proj"), (Shape{6, 12, 5}));
  auto granite = names("granitemoeshared", 0);
  EXPECT_EQ(granite.at("model.layers.0.block_sparse_moe.input_linear.weight"), (Shape{4, 20, 12}));
  EXPECT_EQ(granite.at("model.layers.0.block_sparse_moe.output_linear.weight"), (Shape{4, 12, 10}));
  EXPECT_EQ(granite.at("model.layers.0.block_sparse_moe.router.layer.weight"), (Shape{4, 12}));
  EXPECT_EQ(granite.at("model.layers.0.shared_mlp.input_linear.weight"), (Shape{14, 12}));
  EXPECT_EQ(granite.at("model.layers.0.shared_mlp.output_linear.weight"), (Shape{12, 7}));
  auto gpt_oss = names("gpt_oss", 0);
  EXPECT_EQ(gpt_oss.at("model.layers.1.mlp.router.weight"), (Shape{4, 12}));
  EXPECT_EQ(gpt_oss.at("model.layers.1.mlp.router.bias"), (Shape{4}));
  EXPECT_EQ(gpt_oss.at("model.layers.1.mlp.experts.gate_up_proj"), (Shape{4, 12, 20}));
  EXPECT_EQ(gpt_oss.at("model.layers.1.mlp.experts.gate_up_proj_bias"), (Shape{4, 20}));
  EXPECT_EQ(gpt_oss.at("model.layers.1.mlp.experts.down_proj"), (Shape{4, 10, 12}));
  EXPECT_EQ(gpt_oss.at("model.layers.1.mlp.experts.down_proj_bias"), (Shape{4, 12}));
  EXPECT_EQ(gpt_oss.at("model.layers.1.self_attn.sinks"), (Shape{6}));
  EXPECT_EQ(gpt_oss.at("model.layers.1.self_attn.o_proj.bias"), (Shape{12}));
  auto hunyuan = names("hunyuan_v1_moe", 0);
  EXPECT_EQ(hunyuan.at("model.layers.0.mlp.gate.wg.weight"), (Shape{5, 12}));
  EXPECT_EQ(hunyuan.at("model.layers.0.mlp.shared_mlp.up_proj.weight"), (Shape{10, 12}));
  EXPECT_EQ(hunyuan.at("model.layers.0.self_attn.query_layernorm.weight"), (Shape{4}));
  auto ernie = names("ernie4_5_moe", 0);
  EXPECT_EQ(ernie.at("model.layers.1.mlp.moe_statics.e_score_correction_bias"), (Shape{1, 6}));
  EXPECT_EQ(ernie.at("model.layers.1.mlp.shared_experts.down_proj.weight"), (Shape{12, 10}));
  EXPECT_EQ(ernie.count("lm_head.weight"), 0u) << "tied by default";
  auto pangu = names("pangu_ultra_moe", 0);
  for (const char* norm :
       {"input_layernorm", "post_attention_layernorm", "pre_mlp_layernorm", "post_mlp_layernorm"})
    EXPECT_EQ(pangu.at(fmt::format("model.layers.1.{}.weight", norm)), (Shape{12}));
  EXPECT_EQ(pangu.at("model.layers.1.mlp.shared_experts.up_proj.weight"), (Shape{5, 12}));
  EXPECT_EQ(pangu.count("model.layers.1.mlp.gate.e_score_correction_bias"), 0u);
  auto flex = names("flex_olmo", 1);
  EXPECT_EQ(flex.at("model.layers.2.mlp.experts.gate_up_proj"), (Shape{5, 20, 12}));
  EXPECT_EQ(flex.at("model.layers.2.self_attn.q_norm.weight"), (Shape{24}));
  EXPECT_EQ(flex.at("model.layers.2.self_attn.k_norm.weight"), (Shape{8}));
  EXPECT_EQ(flex.at("model.layers.2.post_feedforward_layernorm.weight"), (Shape{12}));
  EXPECT_EQ(flex.count("model.layers.2.input_layernorm.weight"), 0u);
  EXPECT_EQ(names("mixtral", 1).count("model.layers.0.block_sparse_moe.experts.gate_up_proj"), 1u);
  EXPECT_EQ(names("mixtral", 2).count("model.layers.0.mlp.experts.3.w3.weight"), 1u);
}

// As transformers writes a model of bf16.
TEST(Weights, RoutersOfSomeFamiliesAreSavedInF32WithoutFiles) {
  const auto in_f32 = [](const std::string& family) {
    const ModelConfig config = config_from(small_json(family, R"("dtype": "bfloat16")"));
    std::vector<std::string> names;
    for (const FileTensor& tensor : make_weight_map(config).tensors)
      if (tensor.dtype == DType::kFloat32) names.push_back(tensor.name);
    return names;
  };
  const std::string layer = "model.layers.2.mlp.", bias = layer + "gate.e_score_correction_bias";
  for (const char* family : {"deepseek_v3", "dots1", "glm4_moe", "glm4_moe_lite", "solar_open"})
    EXPECT_THAT(in_f32(family), IsSupersetOf({layer + "gate.weight", bias})) << family;
  for (const char* family : {"deepseek_v2", "pangu_ultra_moe"})
    EXPECT_THAT(in_f32(family), Contains(layer + "gate.weight")) << family;
  EXPECT_THAT(in_f32("ernie4_5_moe"),
              IsSupersetOf({layer + "gate.weight", layer + "moe_statics.e_score_correction_bias"}));
  EXPECT_THAT(in_f32("hunyuan_v1_moe"), Contains(layer + "gate.wg.weight"));
  EXPECT_EQ(in_f32("deepseek_v3").size(), 4u) << "two layers of experts, and nothing else";
  for (const char* family : {"gpt_oss", "granitemoe", "minimax_m2", "mixtral", "qwen3_moe"})
    EXPECT_THAT(in_f32(family), IsEmpty()) << family;
}

// As files do that keep queries, keys and values in one tensor.
TEST(Weights, ParametersOfOneTensorHaveItsRowsInTurn) {
  ModelConfig config = config_from(small_json("qwen2"));
  Spelling names;
  for (const char* end : {"weight", "bias"})
    for (const char* part : {"attention.q.", "attention.k.", "attention.v."})
      names.push_back({std::string(part) + end, {std::string("self_attn.qkv.") + end}});
  config.spec.spellings = {names};
  const WeightMap map = make_weight_map(config);
  const auto weight = std::find_if(map.tensors.begin(), map.tensors.end(), [](const auto& tensor) {
    return tensor.name == "model.layers.1.self_attn.qkv.weight";
  });
  ASSERT_NE(weight, map.tensors.end());
  EXPECT_EQ(weight->shape, (std::vector<std::int64_t>{24 + 8 + 8, 12}));
  ASSERT_EQ(weight->pieces.size(), 3u);
  EXPECT_EQ(weight->pieces[1].state, "layers.1.attention.k.weight");
  const States states = random_states(config, 3);
  const io::TempDirectory folder;
  export_weights(map, folder.path(), SaveDType::kSource, values_of(states));
  States got = empty_like(states);
  import_weights(config, folder.path(), buffers_of(got));
  EXPECT_EQ(got, states);
}

// The elements of a tensor in the files of a folder.
std::vector<float> elements_of(const std::filesystem::path& folder, std::string_view name) {
  const auto files = io::SafetensorsDirectory::open(folder);
  const io::TensorEntry* entry = files.find(name);
  if (entry == nullptr) return {};
  std::vector<float> values(static_cast<std::size_t>(entry->num_elements()));
  to_floats(DType::kFloat32, entry->data, values);
  return values;
}

// Exports by the map of `config` and imports again; what the files hold is in `folder`.
void expect_round_trip(const ModelConfig& config, const States& states,
                       const std::filesystem::path& folder) {
  export_weights(make_weight_map(config), folder, SaveDType::kSource, values_of(states));
  States got = empty_like(states);
  import_weights(config, folder, buffers_of(got));
  EXPECT_EQ(got, states);
}

TEST(Weights, HeadRowsGiveEachRowOnceInTheOrderOfFiles) {
  const auto order = [](const HeadRows& heads, std::int64_t count) {
    std::vector<std::int64_t> rows;
    for (std::int64_t row = 0; row < count; ++row) rows.push_back(heads.own_row(row));
    return rows;
  };
  using Rows = std::vector<std::int64_t>;
  EXPECT_EQ(order({}, 3), (Rows{0, 1, 2}));
  EXPECT_EQ(order({.rows = 4, .rotated = 4, .in_pairs = true}, 8), (Rows{0, 2, 1, 3, 4, 6, 5, 7}));
  EXPECT_EQ(order({.rows = 7, .rotated = 4, .in_pairs = true}, 14),
            (Rows{4, 5, 6, 0, 2, 1, 3, 11, 12, 13, 7, 9, 8, 10}));
  EXPECT_EQ(order({.rows = 5, .rotated = 2}, 5), (Rows{2, 3, 4, 0, 1}));
}

TEST(Weights, RowsThatRotateInPairsAreInTheHalfForm) {
  ModelConfig config = config_from(small_json("qwen2"));  // heads of 4 rows
  const HeadRows pairs{.rows = 4, .rotated = 4, .in_pairs = true};
  Spelling names;
  for (const std::string part : {"q", "k"})
    for (const std::string end : {".weight", ".bias"})
      names.push_back({"attention." + part + end, {"self_attn." + part + "_proj" + end, pairs}});
  config.spec.spellings = {names};
  const States states = random_states(config, 3);
  const io::TempDirectory folder;
  expect_round_trip(config, states, folder.path());
  const std::size_t width = 12, head = 4 * width;
  const auto got = elements_of(folder.path(), "model.layers.1.self_attn.q_proj.weight");
  const std::vector<float>& own = states.at("layers.1.attention.q.weight");
  ASSERT_EQ(got.size(), 6 * head);
  for (std::size_t h = 0; h < 6; ++h)
    for (std::size_t i = 0; i < 2; ++i)
      for (std::size_t c = 0; c < width; ++c) {
        ASSERT_EQ(got[h * head + 2 * i * width + c], own[h * head + i * width + c]);
        ASSERT_EQ(got[h * head + (2 * i + 1) * width + c], own[h * head + (i + 2) * width + c]);
      }
  const auto bias = elements_of(folder.path(), "model.layers.1.self_attn.k_proj.bias");
  const std::vector<float>& own_bias = states.at("layers.1.attention.k.bias");
  EXPECT_EQ(bias, (std::vector<float>{own_bias[0], own_bias[2], own_bias[1], own_bias[3],
                                      own_bias[4], own_bias[6], own_bias[5], own_bias[7]}));
}

// As MLA's keys and values, which alternate head by head.
TEST(Weights, ParametersTakeTurnsInATensor) {
  ModelConfig config = config_from(small_json("qwen2"));
  const FileView joined{.tensor = "self_attn.kv.weight", .rows_in_turn = 4};
  config.spec.spellings = {{{"attention.k.weight", joined}, {"attention.v.weight", joined}}};
  const States states = random_states(config, 3);
  const io::TempDirectory folder;
  expect_round_trip(config, states, folder.path());
  const auto got = elements_of(folder.path(), "model.layers.2.self_attn.kv.weight");
  const std::size_t head = 4 * 12;
  ASSERT_EQ(got.size(), 4 * head);
  const std::vector<float>&k = states.at("layers.2.attention.k.weight"),
        &v = states.at("layers.2.attention.v.weight");
  for (std::size_t h = 0; h < 2; ++h)
    for (std::size_t i = 0; i < head; ++i) {
      ASSERT_EQ(got[2 * h * head + i], k[h * head + i]);
      ASSERT_EQ(got[(2 * h + 1) * head + i], v[h * head + i]);
    }
}

TEST(Weights, TurnsHaveHeadsInTheirOrder) {
  ModelConfig config = config_from(small_json("qwen2"));
  FileView joined{.tensor = "self_attn.kv.bias", .rows_in_turn = 4};
  Spelling names{{"attention.k.bias", joined}, {"attention.v.bias", joined}};
  names[0].file.heads = {.rows = 4, .rotated = 2, .in_pairs = true};
  config.spec.spellings = {names};
  States states = random_states(config, 3);
  std::vector<float>&k = states.at("layers.0.attention.k.bias"),
  &v = states.at("layers.0.attention.v.bias");
  for (std::size_t i = 0; i < 8; ++i)
    k[i] = static_cast<float>(i), v[i] = static_cast<float>(10 + i);
  const io::TempDirectory folder;
  expect_round_trip(config, states, folder.path());
  EXPECT_EQ(elements_of(folder.path(), "model.layers.0.self_attn.kv.bias"),
            (std::vector<float>{2, 3, 0, 1, 10, 11, 12, 13, 6, 7, 4, 5, 14, 15, 16, 17}));
}

// As GPT-2's queries, keys and values, and the experts of gpt_oss, whose columns are gate and up in
// turn.
TEST(Weights, TransposedMatricesHaveTheRowsAsColumns) {
  ModelConfig config = config_from(small_json("mixtral"));
  Spelling names;
  for (const char* part : {"attention.q.weight", "attention.k.weight", "attention.v.weight"})
    names.push_back({part, {.tensor = "attn.c_attn", .is_transposed = true}});
  for (const char* part : {"experts.gate.weight", "experts.up.weight"})
    names.push_back(
        {part, {.tensor = "experts.gate_up", .rows_in_turn = 1, .is_transposed = true}});
  names.push_back({"experts.down.weight", {.tensor = "experts.down", .is_transposed = true}});
  names.push_back({"attention.o.weight", {.tensor = "attn.c_proj", .is_transposed = true}});
  config.spec.spellings = {names};
  const States states = random_states(config, 3);
  const io::TempDirectory folder;
  expect_round_trip(config, states, folder.path());
  const auto files = io::SafetensorsDirectory::open(folder.path());
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(files.find("model.layers.1.attn.c_attn")->shape, (Shape{12, 24 + 8 + 8}));
  EXPECT_EQ(files.find("model.layers.1.experts.gate_up")->shape, (Shape{4, 12, 20}));
  EXPECT_EQ(files.find("model.layers.1.experts.down")->shape, (Shape{4, 10, 12}));
  const auto joined = elements_of(folder.path(), "model.layers.1.attn.c_attn");
  const auto gate_up = elements_of(folder.path(), "model.layers.1.experts.gate_up");
  const auto& k = states.at("layers.1.attention.k.weight");
  const auto& up = states.at("layers.1.experts.up.weight");
  for (std::size_t in = 0; in < 12; ++in) {
    for (std::size_t out = 0; out < 8; ++out)
      ASSERT_EQ(joined[in * 40 + 24 + out], k[out * 12 + in]);
    for (std::size_t expert = 0; expert < 4; ++expert)
      for (std::size_t out = 0; out < 10; ++out)
        ASSERT_EQ(gate_up[(expert * 12 + in) * 20 + 2 * out + 1],
                  up[(expert * 10 + out) * 12 + in]);
  }
}

TEST(Weights, BiasesOfExpertsTakeTurnsInEachRow) {
  const ModelConfig config = config_from(small_json("gpt_oss"));
  States states = random_states(config, 3);
  float next = 0;
  for (const char* part : {"gate", "up", "down"})
    for (float& value : states.at(std::string("layers.2.experts.") + part + ".bias"))
      value = next++;
  const io::TempDirectory folder;
  expect_round_trip(config, states, folder.path());
  const std::string experts = "model.layers.2.mlp.experts.";
  const auto gate_up = elements_of(folder.path(), experts + "gate_up_proj_bias");
  EXPECT_EQ(elements_of(folder.path(), experts + "down_proj_bias"),
            states.at("layers.2.experts.down.bias"));
  ASSERT_EQ(gate_up.size(), 2u * 4 * 10);
  for (std::size_t i = 0; i < 4 * 10; ++i) {
    ASSERT_EQ(gate_up[2 * i], states.at("layers.2.experts.gate.bias")[i]);
    ASSERT_EQ(gate_up[2 * i + 1], states.at("layers.2.experts.up.bias")[i]);
  }
}

// With a tensor for each expert, and with all of one projection in one tensor.
TEST(Weights, BiasesOfExpertsStandAloneOrTogether) {
  ModelConfig config = config_from(small_json("gpt_oss"));
  for (const char* name : {"experts.{}.bias", "experts.bias"}) {
    const FileView together{"experts.gate_up.bias"};
    config.spec.spellings = {{{"experts.gate.bias", together},
                              {"experts.up.bias", together},
                              {"experts.down.bias", {name}}}};
    States states = random_states(config, 3);
    for (auto& [key, values] : states)
      if (key.ends_with("bias"))
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) + 1;
    for (float& value : states.at("layers.0.experts.up.bias")) value += 100;
    const io::TempDirectory folder;
    expect_round_trip(config, states, folder.path());
    const auto got = elements_of(folder.path(), "model.layers.0.experts.gate_up.bias");
    ASSERT_EQ(got.size(), 2u * 4 * 10) << name;
    EXPECT_EQ(got[9], 10) << "of the first expert's gate";
    EXPECT_EQ(got[10], 101) << "of the first expert's up";
    EXPECT_EQ(got[20], 11) << "of the second expert's gate";
  }
}

// Larger than what is converted at a time.
TEST(Weights, RowsKeepTheirOrderAcrossBlocks) {
  ModelConfig config = config_from(
      small_json("qwen2", R"("hidden_size": 500, "num_attention_heads": 20, "head_dim": 30,
                             "num_key_value_heads": 4, "num_hidden_layers": 1)"));
  const HeadRows pairs{.rows = 30, .rotated = 30, .in_pairs = true};
  const FileView joined{.tensor = "self_attn.kv.weight", .rows_in_turn = 30};
  config.spec.spellings = {{{"attention.q.weight", {"self_attn.q_proj.weight", pairs}},
                            {"attention.k.weight", joined},
                            {"attention.v.weight", joined}}};
  const States states = random_states(config, 3);
  ASSERT_GT(states.at("layers.0.attention.q.weight").size(), std::size_t{1} << 18);
  const io::TempDirectory folder;
  expect_round_trip(config, states, folder.path());
}

TEST(Weights, ACorrectionBiasHasToBeFinite) {
  const ModelConfig config = config_from(small_json("minimax_m2"));
  States states = random_states(config, 3);
  states.at("layers.1.router.correction_bias")[2] = std::numeric_limits<float>::infinity();
  const io::TempDirectory folder;
  export_weights(make_weight_map(config), folder.path(), SaveDType::kSource, values_of(states));
  EXPECT_THAT(message_of<InvalidArgument>(
                  [&] { import_weights(config, folder.path(), buffers_of(states)); }),
              HasSubstr("model.layers.1.block_sparse_moe.e_score_correction_bias: expected finite "
                        "biases of experts, found inf for expert 2"));
}

TEST(Weights, FusedRowsHoldGateThenUpOfEachExpert) {
  const ModelConfig config = config_from(small_json("mixtral"));
  const States states = random_states(config, 5);
  const io::TempDirectory folder;
  export_weights(make_weight_map(config, 3, DType::kFloat32), folder.path(), SaveDType::kSource,
                 values_of(states));
  const auto files = io::SafetensorsDirectory::open(folder.path());
  const io::TensorEntry* fused = files.find("model.layers.1.mlp.experts.gate_up_proj");
  ASSERT_NE(fused, nullptr);
  std::vector<float> values(static_cast<std::size_t>(fused->num_elements()));
  to_floats(DType::kFloat32, fused->data, values);
  const std::size_t matrix = 10 * 12;
  for (std::size_t expert = 0; expert < 4; ++expert)
    for (std::size_t i = 0; i < matrix; ++i) {
      ASSERT_EQ(values[2 * expert * matrix + i],
                states.at("layers.1.experts.gate.weight")[expert * matrix + i]);
      ASSERT_EQ(values[(2 * expert + 1) * matrix + i],
                states.at("layers.1.experts.up.weight")[expert * matrix + i]);
    }
}

TEST(Weights, KeepTheSourceDtypeOrBecomeFp32) {
  const ModelConfig config = config_from(small_json("llama", R"("torch_dtype": "bfloat16")"));
  States states = random_states(config, 3);
  const io::TempDirectory source, wide;
  export_weights(make_weight_map(config), source.path(), SaveDType::kSource, values_of(states));
  States rounded = empty_like(states);
  const WeightMap map = import_weights(config, source.path(), buffers_of(rounded));
  for (const FileTensor& tensor : map.tensors) EXPECT_EQ(tensor.dtype, DType::kBFloat16);
  for (const auto& [name, values] : states)
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(rounded.at(name)[i], to_float(to_bfloat16(values[i])));
  export_weights(map, wide.path(), SaveDType::kFloat32, values_of(states));
  States exact = empty_like(states);
  import_weights(config, wide.path(), buffers_of(exact));
  EXPECT_EQ(exact, states);
}

TEST(Weights, ATiedHeadInTheFilesMustEqualTheEmbedding) {
  const ModelConfig tied = config_from(small_json("llama", R"("tie_word_embeddings": true)"));
  const ModelConfig untied = config_from(small_json("llama"));
  States states = random_states(untied, 3);
  const auto write = [&](const std::filesystem::path& folder) {
    export_weights(make_weight_map(untied), folder, SaveDType::kSource, values_of(states));
  };
  States got = random_states(tied, 4);
  const io::TempDirectory different, equal;
  write(different.path());
  EXPECT_THAT(
      message_of<InvalidArgument>([&] { import_weights(tied, different.path(), buffers_of(got)); }),
      HasSubstr("expected lm_head.weight to equal model.embed_tokens.weight"));
  states["head.weight"] = states["embedding.weight"];
  write(equal.path());
  import_weights(tied, equal.path(), buffers_of(got));
  EXPECT_EQ(got.at("embedding.weight"), states.at("embedding.weight"));
}

TEST(Weights, ALoneHeadStandsForATiedEmbedding) {
  const ModelConfig tied = config_from(small_json("llama", R"("tie_word_embeddings": true)"));
  const States states = random_states(tied, 3);
  WeightMap map = make_weight_map(tied);
  map.tensors.front().name = "lm_head.weight";
  const io::TempDirectory folder;
  export_weights(map, folder.path(), SaveDType::kSource, values_of(states));
  States got = empty_like(states);
  WeightMap found = import_weights(tied, folder.path(), buffers_of(got));
  EXPECT_EQ(got, states);
  EXPECT_EQ(found.tensors.front().name, "lm_head.weight");
  use_own_names(tied, found);
  EXPECT_EQ(found.tensors.front().name, "model.embed_tokens.weight");
}

TEST(Weights, NameTensorsOfGpt2WithAndWithoutTheModelsPrefix) {
  const ModelConfig config = config_from(small_json("gpt2"));
  for (const std::string prefix : {"transformer.", ""}) {
    std::map<std::string, std::vector<std::int64_t>> shapes;
    for (const FileTensor& tensor :
         make_weight_map(config, prefix.empty() ? 1 : 0, DType::kFloat32).tensors)
      shapes[tensor.name] = tensor.shape;
    using Shape = std::vector<std::int64_t>;
    EXPECT_EQ(shapes.at(prefix + "h.2.attn.c_attn.weight"), (Shape{12, 36}));
    EXPECT_EQ(shapes.at(prefix + "h.2.attn.c_attn.bias"), (Shape{36}));
    EXPECT_EQ(shapes.at(prefix + "h.2.attn.c_proj.weight"), (Shape{12, 12}));
    EXPECT_EQ(shapes.at(prefix + "h.0.mlp.c_fc.weight"), (Shape{12, 10}));
    EXPECT_EQ(shapes.at(prefix + "h.0.mlp.c_proj.weight"), (Shape{10, 12}));
    EXPECT_EQ(shapes.at(prefix + "h.0.ln_1.bias"), (Shape{12}));
    EXPECT_EQ(shapes.at(prefix + "wte.weight"), (Shape{11, 12}));
    EXPECT_EQ(shapes.at(prefix + "wpe.weight"), (Shape{32, 12}));
    EXPECT_EQ(shapes.at(prefix + "ln_f.weight"), (Shape{12}));
    EXPECT_EQ(shapes.size(), 4u + 3 * 12);
  }
}

TEST(Weights, NameTensorsThatTheModelDoesNotUse) {
  const ModelConfig config = config_from(small_json("gpt2"));
  const States states = random_states(config, 3);
  WeightMap map = make_weight_map(config);
  const std::size_t num_used = map.tensors.size();
  for (const char* name : {"transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias"})
    map.tensors.push_back({name, DType::kFloat32, {2}, {{"norm.weight", 0, 2}}});
  const io::TempDirectory folder;
  export_weights(map, folder.path(), SaveDType::kSource, values_of(states));
  States got = empty_like(states);
  std::string said;
  const LogScope scope([&](Severity, const std::string& text) { said += text + '\n'; });
  EXPECT_EQ(import_weights(config, folder.path(), buffers_of(got)).tensors.size(), num_used);
  EXPECT_EQ(got, states);
  EXPECT_THAT(said, ::testing::HasSubstr("2 tensors are ignored"));
  EXPECT_THAT(said, ::testing::HasSubstr("transformer.h.0.attn.bias"));
}

TEST(Weights, IgnoreOldRotaryBuffers) {
  const ModelConfig config = config_from(small_json("llama"));
  const States states = random_states(config, 3);
  WeightMap map = make_weight_map(config);
  map.tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq",
                         DType::kFloat32,
                         {2},
                         {{"norm.weight", 0, 2}}});
  const io::TempDirectory folder;
  export_weights(map, folder.path(), SaveDType::kSource, values_of(states));
  States got = empty_like(states);
  EXPECT_EQ(import_weights(config, folder.path(), buffers_of(got)).tensors.size(),
            map.tensors.size() - 1);
}

TEST(FloatConversion, ReadsElementsThatAreNotAligned) {
  std::vector<std::byte> bytes(1 + 3 * sizeof(double));
  const std::vector<float> want{1.5f, -2.0f, 0.25f};
  std::vector<float> got(3);
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const auto size = 3 * static_cast<std::size_t>(size_bytes(dtype));
    from_floats(dtype, want, std::span(bytes).subspan(1, size));
    to_floats(dtype, std::span<const std::byte>(bytes).subspan(1, size), got);
    EXPECT_EQ(got, want) << to_string(dtype);
  }
}

}  // namespace
}  // namespace anabatic::model
