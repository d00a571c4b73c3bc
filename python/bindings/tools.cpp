// SPDX-License-Identifier: Apache-2.0
// What needs no run: plans, what a model's files hold, tokenizers, samples, the command line.
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "anabatic/command_line.h"
#include "anabatic/dataset.h"
#include "anabatic/model_info.h"
#include "anabatic/plan.h"
#include "anabatic/tokenizer.h"
#include "bindings.h"
#include "listener.h"

namespace anabatic::python {
namespace {

namespace nb = nanobind;

using Release = nb::call_guard<nb::gil_scoped_release>;

nb::object to_array(const std::vector<std::int32_t>& ids) {
  auto copy = std::make_unique<std::int32_t[]>(std::max<std::size_t>(ids.size(), 1));
  std::copy(ids.begin(), ids.end(), copy.get());
  std::int32_t* data = copy.release();
  const nb::capsule memory(data, [](void* p) noexcept { delete[] static_cast<std::int32_t*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, std::int32_t>(data, {ids.size()}, memory));
}

PlannedStep plan_or_throw(const Settings& settings, const std::string& yaml_file) {
  PlanOutcome outcome = plan_step(settings, yaml_file);
  if (const auto* refusal = std::get_if<Refusal>(&outcome)) throw BudgetError(*refusal);
  return std::get<PlannedStep>(std::move(outcome));
}

// Tokens, labels, and positions that restart at each document, each [length].
nb::tuple sample_of(const Dataset& dataset, std::int64_t number) {
  const Sequence sequence = dataset.sample(number);
  std::vector<std::int32_t> positions;
  for (const std::int64_t length : sequence.documents)
    for (std::int32_t i = 0; i < length; ++i) positions.push_back(i);
  return nb::make_tuple(to_array(sequence.tokens), to_array(sequence.labels), to_array(positions));
}

std::unique_ptr<Dataset> open_dataset(const Settings& settings, const std::string& yaml_file,
                                      nb::object target) {
  Listener listener(std::move(target));
  std::unique_ptr<Dataset> dataset;
  {
    const nb::gil_scoped_release release;
    dataset = std::make_unique<Dataset>(settings, yaml_file, &listener);
  }
  listener.rethrow();
  return dataset;
}

}  // namespace

void bind_tools(nb::module_& core) {
  core.def("plan", plan_or_throw, nb::arg("settings"), nb::arg("yaml_file"), Release());
  core.def("resolve_keys", resolve_keys, nb::arg("settings"), nb::arg("yaml_file"), Release());
  core.def("model_info", model_info, nb::arg("path"), Release());
  core.def("run_command_line", run_command_line, nb::arg("arguments"), Release());
  core.def(
      "tokenize_files",
      [](const std::vector<std::string>& files, const std::string& output,
         const Settings& settings) {
        const TokenizeSummary summary = tokenize_files(files, output, settings);
        return std::vector<std::int64_t>{summary.documents, summary.tokens, summary.text_bytes};
      },
      nb::arg("files"), nb::arg("output"), nb::arg("settings"), Release());

  nb::class_<Tokenizer>(core, "Tokenizer",
                        "A model's tokenizer. Ids equal those of Hugging Face tokenizers on the "
                        "same files.")
      .def(nb::init<const std::string&>(), nb::arg("path"), Release())
      .def(
          "encode",
          [](const Tokenizer& tokenizer, const std::string& text, bool add_special_tokens) {
            std::vector<std::int32_t> ids;
            {
              const nb::gil_scoped_release release;
              ids = tokenizer.encode(text, add_special_tokens);
            }
            return ids;
          },
          nb::arg("text"), nb::arg("add_special_tokens") = true)
      .def(
          "decode",
          [](const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids,
             bool skip_special_tokens) { return tokenizer.decode(ids, skip_special_tokens); },
          nb::arg("ids"), nb::arg("skip_special_tokens") = true, Release())
      .def_prop_ro("vocabulary", &Tokenizer::vocabulary, "the largest id + 1")
      .def(
          "token_to_id",
          [](const Tokenizer& tokenizer, const std::string& token) {
            return tokenizer.token_to_id(token);
          },
          nb::arg("token"))
      .def("id_to_token", &Tokenizer::id_to_token, nb::arg("id"))
      .def("__len__", &Tokenizer::vocabulary);

  nb::class_<Dataset>(core, "Dataset", "The samples that data.train becomes; see anabatic.Dataset.")
      .def(nb::new_(&open_dataset), nb::arg("settings"), nb::arg("yaml_file"), nb::arg("listener"))
      .def_prop_ro("num_tokens", &Dataset::num_tokens)
      .def_prop_ro("num_documents", &Dataset::num_documents)
      .def("__len__", &Dataset::num_samples)
      .def("sample", sample_of, nb::arg("number"));
}

}  // namespace anabatic::python
