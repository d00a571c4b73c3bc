// SPDX-License-Identifier: Apache-2.0
#include "train/gradients.h"

#include "base/text.h"
#include "cli/verb.h"

namespace anabatic::cli {
namespace {

int run(const Invocation& invocation) {
  train::Overrides overrides = invocation.overrides;
  overrides["model.path"] = invocation.positionals;
  if (invocation.has("--precision"))
    overrides["train.precision"] = {invocation.value("--precision")};
  // Before anything long: a place that cannot be written to shows at once.
  require_writable(replaceable_file(invocation.value("--output")));
  train::write_gradients(train::load_run_config("", overrides), invocation.value("--tokens"),
                         invocation.value("--output"));
  return 0;
}

}  // namespace

const Verb& gradients_verb() {
  static const Verb verb{
      "gradients",
      "loss, logits and every gradient of given tokens, to compare with anything",
      "MODEL_DIR",
      {{.name = "--tokens",
        .help = "safetensors: int64 input_ids, labels [B,S]; also attention_mask, position_ids",
        .required = true},
       {.name = "--output", .help = "safetensors to write", .required = true},
       {.name = "--precision", .help = "fp32 or bf16; that of the weights where it is left out"}},
      true,
      run};
  return verb;
}

}  // namespace anabatic::cli
