// SPDX-License-Identifier: Apache-2.0
#include "train/lora/base_difference.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/log.h"
#include "base/text.h"
#include "device/memory.h"
#include "train/config/quantization_keys.h"
#include "train/evaluate.h"
#include "train/objective/run_model.h"

namespace anabatic::train {
namespace {

constexpr std::int64_t kMostRows = 64;

// The loss of the model's own layers, all of them on this rank.
double loss_of(const RunConfig& of_run, const io::Dataset& dataset) {
  const LogScope quiet({});  // the run itself tells of its adapter
  RunConfig run = without_mtp(of_run);
  run.parallel = {};
  ModelSession session(run, false);
  Evaluator evaluator(session, dataset);
  session.load_parameters();
  session.refresh_derived();
  return evaluator.run(nullptr, kMostRows).loss;
}

}  // namespace

std::string base_difference_to_string(const RunConfig& run, const io::Dataset& dataset) {
  const model::ModelConfig config = model::load_config(run.model.path);
  const std::optional<WeightGrid> grid = quantization_options(run).grid;
  const std::string what = grid ? "quantization " + to_string(*grid) : "lora.base " + run.lora.base;
  const bool is_bf16 = uses_bf16(run);
  const char* const plain = is_bf16 ? "bf16" : "fp32";
  const DType dtype = is_bf16 ? DType::kBFloat16 : DType::kFloat32;
  const std::int64_t needed = config.counts.total * size_bytes(dtype),
                     budget = run.memory.budget > 0 ? run.memory.budget : needed,
                     there = std::min(budget, device::available_bytes());
  if (there < needed)
    return fmt::format("{}: not compared with {}, whose weights take {} of {}", what, plain,
                       format_bytes(needed), format_bytes(there));
  RunConfig as_they_are = run;
  as_they_are.lora.base = "auto";
  as_they_are.quantization = {};
  const double loss = loss_of(run, dataset), of_plain = loss_of(as_they_are, dataset);
  return fmt::format("{}: loss {:.5f} on {} rows, {:.5f} with the weights in {} ({:+.5f})", what,
                     loss, std::min(kMostRows, dataset.num_samples()), of_plain, plain,
                     loss - of_plain);
}

}  // namespace anabatic::train
