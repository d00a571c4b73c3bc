// SPDX-License-Identifier: Apache-2.0
#include "anabatic/session.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "device/memory.h"
#include "plan/budget_error.h"
#include "runtime/swap/swap_space.h"
#include "train/adaptive/product_counts.h"
#include "train/api/model_states.h"
#include "train/api/plan_summary.h"
#include "train/api/step_data.h"
#include "train/budget.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_search.h"
#include "train/checkpoint/run_contents.h"
#include "train/convert/run_manifest.h"
#include "train/evaluate.h"
#include "train/expert_balance.h"
#include "train/generate.h"
#include "train/loss_scale/skipped_step.h"
#include "train/nonfinite.h"
#include "train/objective/run_model.h"
#include "train/ranks/ranks.h"
#include "train/router_bias.h"
#include "train/run_plan.h"
#include "train/schedule.h"
#include "train/sparsity/sparse_weights.h"
#include "train/training_step.h"

namespace anabatic {
namespace {

using train::BoundProgram;
using train::RunConfig;

RunConfig read_config(const Settings& settings, const std::string& yaml_file) {
  RunConfig run = train::with_training_precision(
      train::load_run_config(yaml_file, {settings.begin(), settings.end()}));
  if (train::trains_on_pairs(run))
    throw Unsupported(
        "[session] expected train.objective: lm or sft, got dpo: only train knows it");
  if (train::adapts_precision(run))
    throw Unsupported(
        "[session] expected train.precision: int8 or bf16, got adaptive: only train knows it");
  ANABATIC_REQUIRE(!run.model.path.empty(), "[session] model.path: expected a value, got none");
  return run;
}

}  // namespace

struct Session::Impl {
  RunListener silence;
  RunListener* listener;  // never null
  RunConfig run;
  std::unique_ptr<train::ModelSession> model;
  PlanSummary plan;
  std::unique_ptr<BoundProgram> program, evaluation;
  train::ExpertCounts experts, evaluated_experts;
  std::vector<StateInfo> states;
  std::vector<std::string> norm_outputs;  // "sum_squares.NAME", of each trained parameter
  std::vector<GradientNorm> norms;
  std::int64_t step = 0;
  train::LossScaler scaler{1};
  train::SparseWeights sparse_weights;
  std::optional<train::ProductCalls> products;
  train::ProductCounts counts;  // of the last step
  train::RunIdentity identity = train::new_run_identity();
  bool is_sound = true;     // are the states those of `step`?
  bool is_stale = false;    // must every copy and packing be made from its parameter?
  bool is_updated = false;  // must those that the training program does not write?

  Impl(const Settings& settings, const std::string& yaml_file, RunListener* wanted)
      : listener(wanted != nullptr ? wanted : &silence) {
    const LogScope scope = log_scope();
    run = read_config(settings, yaml_file);
    train::require_one_rank(run, "session");
    model = std::make_unique<train::ModelSession>(run, true);
    run = model->run();
    scaler = train::make_loss_scaler(run);
    if (const std::string dropout = train::dropout_to_string(run, model->config());
        !dropout.empty())
      log_info("dropout in training: {}", dropout);
    bind();
    write_import_manifest(run, model->load_parameters());
    model->prepare_export();
    is_stale = true;
    states = train::list_states(*model);
    list_norms();
    listener->on_plan(plan);
  }

  LogScope log_scope() {
    return LogScope([this](Severity severity, const std::string& text) {
      listener->on_message(severity, text);
    });
  }

  void bind() {
    const std::int64_t process_bytes = device::current_resident_bytes();
    RunConfig asked = run;
    asked.data.validation = {"evaluate()"};  // whose program's memory is part of the plan
    const train::Machine machine = train::priced_machine(
        model->device(),
        {.process_bytes = process_bytes, .available_bytes = device::available_bytes()});
    train::BudgetedRun planned =
        plan::value_or_throw(train::plan_as_asked(asked, model->config(), machine));
    plan =
        train::summarize(run, planned.plan.training, planned.memory,
                         price_run(run, planned.plan.training, machine.device, machine.efficiency),
                         machine.price_source);
    program = model->bind(std::move(planned.plan.training));
    experts = train::ExpertCounts(*program);
    sparse_weights = train::SparseWeights(run, program->compiled.graph);
    products.emplace(program->compiled);
    counts = train::ProductCounts(*products);
  }

  void list_norms() {
    for (const ir::State& state : program->compiled.graph.states)
      if (state.kind() == ir::StateKind::kParameter && state.is_trainable)
        norm_outputs.push_back(fmt::format("sum_squares.{}", text(state.name)));
    std::erase_if(norm_outputs,
                  [&](const std::string& name) { return !program->executor->has_output(name); });
  }

  train::StepShape shape() const { return train::step_shape(run, *model); }

  std::int64_t sequences_per_step() const {
    return run.train.micro_batch_size * run.train.gradient_accumulation_steps;
  }

  void require_sound() const {
    if (!is_sound)
      throw Error(
          "[session] the update of a step that failed had begun: its parameters are neither those "
          "before the step nor those after it; restore() a checkpoint");
  }

  // Copies and packings agree with their parameters.
  void refresh() {
    if (is_stale) {
      model->refresh_derived(step);
    } else if (is_updated) {
      model->refresh_stale();
    }
    is_stale = is_updated = false;
  }

  StepResult run_step(std::span<const Sequence> batch, double learning_rate) {
    require_sound();
    ANABATIC_REQUIRE(static_cast<std::int64_t>(batch.size()) <= sequences_per_step(),
                     "[session] expected at most {} sequences (train.micro_batch_size times "
                     "train.gradient_accumulation_steps), got {}",
                     sequences_per_step(), batch.size());
    ANABATIC_REQUIRE(std::isfinite(learning_rate) && learning_rate >= 0,
                     "[session] expected a learning rate of at least 0, got {}", learning_rate);
    const io::StepBatch data = make_step(batch, shape());
    ANABATIC_REQUIRE(data.unmasked_tokens > 0,
                     "[session] expected a label to learn, got none in {} sequences", batch.size());
    if (is_stale) refresh();
    norms.clear();
    StepResult result{.step = step + 1,
                      .num_labels = data.unmasked_tokens,
                      .sparsity = sparse_weights.prepare(*model, step + 1)};
    const train::StepNumbers numbers{.update = scaler.update_of(step + 1),
                                     .learning_rate = learning_rate,
                                     .loss_scale = scaler.scale(),
                                     .seed = static_cast<std::uint64_t>(run.train.seed),
                                     .step = step + 1};
    if (train::scales_loss(run)) result.loss_scale = numbers.loss_scale;
    experts.clear();
    program->executor->clear_counts();
    const train::StepTotals totals = train::totals_of(data);
    train::run_training_step(
        *program, data, totals, numbers,
        [&](const io::MicroBatch&) {
          train::add_losses(*program, result);
          experts.add(*program);
          if (!scaler.is_dynamic()) require_finite_loss(*program, step + 1, result.loss);
        },
        [&] { is_sound = false; });
    counts.take(*program, *products);
    train::add_counts(counts, *products, result);
    result.gradient_norm = program->scalar("grad_norm");
    // An update by a norm that is not finite leaves all as it was, unless it is in the backward.
    is_sound = program->executor->has_action(spec::Action::kUpdate);
    result.is_skipped = was_skipped(*program, scaler, step + 1, result.gradient_norm, [&] {
      return train::first_bad_call(*program, [&] {
        train::run_training_step(*program, data, totals, numbers, [](const io::MicroBatch&) {});
      });
    });
    if (!result.is_skipped) {
      is_sound = false;
      require_finite_loss(*program, step + 1, result.loss);
      train::update_router_biases(model->store(), experts,
                                  train::router_bias_rate_of(run, model->config()));
      is_updated = true;
    }
    is_sound = true;
    ++step;
    result.experts = experts.balance();
    read_norms(numbers.loss_scale);
    return result;
  }

  void read_norms(double loss_scale) {
    constexpr std::size_t kPrefix = std::string_view("sum_squares.").size();
    for (const std::string& output : norm_outputs)
      norms.push_back({output.substr(kPrefix), std::sqrt(program->scalar(output)) / loss_scale});
  }

  EvaluationSummary evaluate(std::span<const Sequence> sequences) {
    require_sound();
    const io::StepBatch data = make_step(sequences, shape());
    ANABATIC_REQUIRE(data.unmasked_tokens > 0,
                     "[session] expected a label to evaluate, got none in {} sequences",
                     sequences.size());
    if (!evaluation) {
      evaluation = model->bind(train::evaluation_request(run));
      evaluated_experts = train::ExpertCounts(*evaluation);
      is_stale = true;  // copies that only this program reads are new
    }
    refresh();
    evaluation->set_scalar("step", static_cast<std::int32_t>(step));
    evaluated_experts.clear();
    EvaluationSummary result{.tokens = data.unmasked_tokens};
    for (const io::MicroBatch& batch : data.micro_batches) {
      result.loss += train::summed_loss(*evaluation, batch);
      evaluated_experts.add(*evaluation);
    }
    result.loss /= data.label_weight;
    result.perplexity = std::exp(result.loss);
    result.experts = evaluated_experts.balance();
    return result;
  }

  std::string save(const std::string& directory) {
    require_sound();
    ANABATIC_REQUIRE(!directory.empty(), "[session] expected a directory to save to, got none");
    return train::save_checkpoint(
               directory, *model,
               {.step = step,
                .seed = run.train.seed,
                .run = identity,
                .contents = train::run_contents(run),
                .loss_scale = scaler.is_worth_saving() ? train::to_json(scaler.state()) : Json()},
               {.run_id = identity.id, .in_use = train::model_directory(run.model.path)})
        .string();
  }

  void restore(const std::string& checkpoint) {
    const std::vector<std::string> problems = train::problems_of_checkpoint(
        checkpoint, train::CheckpointDepth::kAll, model->team().num_threads());
    ANABATIC_REQUIRE(problems.empty(), "[session] expected a whole checkpoint, got {}: {}",
                     checkpoint, problems.front());
    const train::CheckpointProgress progress = train::read_progress(checkpoint);
    const std::string maths =
        train::compare_contents(progress.contents, train::run_contents(run)).maths;
    ANABATIC_REQUIRE(maths.empty(), "[session] {} is of another model:{}", checkpoint, maths);
    is_sound = false;
    train::load_checkpoint(checkpoint, *model);
    scaler.restore(train::read_loss_scale(progress.loss_scale));
    step = progress.step;
    identity = progress.run;
    norms.clear();
    is_sound = is_stale = true;
  }
};

Session::Session(const Config& config, RunListener* listener)
    : Session(to_settings(config), "", listener) {}
Session::Session(const Settings& settings, const std::string& yaml_file, RunListener* listener)
    : impl_(std::make_unique<Impl>(settings, yaml_file, listener)) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;

const PlanSummary& Session::plan() const { return impl_->plan; }
std::int64_t Session::sequence_length() const { return impl_->run.data.sequence_length; }
std::int64_t Session::sequences_per_step() const { return impl_->sequences_per_step(); }
std::int64_t Session::vocabulary() const { return impl_->model->config().spec.vocab_size; }
std::int64_t Session::num_steps() const { return impl_->step; }
double Session::scheduled_learning_rate() const {
  return train::learning_rate(impl_->run.optimizer, impl_->step + 1, impl_->run.train.steps);
}
std::string Session::graph() const { return ir::print(impl_->program->compiled.graph); }

StepResult Session::step(std::span<const Sequence> batch, double learning_rate) {
  const LogScope scope = impl_->log_scope();
  return impl_->run_step(batch, learning_rate);
}

std::vector<GradientNorm> Session::gradient_norms() const { return impl_->norms; }

EvaluationSummary Session::evaluate(std::span<const Sequence> sequences) {
  const LogScope scope = impl_->log_scope();
  return impl_->evaluate(sequences);
}

std::string Session::generate(const std::string& prompt) {
  const LogScope scope = impl_->log_scope();
  impl_->require_sound();
  std::string continuation;
  train::generate_text(*impl_->model, prompt,
                       [&](const std::string& piece) { continuation += piece; });
  return continuation;
}

const std::vector<StateInfo>& Session::states() const { return impl_->states; }

void Session::read(const std::string& state, std::int64_t first, std::span<float> values) const {
  train::read_state(*impl_->model, state, first, values);
}

void Session::write(const std::string& state, std::int64_t first, std::span<const float> values) {
  train::write_state(*impl_->model, state, first, values);
  impl_->is_stale = true;
}

std::span<const float> Session::view(const std::string& state) const {
  return train::view_state(*impl_->model, state);
}

std::string Session::save(const std::string& directory) {
  const LogScope scope = impl_->log_scope();
  return impl_->save(directory);
}

void Session::restore(const std::string& checkpoint) {
  const LogScope scope = impl_->log_scope();
  impl_->restore(checkpoint);
}

}  // namespace anabatic
