// SPDX-License-Identifier: Apache-2.0
// Weights in F8_E4M3 and MXFP4: what is read, in which order, and what does not fit.
#include "model/stored_tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "io/block_types.h"
#include "model/weight_source.h"
#include "unit/model/model_files.h"
#include "unit/model/raw_tensors.h"

namespace anabatic::model {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Raw = std::map<std::string, RawTensor>;

// A weight map's tensors in f32, and the same model as it would be in blocks.
struct Quantised {
  ModelConfig config;
  States states;  // what the blocks stand for
  Raw files;
};

// All matrices of attention and of experts in F8_E4M3, as deepseek_v3 has them.
Quantised fp8_model() {
  Quantised model{.config = config_from(small_json(
                      "deepseek_v3",
                      R"("hidden_size": 132, "moe_intermediate_size": 130, "intermediate_size": 6,
                         "quantization_config": {"quant_method": "fp8", "fmt": "e4m3",
                                                 "weight_block_size": [128, 128]})"))};
  model.states = random_states(model.config, 5);
  for (const FileTensor& tensor : make_weight_map(model.config, 0, DType::kFloat32).tensors) {
    if (!tensor.name.ends_with("_proj.weight")) {
      model.files[tensor.name] = raw_floats(tensor, values_of(model.states));
      continue;
    }
    const auto [elements, scales, values] = random_fp8(tensor.shape, tensor.name);
    model.files[tensor.name] = elements;
    model.files[tensor.name + "_scale_inv"] = scales;
    std::int64_t done = 0;
    for_runs(tensor, [&, &all = values](std::string_view state, std::int64_t first, std::int64_t at,
                                        std::int64_t count) {
      std::copy_n(all.begin() + at, count, model.states.find(state)->second.begin() + first);
      done += count;
    });
    EXPECT_EQ(done, tensor.num_elements());
  }
  return model;
}

// Experts in MXFP4, out x in with rows of gate and up in turn, where bf16 has them transposed.
Quantised mxfp4_model() {
  Quantised model{.config = config_from(
                      small_json("gpt_oss", R"("hidden_size": 64, "intermediate_size": 32)"))};
  model.states = random_states(model.config, 5);
  for (const FileTensor& tensor : make_weight_map(model.config, 1, DType::kFloat32).tensors) {
    if (!names_blocks(tensor.name)) {
      model.files[tensor.name] = raw_floats(tensor, values_of(model.states));
      continue;
    }
    const auto [blocks, scales, values] = random_mxfp4(tensor.shape, tensor.name);
    model.files[tensor.name] = blocks;
    model.files[scales_name(tensor.name)] = scales;
    for_runs(tensor, [&, &all = values](std::string_view state, std::int64_t first, std::int64_t at,
                                        std::int64_t count) {
      std::copy_n(all.begin() + at, count, model.states.find(state)->second.begin() + first);
    });
  }
  return model;
}

void expect_read(const Quantised& model) {
  const io::TempDirectory folder;
  write_raw(folder / "model.safetensors", model.files);
  States got = model.states;
  for (auto& [name, values] : got) std::fill(values.begin(), values.end(), -1.0f);
  const WeightMap map = import_weights(model.config, folder.path(), buffers_of(got));
  EXPECT_EQ(got, model.states);
  EXPECT_EQ(map.spelling, 0u);
  for (const FileTensor& tensor : map.tensors) {
    EXPECT_FALSE(names_blocks(tensor.name));
    const bool was_number =
        model.files.count(tensor.name) != 0 && model.files.at(tensor.name).dtype == "F32";
    EXPECT_EQ(tensor.dtype, was_number ? DType::kFloat32 : DType::kBFloat16) << tensor.name;
  }
  EXPECT_EQ(stored_dtype(folder.path()), DType::kBFloat16);
  // By parts of any length, from any element on.
  const WeightSource source(model.config, folder.path());
  EXPECT_TRUE(source.is_quantised());
  for (const auto& [name, values] : model.states)
    for (std::size_t first = 0, length = 1; first < values.size(); first += length, length += 61) {
      length = std::min(length, values.size() - first);
      std::vector<float> part(length);
      source.read(name, static_cast<std::int64_t>(first), part);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), values.begin() + first))
          << name << " from " << first;
    }
}

TEST(StoredTensor, ReadsFloat8WithAScaleABlock) { expect_read(fp8_model()); }

TEST(StoredTensor, ReadsMxfp4WithRowsInTurn) { expect_read(mxfp4_model()); }

TEST(StoredTensor, WritesMxfp4WhoseValuesComeBack) {
  const Quantised model = mxfp4_model();
  const io::TempDirectory folder;
  export_weights(make_weight_map(model.config, 1, DType::kFloat32), folder.path(),
                 SaveDType::kSource, values_of(model.states), {.max_shard_bytes = 4000});
  const auto files = io::SafetensorsDirectory::open(folder.path());
  EXPECT_EQ(files.entries().size(), model.files.size());
  for (const auto& [name, raw] : model.files) {
    EXPECT_EQ(files.find(name)->dtype_name, raw.dtype) << name;
    EXPECT_EQ(files.find(name)->shape, raw.shape) << name;
  }
  States got = model.states;
  for (auto& [name, values] : got) std::fill(values.begin(), values.end(), -1.0f);
  import_weights(model.config, folder.path(), buffers_of(got));
  EXPECT_EQ(got, model.states);
  const ModelConfig odd = config_from(small_json("gpt_oss"));
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                export_weights(make_weight_map(odd, 1, DType::kFloat32), folder.path(),
                               SaveDType::kSource, values_of(random_states(odd, 5)));
              }),
              HasSubstr("gate_up_proj_blocks: expected rows of a multiple of 32 elements, got "
                        "[4,20,12]"));
}

std::string problems_of(const Quantised& model, const std::function<void(Raw&)>& plant) {
  const io::TempDirectory folder;
  Raw files = model.files;
  plant(files);
  write_raw(folder / "model.safetensors", files);
  return message_of<InvalidArgument>([&] { read_weight_map(model.config, folder.path()); });
}

TEST(StoredTensor, NamesScalesThatDoNotFitTheirFloat8) {
  const Quantised model = fp8_model();
  const std::string q = "model.layers.1.self_attn.q_a_proj.weight", scale = q + "_scale_inv";
  EXPECT_THAT(problems_of(model, [&](Raw& files) { files.erase(scale); }),
              AllOf(HasSubstr(scale + ": expected scales of F32, BF16 or F16 [1,2]"),
                    HasSubstr("found none"), HasSubstr("model.safetensors")));
  EXPECT_THAT(problems_of(model, [&](Raw& files) { files.erase(q); }),
              AllOf(HasSubstr(q + ": missing, expected shape [5,132]"),
                    HasSubstr(scale + ": scales of nothing"), HasSubstr("found none")));
  EXPECT_THAT(problems_of(model,
                          [&](Raw& files) {
                            files.at(scale) = {"F32", {2, 1}, std::string(8, '\0')};
                          }),
              AllOf(HasSubstr(scale + ": expected scales of F32, BF16 or F16 [1,2], got F32 [2,1]"),
                    HasSubstr("model.safetensors")));
  EXPECT_THAT(problems_of(model,
                          [&](Raw& files) {
                            files.at(q) = {"F32", {5, 132}, std::string(5 * 132 * 4, '\0')};
                          }),
              HasSubstr(scale + ": scales of nothing"));
  EXPECT_THAT(problems_of(model,
                          [&](Raw& files) {
                            files.at(q).shape = {132, 5};
                          }),
              HasSubstr(q + ": expected shape [5,132], got [132,5]"));
}

TEST(StoredTensor, NamesScalesThatDoNotFitTheirBlocks) {
  const Quantised model = mxfp4_model();
  const std::string experts = "model.layers.2.mlp.experts.";
  EXPECT_THAT(problems_of(model, [&](Raw& files) { files.erase(experts + "down_proj_scales"); }),
              HasSubstr("down_proj_scales: expected scales of U8 [4,64,1]"));
  EXPECT_THAT(problems_of(model, [&](Raw& files) { files.erase(experts + "down_proj_blocks"); }),
              AllOf(HasSubstr("down_proj_blocks: missing"),
                    HasSubstr("down_proj_scales: scales of nothing")));
  EXPECT_THAT(problems_of(model,
                          [&](Raw& files) {
                            files.at(experts + "down_proj_blocks").shape = {4, 32, 2, 16};
                          }),
              HasSubstr("down_proj_blocks: expected blocks of U8 [4,64,1,16], got U8 [4,32,2,16]"));
  // Blocks of no layer, so that the files look as if they held numbers.
  EXPECT_THAT(problems_of(model,
                          [&](Raw& files) {
                            std::erase_if(
                                files, [](const auto& file) { return names_blocks(file.first); });
                          }),
              AllOf(HasSubstr("12 tensors do not fit"),
                    HasSubstr("gate_up_proj: missing, expected shape [4,64,64]"),
                    HasSubstr("gate_up_proj_scales: scales of nothing")));
}

TEST(Quantization, RefusesOtherMethodsByName) {
  const auto refusal = [](const std::string& quantization) {
    return message_of<Unsupported>(
        [&] { config_from(small_json("llama", "\"quantization_config\": " + quantization)); });
  };
  EXPECT_THAT(refusal(R"({"quant_method": "gptq", "bits": 4})"),
              HasSubstr("quantization_config.quant_method: expected fp8, mxfp4 or "
                        "compressed-tensors, got \"gptq\""));
  EXPECT_THAT(refusal(R"({"bits": 4})"),
              HasSubstr("expected fp8, mxfp4 or compressed-tensors, got none"));
  EXPECT_THAT(refusal(R"({"quant_method": "fp8", "weight_block_size": [64, 64]})"),
              HasSubstr("weight_block_size: expected [128,128]"));
  EXPECT_THAT(refusal(R"({"quant_method": "fp8", "activation_scheme": "static"})"),
              HasSubstr("activation_scheme: expected \"dynamic\", got \"static\""));
  EXPECT_EQ(refusal(R"({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})"), "");
}

}  // namespace
}  // namespace anabatic::model
