// SPDX-License-Identifier: Apache-2.0
// convert with upcycling: the mixture computes what the dense model does.
#include "train/convert/upcycle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "io/checksums.h"
#include "support/tiny_run.h"
#include "train/convert/convert.h"
#include "unit/model/model_files.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Weights are wide, so that MLPs matter to the logits.
void write_wide(const fs::path& directory, const std::string& json, DType dtype) {
  fs::create_directories(directory);
  io::write_text(directory / "config.json", json);
  const model::ModelConfig config = model::load_config(directory);
  model::States states = model::random_states(config, 7);
  for (auto& [name, values] : states)
    if (name.find("norm") == name.npos)
      for (float& value : values) value *= 12;
  model::export_weights(model::make_weight_map(config, 0, dtype), directory,
                        model::SaveDType::kSource, model::values_of(states));
}

class Upcycle : public ::testing::Test {
 protected:
  fs::path path(const std::string& name) const { return folder_.path() / name; }
  testing::TemporaryDirectory folder_;
};

const char* const kSizes = R"("intermediate_size": 24, "num_hidden_layers": 2)";

TEST_F(Upcycle, TheMixtureComputesTheDenseModel) {
  for (const auto& [dense, mixture] :
       {std::pair("llama", "mixtral"), std::pair("mistral", "mixtral"),
        std::pair("qwen2", "qwen2_moe"), std::pair("qwen3", "qwen3_moe")}) {
    SCOPED_TRACE(dense);
    const std::string name = dense;
    write_wide(path(name), model::small_json(dense, kSizes), DType::kBFloat16);
    for (const char* options : {"experts=3,top_k=2", "experts=3,top_k=2,granularity=4",
                                "experts=4,top_k=1,granularity=2,seed=5"}) {
      const fs::path result = path(name + options);
      const Manifest manifest = convert(path(name), result, {.upcycle = parse_upcycle(options)});
      const auto& [tokens, difference, agreeing] = *manifest.logits;
      EXPECT_EQ(tokens, 64);
      EXPECT_EQ(agreeing, 64) << difference;
      const model::ModelConfig config = model::load_config(result);
      EXPECT_EQ(config.model_type, mixture);
      EXPECT_THAT(check_manifest(result, path(name), {}), IsEmpty());
    }
  }
}

// All scores are equal then: what is chosen has to be whole copies.
TEST_F(Upcycle, EqualScoresChooseWholeCopies) {
  write_wide(path("dense"), model::small_json("llama", kSizes), DType::kFloat32);
  const auto options = parse_upcycle("experts=3,top_k=2,granularity=4");
  convert(path("dense"), path("moe"), {.compares_logits = false, .upcycle = options});
  const model::ModelConfig config = model::load_config(path("moe"));
  model::States states = model::random_states(config, 1);
  const model::WeightMap map =
      model::import_weights(config, path("moe"), model::buffers_of(states));
  for (auto& [name, values] : states)
    if (name.ends_with("router.weight")) std::fill(values.begin(), values.end(), 0.0f);
  model::export_weights(map, path("moe"), model::SaveDType::kSource, model::values_of(states));
  fs::remove(path("moe") / io::kChecksumsFile);  // those of the routers before
  const auto tokens = probe_tokens(11);
  const std::vector<float> dense = logits_of(path("dense"), tokens);
  const auto compared = compare_logits(dense, logits_of(path("moe"), tokens), 11);
  const float largest = std::abs(*std::max_element(
      dense.begin(), dense.end(), [](float a, float b) { return std::abs(a) < std::abs(b); }));
  EXPECT_LE(compared.largest_difference, 2e-5 * largest);
}

TEST_F(Upcycle, NoiseComesAfterTheComparisonAndIsKnownToTheManifest) {
  write_wide(path("dense"), model::small_json("qwen3", kSizes), DType::kFloat32);
  const auto options = parse_upcycle("experts=2,top_k=2,noise=0.05");
  const Manifest manifest = convert(path("dense"), path("moe"), {.upcycle = options});
  EXPECT_EQ(manifest.logits->agreeing, 64);
  EXPECT_EQ(read_manifest(path("moe")).upcycle, options);
  EXPECT_THAT(check_manifest(path("moe"), path("dense"), {}), IsEmpty());
  const auto tokens = probe_tokens(11);
  EXPECT_GT(compare_logits(logits_of(path("dense"), tokens), logits_of(path("moe"), tokens), 11)
                .largest_difference,
            manifest.logits->largest_difference);
}

TEST_F(Upcycle, RefusesWhatCannotBe) {
  for (const auto& [text, message] :
       {std::pair("experts=2", "expected experts=NUMBER,top_k=NUMBER"),
        std::pair("experts=2,top_k=3", "top_k: expected at most 2 experts, got 3"),
        std::pair("experts=2,top_k=1,granularity=3", "granularity: expected a power of two"),
        std::pair("experts=x,top_k=1", "experts: expected an integer"),
        std::pair("experts=2,top_k=1,width=3", "or seed, got 'width=3'")})
    EXPECT_THAT(model::message_of<InvalidArgument>([&, &text = text] { parse_upcycle(text); }),
                HasSubstr(message));
  const auto refusal = [&](const std::string& json, const char* options) {
    fs::remove_all(path("dense"));
    write_wide(path("dense"), json, DType::kFloat32);
    return model::message_of<Error>(
        [&] { convert(path("dense"), path("moe"), {.upcycle = parse_upcycle(options)}); });
  };
  EXPECT_THAT(refusal(model::small_json("llama"), "experts=2,top_k=1,granularity=4"),
              HasSubstr("expected a divisor of intermediate_size 10, got 4"));
  EXPECT_THAT(refusal(model::small_json("mixtral"), "experts=2,top_k=1"),
              HasSubstr("expected llama, mistral, qwen2 or qwen3, got mixtral"));
  EXPECT_THAT(refusal(model::small_json("llama", R"("mlp_bias": true)"), "experts=2,top_k=1"),
              HasSubstr("mlp_bias"));
  EXPECT_FALSE(fs::exists(path("moe")));
}

}  // namespace
}  // namespace anabatic::train
