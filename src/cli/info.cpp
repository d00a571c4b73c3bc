// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include "base/json.h"
#include "base/text.h"
#include "cli/standard_output.h"
#include "cli/verb.h"
#include "model/model.h"
#include "train/checkpoint/checkpoint_search.h"

namespace anabatic::cli {
namespace {

int run(const Invocation& invocation) {
  const model::ModelConfig config =
      model::load_config(train::model_path_of(invocation.positionals.at(0)));
  const model::ModelCounts& counts = config.counts;
  const double context =
      static_cast<double>(std::min<std::int64_t>(config.max_position_embeddings, 4096));
  // A token attends to (length + 1) / 2 keys on average.
  const double per_token =
      model::training_flops(config, 1, [&](std::int64_t) { return (context + 1) / 2; });
  if (invocation.has("--json")) {
    const nlohmann::ordered_json json{
        {"model_type", config.model_type},    {"parameters", counts.total},
        {"active_parameters", counts.active}, {"training_flops_per_token", per_token},
        {"flops_context", context},           {"fp32_bytes", 4 * counts.total},
        {"bf16_bytes", 2 * counts.total}};
    print_output("{}\n", dump_json(json));
    return 0;
  }
  print_output("family      {}\n", config.model_type);
  print_output("layers      {} x {} wide, vocabulary {}\n", config.spec.layers.size(),
               config.spec.hidden_size, config.spec.vocab_size);
  if (const model::Moe* moe = model::first_moe(config.spec))
    print_output("experts     {} of {} a token, {} wide\n", moe->top_k, moe->num_experts,
                 moe->width);
  print_output("parameters  {} total, {} active a token\n", counts.total, counts.active);
  print_output("FLOPs       {:.4g} a token of training at {} tokens of context\n", per_token,
               context);
  print_output("bytes       {} in fp32, {} in bf16\n", format_bytes(4 * counts.total),
               format_bytes(2 * counts.total));
  print_output(
      "training    {} of weights, gradients and AdamW moments (fp32 weights with bf16 copies)\n",
      format_bytes(18 * counts.total));
  return 0;
}

}  // namespace

const Verb& info_verb() {
  static const Verb verb{
      "info",      "parameters, FLOPs and bytes of a model directory",
      "MODEL_DIR", {{.name = "--json", .help = "print one JSON object", .is_flag = true}},
      false,       run};
  return verb;
}

}  // namespace anabatic::cli
