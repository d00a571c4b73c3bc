// SPDX-License-Identifier: Apache-2.0
// A config.json that is read describes a model whose graph can be built. One of another model_type
// is read as every family would: one input in eight, for that takes twenty times as long.
#include <string_view>

#include "fuzz/fuzz_target.h"
#include "model/config_diagnosis.h"
#include "model/model.h"

using namespace anabatic;

namespace {

// The sum of the bytes draws them, so that an input always does the same.
bool is_diagnosed(std::string_view input) {
  unsigned sum = 0;
  for (const char byte : input) sum += static_cast<unsigned char>(byte);
  return sum % 8 == 0;
}

model::ModelConfig load(const std::string& path, bool diagnose) {
  try {
    return model::load_config(path);
  } catch (const Unsupported&) {
    if (diagnose) model::diagnose_config(path);
    throw;
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const bool diagnose = is_diagnosed(fuzz::view(data, size));
  return fuzz::read_file_or_refuse(
      data, size, [&](const std::string& path) { return load(path, diagnose); },
      [](const model::ModelConfig& config) {
        fuzz::require(config.counts.total > 0, "parameters");
        fuzz::require(config.counts.active <= config.counts.total, "no more active parameters");
        if (config.spec.layers.size() > 8) return;
        ir::verify(model::build_graph(config, {.num_tokens = 3}));
      });
}
