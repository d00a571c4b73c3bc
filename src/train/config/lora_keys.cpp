// SPDX-License-Identifier: Apache-2.0
#include "train/config/lora_keys.h"

#include "train/config/config_key.h"
#include "train/config/dropout_keys.h"

namespace anabatic::train {
namespace {

constexpr std::int64_t kMostLoraRank = 4096;

}  // namespace

ConfigKey adapter_key() {
  return string("model.adapter",
                "Directory of an adapter as PEFT writes it, or of a run that trained one. Its "
                "products are added to those of the weights, which stay as they are.",
                AT(model.adapter));
}

void add_lora_keys(std::vector<ConfigKey>& keys) {
  keys.push_back(
      strings("lora.targets",
              "Weights that get a low-rank adapter, which is trained in place of the model. Words: "
              "attention, mlp (of dense layers), shared, experts, router, embedding, head, or all "
              "(attention, mlp, shared, experts). Anything else is a regular expression over names "
              "of parameters.",
              AT(lora.targets)));
  keys.push_back(
      or_word(integer("lora.rank", "Rank of the adapters. auto is 16, or that of lora.from.", 1,
                      AT(lora.rank), kMostLoraRank),
              "auto", RunConfig::Lora::kUsualRank, AT(lora.rank)));
  keys.push_back(or_word(number("lora.alpha",
                                "Products of adapters are scaled by alpha / rank. auto is twice "
                                "the rank, or that of lora.from.",
                                1e-6, 1e6, AT(lora.alpha)),
                         "auto", RunConfig::Lora::kUsualAlpha, AT(lora.alpha)));
  keys.push_back(
      boolean("lora.rslora", "Scale by alpha / root of the rank instead.", AT(lora.rslora)));
  keys.push_back(boolean("lora.share_gate_up",
                         "One down-projection for gate and up of experts, as PEFT has it where "
                         "both are one tensor. false gives each its own.",
                         AT(lora.share_gate_up)));
  keys.push_back(adapter_dropout_key());
  keys.push_back(
      choice("lora.base",
             "How the frozen weights are held. auto is the dtype of train.precision. int8 "
             "has matrices of projections and experts in blocks of 128 with a scale. mxfp4 has "
             "experts in blocks of 32 of 4 bits, as files of gpt_oss do, and others as auto.",
             {"auto", "int8", "mxfp4"}, AT(lora.base)));
  keys.push_back(string("lora.from",
                        "Directory of an adapter to go on from, as PEFT writes it. It says which "
                        "weights have one, of which rank.",
                        AT(lora.from)));
}

void add_lora_problems(const RunConfig& config, std::vector<std::string>& problems) {
  if (!trains_adapter(config)) {
    const RunConfig::Lora usual, &lora = config.lora;
    const auto expect_usual = [&](bool holds, const char* key, const auto& got) {
      if (!holds)
        problems.push_back(fmt::format(
            "{}: got {}, but neither lora.targets nor lora.from: no adapter would be trained, but "
            "all weights",
            key, got));
    };
    expect_usual(lora.rank == usual.rank, "lora.rank", lora.rank);
    expect_usual(lora.alpha == usual.alpha, "lora.alpha", lora.alpha);
    expect_usual(lora.rslora == usual.rslora, "lora.rslora", lora.rslora);
    expect_usual(lora.share_gate_up == usual.share_gate_up, "lora.share_gate_up",
                 lora.share_gate_up);
    expect_usual(lora.dropout == usual.dropout, "lora.dropout", lora.dropout);
    expect_usual(lora.base == usual.base, "lora.base", lora.base);
    return;
  }
  const auto expect = [&](bool holds, const char* key, const char* expected, const auto& got) {
    if (!holds)
      problems.push_back(fmt::format("{}: expected {} with lora, got {}", key, expected, got));
  };
  expect(config.lora.from.empty() || config.lora.targets.empty(), "lora.targets",
         "none, as lora.from says which weights have an adapter,",
         joined(config.lora.targets, ", "));
  expect(config.model.adapter.empty(), "model.adapter",
         "none: lora.from goes on from an adapter; an adapter on top of another is not supported",
         config.model.adapter);
  expect(config.train.router_bias_update_rate <= 0, "train.router_bias_update_rate",
         "auto or 0: the rule changes biases of the frozen routers, which PEFT's files of an "
         "adapter do not carry,",
         config.train.router_bias_update_rate);
  expect(config.lora.base == "auto" || uses_bf16(config), "lora.base",
         "auto where train.precision is fp32", config.lora.base);
  expect(config.memory.parameters != "disk", "memory.parameters",
         "auto or resident: frozen weights are not read from disk yet", config.memory.parameters);
}

}  // namespace anabatic::train
