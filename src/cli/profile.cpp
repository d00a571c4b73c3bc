// SPDX-License-Identifier: Apache-2.0
#include "bench/profile.h"

#include <fmt/core.h>

#include "bench/report.h"
#include "cli/standard_output.h"
#include "cli/verb.h"
#include "io/gzip.h"

namespace anabatic::cli {
namespace {

int run_profile(const Invocation& invocation) {
  const std::string file = invocation.positionals.empty() ? "" : invocation.positionals[0];
  bench::ProfileOptions options;
  options.num_steps = invocation.integer("--steps", options.num_steps);
  options.num_warmup_steps = invocation.integer("--warmup", options.num_warmup_steps);
  // Checked first, so that a path that cannot be written to fails at once.
  if (invocation.has("--trace")) const io::GzipWriter probe(invocation.value("--trace"));
  const bench::Profile profile =
      bench::profile(train::load_run_config(file, invocation.overrides), options);
  if (invocation.has("--trace")) bench::write_trace(profile, invocation.value("--trace"));
  print_output("{}\n",
               invocation.has("--json") ? bench::to_json(profile) : bench::to_table(profile));
  return 0;
}

}  // namespace

const Verb& profile_verb() {
  static const Verb verb{
      "profile",
      "where the time of a training step goes",
      "CONFIG.yaml?",
      {{.name = "--steps", .help = "number of steps to measure (default 3)"},
       {.name = "--warmup", .help = "number of steps before those, not measured (default 2)"},
       {.name = "--trace", .help = "write a trace for Perfetto to this FILE.json.gz"},
       {.name = "--json", .help = "print one JSON object", .is_flag = true}},
      true,
      run_profile};
  return verb;
}

}  // namespace anabatic::cli
