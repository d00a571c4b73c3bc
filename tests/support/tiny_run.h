// SPDX-License-Identifier: Apache-2.0
// A tiny model directory and token files in a temporary folder, for tests that train.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "train/run_config.h"

namespace anabatic::testing {

// Removes the folder when it goes.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Writes FOLDER/model/config.json of a Mixtral with 97 tokens, 2 layers of width 16 and 4 experts,
// with `extra` members (JSON text such as
// "\"tie_word_embeddings\": true") in place of the defaults of the same name.
std::filesystem::path write_tiny_config(const std::filesystem::path& folder,
                                        const std::string& extra = "");

// Such members: latent attention after a dense layer, and the sinks of gpt_oss with a window.
inline const std::string kTinyLatent =
    R"("model_type": "deepseek_v3", "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4,
       "qk_nope_head_dim": 8, "v_head_dim": 8, "num_key_value_heads": 4,
       "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 2,
       "topk_group": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1)";
inline const std::string kTinySinks =
    R"("model_type": "gpt_oss", "head_dim": 8, "num_experts": 4, "sliding_window": 6,
       "rope_scaling": null)";

// Writes FOLDER/NAME.bin/.idx: `documents` documents of 5 to 40 tokens below 97 that follow a noisy
// rule, so that a model can learn them.
std::filesystem::path write_tiny_tokens(const std::filesystem::path& folder,
                                        const std::string& name, int documents, std::uint64_t seed);

// A run over both: 8 steps of 2 x 16 tokens in fp32 on 2 threads, output FOLDER/run, under the
// suite's configuration (support/test_config.h).
train::RunConfig tiny_run(const std::filesystem::path& folder, const std::string& extra = "");

// The fp32 parameters and moments of a checkpoint, whoever wrote which rows of them: dtype, shape
// and bytes by name.
std::map<std::string, std::string> training_state(const std::filesystem::path& checkpoint);

// What a bitwise comparison of checkpoints needs: the files of the weights, and the training state.
std::string checkpoint_bytes(const std::filesystem::path& checkpoint);

// Removes the checkpoints of OUTPUT after a step, as before they were written.
void go_back_to(const std::filesystem::path& output, std::int64_t step);

// Changes one bit of the file, `from_end` bytes before its end.
void flip_bit(const std::filesystem::path& file, std::int64_t from_end);

// One object a line: metrics.jsonl, validation.jsonl.
std::vector<nlohmann::json> json_lines(const std::filesystem::path& file);

}  // namespace anabatic::testing
