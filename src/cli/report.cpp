// SPDX-License-Identifier: Apache-2.0
#include "report/report.h"

#include "base/text.h"
#include "cli/standard_output.h"
#include "cli/verb.h"

namespace anabatic::cli {
namespace {

int run_report(const Invocation& invocation) {
  const std::vector<std::filesystem::path> runs(invocation.positionals.begin(),
                                                invocation.positionals.end());
  const std::filesystem::path output = invocation.has("--output")
                                           ? std::filesystem::path(invocation.value("--output"))
                                           : report::file_of(runs.at(0));
  // Checked first, so that a path that cannot be written to fails at once.
  if (invocation.has("--output")) require_writable(output);
  report::write_report(runs, output);
  print_output("{}\n", output.string());
  return 0;
}

}  // namespace

const Verb& report_verb() {
  static const Verb verb{"report",
                         "charts and tables of one or more runs, as one HTML file",
                         "RUN...",
                         {{.name = "--output",
                           .help = "the file to write (default: report.html in the first RUN)",
                           .value = "FILE"}},
                         false,
                         run_report};
  return verb;
}

}  // namespace anabatic::cli
