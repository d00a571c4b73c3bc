// SPDX-License-Identifier: Apache-2.0
// Broken configs with a fixed budget: each is read or refused with a clear error, without a large
// allocation.
#include <gtest/gtest.h>

#include <cstring>

#include "base/philox.h"
#include "model/family.h"
#include "unit/io/allocations.h"
#include "unit/model/model_files.h"

namespace anabatic::model {
namespace {

constexpr std::uint64_t kSeed = 20240608;
constexpr std::size_t kMaxRequest = std::size_t{1} << 20;

// Cuts, flips a bit, repeats or removes a part, or puts a value where another was.
std::string mutate(std::string text, std::uint64_t round) {
  std::uint64_t draw = 0;
  const auto below = [&](std::uint64_t bound) {
    return static_cast<std::size_t>(random_below(kSeed, round, draw++, bound));
  };
  const std::size_t edits = 1 + below(3);
  for (std::size_t i = 0; i < edits && !text.empty(); ++i) {
    const std::size_t place = below(text.size());
    switch (below(6)) {
      case 0:
        text.resize(place);
        break;
      case 1:
        text[place] = static_cast<char>(text[place] ^ (1 << below(8)));
        break;
      case 2:
        text.insert(place, text.substr(below(text.size()), below(32)));
        break;
      case 3:
        text.erase(place, below(16) + 1);
        break;
      default: {  // after a colon, so that most results are JSON
        static constexpr const char* kValues[] = {"1099511627776",
                                                  "-1",
                                                  "0",
                                                  "1e308",
                                                  "null",
                                                  "true",
                                                  "\"silu\"",
                                                  "[[[[[]]]]]",
                                                  "[-1]",
                                                  "1e-300",
                                                  "18446744073709551616",
                                                  "{\"a\": {}}"};
        const std::size_t colon = text.find(':', place);
        const std::size_t end = text.find_first_of(",}", colon);
        if (colon != std::string::npos && end != std::string::npos)
          text.replace(colon + 1, end - colon - 1, kValues[below(12)]);
      }
    }
  }
  return text;
}

std::vector<std::string> whole_configs() {
  return {small_json("llama", R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0,
                                 "low_freq_factor": 1.0, "high_freq_factor": 4.0})"),
          small_json("mistral", R"("sliding_window": 16, "eos_token_id": [2, 3])"),
          small_json("qwen3", R"("use_sliding_window": true, "layer_types":
              ["full_attention", "sliding_attention", "full_attention"])"),
          small_json("flex_olmo", R"("norm_topk_prob": true, "tie_word_embeddings": true)"),
          small_json("granitemoeshared", R"("attention_multiplier": 0.5, "logits_scaling": 8,
              "embedding_multiplier": 12, "residual_multiplier": 0.25)"),
          small_json("gpt_oss", R"("swiglu_limit": 5.0, "swiglu_alpha": 1.5, "layer_types":
              ["full_attention", "sliding_attention", "full_attention"])"),
          small_json("olmoe", R"("clip_qkv": 8.0, "pad_token_id": 1)"),
          small_json("mixtral", R"("rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4,
                                   "factor": 2})"),
          small_json("qwen3_moe", R"("mlp_only_layers": [1], "decoder_sparse_step": 1)")};
}

TEST(Fuzz, Config) {
  const io::TempDirectory folder;
  const std::vector<std::string> wholes = whole_configs();
  int good = 0, refused = 0;
  ::testing::internal::CaptureStderr();  // warnings about unknown fields
  for (std::uint64_t round = 0; round < 4000; ++round) {
    io::write_text(folder / "config.json", mutate(wholes[round % wholes.size()], round));
    io::reset_largest_allocation();
    try {
      const ModelConfig config = load_config(folder.path());
      EXPECT_GT(config.counts.total, 0);
      ++good;
    } catch (const Error& error) {
      ++refused;
      EXPECT_GT(std::strlen(error.what()), 20u) << "round " << round;
    }
    EXPECT_LE(io::largest_allocation_bytes(), kMaxRequest) << "round " << round;
  }
  ::testing::internal::GetCapturedStderr();
  EXPECT_GT(refused, 1000);
  EXPECT_GT(good, 200);
}

TEST(Fuzz, EveryFamilyHasAConfigToStartFrom) {
  const std::filesystem::path corpus = ANABATIC_CONFIG_CORPUS;
  for (const Family* family : families()) {
    const std::string name = std::string(family->model_type) + ".json";
    EXPECT_TRUE(std::filesystem::exists(corpus / "accepted" / name)) << name;
  }
}

TEST(Fuzz, ConfigOfDeepNesting) {
  const io::TempDirectory folder;
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  for (const std::string& member : {"\"rope_scaling\": " + deep, "\"vocab_size\": " + deep,
                                    "\"other\": " + deep, "\"quantization_config\": " + deep}) {
    io::write_text(folder / "config.json", small_json("llama", member));
    try {
      load_config(folder.path());
    } catch (const Error& error) {
      EXPECT_LT(std::strlen(error.what()), 1000u);
    }
  }
}

}  // namespace
}  // namespace anabatic::model
