// SPDX-License-Identifier: Apache-2.0
// convert and check manifest: equal models in every spelling, and faults that are planted in what
// was written.
#include "train/convert/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/log.h"
#include "base/text.h"
#include "model/weight_files.h"
#include "support/file_size_limit.h"
#include "support/tiny_run.h"
#include "unit/model/model_files.h"
#include "unit/model/planted_fault.h"
#include "unit/model/raw_tensors.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;
using model::plant;
using model::TensorBytes;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Writes a model directory of random weights.
void write_model(const fs::path& directory, const std::string& json, DType dtype) {
  fs::create_directories(directory);
  io::write_text(directory / "config.json", json);
  io::write_text(directory / "tokenizer.json", "{\"any\": \"bytes\"}\n");
  const model::ModelConfig config = model::load_config(directory);
  const model::States states = model::random_states(config, 7);
  model::export_weights(model::make_weight_map(config, 0, dtype), directory,
                        model::SaveDType::kSource, model::values_of(states));
}

const std::string& moe_json() {
  static const std::string json = model::small_json(
      "qwen3_moe", R"("num_hidden_layers": 2, "moe_intermediate_size": 12, "hidden_size": 12,
                      "num_experts": 12,
                      "an_unknown_field": [1, 2.50]  , "dtype": "bfloat16")");
  return json;
}

class Convert : public ::testing::Test {
 protected:
  fs::path path(const char* name) const { return folder_.path() / name; }

  void SetUp() override { write_model(path("source"), moe_json(), DType::kBFloat16); }

  testing::TemporaryDirectory folder_;
};

TEST_F(Convert, GivesTheSameModelInOtherSpellingsAndBack) {
  const Manifest fused = convert(path("source"), path("fused"), {.fuses_experts = true});
  EXPECT_EQ(fused.logits->largest_difference, 0);
  EXPECT_EQ(fused.logits->agreeing, 64);
  EXPECT_LT(fused.written.size(), fused.read.size());
  const Manifest back =
      convert(path("fused"), path("back"), {.fuses_experts = false, .compares_logits = false});
  EXPECT_EQ(back.written, fused.read);
  for (const char* name : {"config.json", "tokenizer.json"})
    EXPECT_EQ(read_file(path("back") / name), read_file(path("source") / name));
  EXPECT_THAT(check_manifest(path("fused"), path("source"), {}), IsEmpty());
  EXPECT_THAT(check_manifest(path("back"), path("source"), {}),
              Contains(HasSubstr("surplus")));  // which was not its source
}

TEST_F(Convert, WritesAnotherDtypeAndNamesItInTheConfig) {
  const Manifest manifest = convert(path("source"), path("f32"), {.dtype = DType::kFloat32});
  EXPECT_EQ(manifest.logits->largest_difference, 0);
  for (const ManifestTensor& tensor : manifest.written) EXPECT_EQ(tensor.dtype, "F32");
  EXPECT_THAT(read_file(path("f32") / "config.json"), HasSubstr("\"dtype\": \"float32\""));
  EXPECT_THAT(read_file(path("f32") / "config.json"), HasSubstr("[1, 2.50]  ,"));
  EXPECT_THAT(check_manifest(path("f32"), path("source"), {}), IsEmpty());
}

TEST_F(Convert, KeepsTheManifestThatItWrote) {
  const Manifest manifest = convert(path("source"), path("copy"), {});
  const Manifest read = read_manifest(path("copy"));
  EXPECT_EQ(read.read, manifest.read);
  EXPECT_EQ(read.written, manifest.written);
  EXPECT_EQ(read.source, path("source").string());
  std::int64_t elements = 0;
  for (const ManifestTensor& tensor : read.read) elements += tensor.num_elements();
  EXPECT_EQ(elements, model::load_config(path("source")).counts.total);
}

TEST_F(Convert, LeavesNothingBehindWhereItFails) {
  fs::remove(path("source") / "model.safetensors");
  EXPECT_ANY_THROW(convert(path("source"), path("copy"), {}));
  EXPECT_FALSE(fs::exists(path("copy")));
  EXPECT_FALSE(fs::exists(path("copy").string() + ".partial"));
}

TEST_F(Convert, LeavesNothingBehindOnAFullDisk) {
  const auto entries = [&] {
    return std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator());
  };
  const auto before = entries();
  const testing::FileSizeLimit limit(8 << 10);
  EXPECT_THROW(convert(path("source"), path("copy"), {.compares_logits = false}), ResourceError);
  EXPECT_EQ(entries(), before);
}

TEST_F(Convert, RefusesANameThatHoldsFiles) {
  fs::create_directories(path("copy"));
  io::write_text(path("copy") / "notes.txt", "mine");
  EXPECT_THAT(
      model::message_of<InvalidArgument>([&] { convert(path("source"), path("copy"), {}); }),
      HasSubstr("expected a name that is free"));
  EXPECT_EQ(read_file(path("copy") / "notes.txt"), "mine");
}

// Writes the manifest anew after a fault, so that only values tell.
void forge_manifest(const fs::path& directory) {
  const model::WeightSource now(model::load_config(directory), directory);
  Manifest manifest = read_manifest(directory);
  std::vector<ManifestTensor> others;
  manifest.written = describe(now, Direction::kWritten, others);
  write_manifest(directory, manifest);
}

const std::string kMlp = "model.layers.1.mlp.";

struct Fault {
  const char* name;
  std::function<void(TensorBytes&)> plant;
  std::string tensor;
};

std::vector<Fault> faults() {
  const std::string one = kMlp + "experts.1.", two = kMlp + "experts.2.";
  return {
      {"two experts swapped",
       [=](TensorBytes& bytes) {
         for (const char* part : {"gate_proj.weight", "up_proj.weight", "down_proj.weight"})
           std::swap(bytes.at(one + part), bytes.at(two + part));
       },
       one + "gate_proj.weight"},
      {"gate and up swapped",
       [=](TensorBytes& bytes) {
         std::swap(bytes.at(one + "gate_proj.weight"), bytes.at(one + "up_proj.weight"));
       },
       one + "up_proj.weight"},
      {"a row shifted",
       [=](TensorBytes& bytes) {
         auto& gate = bytes.at(kMlp + "gate.weight");
         std::rotate(gate.begin(), gate.begin() + 24, gate.end());
       },
       kMlp + "gate.weight"},
      {"a transposed router",
       [=](TensorBytes& bytes) {
         auto& gate = bytes.at(kMlp + "gate.weight");
         const std::vector<std::byte> rows = gate;
         for (std::size_t i = 0; i < gate.size(); ++i) {
           const std::size_t element = i / 2, row = element / 12, column = element % 12;
           gate[(column * 12 + row) * 2 + i % 2] = rows[i];
         }
       },
       kMlp + "gate.weight"},
      {"rows of q left in pairs",
       [](TensorBytes& bytes) {
         auto& q = bytes.at("model.layers.0.self_attn.q_proj.weight");
         const std::vector<std::byte> halves = q;
         for (std::size_t i = 0; i < q.size(); ++i) {
           const std::size_t row = i / 24, head = row / 4, place = row % 4;
           q[(head * 4 + place % 2 * 2 + place / 2) * 24 + i % 24] = halves[i];
         }
       },
       "model.layers.0.self_attn.q_proj.weight"},
      {"one bit of one value",
       [](TensorBytes& bytes) { bytes.at("model.norm.weight")[3] ^= std::byte{1}; },
       "model.norm.weight"},
  };
}

TEST_F(Convert, PlantedFaultsAreFoundByHashAndByValue) {
  for (const Fault& fault : faults()) {
    SCOPED_TRACE(fault.name);
    fs::remove_all(path("copy"));
    convert(path("source"), path("copy"), {.compares_logits = false});
    plant(path("copy"), fault.plant);
    EXPECT_THAT(check_manifest(path("copy"), {}, {}), Contains(HasSubstr(fault.tensor)));
    forge_manifest(path("copy"));
    EXPECT_THAT(check_manifest(path("copy"), {}, {}), IsEmpty());
    EXPECT_THAT(check_manifest(path("copy"), path("source"), {}),
                Contains(HasSubstr(fault.tensor + ": ")));
  }
}

// A model whose attention and experts are F8_E4M3.
void write_fp8(const fs::path& directory) {
  fs::create_directories(directory);
  io::write_text(directory / "config.json",
                 model::small_json("deepseek_v3", R"("quantization_config":
                                   {"quant_method": "fp8", "weight_block_size": [128, 128]})"));
  const model::ModelConfig config = model::load_config(directory);
  const model::States states = model::random_states(config, 7);
  std::map<std::string, model::RawTensor> files;
  for (const model::FileTensor& tensor :
       model::make_weight_map(config, 0, DType::kFloat32).tensors) {
    files[tensor.name] = model::raw_floats(tensor, model::values_of(states));
    if (!tensor.name.ends_with("_proj.weight")) continue;
    model::RandomBlocks blocks = model::random_fp8(tensor.shape, tensor.name);
    files[tensor.name] = blocks.elements;
    files[tensor.name + "_scale_inv"] = blocks.scales;
  }
  model::write_raw(directory / "model.safetensors", files);
}

TEST_F(Convert, Float8GoesOutAsNumbersAndAChangedScaleIsNamed) {
  write_fp8(path("fp8"));
  const Manifest manifest = convert(path("fp8"), path("out"), {});
  for (const ManifestTensor& tensor : manifest.written)
    EXPECT_TRUE(tensor.dtype == "F32" || tensor.dtype == "BF16") << tensor.name;
  EXPECT_EQ(num_elements(manifest.read), num_elements(manifest.written));
  EXPECT_THAT(read_file(path("out") / "config.json"),
              ::testing::Not(HasSubstr("quantization_config")));
  EXPECT_THAT(check_manifest(path("out"), path("fp8"), {}), IsEmpty());
  const std::string down = kMlp + "experts.2.down_proj.weight";
  std::size_t place = 0;
  {
    const auto files = io::SafetensorsDirectory::open(path("fp8"));
    const auto* scales = files.find(down + "_scale_inv");
    const std::string all = read_file(path("fp8") / "model.safetensors");
    place = all.find(std::string(reinterpret_cast<const char*>(scales->data.data()), 4));
  }
  testing::flip_bit(
      path("fp8") / "model.safetensors",
      static_cast<std::int64_t>(fs::file_size(path("fp8") / "model.safetensors") - place - 2));
  EXPECT_THAT(check_manifest(path("out"), path("fp8"), {}),
              AllOf(Contains(HasSubstr("tensor " + down + "_scale_inv")),
                    Contains(HasSubstr(down + ": "))));
}

const io::BlockType* mxfp4() { return io::find_block_type(std::string_view("MXFP4")); }

std::string gpt_oss_json() {
  return model::small_json("gpt_oss", R"("hidden_size": 64, "intermediate_size": 32,
                                         "dtype": "bfloat16")");
}

std::string op_of(const Manifest& manifest, const std::string& tensor) {
  const auto found = std::ranges::find(manifest.written, tensor, &ManifestTensor::name);
  return found == manifest.written.end() ? "no tensor" : found->parts.front().op;
}

TEST_F(Convert, ExpertsGoOutInMxfp4AndAChangedScaleIsNamed) {
  write_model(path("plain"), gpt_oss_json(), DType::kBFloat16);
  const Manifest manifest = convert(path("plain"), path("mxfp4"), {.block_type = mxfp4()});
  const std::string experts = kMlp + "experts.", scales = experts + "down_proj_scales";
  EXPECT_EQ(num_elements(manifest.written), num_elements(manifest.read));
  EXPECT_EQ(op_of(manifest, experts + "gate_up_proj_blocks"), "quantise, reorder rows");
  EXPECT_EQ(op_of(manifest, scales), "scale");
  EXPECT_EQ(op_of(manifest, experts + "down_proj_bias"), "copy");
  const std::string config = read_file(path("mxfp4") / "config.json");
  EXPECT_THAT(config, AllOf(HasSubstr(R"("quant_method":"mxfp4")"),
                            HasSubstr(R"("model.layers.*.self_attn")"),
                            HasSubstr(R"("dtype": "bfloat16")")));
  EXPECT_THAT(check_manifest(path("mxfp4"), path("plain"), {}), IsEmpty());
  // Once more the same bytes, and as numbers the values.
  const Manifest again = convert(path("mxfp4"), path("again"), {.block_type = mxfp4()});
  EXPECT_EQ(again.logits->largest_difference, 0);
  EXPECT_THAT(differences(manifest.written, again.written), IsEmpty());
  EXPECT_EQ(read_file(path("again") / "config.json"), config);
  const Manifest numbers = convert(path("mxfp4"), path("numbers"), {});
  EXPECT_EQ(numbers.logits->largest_difference, 0);
  EXPECT_EQ(read_file(path("numbers") / "config.json"), read_file(path("plain") / "config.json"));

  plant(path("mxfp4"), [&](TensorBytes& bytes) { bytes.at(scales)[70] ^= std::byte{1}; });
  EXPECT_THAT(check_manifest(path("mxfp4"), {}, {}),
              ElementsAre(HasSubstr("tensor " + scales + ": ")));
  forge_manifest(path("mxfp4"));
  EXPECT_THAT(check_manifest(path("mxfp4"), {}, {}), IsEmpty());
  EXPECT_THAT(check_manifest(path("mxfp4"), path("plain"), {}),
              ElementsAre(HasSubstr(experts + "down_proj_blocks: 1 of 256 groups differ")));
}

TEST_F(Convert, OtherFamiliesAndSizesHaveNoMxfp4) {
  EXPECT_THAT(model::message_of<Unsupported>(
                  [&] { convert(path("source"), path("copy"), {.block_type = mxfp4()}); }),
              HasSubstr("--dtype mxfp4: expected gpt_oss, got qwen3_moe"));
  write_model(path("odd"), model::small_json("gpt_oss"), DType::kBFloat16);
  EXPECT_THAT(model::message_of<InvalidArgument>(
                  [&] { convert(path("odd"), path("copy"), {.block_type = mxfp4()}); }),
              HasSubstr("gate_up_proj_blocks: expected rows of a multiple of 32 elements"));
  EXPECT_FALSE(fs::exists(path("copy")));
}

TEST_F(Convert, ADroppedExpertIsNamed) {
  convert(path("source"), path("copy"), {.compares_logits = false});
  const std::string dropped = kMlp + "experts.3.down_proj.weight";
  plant(path("copy"), [&](TensorBytes& bytes) { bytes.erase(dropped); });
  EXPECT_THAT(model::message_of<InvalidArgument>([&] { check_manifest(path("copy"), {}, {}); }),
              HasSubstr(dropped + ": missing"));
}

TEST_F(Convert, ASourceThatChangedIsNamed) {
  convert(path("source"), path("copy"), {.compares_logits = false});
  plant(path("source"), [](TensorBytes& bytes) { bytes.at("lm_head.weight")[0] ^= std::byte{1}; });
  EXPECT_THAT(check_manifest(path("copy"), path("source"), {}),
              Contains(HasSubstr("source: tensor lm_head.weight")));
}

TEST_F(Convert, LogitsOfAnotherProgramAreCompared) {
  convert(path("source"), path("copy"), {.compares_logits = false});
  const std::vector<std::int32_t> tokens = probe_tokens(11, 5);
  std::vector<float> logits = logits_of(path("source"), tokens);
  const auto write_reference = [&] {
    io::SafetensorsWriter writer = io::SafetensorsWriter::single_file(
        path("reference.safetensors"),
        {{"input_ids", DType::kInt64, {1, 5}}, {"logits", DType::kFloat32, {1, 5, 11}}});
    const std::vector<std::int64_t> wide(tokens.begin(), tokens.end());
    writer.write("input_ids", std::as_bytes(std::span(wide)));
    writer.write("logits", std::as_bytes(std::span(logits)));
    writer.finish();
  };
  write_reference();
  EXPECT_THAT(check_manifest(path("copy"), {}, path("reference.safetensors")), IsEmpty());
  logits[20] += 0.5f;
  write_reference();
  EXPECT_THAT(check_manifest(path("copy"), {}, path("reference.safetensors")),
              Contains(HasSubstr("a difference of 0.5")));
}

TEST_F(Convert, ATiedHeadIsListedAsATwin) {
  const fs::path tied = path("tied");
  write_model(tied, model::small_json("llama", R"("tie_word_embeddings": true)"), DType::kFloat32);
  std::vector<std::byte> head;
  plant(tied, [&](TensorBytes& bytes) { head = bytes.at("model.embed_tokens.weight"); });
  std::vector<io::TensorInfo> infos;
  {
    const io::SafetensorsDirectory files = io::SafetensorsDirectory::open(tied);
    TensorBytes bytes;
    for (const auto& [name, entry] : files.entries()) {
      infos.push_back({name, *entry.dtype, entry.shape});
      bytes[name].assign(entry.data.begin(), entry.data.end());
    }
    infos.push_back({"lm_head.weight", DType::kFloat32, {11, 12}});
    bytes["lm_head.weight"] = head;
    fs::create_directories(path("twin"));
    fs::copy_file(tied / "config.json", path("twin") / "config.json");
    io::SafetensorsWriter writer(path("twin"), infos);
    for (const auto& [name, data] : bytes) writer.write(name, data);
    writer.finish();
  }
  const Manifest manifest = convert(path("twin"), path("copy"), {.compares_logits = false});
  ASSERT_EQ(manifest.repeated.size(), 1u);
  EXPECT_EQ(manifest.repeated[0].name, "lm_head.weight");
  EXPECT_THAT(manifest.ignored, IsEmpty());
}

TEST_F(Convert, HandsThroughWhatTheModelDoesNotUse) {
  // Eight positions are fewer than the tokens that otherwise probe a model.
  const fs::path source = path("gpt2");
  fs::create_directories(source);
  io::write_text(source / "config.json",
                 model::small_json("gpt2", R"("max_position_embeddings": 8)"));
  const model::ModelConfig config = model::load_config(source);
  const model::States states = model::random_states(config, 7);
  model::WeightMap map = model::make_weight_map(config, 1, DType::kFloat32);
  map.tensors.push_back({"h.0.attn.bias", DType::kBFloat16, {1, 1, 2, 2}, {{"norm.bias", 0, 4}}});
  model::export_weights(map, source, model::SaveDType::kSource, model::values_of(states));

  std::vector<std::string> said;
  const LogScope scope([&](Severity, const std::string& text) { said.push_back(text); });
  const Manifest manifest = convert(source, path("same"), {});
  EXPECT_THAT(said, ElementsAre(HasSubstr("unknown fields are ignored"),
                                HasSubstr("model does not use them: h.0.attn.bias")));
  ASSERT_EQ(manifest.ignored.size(), 1u);
  EXPECT_EQ(manifest.ignored[0].name, "h.0.attn.bias");
  EXPECT_THAT(manifest.written, Contains(manifest.ignored[0]));
  EXPECT_EQ(manifest.logits->tokens, 8);
  EXPECT_EQ(manifest.logits->largest_difference, 0);
  EXPECT_THAT(check_manifest(path("same"), source, {}), IsEmpty());
  EXPECT_EQ(read_file(source / "config.json"), read_file(path("same") / "config.json"));
}

}  // namespace
}  // namespace anabatic::train
