// SPDX-License-Identifier: Apache-2.0
// Proofs on what the user has: files against their manifest, packed documents against each other.
#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "cli/standard_output.h"
#include "cli/verb.h"
#include "train/convert/convert.h"
#include "train/convert/manifest.h"
#include "train/proof/leak.h"

namespace anabatic::cli {
namespace {

int check_manifest(const Invocation& invocation) {
  ANABATIC_REQUIRE(invocation.overrides.empty(), "[check] manifest reads no key, got --{}",
                   invocation.overrides.begin()->first);
  const auto path_of = [&](const char* option) {
    return invocation.has(option) ? std::optional<std::filesystem::path>(invocation.value(option))
                                  : std::nullopt;
  };
  const std::string& directory = invocation.positionals.at(1);
  const std::vector<std::string> problems =
      train::check_manifest(directory, path_of("--against"), path_of("--reference"));
  for (const std::string& problem : problems) print_output("{}\n", problem);
  if (problems.empty()) print_output("{}: as its manifest says\n", directory);
  // Training changed the values.
  if (invocation.has("--against") &&
      train::read_manifest(directory).kind == train::ManifestKind::kCheckpoint)
    print_output("with {}: names, shapes and dtypes were compared, values were not\n",
                 invocation.value("--against"));
  return problems.empty() ? 0 : 1;
}

train::RunConfig run_config_of(const Invocation& invocation) {
  for (const char* option : {"--against", "--reference"})
    ANABATIC_REQUIRE(!invocation.has(option), "[check] {} is an option of manifest", option);
  return train::load_run_config(invocation.positionals.at(1), invocation.overrides);
}

int check_leak(const Invocation& invocation) {
  const train::LeakReport report = train::check_leak(run_config_of(invocation));
  if (!report.leak.empty()) {
    print_output("leak: {}\n", report.leak);
    return 1;
  }
  print_output(
      "no leak: in {} rounds the tokens of some of {} documents changed, and logits and embedding "
      "gradients of the others kept their bits\n",
      report.rounds, report.documents);
  return 0;
}

struct Subject {
  std::string_view name;
  int (*run)(const Invocation&);
};
constexpr std::array kSubjects{Subject{"manifest", check_manifest}, Subject{"leak", check_leak}};

int run_check(const Invocation& invocation) {
  const std::string& what = invocation.positionals.at(0);
  std::string names;
  for (const Subject& subject : kSubjects) {
    if (subject.name == what) return subject.run(invocation);
    names += fmt::format("{}{}", names.empty() ? "" : ", ", subject.name);
  }
  throw InvalidArgument(fmt::format("[check] expected {}, got '{}'", names, what));
}

}  // namespace

const Verb& check_verb() {
  static const Verb verb{
      "check",
      "prove what a user relies on: check manifest MODEL (files are as convert or train wrote "
      "them), check leak CONFIG.yaml (packed documents do not see each other)",
      "WHAT PATH",
      {{.name = "--against",
        .help = "of manifest: the source; its tensors are compared too, and of a conversion every "
                "value",
        .value = "MODEL_DIR"},
       {.name = "--reference",
        .help = "of manifest: safetensors file of input_ids i64[1,S] and logits f32[1,S,V] of "
                "another program",
        .value = "FILE"}},
      true,
      run_check};
  return verb;
}

}  // namespace anabatic::cli
