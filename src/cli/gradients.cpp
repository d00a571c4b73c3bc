// SPDX-License-Identifier: Apache-2.0
#include "train/gradients.h"

#include "base/text.h"
#include "cli/verb.h"

namespace anabatic::cli {
namespace {

int run_gradients(const Invocation& invocation) {
  train::Overrides overrides = invocation.overrides;
  overrides["model.path"] = invocation.positionals;
  if (invocation.has("--precision"))
    overrides["train.precision"] = {invocation.value("--precision")};
  // Checked first, so that a path that cannot be written to fails at once.
  require_writable(replaceable_file(invocation.value("--output")));
  train::write_gradients(train::load_run_config("", overrides), invocation.value("--tokens"),
                         invocation.value("--output"));
  return 0;
}

}  // namespace

const Verb& gradients_verb() {
  static const Verb verb{
      "gradients",
      "loss, logits and every gradient for given tokens, to compare with another framework",
      "MODEL_DIR",
      {{.name = "--tokens",
        .help = "safetensors file with int64 input_ids and labels [B,S]; attention_mask and "
                "position_ids are optional",
        .required = true},
       {.name = "--output", .help = "safetensors file to write", .required = true},
       {.name = "--precision", .help = "fp32, bf16 or int8 (default: that of the weights)"}},
      true,
      run_gradients};
  return verb;
}

}  // namespace anabatic::cli
