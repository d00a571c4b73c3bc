// SPDX-License-Identifier: Apache-2.0
// A config.json that is read describes a model whose graph can be built. One of another model_type
// is read as every family would.
#include "fuzz/fuzz_target.h"
#include "model/config_diagnosis.h"
#include "model/model.h"

using namespace anabatic;

namespace {

model::ModelConfig load(const std::string& path) {
  try {
    return model::load_config(path);
  } catch (const Unsupported&) {
    model::diagnose_config(path);
    throw;
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::read_file_or_refuse(data, size, load, [](const model::ModelConfig& config) {
    fuzz::require(config.counts.total > 0, "parameters");
    fuzz::require(config.counts.active <= config.counts.total, "no more active parameters");
    if (config.spec.layers.size() <= 8) ir::verify(model::build_graph(config, {.num_tokens = 3}));
  });
}
