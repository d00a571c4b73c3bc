// SPDX-License-Identifier: Apache-2.0
#include "train/evaluate.h"

#include <fmt/core.h>

#include "base/error.h"
#include "base/json.h"
#include "cli/evaluate_tasks.h"
#include "cli/standard_output.h"
#include "cli/verb.h"

namespace anabatic::cli {
namespace {

int run_evaluate(const Invocation& invocation) {
  if (invocation.has("--tasks")) return run_evaluate_tasks(invocation);
  for (const char* option : {"--compare", "--max_drop", "--batch_tokens"})
    ANABATIC_REQUIRE(!invocation.has(option), "[evaluate] {}: expected --tasks with it, got none",
                     option);
  const train::Evaluation result =
      train::evaluate(train::load_run_config("", invocation.overrides));
  if (invocation.has("--json")) {
    nlohmann::ordered_json json{// a number that is not finite becomes null
                                {"loss", result.loss},
                                {"perplexity", result.perplexity},
                                {"tokens", result.tokens}};
    for (const LayerBalance& layer : result.experts)
      json["experts"].push_back({{"layer", layer.layer},
                                 {"max_over_mean", layer.max_over_mean},
                                 {"min_over_mean", layer.min_over_mean},
                                 {"below_10_percent", layer.below_tenth}});
    print_output("{}\n", dump_json(json));
  } else {
    print_output("loss {:.6f} | perplexity {:.4f} | {} tokens\n", result.loss, result.perplexity,
                 result.tokens);
    if (!result.experts.empty())
      print_output("{}\n", train::table_to_string(result.experts, "expert load, by layer"));
  }
  return 0;
}

}  // namespace

const Verb& evaluate_verb() {
  static const Verb verb{
      "evaluate",
      "loss and perplexity of a model on held-out data, or its scores on tasks",
      "",
      {{.name = "--tasks",
        .help = "files of tasks to score instead (docs/guide/evaluation.md)",
        .is_list = true,
        .value = "FILE"},
       {.name = "--compare",
        .help = "another model, or the --json output of an earlier run",
        .value = "OTHER"},
       {.name = "--max_drop",
        .help = "exit with 1 if a task is worse than OTHER by more points, 1.5 by default",
        .value = "POINTS"},
       {.name = "--batch_tokens",
        .help = "rows that go through the model together, 4096 by default",
        .value = "N"},
       {.name = "--json", .help = "print one JSON object", .is_flag = true}},
      true,
      run_evaluate};
  return verb;
}

}  // namespace anabatic::cli
