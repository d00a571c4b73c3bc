// SPDX-License-Identifier: Apache-2.0
// convert to GGUF files and back: equal models, refusals by name, and faults that are found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/text.h"
#include "io/gguf.h"
#include "model/gguf_source.h"
#include "support/tiny_run.h"
#include "train/convert/convert.h"
#include "unit/model/model_files.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class GgufConvert : public ::testing::Test {
 protected:
  fs::path path(const char* name) const { return folder_.path() / name; }

  // A model directory of random weights, without a tokenizer.
  model::States write(const char* name, const std::string& json, DType dtype = DType::kFloat32) {
    fs::create_directories(path(name));
    io::write_text(path(name) / "config.json", json);
    const model::ModelConfig config = model::load_config(path(name));
    const model::States states = model::random_states(config, 7);
    model::export_weights(model::make_weight_map(config, 0, dtype), path(name),
                          model::SaveDType::kSource, model::values_of(states));
    return states;
  }

  std::string refusal(const std::string& json) {
    write("refused", json);
    const std::string text = model::message_of<Unsupported>(
        [&] { convert(path("refused"), path("refused.gguf"), {.writes_gguf = true}); });
    EXPECT_FALSE(fs::exists(path("refused.gguf")));
    EXPECT_FALSE(fs::exists(path("refused.gguf.partial")));
    return text;
  }

  testing::TemporaryDirectory folder_;
};

model::States states_of(const fs::path& file) {
  const model::ModelConfig config = model::load_config(file);
  model::States states;
  for (const model::Parameter& parameter : model::declare(config.spec).parameters)
    states[parameter.name()].assign(static_cast<std::size_t>(parameter.num_elements()), -1.0f);
  model::import_weights(config, file, model::buffers_of(states));
  return states;
}

TEST_F(GgufConvert, GivesEveryArchitectureAndItsDirectoryBack) {
  const struct {
    const char *model_type, *members, *architecture;
  } rows[] = {{"llama", R"("attention_bias": true, "mlp_bias": true)", "llama"},
              {"llama", R"("tie_word_embeddings": true)", "llama"},
              {"mistral", R"("sliding_window": null)", "llama"},
              {"mixtral", "", "llama"},
              {"qwen2", R"("head_dim": 2, "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                                            "original_max_position_embeddings": 8})",
               "qwen2"},
              {"qwen2_moe", R"("head_dim": 2)", "qwen2moe"},
              {"qwen3", R"("rope_scaling": {"rope_type": "linear", "factor": 2.0})", "qwen3"},
              {"qwen3_moe", R"("norm_topk_prob": true)", "qwen3moe"},
              {"olmoe", R"("num_key_value_heads": 6)", "olmoe"},
              {"granitemoe", R"("attention_multiplier": 0.2, "embedding_multiplier": 6.0,
                                "residual_multiplier": 0.4, "logits_scaling": 3.0)",
               "granitemoe"},
              {"granitemoeshared", R"("attention_bias": true)", "granitemoe"},
              {"gpt_oss", R"("sliding_window": 3)", "gpt-oss"},
              {"gpt_oss", R"("rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                                              "original_max_position_embeddings": 8})",
               "gpt-oss"},
              {"gpt_oss", R"("rope_scaling": {"rope_type": "default"})", "gpt-oss"}};
  for (const auto& row : rows) {
    fs::remove_all(path("source"));
    fs::remove_all(path("back"));
    fs::remove(path("a.gguf"));
    const model::States states = write("source", model::small_json(row.model_type, row.members));
    const Manifest manifest = convert(path("source"), path("a.gguf"), {.writes_gguf = true});
    EXPECT_EQ(manifest.logits->largest_difference, 0) << row.model_type;
    EXPECT_EQ(states_of(path("a.gguf")), states) << row.model_type;
    const io::GgufFiles files = io::GgufFiles::open(path("a.gguf"));
    EXPECT_EQ(files.metadata().text("general.architecture"), row.architecture);
    EXPECT_EQ(num_elements(manifest.written), num_elements(manifest.read));
    EXPECT_THAT(check_manifest(path("a.gguf"), path("source"), {}), IsEmpty());
    const model::ModelConfig config = model::load_config(path("source")),
                             found = model::load_config(path("a.gguf"));
    EXPECT_EQ(found.spec.rope, config.spec.rope) << row.model_type;
    for (std::size_t i = 0; i < found.spec.layers.size(); ++i)
      EXPECT_EQ(std::get<model::Gqa>(found.spec.layers[i].attention).window,
                std::get<model::Gqa>(config.spec.layers[i].attention).window);
    EXPECT_EQ(found.spec.head.is_tied, config.spec.head.is_tied);
    const Manifest back = convert(path("a.gguf"), path("back"), {.compares_logits = false});
    EXPECT_EQ(back.written.size(), manifest.read.size());
    EXPECT_EQ(states_of(path("back")), states) << row.model_type;
    EXPECT_THAT(check_manifest(path("back"), path("a.gguf"), {}), IsEmpty());
  }
}

TEST_F(GgufConvert, WritesLlama3AsFactorsOfFrequencies) {
  write("source", model::small_json("llama", R"("head_dim": 8, "rope_scaling":
      {"rope_type": "llama3", "factor": 5.0, "low_freq_factor": 1.5, "high_freq_factor": 3.0,
       "original_max_position_embeddings": 16})"));
  convert(path("source"), path("a.gguf"), {.writes_gguf = true});
  EXPECT_EQ(model::load_config(path("a.gguf")).spec.rope,
            model::load_config(path("source")).spec.rope);
  const io::GgufFiles files = io::GgufFiles::open(path("a.gguf"));
  ASSERT_NE(files.find("rope_freqs.weight"), nullptr);
  EXPECT_THAT(files.find("rope_freqs.weight")->shape, ElementsAre(4));
  EXPECT_THAT(check_manifest(path("a.gguf"), path("source"), {}), IsEmpty());
}

TEST_F(GgufConvert, QuantisesMatricesWhoseRowsAreWholeBlocks) {
  write("source", model::small_json("qwen3_moe", R"("norm_topk_prob": true, "hidden_size": 32,
                                          "moe_intermediate_size": 5)"),
        DType::kBFloat16);
  for (const char* name : {"Q8_0", "Q4_0"}) {
    fs::remove(path("a.gguf"));
    const Manifest manifest =
        convert(path("source"), path("a.gguf"),
                {.writes_gguf = true, .block_type = io::find_block_type(std::string_view(name))});
    const io::GgufFiles files = io::GgufFiles::open(path("a.gguf"));
    EXPECT_EQ(files.find("blk.0.attn_q.weight")->type->name, name);
    EXPECT_EQ(files.find("token_embd.weight")->type->name, name);
    EXPECT_EQ(files.find("blk.0.ffn_gate_exps.weight")->type->name, name);
    EXPECT_EQ(files.find("blk.0.ffn_gate_inp.weight")->type->name, "F32");
    EXPECT_EQ(files.find("blk.0.attn_norm.weight")->type->name, "F32");
    EXPECT_EQ(files.find("blk.0.ffn_down_exps.weight")->type->name, "F16");
    EXPECT_THAT(manifest.in_f16, AllOf(Contains("blk.0.ffn_down_exps.weight"),
                                       Contains("blk.1.attn_output.weight")));
    EXPECT_THAT(check_manifest(path("a.gguf"), path("source"), {}), IsEmpty());
    EXPECT_EQ(model::load_config(path("a.gguf")).dtype, "float32");
  }
}

TEST_F(GgufConvert, WritesTheExpertsOfGptOssInMxfp4) {
  write("source", model::small_json("gpt_oss", R"("hidden_size": 64, "intermediate_size": 32)"),
        DType::kBFloat16);
  const auto* mxfp4 = io::find_block_type(std::string_view("MXFP4"));
  const Manifest manifest =
      convert(path("source"), path("a.gguf"), {.writes_gguf = true, .block_type = mxfp4});
  const io::GgufFiles files = io::GgufFiles::open(path("a.gguf"));
  for (const auto& [name, tensor] : files.tensors()) {
    const bool is_expert = name.ends_with("_exps.weight");
    const bool is_matrix = tensor.shape.size() > 1 && !name.ends_with(".bias") &&
                           !name.ends_with("ffn_gate_inp.weight");
    EXPECT_EQ(tensor.type->name, is_expert ? "MXFP4" : is_matrix ? "BF16" : "F32") << name;
  }
  EXPECT_NE(files.find("blk.2.attn_sinks.weight"), nullptr);
  EXPECT_NE(files.find("blk.2.post_attention_norm.weight"), nullptr);
  EXPECT_EQ(files.metadata().integer("general.file_type"), 38);
  EXPECT_EQ(files.metadata().integer("gpt-oss.attention.sliding_window"), 128);
  EXPECT_EQ(num_elements(manifest.written), num_elements(manifest.read));
  EXPECT_THAT(check_manifest(path("a.gguf"), path("source"), {}), IsEmpty());
  // Both forms of MXFP4 hold the same values, whichever is made of the other.
  convert(path("source"), path("mxfp4"), {.block_type = mxfp4});
  convert(path("a.gguf"), path("back"), {.block_type = mxfp4});
  EXPECT_EQ(states_of(path("mxfp4")), states_of(path("a.gguf")));
  EXPECT_EQ(states_of(path("back")), states_of(path("a.gguf")));
  write("dense", model::small_json("mixtral"));
  EXPECT_THAT(model::message_of<Unsupported>([&] {
                convert(path("dense"), path("b.gguf"), {.writes_gguf = true, .block_type = mxfp4});
              }),
              HasSubstr("type MXFP4: expected a file of gpt-oss, got llama"));
}

TEST_F(GgufConvert, KeepsTheTypesOfTheSource) {
  write("source", model::small_json("llama"), DType::kBFloat16);
  convert(path("source"), path("a.gguf"), {.writes_gguf = true});
  const io::GgufFiles files = io::GgufFiles::open(path("a.gguf"));
  EXPECT_EQ(files.find("blk.0.attn_q.weight")->type->name, "BF16");
  EXPECT_EQ(files.find("output_norm.weight")->type->name, "F32");
  EXPECT_EQ(files.metadata().integer("general.file_type"), 32);
}

TEST_F(GgufConvert, RefusesByNameWhatAnArchitectureCannotSay) {
  EXPECT_THAT(refusal(model::small_json("qwen3_moe")),
              HasSubstr("norm_topk_prob: a GGUF file of qwen3moe can only have true"));
  EXPECT_THAT(refusal(model::small_json("mistral", R"("sliding_window": 4)")),
              HasSubstr("sliding_window: a GGUF file of llama can only have"));
  EXPECT_THAT(refusal(model::small_json("qwen3", R"("attention_bias": true, "hidden_act": "gelu",
                                        "rope_scaling": {"rope_type": "dynamic", "factor": 2})")),
              AllOf(HasSubstr("3 problems"), HasSubstr("attention_bias"), HasSubstr("hidden_act"),
                    HasSubstr("rope_type")));
  EXPECT_THAT(refusal(model::small_json("qwen3_moe", R"("norm_topk_prob": true,
                                                        "mlp_only_layers": [1])")),
              HasSubstr("mlp_only_layers"));
  EXPECT_THAT(refusal(model::small_json("gpt_oss", R"("attention_bias": false, "swiglu_limit": 5.0,
                                        "tie_word_embeddings": true, "sliding_window": 4,
                                        "layer_types": ["full_attention", "sliding_attention",
                                                        "full_attention"])")),
              AllOf(HasSubstr("4 problems"), HasSubstr("attention_bias"), HasSubstr("swiglu_limit"),
                    HasSubstr("tie_word_embeddings"),
                    HasSubstr("layer_types: a GGUF file of gpt-oss can only have a window in")));
  EXPECT_THAT(refusal(model::small_json("glm4_moe")),
              HasSubstr("model_type: expected one of mistral, llama, mixtral"));
}

TEST_F(GgufConvert, RefusesValuesThatF16CannotHold) {
  model::States states = write("source", model::small_json("llama"));
  states["layers.1.mlp.up.weight"][3] = 70000.0f;
  const model::ModelConfig config = model::load_config(path("source"));
  model::export_weights(model::make_weight_map(config, 0, DType::kFloat32), path("source"),
                        model::SaveDType::kSource, model::values_of(states));
  EXPECT_THAT(model::message_of<InvalidArgument>([&] {
                convert(path("source"), path("a.gguf"),
                        {.writes_gguf = true,
                         .dtype = DType::kFloat16,
                         .block_type = io::find_block_type(std::string_view("F16"))});
              }),
              HasSubstr("blk.1.ffn_up.weight: expected values that F16 can hold, got 70000"));
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_.path()))
    EXPECT_EQ(entry.path().filename(), "source");
}

TEST_F(GgufConvert, FindsAByteThatChanged) {
  write("source", model::small_json("mixtral"));
  convert(path("source"), path("a.gguf"), {.writes_gguf = true, .compares_logits = false});
  std::int64_t offset = 0;
  {
    const io::GgufFiles files = io::GgufFiles::open(path("a.gguf"));
    offset = files.find("blk.1.ffn_up_exps.weight")->offset;
  }
  {
    std::fstream file(path("a.gguf"), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(offset + 100);
    file.put('\x55');
  }
  EXPECT_THAT(check_manifest(path("a.gguf"), {}, {}),
              ElementsAre(HasSubstr("tensor blk.1.ffn_up_exps.weight: expected checksum")));
  const std::vector<std::string> lines = check_manifest(path("a.gguf"), path("source"), {});
  EXPECT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines, Contains(HasSubstr("blk.1.ffn_up_exps.weight: 1 of")));
}

}  // namespace
}  // namespace anabatic::train
