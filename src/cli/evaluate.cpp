// SPDX-License-Identifier: Apache-2.0
#include "train/evaluate.h"

#include <fmt/core.h>

#include "base/json.h"
#include "cli/verb.h"

namespace anabatic::cli {
namespace {

int run(const Invocation& invocation) {
  const train::Evaluation result =
      train::evaluate(train::load_run_config("", invocation.overrides));
  if (invocation.has("--json")) {
    const nlohmann::ordered_json json{// a number that is not finite becomes null
                                      {"loss", result.loss},
                                      {"perplexity", result.perplexity},
                                      {"tokens", result.tokens}};
    fmt::print("{}\n", dump_json(json));
  } else {
    fmt::print("loss {:.6f} | perplexity {:.4f} | {} tokens\n", result.loss, result.perplexity,
               result.tokens);
  }
  return 0;
}

}  // namespace

const Verb& evaluate_verb() {
  static const Verb verb{
      "evaluate", "loss and perplexity of a model on held-out data",
      "",         {{.name = "--json", .help = "print one JSON object", .is_flag = true}},
      true,       run};
  return verb;
}

}  // namespace anabatic::cli
