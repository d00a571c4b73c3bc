// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/safetensors.h"
#include "model/float_conversion.h"
#include "unit/model/model_files.h"

namespace anabatic::model {
namespace {

using ::testing::HasSubstr;

States empty_like(const States& states) {
  States copy = states;
  for (auto& [name, values] : copy) std::fill(values.begin(), values.end(), -1.0f);
  return copy;
}

const std::vector<std::string>& models() {
  static const std::vector<std::string> list{
      small_json("llama", R"("attention_bias": true, "mlp_bias": true)"), small_json("qwen2"),
      small_json("qwen3", R"("tie_word_embeddings": true)"), small_json("mixtral"),
      small_json("qwen3_moe", R"("mlp_only_layers": [1])")};
  return list;
}

TEST(Weights, ImportGivesWhatExportWroteInEverySpelling) {
  for (const std::string& json : models()) {
    const ModelConfig config = config_from(json);
    for (std::size_t spelling = 0; spelling < config.spec.spellings.size(); ++spelling) {
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
  EXPECT_EQ(names("mixtral", 1).count("model.layers.0.block_sparse_moe.experts.gate_up_proj"), 1u);
  EXPECT_EQ(names("mixtral", 2).count("model.layers.0.mlp.experts.3.w3.weight"), 1u);
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
