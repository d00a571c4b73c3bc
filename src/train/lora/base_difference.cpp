// SPDX-License-Identifier: Apache-2.0
#include "train/lora/base_difference.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/text.h"
#include "device/memory.h"
#include "train/evaluate.h"
#include "train/objective/run_model.h"

namespace anabatic::train {
namespace {

constexpr std::int64_t kMostRows = 64;

// The loss of the model's own layers, all of them on this rank.
double loss_of(const RunConfig& of_run, const std::string& base, const io::Dataset& dataset) {
  RunConfig run = without_mtp(of_run);
  run.parallel = {};
  run.lora.base = base;
  ModelSession session(run, false);
  Evaluator evaluator(session, dataset);
  session.load_parameters();
  session.refresh_derived();
  return evaluator.run(nullptr, kMostRows).loss;
}

}  // namespace

std::string base_difference_to_string(const RunConfig& run, const io::Dataset& dataset) {
  const model::ModelConfig config = model::load_config(run.model.path);
  const std::int64_t needed = config.counts.total * size_bytes(DType::kBFloat16),
                     budget = run.memory.budget > 0 ? run.memory.budget : needed,
                     there = std::min(budget, device::available_bytes());
  if (there < needed)
    return fmt::format("lora.base {}: not compared with bf16, whose weights take {} of {}",
                       run.lora.base, format_bytes(needed), format_bytes(there));
  const double loss = loss_of(run, run.lora.base, dataset), in_bf16 = loss_of(run, "auto", dataset);
  return fmt::format(
      "lora.base {}: loss {:.5f} on {} rows, {:.5f} with the weights in bf16 ({:+.5f})",
      run.lora.base, loss, std::min(kMostRows, dataset.num_samples()), in_bf16, loss - in_bf16);
}

}  // namespace anabatic::train
