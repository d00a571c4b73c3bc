// SPDX-License-Identifier: Apache-2.0
#include "train/generate.h"

#include "cli/standard_output.h"
#include "cli/verb.h"

namespace anabatic::cli {
namespace {

int run_generate(const Invocation& invocation) {
  const train::RunConfig config = train::load_run_config("", invocation.overrides);
  train::generate_text(config, invocation.value("--prompt"), [](const std::string& text) {
    write_output(text);
    flush_output();
  });
  return 0;
}

}  // namespace

const Verb& generate_verb() {
  static const Verb verb{
      "generate", "continue a prompt; standard output gets only the continuation",
      "",         {{.name = "--prompt", .help = "the text to continue", .required = true}},
      true,       run_generate};
  return verb;
}

}  // namespace anabatic::cli
