// SPDX-License-Identifier: Apache-2.0
// An adapter_config.json that is read gives each module one rank and one alpha.
#include "fuzz/fuzz_target.h"
#include "model/lora/peft_config.h"

using namespace anabatic;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::read_or_refuse(
      fuzz::view(data, size),
      [&] {
        model::PeftConfig config =
            model::parse_peft_config(fuzz::view(data, size), "[lora] adapter_config.json");
        for (const char* name : {"model.layers.0.self_attn.q_proj", "lm_head"}) {
          (void)config.rank_of(name);
          (void)config.alpha_of(name);
        }
        return config;
      },
      [](const model::PeftConfig& config) {
        fuzz::require(config.rank > 0, "a rank");
        fuzz::require(config.dropout >= 0 && config.dropout <= 1, "a rate of dropout");
      });
}
