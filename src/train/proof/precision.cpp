// SPDX-License-Identifier: Apache-2.0
#include "train/proof/precision.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <span>

#include "base/error.h"
#include "train/model_session.h"
#include "train/objective/mtp_batch.h"
#include "train/objective/run_model.h"
#include "train/open_dataset.h"
#include "train/ranks/ranks.h"
#include "train/run_plan.h"
#include "train/training_step.h"

namespace anabatic::train {
namespace {

constexpr std::int64_t kMicroBatches = 2;

// "experts.down" of "layers.3.experts.down.weight": a unit that precision.keep takes, too.
std::string group_of(std::string_view state) {
  constexpr std::string_view kLayers = "layers.", kWeight = ".weight";
  if (state.ends_with(kWeight)) state.remove_suffix(kWeight.size());
  if (state.starts_with(kLayers)) state.remove_prefix(state.find('.', kLayers.size()) + 1);
  return std::string(state);
}

struct Gradient {
  std::string state;
  std::vector<float> values;
};

struct Gradients {
  double loss = 0;
  std::vector<Gradient> of_states;
};

Gradients run_batch(ModelSession& session, BoundProgram& program, const io::MicroBatch& batch) {
  set_loss_scales(program, totals_of(batch));
  set_mtp_scales(program, std::span(&batch, 1));
  program.set_batch(batch);
  program.run_alone(spec::Action::kForward);
  Gradients result{.loss = program.scalar("loss")};
  program.run_alone(spec::Action::kBackward);
  for (const Name name : session.store().names()) {
    const std::string output = fmt::format("gradients.{}", text(name));
    if (!program.executor->has_output(output)) continue;
    const TensorView view = program.executor->output(output);
    const auto* values = view.as<const float>();
    result.of_states.push_back(
        {std::string(text(name)), {values, values + view.type->num_elements()}});
  }
  return result;
}

// One for each micro-batch.
std::vector<Gradients> gradients_in(RunConfig run, const std::string& precision,
                                    std::span<const io::MicroBatch> batches) {
  run.train.precision = precision;
  if (precision == "fp32") run.precision.keep.clear();
  ModelSession session(run, false);
  ModelSession::CompileRequest request = training_request(session.run(), session.config());
  request.name = "precision_" + precision;
  request.build.num_tokens = std::ssize(batches.front().tokens);
  request.build.dropout = {};
  request.with_update = request.is_of_ranks = false;
  request.micro_batches = 1;
  const std::unique_ptr<BoundProgram> program = session.bind(request);
  session.load_parameters();
  session.refresh_derived();
  std::vector<Gradients> results;
  for (const io::MicroBatch& batch : batches)
    results.push_back(run_batch(session, *program, batch));
  return results;
}

double sum_of_squares(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return sum;
}

double squares_between(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i]) - b[i], 2);
  return sum;
}

// |other - base| / |base| of each group whose base is not 0.
std::map<std::string, double> distances(const Gradients& base, const Gradients& other) {
  struct Squares {
    double of_base = 0, of_difference = 0;
  };
  std::map<std::string, Squares> groups;
  for (std::size_t i = 0; i < base.of_states.size(); ++i) {
    const Gradient &want = base.of_states[i], &got = other.of_states.at(i);
    ANABATIC_REQUIRE(want.state == got.state && want.values.size() == got.values.size(),
                     "[check] precision: expected the gradient of {}, found that of {}", want.state,
                     got.state);
    Squares& squares = groups[group_of(want.state)];
    squares.of_base += sum_of_squares(want.values);
    squares.of_difference += squares_between(want.values, got.values);
  }
  std::map<std::string, double> result;
  for (const auto& [name, squares] : groups)
    if (squares.of_base > 0) result[name] = std::sqrt(squares.of_difference / squares.of_base);
  return result;
}

std::vector<io::MicroBatch> first_batches(const RunConfig& run) {
  const ModelSession session(run, false);
  check_sample_length(run, session.config());
  const io::Dataset dataset = open_dataset(run.data.train, run, session.config());
  io::LoaderOptions options = loader_options(run, {});
  options.accumulation_steps = kMicroBatches;
  options.num_parts = 1;
  return io::Loader(dataset, options).load_step(0).micro_batches;
}

}  // namespace

PrecisionReport check_precision(const RunConfig& run) {
  if (trains_on_pairs(run))
    throw Unsupported("[check] precision: expected train.objective lm or sft, got dpo");
  const std::vector<io::MicroBatch> batches = first_batches(run);
  PrecisionReport report{.tokens = std::ssize(batches.front().tokens)};
  report.precisions = {"bf16"};
  if (!trains_adapter(run)) report.precisions.emplace_back("int8");

  const std::vector<Gradients> fp32 = gradients_in(run, "fp32", batches);
  report.fp32_loss = fp32[0].loss;
  const std::map<std::string, double> between = distances(fp32[0], fp32[1]);
  for (const Gradient& gradient : fp32[0].of_states) {
    const std::string name = group_of(gradient.state);
    if (!between.contains(name)) continue;
    auto group = std::ranges::find(report.groups, name, &GradientGroup::name);
    if (group == report.groups.end())
      group = report.groups.insert(group, {.name = name, .between_batches = between.at(name)});
    group->num_elements += std::ssize(gradient.values);
  }
  for (const std::string& precision : report.precisions) {
    const std::vector<Gradients> rounded =
        gradients_in(run, precision, std::span(batches).first(1));
    report.losses.push_back(rounded[0].loss);
    const std::map<std::string, double> errors = distances(fp32[0], rounded[0]);
    for (GradientGroup& group : report.groups) group.errors.push_back(errors.at(group.name));
  }
  return report;
}

}  // namespace anabatic::train
