// SPDX-License-Identifier: Apache-2.0
#include "train/config/other_names.h"

#include <algorithm>
#include <array>
#include <utility>

namespace anabatic::train {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 24> kNames{{
    {"batch_size", "train.micro_batch_size"},
    {"bf16", "train.precision"},
    {"dtype", "train.precision"},
    {"epochs", "train.steps"},
    {"fp16", "train.precision"},
    {"gradient_accumulation", "train.gradient_accumulation_steps"},
    {"gradient_checkpointing", "memory.recompute"},
    {"lora_alpha", "lora.alpha"},
    {"lora_r", "lora.rank"},
    {"lora_rank", "lora.rank"},
    {"lr", "optimizer.learning_rate"},
    {"lr_scheduler_type", "optimizer.schedule"},
    {"max_grad_norm", "optimizer.clip_grad_norm"},
    {"max_seq_length", "data.sequence_length"},
    {"max_steps", "train.steps"},
    {"model_name_or_path", "model.path"},
    {"num_epochs", "train.steps"},
    {"num_train_epochs", "train.steps"},
    {"output_dir", "train.output"},
    {"per_device_train_batch_size", "train.micro_batch_size"},
    {"r", "lora.rank"},
    {"target_modules", "lora.targets"},
    {"train_file", "data.train"},
    {"use_rslora", "lora.rslora"},
}};

}  // namespace

std::optional<std::string> key_of_other_name(std::string_view name,
                                             std::span<const std::string> keys) {
  const std::string_view last = name.substr(name.rfind('.') + 1);
  std::optional<std::string> found;
  if (const auto* const row = std::ranges::find(kNames, last, &decltype(kNames)::value_type::first);
      row != kNames.end())
    found = std::string(row->second);
  if (found && std::ranges::find(keys, *found) != keys.end()) return found;
  found.reset();
  for (const std::string& key : keys) {
    if (std::string_view(key).substr(key.rfind('.') + 1) != last) continue;
    if (found) return std::nullopt;
    found = key;
  }
  return found;
}

}  // namespace anabatic::train
