// SPDX-License-Identifier: Apache-2.0
// Models as GGUF files, written here by hand: parity_gguf_model.py takes names and order from
// llama.cpp's package.
#include "model/gguf_model.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "io/gguf_writer.h"
#include "unit/model/model_files.h"

namespace anabatic::model {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

struct TestTensor {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

// A file to be written; a test changes keys or tensors before that.
struct TestModel {
  std::string architecture;
  std::map<std::string, std::int64_t> integers;
  std::map<std::string, float> floats;
  std::map<std::string, TestTensor> tensors;
  std::string type = "F32";  // of matrices

  void write(const std::filesystem::path& path) const {
    io::GgufKeys keys;
    keys.add_text("general.architecture", architecture);
    for (const auto& [name, value] : integers)
      keys.add_integer(name.starts_with("tokenizer") ? name : architecture + "." + name,
                       io::GgufType::kUInt32, value);
    for (const auto& [name, value] : floats) keys.add_float(architecture + "." + name, value);
    const auto type_of = [&](const TestTensor& tensor) {
      return io::find_block_type(tensor.shape.size() > 1 ? std::string_view(type) : "F32");
    };
    std::vector<io::GgufTensorInfo> infos;
    for (const auto& [name, tensor] : tensors)
      infos.push_back({name, type_of(tensor), tensor.shape});
    io::GgufWriter writer(path, std::move(keys), std::move(infos));
    for (const auto& [name, tensor] : tensors) {
      const io::BlockType& found = *type_of(tensor);
      std::vector<std::byte> blocks(tensor.values.size() /
                                    static_cast<std::size_t>(found.elements) *
                                    static_cast<std::size_t>(found.bytes));
      if (found.quantise != nullptr) io::quantise(found, tensor.values, blocks);
      writer.write(name, blocks);
    }
    writer.finish();
  }
};

const std::map<std::string, std::string>& layer_names() {
  static const std::map<std::string, std::string> names{
      {"attention_norm.weight", "attn_norm.weight"},
      {"attention.q.weight", "attn_q.weight"},
      {"attention.k.weight", "attn_k.weight"},
      {"attention.v.weight", "attn_v.weight"},
      {"attention.o.weight", "attn_output.weight"},
      {"attention.q.bias", "attn_q.bias"},
      {"attention.k.bias", "attn_k.bias"},
      {"attention.v.bias", "attn_v.bias"},
      {"attention.o.bias", "attn_output.bias"},
      {"attention.q_norm.weight", "attn_q_norm.weight"},
      {"attention.k_norm.weight", "attn_k_norm.weight"},
      {"mlp_norm.weight", "ffn_norm.weight"},
      {"mlp.gate.weight", "ffn_gate.weight"},
      {"mlp.up.weight", "ffn_up.weight"},
      {"mlp.down.weight", "ffn_down.weight"},
      {"router.weight", "ffn_gate_inp.weight"},
      {"experts.gate.weight", "ffn_gate_exps.weight"},
      {"experts.up.weight", "ffn_up_exps.weight"},
      {"experts.down.weight", "ffn_down_exps.weight"}};
  return names;
}

std::string name_in_file(const Parameter& parameter) {
  if (parameter.key == "embedding.weight") return "token_embd.weight";
  if (parameter.key == "norm.weight") return "output_norm.weight";
  if (parameter.key == "head.weight") return "output.weight";
  return fmt::format("blk.{}.{}", parameter.layer, layer_names().at(parameter.key));
}

// The rows of heads of 4: 0, 2, 1, 3, which pairs the first with the third.
std::vector<float> in_pairs(const std::vector<float>& values, std::int64_t rows) {
  const auto columns = static_cast<std::int64_t>(values.size()) / rows;
  std::vector<float> result;
  for (std::int64_t row = 0; row < rows; ++row) {
    constexpr std::int64_t kFrom[] = {0, 2, 1, 3};
    const auto* begin = values.data() + (row / 4 * 4 + kFrom[row % 4]) * columns;
    result.insert(result.end(), begin, begin + columns);
  }
  return result;
}

TestModel model_of(const std::string& architecture, const ModelConfig& config,
                   const States& states) {
  TestModel model{.architecture = architecture};
  const Gqa& attention = gqa_of(config);
  model.integers = {{"block_count", static_cast<std::int64_t>(config.spec.layers.size())},
                    {"embedding_length", config.spec.hidden_size},
                    {"feed_forward_length", 10},
                    {"context_length", config.max_position_embeddings},
                    {"attention.head_count", attention.num_heads},
                    {"attention.head_count_kv", attention.num_kv_heads},
                    {"attention.key_length", attention.head_dim},
                    {"attention.value_length", attention.head_dim},
                    {"rope.dimension_count", attention.head_dim},
                    {"tokenizer.ggml.eos_token_id", 3}};
  model.floats = {{"attention.layer_norm_rms_epsilon", 1e-5f}, {"rope.freq_base", 500000.0f}};
  if (const Moe* moe = first_moe(config.spec)) {
    model.integers["expert_count"] = moe->num_experts;
    model.integers["expert_used_count"] = moe->top_k;
    if (architecture != "llama") model.integers["expert_feed_forward_length"] = moe->width;
  }
  for (const Parameter& parameter : declare(config.spec).parameters) {
    TestTensor tensor{parameter.shape, states.find(parameter.name())->second};
    const bool rotates =
        parameter.key.starts_with("attention.q.") || parameter.key.starts_with("attention.k.");
    if (architecture == "llama" && rotates)
      tensor.values = in_pairs(tensor.values, parameter.shape.front());
    model.tensors[name_in_file(parameter)] = std::move(tensor);
  }
  return model;
}

TestModel small_model(const std::string& architecture, const std::string& model_type,
                      const std::string& members = "") {
  const ModelConfig config = config_from(small_json(model_type, members));
  return model_of(architecture, config, random_states(config, 5));
}

States import(const std::filesystem::path& file) {
  const ModelConfig config = load_config(file);
  States states;
  for (const Parameter& parameter : declare(config.spec).parameters)
    states[parameter.name()].assign(static_cast<std::size_t>(parameter.num_elements()), -1.0f);
  import_weights(config, file, buffers_of(states));
  return states;
}

TEST(GgufModel, HasTheParametersOfEveryArchitecture) {
  const struct {
    const char *architecture, *model_type, *members;
  } rows[] = {{"llama", "llama", R"("attention_bias": true)"},
              {"llama", "llama", R"("tie_word_embeddings": true)"},
              {"llama", "mixtral", ""},
              {"qwen2", "qwen2", ""},
              {"qwen3", "qwen3", ""},
              {"qwen3moe", "qwen3_moe", R"("norm_topk_prob": true)"}};
  for (const auto& row : rows) {
    const io::TempDirectory folder;
    const ModelConfig config = config_from(small_json(row.model_type, row.members));
    const States states = random_states(config, 5);
    model_of(row.architecture, config, states).write(folder / "a.gguf");
    const ModelConfig found = load_config(folder / "a.gguf");
    EXPECT_EQ(found.model_type, row.model_type);
    EXPECT_EQ(found.sizes, config.sizes) << row.model_type;
    EXPECT_EQ(found.spec.head.is_tied, config.spec.head.is_tied);
    EXPECT_EQ(import(folder / "a.gguf"), states) << row.model_type << " " << row.members;
  }
}

TEST(GgufModel, ReadsTheConfig) {
  const io::TempDirectory folder;
  TestModel model = small_model("qwen3moe", "qwen3_moe");
  model.write(folder / "a.gguf");
  const ModelConfig config = load_config(folder / "a.gguf");
  EXPECT_EQ(config.spec.norm_epsilon, 1e-5);
  EXPECT_EQ(config.spec.rope.theta, 500000.0);
  EXPECT_EQ(config.spec.rope.variant, "default");
  EXPECT_EQ(config.max_position_embeddings, 32);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(3));
  EXPECT_EQ(config.bos_token_id, -1);
  EXPECT_EQ(config.dtype, "float32");
  EXPECT_TRUE(first_moe(config.spec)->router.form.normalizes) << "as llama.cpp computes it";
  model.type = "BF16";
  model.floats["rope.scaling.factor"] = 4.0f;
  model.write(folder / "a.gguf");
  const ModelConfig scaled = load_config(folder / "a.gguf");
  EXPECT_EQ(scaled.dtype, "bfloat16");
  EXPECT_EQ(scaled.spec.rope.variant, "linear");
  EXPECT_EQ(scaled.spec.rope.factor, 4.0);
}

TEST(GgufModel, FindsLlama3ByItsFactors) {
  const io::TempDirectory folder;
  const std::string json = small_json("llama", R"("head_dim": 64)");
  const ModelConfig config = config_from(json);
  TestModel model = model_of("llama", config, random_states(config, 5));
  spec::Rope rope{.rotary_dim = 64, .theta = 500000.0};
  const auto plain = spec::rope_frequencies(rope, 1).inverse;
  rope.variant = "llama3";
  rope.factor = 8.0;
  rope.original_max_position = 8192;
  const auto scaled = spec::rope_frequencies(rope, 1).inverse;
  TestTensor& factors = model.tensors["rope_freqs.weight"];
  factors.shape = {32};
  for (std::size_t i = 0; i < 32; ++i) factors.values.push_back(plain[i] / scaled[i]);
  model.write(folder / "a.gguf");
  const spec::Rope found = load_config(folder / "a.gguf").spec.rope;
  EXPECT_EQ(found.variant, "llama3");
  EXPECT_EQ(found.factor, 8.0);
  EXPECT_EQ(found.original_max_position, 8192);
  factors.values[20] *= 1.001f;
  model.write(folder / "a.gguf");
  EXPECT_THAT(message_of<Unsupported>([&] { load_config(folder / "a.gguf"); }),
              HasSubstr("rope_freqs.weight: expected the factors of llama3"));
}

TEST(GgufModel, TakesTheValuesOfBlocks) {
  const io::TempDirectory folder;
  const ModelConfig config = config_from(small_json(
      "llama", R"("hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 8)"));
  States states = random_states(config, 5);
  TestModel model = model_of("llama", config, states);
  model.integers["feed_forward_length"] = 64;
  model.type = "Q8_0";
  model.write(folder / "a.gguf");
  for (const Parameter& parameter : declare(config.spec).parameters) {
    if (parameter.shape.size() < 2) continue;
    const io::BlockType& type = *io::find_block_type(std::string_view("Q8_0"));
    std::vector<float>& values = states[parameter.name()];
    std::vector<std::byte> blocks(values.size() / 32 * 34);
    io::quantise(type, values, blocks);
    io::dequantise(type, blocks, values);
  }
  EXPECT_EQ(import(folder / "a.gguf"), states);
}

TEST(GgufModel, RefusesKeysThatHaveNoPlace) {
  const io::TempDirectory folder;
  TestModel model = small_model("llama", "llama");
  model.integers["attention.value_length"] = 8;
  model.integers["rope.dimension_count"] = 2;
  model.floats["logit_scale"] = 0.5f;
  model.write(folder / "a.gguf");
  EXPECT_THAT(message_of<Unsupported>([&] { load_config(folder / "a.gguf"); }),
              AllOf(HasSubstr("a.gguf: 3 problems"),
                    HasSubstr("key llama.attention.value_length: expected 4, got 8"),
                    HasSubstr("key llama.rope.dimension_count: expected 4, got 2"),
                    HasSubstr("key llama.logit_scale: has no place")));
  model = small_model("llama", "llama");
  model.integers.erase("context_length");
  model.integers.erase("attention.head_count");
  model.integers["vocab_size"] = 12;
  model.floats["attention.layer_norm_rms_epsilon"] = std::numeric_limits<float>::infinity();
  model.write(folder / "a.gguf");
  EXPECT_THAT(message_of<InvalidArgument>([&] { load_config(folder / "a.gguf"); }),
              AllOf(HasSubstr("key llama.context_length: is missing"),
                    HasSubstr("key llama.attention.head_count: is missing"),
                    HasSubstr("key llama.vocab_size: is 12, token_embd.weight has 11 rows"),
                    HasSubstr("expected a finite number")));
  model.architecture = "gemma";
  model.write(folder / "a.gguf");
  EXPECT_THAT(message_of<Unsupported>([&] { load_config(folder / "a.gguf"); }),
              HasSubstr("expected one of llama, qwen2, qwen2moe, qwen3, qwen3moe, olmoe, "
                        "granitemoe, gpt-oss, got gemma"));
}

TEST(GgufModel, AccountsForEveryTensor) {
  const io::TempDirectory folder;
  TestModel model = small_model("qwen3moe", "qwen3_moe");
  model.tensors["blk.1.ffn_extra.weight"] = {{1}, {0.0f}};
  model.tensors.erase("blk.0.attn_norm.weight");
  model.tensors["blk.2.ffn_gate_exps.weight"].shape = {5, 6, 12};
  model.tensors["blk.2.attn_v.weight"].shape = {1, 96};
  model.type = "F32";
  model.write(folder / "a.gguf");
  EXPECT_THAT(message_of<InvalidArgument>([&] { import(folder / "a.gguf"); }),
              AllOf(HasSubstr("a.gguf: 4 problems"),
                    HasSubstr("tensor blk.0.attn_norm.weight: missing, expected shape [12]"),
                    HasSubstr("tensor blk.2.ffn_gate_exps.weight: expected shape [6, 5, 12], got "
                              "[5, 6, 12]"),
                    HasSubstr("tensor blk.2.attn_v.weight: expected shape [8, 12], got [1, 96]"),
                    HasSubstr("tensor blk.1.ffn_extra.weight: surplus, shape [1]")));
  model = small_model("qwen3moe", "qwen3_moe");
  model.type = "I16";
  model.write(folder / "a.gguf");
  EXPECT_THAT(message_of<InvalidArgument>([&] { import(folder / "a.gguf"); }),
              AllOf(HasSubstr("tensor blk.0.attn_q.weight: type I16 is not supported"),
                    Not(HasSubstr("attn_norm"))));
}

}  // namespace
}  // namespace anabatic::model
