// SPDX-License-Identifier: Apache-2.0
#include "train/lora/run_adapter.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "io/data/fingerprint.h"
#include "train/config/dropout_keys.h"
#include "train/config/quantization_keys.h"
#include "train/convert/stored_model.h"
#include "train/convert/trained_grid.h"
#include "train/ranks/run_mesh.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kRank = 16;

// What keys say of rank and scale has to be what the files say.
void require_equal_settings(const RunConfig& run, const model::PeftConfig& peft) {
  const RunConfig::Lora& lora = run.lora;
  const auto require = [&](bool holds, const char* key, const auto& found, const auto& got) {
    ANABATIC_REQUIRE(holds, "[lora] {}: expected {}, as {} says, got {}", key, found, lora.from,
                     got);
  };
  require(lora.rank == RunConfig::Lora::kUsualRank || lora.rank == peft.rank, "lora.rank",
          peft.rank, lora.rank);
  require(lora.alpha == RunConfig::Lora::kUsualAlpha || lora.alpha == peft.alpha, "lora.alpha",
          peft.alpha, lora.alpha);
  require(!lora.rslora || peft.divides_by_root, "lora.rslora", peft.divides_by_root, lora.rslora);
}

void warn_of_gaps(const model::PeftFiles& files, const std::string& directory) {
  const std::vector<std::string>& names = files.left_out();
  if (names.empty()) return;
  log_warning(
      "[lora] {}: its target_modules name {} module{} of this model that {} no adapter in the "
      "file, such as {}; PEFT drops these silently",
      directory, names.size(), names.size() == 1 ? "" : "s", names.size() == 1 ? "has" : "have",
      names.front());
}

// An adapter makes up for the rounding of the weights that it was trained on.
void warn_of_grid(const RunConfig& run, const std::string& directory) {
  const std::optional<TrainedGrid> trained = find_trained_grid(directory);
  const std::optional<WeightGrid> grid = quantization_options(run).grid;
  if (!trained || trained->grid == grid) return;
  log_warning("[lora] {}: it was trained on weights in the grid {}, and goes on on weights {}",
              directory, to_string(trained->grid),
              grid ? "in " + to_string(*grid) : "as they are (quantization.enable: false)");
}

// A stack of experts reads rows in an order that changes with the micro-batch, and PEFT's adapters
// of stacks have no dropout either.
void require_dropout(const RunConfig& run, const model::Adapter& adapter) {
  const std::string problem = problem_of_rate(adapter.dropout);
  ANABATIC_REQUIRE(problem.empty(), "[lora] {}: lora_dropout: {}; lora.dropout overrides it",
                   run.lora.from, problem);
  const bool has_experts = std::ranges::any_of(
      adapter.groups, [](const model::AdapterGroup& group) { return group.num_experts > 0; });
  ANABATIC_REQUIRE(adapter.dropout == 0 || !has_experts,
                   "[lora] lora.dropout: expected 0 with adapters of experts, which have no "
                   "dropout in PEFT either, got {}",
                   adapter.dropout);
}

void require_base(const RunConfig& run, const model::ModelConfig& config) {
  if (run.lora.base != "mxfp4") return;
  const std::int64_t block = mxfp4_format().columns;
  bool has_experts = false;
  for (const model::Parameter& parameter : model::declare(config.spec).parameters) {
    if (!parameter.is_per_expert() || parameter.shape.size() != 3) continue;
    has_experts = true;
    ANABATIC_REQUIRE(parameter.shape.back() % block == 0,
                     "[lora] lora.base: mxfp4 has rows of a multiple of {} elements, got {} in {}",
                     block, parameter.shape.back(), parameter.name());
  }
  ANABATIC_REQUIRE(has_experts,
                   "[lora] lora.base: expected auto or int8 for a model without experts, got "
                   "mxfp4, in which experts alone are kept");
}

}  // namespace

const std::string& adapter_directory(const RunConfig& run) {
  return run.lora.from.empty() ? run.model.adapter : run.lora.from;
}

model::PeftFiles adapter_files(const RunConfig& run, const model::ModelConfig& config) {
  const bool is_apart = !run.lora.from.empty() && !run.lora.share_gate_up;
  return model::PeftFiles(config, adapter_directory(run),
                          is_apart ? model::GateUp::kApart : model::GateUp::kTogether);
}

std::shared_ptr<const model::Adapter> adapter_of(const RunConfig& run,
                                                 const model::ModelConfig& config) {
  require_base(run, config);
  if (const std::string& directory = adapter_directory(run); !directory.empty()) {
    const model::PeftFiles files = adapter_files(run, config);
    if (!run.lora.from.empty()) require_equal_settings(run, files.peft());
    warn_of_gaps(files, directory);
    if (!run.lora.from.empty()) warn_of_grid(run, directory);
    auto adapter = std::make_shared<model::Adapter>(files.adapter());
    const bool is_usual = run.lora.dropout == RunConfig::kUsualDropout;
    adapter->dropout = is_usual ? files.peft().dropout : run.lora.dropout;
    if (!run.lora.from.empty()) require_dropout(run, *adapter);
    return adapter;
  }
  if (run.lora.targets.empty()) return nullptr;
  const RunConfig::Lora& lora = run.lora;
  const std::int64_t rank = lora.rank == RunConfig::Lora::kUsualRank ? kRank : lora.rank;
  const bool is_usual = lora.alpha == RunConfig::Lora::kUsualAlpha;
  auto adapter = std::make_shared<model::Adapter>(
      model::choose_adapter(config, {.targets = lora.targets,
                                     .rank = rank,
                                     .alpha = is_usual ? 2 * static_cast<double>(rank) : lora.alpha,
                                     .divides_by_root = lora.rslora,
                                     .shares_gate_up = lora.share_gate_up}));
  adapter->dropout = std::max(lora.dropout, 0.0);
  require_dropout(run, *adapter);
  return adapter;
}

void require_weights_of(const model::PeftFiles& files, const std::string& base) {
  if (!files.holds_weights()) return;
  const StoredModel model(base);
  files.require_equal_weights(model.config(), model.reader());
}

void require_no_adapter(const std::string& model_path) {
  std::error_code ignored;
  const fs::path path = model_path;
  ANABATIC_REQUIRE(!fs::exists(path / model::kAdapterConfig, ignored) ||
                       fs::exists(path / "config.json", ignored),
                   "[model] model.path: expected a model, got an adapter, {}; it is for "
                   "model.adapter or lora.from, and model.path is the model below it",
                   model_path);
}

std::optional<BlockFormat> frozen_format_of(const RunConfig& run) {
  constexpr std::int64_t kColumns = 128;
  if (run.lora.base == "auto") return std::nullopt;
  return run.lora.base == "mxfp4" ? mxfp4_format() : int8_format(kColumns);
}

std::string base_to_string(const RunConfig& run) {
  const fs::path trained = fs::path(run.model.adapter) / "run_config.yaml";
  std::string base = fs::exists(trained) ? load_run_config(trained, {}).lora.base : "auto";
  if (const auto grid = find_trained_grid(run.model.adapter))
    base = fmt::format("{}, as convert --grid_of writes them", to_string(grid->grid));
  return fmt::format("{}: on the weights of {} in {}{}", run.model.adapter, run.model.path,
                     uses_bf16(run) ? "bf16" : "f32",
                     base == "auto" ? "" : fmt::format("; it was trained on them in {}", base));
}

std::string base_identity(const RunConfig& run, const model::ImportRecord& record) {
  if (run.model.init == "random") return fmt::format("random, seed {}", run.train.seed);
  std::vector<std::string> tensors;
  for (const model::ImportedTensor& imported : record.used)
    tensors.push_back(fmt::format("{} {:016x}", imported.tensor.name, imported.checksum));
  std::ranges::sort(tensors);
  const std::string text = fmt::format("{}", fmt::join(tensors, "\n"));
  return io::content_hash(std::string_view(text));
}

}  // namespace anabatic::train
