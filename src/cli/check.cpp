// SPDX-License-Identifier: Apache-2.0
// Proofs on what the user has: files against their manifest, a chat template against jinja2, packed
// documents against each other, micro-batches against their rows, an adapter against its merge,
// gradients of each precision against those of fp32.
#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "cli/adapter_base.h"
#include "cli/check_template.h"
#include "cli/standard_output.h"
#include "cli/verb.h"
#include "train/checkpoint/checkpoint_search.h"
#include "train/convert/convert.h"
#include "train/convert/manifest.h"
#include "train/proof/adapter.h"
#include "train/proof/cuts.h"
#include "train/proof/leak.h"
#include "train/proof/precision.h"

namespace anabatic::cli {
namespace {

int check_manifest(const Invocation& invocation) {
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

int check_leak(const Invocation& invocation) {
  const train::LeakReport report =
      train::check_leak(train::load_run_config(invocation.positionals.at(1), invocation.overrides));
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

int check_cuts(const Invocation& invocation) {
  const train::CutsReport report =
      train::check_cuts(train::load_run_config(invocation.positionals.at(1), invocation.overrides));
  print_output(
      "{} rows with {} labels of uneven weights, gradients of {} states; shares of these\n",
      report.rows, report.labels, report.states);
  print_output("{:<16}{:<14}{:>12}{:>12}  gradient that is furthest off\n", "micro-batches", "loss",
               "difference", "bound");
  print_output("{:<16}{:<14.9g}\n", "rows one by one", report.loss);
  for (const train::CutResult& cut : report.cuts)
    print_output("{:<16}{:<14.9g}{:>12.2e}{:>12.2e}  {}{}\n", cut.name, cut.loss, cut.difference,
                 cut.bound, cut.worst, cut.holds ? "" : "  BEYOND THE BOUND");
  print_output(
      "without the auxiliary losses of routers: one of a micro-batch is no sum over its rows\n");
  return report.holds() ? 0 : 1;
}

int check_precision(const Invocation& invocation) {
  const train::PrecisionReport report = train::check_precision(
      train::load_run_config(invocation.positionals.at(1), invocation.overrides));
  print_output(
      "a micro-batch of {} tokens: how far its gradients are from those in fp32, as shares of "
      "their norm\n{:<28}{:>12}",
      report.tokens, "gradient of", "elements");
  for (const std::string& precision : report.precisions) print_output("{:>10}", precision);
  print_output("{:>22}\n", "another micro-batch");
  for (const train::GradientGroup& group : report.groups) {
    print_output("{:<28}{:>12}", group.name, group.num_elements);
    for (const double error : group.errors) print_output("{:>9.2f}%", 100 * error);
    print_output("{:>21.1f}%\n", 100 * group.between_batches);
  }
  print_output("{:<28}{:>12}", "loss (difference)", "");
  for (const double loss : report.losses) print_output("{:>+10.5f}", loss - report.fp32_loss);
  print_output("\n");
  return 0;
}

int check_adapter(const Invocation& invocation) {
  const std::string adapter = train::model_path_of(invocation.positionals.at(1));
  for (const auto& [key, values] : invocation.overrides)
    ANABATIC_REQUIRE(key == "model.path", "[check] adapter reads model.path alone, got --{}", key);
  const train::AdapterReport report = train::check_adapter(
      adapter, train::model_path_of(adapter_base(invocation, adapter)),
      invocation.has("--against") ? train::model_path_of(invocation.value("--against")) : "");
  print_output("{}\n", report.coverage);
  for (const auto& [kind, norm] : report.norms)
    print_output("{:<11} norm of {} {:.6g}\n", kind, kind == "embedding" ? "A" : "B", norm);
  print_output("effect      of {:.3g} in norm, on logits of {:.3g} of {} tokens\n", report.effect,
               report.logits, report.tokens);
  if (report.not_merged.empty())
    print_output("merged      {:.3g} off, expected at most {:.3g}\n", report.merge_difference,
                 report.merge_bound);
  else
    print_output("merged      not: {}\n", report.not_merged);
  for (const std::string& problem : report.problems) print_output("problem     {}\n", problem);
  return report.problems.empty() ? 0 : 1;
}

int check_template_of(const Invocation& invocation) {
  return check_template(invocation.positionals.at(1),
                        invocation.has("--template") ? invocation.value("--template") : "",
                        invocation.has("--python") ? invocation.value("--python") : "python3");
}

struct Subject {
  std::string_view name, options;  // those of the verb that it takes, separated by a space
  bool reads_keys;
  int (*run)(const Invocation&);
};
constexpr std::array kSubjects{
    Subject{"manifest", "--against --reference", false, check_manifest},
    Subject{"leak", "", true, check_leak},
    Subject{"cuts", "", true, check_cuts},
    Subject{"precision", "", true, check_precision},
    Subject{"adapter", "--against", true, check_adapter},
    Subject{"template", "--template --python", false, check_template_of}};

int run_check(const Invocation& invocation) {
  const std::string& what = invocation.positionals.at(0);
  std::string names;
  for (const Subject& subject : kSubjects) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", subject.name);
    if (subject.name != what) continue;
    for (const auto& [option, values] : invocation.options)
      ANABATIC_REQUIRE(subject.options.find(option) != std::string_view::npos,
                       "[check] {} takes no {}", what, option);
    ANABATIC_REQUIRE(subject.reads_keys || invocation.overrides.empty(),
                     "[check] {} reads no key, got --{}", what,
                     invocation.overrides.begin()->first);
    return subject.run(invocation);
  }
  throw InvalidArgument(fmt::format("[check] expected {}, got '{}'", names, what));
}

}  // namespace

const Verb& check_verb() {
  static const Verb verb{
      "check",
      "prove what you have: manifest or template MODEL; leak, cuts or precision CONFIG.yaml; "
      "adapter ADAPTER",
      "WHAT PATH",
      {{.name = "--against",
        .help = "of manifest: the source; its tensors are compared too, and of a conversion every "
                "value; of adapter: a merged model, in place of one that is merged here",
        .value = "MODEL_DIR"},
       {.name = "--reference",
        .help = "of manifest: safetensors file of input_ids i64[1,S] and logits f32[1,S,V] of "
                "another program",
        .value = "FILE"},
       {.name = "--template",
        .help = "of template: a chat template in place of the model's own",
        .value = "FILE"},
       {.name = "--python",
        .help = "of template: the Python whose transformers it is compared with; default python3",
        .value = "PROGRAM"}},
      true,
      run_check};
  return verb;
}

}  // namespace anabatic::cli
