// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "device/memory.h"
#include "device/probe.h"
#include "plan/budget_error.h"
#include "runtime/swap/swap_space.h"
#include "train/adaptive/run_precision.h"
#include "train/api/plan_summary.h"
#include "train/budget.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/checkpoint/kept_batch.h"
#include "train/checkpoint/preflight.h"
#include "train/checkpoint/run_lock.h"
#include "train/checkpoint/run_start.h"
#include "train/config/precision_keys.h"
#include "train/config/sparsity_keys.h"
#include "train/convert/run_manifest.h"
#include "train/expert_balance.h"
#include "train/lora/base_difference.h"
#include "train/lora/run_adapter.h"
#include "train/machine.h"
#include "train/memory_account.h"
#include "train/metrics.h"
#include "train/nonfinite.h"
#include "train/objective/run_model.h"
#include "train/open_dataset.h"
#include "train/preference/first_reference.h"
#include "train/proof/leak.h"
#include "train/ranks/agreed_machine.h"
#include "train/ranks/follower.h"
#include "train/ranks/planned_exchanges.h"
#include "train/ranks/rank_step.h"
#include "train/record/run_record.h"
#include "train/record/windows_log.h"
#include "train/replan/carried_states.h"
#include "train/run_plan.h"
#include "train/schedule.h"
#include "train/sparsity/sparse_weights.h"
#include "train/swap_tier.h"
#include "train/training_step.h"
#include "train/utilization.h"

namespace anabatic::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kTimedSteps = 1024;  // that the median of step times looks at

Utilization utilization_of(const RunConfig& run, ModelSession& session) {
  const spec::DeviceSpec& device = session.device();
  const auto [precision, peak] =
      uses_int8(run) ? std::pair(spec::Precision::kInt8, device.int8_ops_per_second)
      : uses_bf16(run) && !has_gradients_in_fp16(run)
          ? std::pair(spec::Precision::kBf16, device.bf16_flops_per_second)
          : std::pair(spec::Precision::kFp32, device.fp32_flops_per_second);
  return {peak, [&session, precision = precision] {
            return device::peak_flops_per_second(session.team(), session.device(), precision);
          }};
}

RunListener& silence() {
  static RunListener listener;  // has no state
  return listener;
}

void require_keys(const RunConfig& run) {
  std::string missing;
  const auto need = [&](bool present, const char* key) {
    if (!present) missing += fmt::format("\n  {}: expected a value, got none", key);
  };
  need(!run.model.path.empty(), "model.path");
  need(!run.data.train.empty(), "data.train");
  need(!run.train.output.empty(), "train.output");
  ANABATIC_REQUIRE(missing.empty(), "[train] the run config is not complete:{}", missing);
}

}  // namespace

struct Trainer::Impl {
  KeptBatch kept;
  const std::int64_t asked_accumulation;  // before that
  RunConfig& run = kept.run;
  RunListener& listener;
  std::optional<RunLock> lock;  // until the run ends
  // Resident before the plan's memory: code, libraries, tokenizer, data. The last two also
  // apart.
  std::int64_t baseline_bytes = 0;
  std::int64_t mpi_bytes = 0;         // of these, MPI's
  std::int64_t early_code_bytes = 0;  // resident then already, though the account adds it
  std::int64_t setup_peak_bytes = 0;  // where the system cannot forget the peak before that
  Ranks ranks;
  MethodPolicy methods = ranks.methods();
  std::unique_ptr<ModelSession> owned_session;
  ModelSession& session = *owned_session;
  RunStart start;
  std::int64_t before_data_bytes = (device::trim_heap(), device::current_resident_bytes());
  std::int64_t data_bytes = 0;
  io::Dataset dataset;
  std::optional<io::Dataset> validation;
  std::unique_ptr<BoundProgram> program;
  std::unique_ptr<Evaluator> evaluator;
  std::optional<FirstReference> reference;
  std::string other_weights;  // those of dpo.reference, where it is a directory
  std::optional<io::Loader> loader;
  LossScaler loss_scaler = make_loss_scaler(run);
  SparseWeights sparse_weights;
  std::optional<RankStep> rank_step;
  std::optional<RunPrecision> precision;
  Utilization utilization = utilization_of(run, session);
  std::optional<MetricsLog> log;
  std::optional<WindowsLog> windows;
  std::int64_t first_step = 1;
  std::int64_t done_step = 0;     // whose states the session holds
  std::int64_t saved_step = -1;   // the newest checkpoint's
  std::int64_t saving_step = -1;  // that a save was begun of
  bool is_sound = true;           // are the states those of done_step?
  MemoryAccount memory;
  Machine machine;  // that all ranks plan for
  plan::StepPrice price;
  PlanSummary announced;             // the plan, as the host hears it
  std::vector<double> step_seconds;  // of the last kTimedSteps
  ExpertHistory expert_history;
  std::int64_t epoch = -1;  // of the last step
  bool has_begun = false;   // a step was asked for
  bool is_checked = false;  // the first step's packing
  bool is_over = false;     // no other step comes
  bool is_stopped = false;  // by the listener or a rank, before run.train.steps
  TrainResult result;
  std::optional<Followers> followers;  // end before what they use

  Impl(const RunConfig& config, RunListener& events, runtime::swap::DeviceWrapper wrap_swap,
       comm::MpiWorld* world)
      : kept((require_keys(config), keep_batch(with_training_precision(config)))),
        asked_accumulation(config.train.gradient_accumulation_steps),
        listener(events),
        lock(std::in_place, run.train.output),
        ranks(run, world),
        owned_session(std::make_unique<ModelSession>(ranks.of_one(run, 0), true,
                                                     std::move(wrap_swap), ranks.own())),
        start((session.prepare_export(), begin())),
        dataset(open_dataset(run.data.train, run, session.config())) {
    run.precision.raised = RunPrecision::saved_raised(run, start.adaptive);
    session.set_raised(run.precision.raised);
    check_sample_length(run, session.config());
    require_supported_by_ranks(run, session.config());
    (void)mesh_of(run, {.num_experts = model::num_experts(session.config().spec),
                        .num_samples = dataset.num_samples()});
    if (has_gradients_in_fp16(run))
      say("train.precision: {} stores fp16 and computes with it in fp32: this CPU has no kernels "
          "for fp16 products",
          run.train.precision);
    if (const std::string note = note_on_balance_loss(run, session.config()); !note.empty())
      say("{}", note);
    if (const std::string dropout = dropout_to_string(run, session.config()); !dropout.empty())
      say("dropout in training: {}", dropout);
    if (!balances_experts(run, session.config()))
      say("nothing balances the experts: train.balance_coef is 0 or train.balance_loss none, and "
          "train.router_bias_update_rate is 0");
    if (!run.data.validation.empty())
      validation.emplace(open_dataset(run.data.validation, run, session.config()));
    data_bytes = std::max<std::int64_t>(device::current_resident_bytes() - before_data_bytes, 0);
    const bool rounds_base = run.lora.base != "auto" || run.quantization.enable;
    if (trains_adapter(run) && rounds_base && !start.checkpoint) compare_with_plain_base();
    measure_disk_once(run);
    // The machine's probe and tokenisation are over.
    if (!device::reset_peak_resident()) setup_peak_bytes = device::peak_resident_bytes();
    baseline_bytes = device::current_resident_bytes() - early_code_bytes;
    data_bytes = std::min(data_bytes, baseline_bytes);
    if (world != nullptr)
      mpi_bytes = std::min(world->resident_bytes(), baseline_bytes - data_bytes);
    reference.emplace(run, start, dataset, validation ? &*validation : nullptr, ranks.own(),
                      [this](const std::string& text) { say("{}", text); });
    other_weights = reference->take_other(session.config());
    run.sparsity.is_final = start.checkpoint && has_final_masks(run, start.step);
    bind();
    lead();
    restore();
    if (run.sparsity.is_final) SparseWeights(run, program->compiled.graph).require_zeroes(session);
    require_disk();
    announce();
    session.refresh_derived(first_step - 1);
    if (const std::string coverage = session.grid_coverage(); !coverage.empty())
      say("quantization: {}", coverage);
    for (const std::string& line : sparsity_lines(program->compiled.graph, run))
      say("sparsity: {}", line);
    device::trim_heap();  // of what import leaves between its blocks
    loader.emplace(dataset, loader_options(run, ranks.own()));
    rank_step.emplace(run, session, *program, loss_scaler, ranks.own());
    rank_step->compare_states(first_step);
    log.emplace(run.train.output, first_step - 1, first_step == 1 || first_step > run.train.steps);
    windows.emplace(run.train.output, first_step, run.train.steps, *program,
                    rank_step->expert_counts());
    precision.emplace(run, session, start.adaptive);
    precision->bind(*program, first_step);
  }

  // It runs the kernels of a run, whose code the account adds by itself.
  void compare_with_plain_base() {
    const std::int64_t before = device::current_resident_bytes();
    say("{}", base_difference_to_string(run, dataset));
    device::trim_heap();
    early_code_bytes =
        std::clamp<std::int64_t>(device::current_resident_bytes() - before, 0, kLateCodeBytes);
  }

  // Plans with the prices of `anabatic plan`, so that both choose alike.
  void bind() {
    machine = agreed_machine();
    BudgetedRun planned = plan::value_or_throw(
        plan_as_asked(ranks.of_one(run, baseline_bytes), session.config(), machine));
    device::trim_heap();  // of the plans that were not taken
    keep_methods(planned.plan.training.program);
    session.set_methods(methods);
    if (!planned.note.empty()) say("plan: {}", planned.note);
    program = session.bind(std::move(planned.plan.training));
    sparse_weights = SparseWeights(run, program->compiled.graph);
    expert_history = ExpertHistory(ExpertCounts(*program));
    if (const auto* swap = session.store().swap())
      say("disk: {}, {}", format_bytes(swap->file_bytes()), swap->describe());
    if (validation) evaluator = std::make_unique<Evaluator>(session, *validation);
  }

  // Ranks that are threads share this one.
  Machine agreed_machine() {
    Machine own =
        priced_machine(session.device(),
                       {.process_bytes = baseline_bytes,
                        .data_bytes = data_bytes,
                        .mpi_bytes = mpi_bytes,
                        .available_bytes = device::available_bytes() / ranks.num_on_node()},
                       ranks.num_on_node());
    if (ranks.num_threads() > 1 || run.parallel.local_ranks == 1) return own;
    StepSums sums(ranks.own(), 1);
    return agree_on_machine(sums, std::move(own));
  }

  // Sums keep the methods of the checkpoint, for the sake of their bits.
  void keep_methods(runtime::Program& planned) {
    if (run.parallel.reduction != "fast" || start.measured.is_null()) return;
    (void)choose_methods(planned, ranks.own().mesh, methods);
    methods.measured = read_measured({start.measured, start.checkpoint->string()});
    if (const std::int64_t num_kept = choose_methods(planned, ranks.own().mesh, methods))
      say("{} exchanges keep the method of the checkpoint, where this machine has measured another "
          "one to be faster",
          num_kept);
  }

  // From here on the other ranks do as this one does.
  void lead() {
    if (run.parallel.local_ranks == 1) return;
    followers.emplace(ranks, run, dataset, validation ? &*validation : nullptr);
    StepSums sums(ranks.own(), 1);
    Agreement agreement = agreement_of(run, program->compiled);
    agreement.measured = methods.measured;
    if (start.checkpoint) {
      agreement.checkpoint = start.checkpoint->string();
      agreement.first_step = start.step + 1;
    }
    tell(sums, agreement);
  }

  RunStart begin() {
    RunStart begun = begin_run(run);
    lock->sign();
    if (!lock->former_owner().empty())
      say("took {} over from {}, which ended without releasing it", run.train.output,
          lock->former_owner());
    for (const auto* messages : {&kept.messages, &begun.messages})
      for (const std::string& message : *messages) say("{}", message);
    return begun;
  }

  void restore() {
    std::string weights = other_weights;
    if (!start.checkpoint || session.config().adapter || reference->is_start()) {
      const model::ImportRecord record = session.load_parameters();
      const std::string identity = base_identity(run, record);
      if (session.config().adapter || reference->is_start()) weights += identity;
      if (!weights.empty()) compare_base(weights);
      if (reference->is_start()) {
        Reference of_start(session, *program);
        of_start.take_weights(identity);
        reference->take(of_start);
      }
      if (!start.checkpoint) return write_import_manifest(run, record);
    } else if (!weights.empty()) {
      compare_base(weights);
    } else if (!start.saved_base.empty()) {
      start.contents["base"] = start.saved_base;
    }
    load_checkpoint(*start.checkpoint, session);
    loss_scaler.restore(read_loss_scale(start.loss_scale));
    first_step = start.step + 1;
    done_step = saved_step = start.step;
    result.checkpoint = *start.checkpoint;
    say("resuming from {} (step {})", start.checkpoint->string(), start.step);
    if (is_complete())
      say("the run is complete at step {}: nothing to do; raise train.steps, which is {}, to "
          "continue",
          start.step, run.train.steps);
  }

  // The weights under an adapter, and those of a reference, are not in its checkpoints.
  void compare_base(const std::string& identity) {
    const std::string saved = start.checkpoint ? start.saved_base : identity;
    ANABATIC_REQUIRE(saved == identity,
                     "[checkpoint] {} cannot be resumed by another run (train.resume: never starts "
                     "a new run):\n  model.path: the {} belongs to other weights than those "
                     "of {} (hash {}, here {})",
                     start.checkpoint->string(), session.config().adapter ? "adapter" : "reference",
                     run.model.path, saved, identity);
    start.contents["base"] = identity;
    if (!session.config().adapter) return;
    const std::string coverage =
        model::coverage_to_string(session.config(), *session.config().adapter);
    write_file_atomically(std::filesystem::path(run.train.output) / kCoverageFile, coverage + "\n");
    say("{}", coverage);
  }

  bool is_complete() const { return start.checkpoint && first_step > run.train.steps; }

  void require_disk() const {
    const CheckpointBytes bytes = bytes_of_checkpoint(session);
    require_disk_room(
        run.train.output,
        {.checkpoint_bytes = bytes.total,
         .largest_file_bytes = bytes.largest_file,
         .num_saves =
             is_complete() ? 0 : count_saves(first_step, run.train.steps, run.train.save_every),
         .num_present = std::ssize(checkpoints_of_run(run.train.output, start.run.id)),
         .keep_last = run.train.keep_last,
         .log_bytes = estimate_log_bytes(
             run.train.steps - first_step + 1, std::ssize(session.config().spec.layers),
             model::num_experts(session.config().spec), num_ranks(run),
             uses_int8(run) ? std::ssize(ProductCalls(program->compiled).units()) : 0)},
        disk_room(run.train.output));
  }

  // Says before the first step what the run will hold and how long a step will take.
  void announce() {
    const lower::Compiled& training = program->compiled;
    memory = account_memory(run, training, evaluator ? &evaluator->compiled() : nullptr,
                            session.team().num_threads(), baseline_bytes, data_bytes, mpi_bytes);
    add_other_ranks(memory, ranks.num_threads() - 1);
    price = price_run(run, training, machine.device, machine.efficiency);
    PlanSummary summary = summarize(run, training, memory, price, machine.price_source);
    const std::filesystem::path file = std::filesystem::path(run.train.output) / "plan.txt";
    const spec::Mesh& mesh = ranks.own().mesh;
    write_file_atomically(
        file, fmt::format("peak resident bytes\n{}\nplanned bytes of a step by place\n{}\n{}",
                          summary.text, places_to_string(memory.step),
                          mesh.world() == 1
                              ? ""
                              : to_string(planned_exchanges(
                                    training, mesh, run.train.gradient_accumulation_steps))));
    summary.peak_memory_bytes = planned_bytes();
    summary.counts_process = baseline_bytes > 0;
    summary.file = file.string();
    listener.on_plan(summary);
    if (uses_int8(run) || !run.precision.keep.empty())
      say("{}", product_formats_to_string(run, training.graph));
    announced = std::move(summary);
    write_run_record(
        run.train.output, session, training,
        {.run = start.run,
         .first_step = first_step,
         .planned_peak_bytes = planned_bytes(),
         .memory = memory,
         .price = price,
         .segment_seconds = price_segments(run, training, machine.device, machine.efficiency),
         .price_source = machine.price_source});
  }

  std::int64_t planned_bytes() const { return std::max(setup_peak_bytes, memory.peak_bytes); }

  void run_on_ranks(const io::StepBatch& batch, StepMetrics& metrics) {
    const WindowsLog::Watching watching = windows->watch(metrics.step);
    // An update by a norm that is not finite leaves all as it was.
    rank_step->run(
        batch, metrics,
        {.before_update = [&] { is_sound = false; },
         .after_norm = [&] { is_sound = program->executor->has_action(spec::Action::kUpdate); }});
  }

  // More room for experts, before the step runs again. All ranks plan by what this one tells.
  void make_room(const MoreExpertRoom& more, std::int64_t step) {
    log_warning("[train] {}", more.text);
    lower::Compiled training = plan_with(more.capacity);
    unbind();
    program.reset();
    program = session.bind(std::move(training));
    {
      StepSums sums(ranks.own(), 1);
      tell(sums, agreement_of(run, program->compiled));
    }
    go_on_from(step);
    (void)rank_step->begin(step, true);
  }

  // Another program for the steps from `step` on, of a run that computes them otherwise: as if the
  // run had stopped and resumed so. Returns why there is none, and changes nothing then. For one
  // rank, between steps.
  std::string replan(const RunConfig& changed, std::int64_t step) {
    ANABATIC_CHECK(run.parallel.local_ranks == 1, "[trainer] another program of several ranks");
    RunConfig asked = changed;
    asked.memory.plan.clear();  // it is that of the step before
    plan::Outcome<BudgetedRun> planned = plan_as_asked(asked, session.config(), machine);
    if (!planned) return planned.refusal().reason;
    lower::Compiled training = std::move(planned->plan.training);
    std::string refusal = refuse_to_carry(training.program.states, session.store());
    if (!refusal.empty()) return refusal;
    const RunConfig before = run;
    unbind();
    lower::Compiled last = take_compiled();
    try {
      go_on_with(changed, std::move(training), step);
      return "";
    } catch (const ResourceError& error) {
      refusal = error.what();
    } catch (const std::bad_alloc&) {
      refusal = "no memory is left";
    }
    // The plan of the steps so far had room. It computes as it did.
    unbind();
    program.reset();
    go_on_with(before, std::move(last), step);
    return refusal;
  }

  // The program that is bound, without its memory.
  lower::Compiled take_compiled() {
    program->executor.reset();
    lower::Compiled compiled = std::move(program->compiled);
    program.reset();
    return compiled;
  }

  void go_on_with(const RunConfig& changed, lower::Compiled training, std::int64_t step) {
    evaluator.reset();
    run = changed;
    program = session.rebind(run, std::move(training));
    if (validation) evaluator = std::make_unique<Evaluator>(session, *validation);
    go_on_from(step);
  }

  // Once masks stay as they are, products may read what is present alone.
  void plan_for_final_masks() {
    if (run.sparsity.is_final || done_step >= run.train.steps || !has_final_masks(run, done_step))
      return;
    RunConfig changed = run;
    changed.sparsity.is_final = true;
    const std::string refusal = replan(changed, done_step + 1);
    if (refusal.empty()) return say("sparsity: planned anew, for masks stay as they are from here");
    run.sparsity.is_final = true;  // asked once
    say("sparsity: products stay dense until a resume: {}", refusal);
  }

  // What reads the program, which stays.
  void unbind() {
    precision->unbind();
    if (windows) windows->sync();
    windows.reset();
    rank_step.reset();
  }

  // With the program that is bound now.
  void go_on_from(std::int64_t step) {
    session.refresh_derived(step - 1);
    announce();
    rank_step.emplace(run, session, *program, loss_scaler, ranks.own());
    windows.emplace(run.train.output, step, run.train.steps, *program, rank_step->expert_counts());
    precision->bind(*program, step);
  }

  // After a step: products whose measured errors ask for it get another precision.
  void adapt(std::int64_t step) {
    for (const std::string& line : precision->decide(step)) say("{}", line);
    change_plan(step);
  }
  void change_plan(std::int64_t step) {
    const std::optional<RunConfig> changed = precision->plan_due(run, step);
    if (!changed) return;
    const std::string refusal = replan(*changed, step + 1);
    for (const std::string& line : precision->take_plan(step, refusal)) say("{}", line);
  }

  // The same plan with more room. Another one where memory.budget has none for it.
  lower::Compiled plan_with(double expert_capacity) const {
    RunConfig asked = ranks.of_one(run, baseline_bytes);
    asked.parallel.expert_capacity = expert_capacity;
    spec::Decisions decisions = program->compiled.memory.decisions;
    decisions.expert_capacity = expert_capacity;
    RunPlan plan = plan::value_or_throw(plan_run(asked, session.config(), machine.device,
                                                 machine.efficiency, {.replay = &decisions}));
    const auto peak_bytes = [&] {
      return account_memory(asked, plan.training, evaluator ? &evaluator->compiled() : nullptr,
                            session.team().num_threads(), baseline_bytes, data_bytes, mpi_bytes)
          .peak_bytes;
    };
    if (asked.memory.budget > 0 && peak_bytes() > asked.memory.budget)
      plan = plan::value_or_throw(plan_as_asked(asked, session.config(), machine)).plan;
    return std::move(plan.training);
  }

  // Documents share attention by design where they are concatenated. Experts of several ranks share
  // their forwards.
  void check_packing(const io::StepBatch& batch) {
    if (run.train.check_leak == "off" || run.data.packing == "concatenated" ||
        rank_step->num_ranks() > 1)
      return;
    const std::int64_t num_kept =
        require_no_leak(*program, batch.micro_batches[0], session.config().spec.vocab_size);
    if (num_kept > 0)
      say("packing: {} documents of the first micro-batch keep their loss when the tokens of the "
          "others change",
          num_kept);
  }

  StepMetrics run_step(std::int64_t step, const io::StepBatch* of_host) {
    const auto begin = Clock::now();
    const io::StepBatch& batch = of_host != nullptr ? *of_host : loader->load_step(step - 1);
    if (!std::exchange(is_checked, true)) {
      check_packing(batch);
      reference->check(*program, batch);
    }
    std::vector<SparsityMetrics> chosen = sparse_weights.prepare(session, step);
    StepMetrics metrics;
    for (bool is_done = false; !is_done;) {
      metrics = {.step = step, .steps = run.train.steps, .epoch = batch.epoch};
      metrics.learning_rate = learning_rate(run.optimizer, step, run.train.steps);
      try {
        precision->begin(step);
        run_on_ranks(batch, metrics);
        precision->end(metrics);
        is_done = true;
      } catch (const MoreExpertRoom& more) {
        make_room(more, step);
      }
    }
    if (metrics.tokens == 0)
      log_warning("[train] step {}: no token of this step has a label; nothing is learned from it",
                  step);
    add_expert_metrics(metrics);
    metrics.sparsity = std::move(chosen);
    for (const SparsityMetrics& units : metrics.sparsity)
      if (units.is_final)
        say("sparsity: {}: {} at density {:.6g} from step {} on", units.units, units.pattern,
            units.density, step);
    is_sound = true;
    done_step = step;

    metrics.step_time_s = std::chrono::duration<double>(Clock::now() - begin).count();
    if (step_seconds.size() < kTimedSteps)
      step_seconds.push_back(metrics.step_time_s);
    else
      step_seconds[static_cast<std::size_t>(step) % kTimedSteps] = metrics.step_time_s;
    const std::int64_t tokens = run.train.micro_batch_size * run.data.sequence_length *
                                run.train.gradient_accumulation_steps * run.parallel.local_ranks;
    metrics.tokens_per_second = static_cast<double>(tokens) / metrics.step_time_s;
    const double flops = rank_step->flops();
    metrics.tflops = flops / metrics.step_time_s * 1e-12;
    metrics.mfu = utilization.of(flops / metrics.step_time_s);
    metrics.peak_memory_bytes = device::peak_resident_bytes();
    metrics.planned_memory_bytes = planned_bytes();
    windows->add(step, rank_step->expert_counts(), metrics.int8);
    return metrics;
  }

  void add_expert_metrics(StepMetrics& metrics) {
    metrics.experts = rank_step->expert_counts().balance();
    expert_history.push(rank_step->expert_counts());
    if (const std::string warning = expert_history.take_warning(); !warning.empty())
      log_warning("{}", warning);
  }

  void validate(std::int64_t step, std::optional<Evaluation>& into) {
    if (!evaluator) return;
    into = rank_step->validate(done_step + 1, *evaluator);
    log->write_validation(step, *into);
    listener.on_validation(step, *into);
  }

  void save(std::int64_t step) {
    if (saved_step == step) return;
    log->sync();
    windows->sync();
    precision->sync();
    saving_step = step;
    note_saved(step,
               rank_step->save(done_step + 1, progress_of(step), retention(run.train.keep_last)));
  }

  CheckpointProgress progress_of(std::int64_t step) const {
    CheckpointProgress progress{
        .step = step, .seed = run.train.seed, .run = start.run, .contents = start.contents};
    if (asked_accumulation != run.train.gradient_accumulation_steps)
      progress.asked_accumulation = asked_accumulation;
    if (run.parallel.reduction == "fast") progress.measured = to_json(methods.measured);
    if (loss_scaler.is_worth_saving()) progress.loss_scale = to_json(loss_scaler.state());
    if (precision) progress.adaptive = precision->state();
    return progress;
  }

  Retention retention(std::int64_t keep_last) const {
    return {
        .keep_last = keep_last, .run_id = start.run.id, .in_use = model_directory(run.model.path)};
  }

  void note_saved(std::int64_t step, const std::filesystem::path& checkpoint) {
    result.checkpoint = checkpoint;
    saved_step = step;
    listener.on_checkpoint(step, checkpoint.string());
  }

  // After an error in a step or between steps: saves the last good step if it is not saved yet.
  // Returns what happened to it, for the text of the error.
  std::string rescue() noexcept {
    std::string fate;
    try {
      fate = save_last_good_step();
    } catch (const std::exception& error) {
      fate = fmt::format("step {} could not be saved ({}), ", done_step, error.what());
    }
    lock.reset();
    return fmt::format("; {}the run stops here, {}", fate,
                       result.checkpoint.empty()
                           ? "before its first checkpoint"
                           : fmt::format("its last checkpoint is {}", result.checkpoint.string()));
  }

  std::string save_last_good_step() {
    if (done_step < first_step || saved_step == done_step) return "";
    if (saving_step == done_step) return "";  // the error is that of the save
    if (!rank_step)
      return fmt::format("step {} is not saved, as its plan had to give way to another, ",
                         done_step);
    if (rank_step->has_parts())
      return fmt::format("step {} is not saved, as other ranks hold parts of it, ", done_step);
    if (rank_step->num_ranks() > 1 && listener.stop_requested())
      return fmt::format("step {} is not saved, as this process was asked to end, ", done_step);
    if (!is_sound) return fmt::format("the update after step {} had begun, ", done_step);
    if (!states_are_finite(session))
      return fmt::format("step {} left numbers that are not finite and is not saved, ", done_step);
    // By this rank alone, and nothing is pruned: whatever is there may still be wanted.
    note_saved(done_step,
               save_checkpoint(run.train.output, session, progress_of(done_step), retention(0)));
    return fmt::format("step {} is saved, ", done_step);
  }

  // Whether there is another step. Validates and saves where there is none.
  bool goes_on() {
    if (done_step >= run.train.steps) {
      save(done_step);
      validate(done_step, result.after);
      return false;
    }
    is_stopped = listener.stop_requested() || rank_step->is_end_asked();
    if (is_stopped) save(done_step);  // while all ranks are there
    return !is_stopped;
  }

  // `of_host`: the samples of the step, in place of the run's own.
  std::optional<StepMetrics> next_step(const io::StepBatch* of_host) {
    if (is_over) return std::nullopt;
    if (of_host != nullptr && trains_on_pairs(run))
      throw Unsupported("[train] expected data.train with train.objective: dpo, got a batch");
    if (!has_begun) change_plan(done_step);
    if (!has_begun && done_step == 0) validate(0, result.before);
    has_begun = true;
    plan_for_final_masks();
    // Each rank hears once a step, also of the end, whether there is another one.
    if (!rank_step->begin(done_step + 1, goes_on())) {
      end();
      return std::nullopt;
    }
    StepMetrics metrics = run_step(done_step + 1, of_host);
    const std::int64_t step = metrics.step;
    if (metrics.epoch != epoch) {
      if (epoch >= 0) say("epoch {} begins", metrics.epoch + 1);
      epoch = metrics.epoch;
    }
    result.loss = metrics.loss;
    const bool is_last = step == run.train.steps;
    log->write(metrics);
    listener.on_step(metrics);
    adapt(step);
    const auto due = [&](std::int64_t every) { return every > 0 && step % every == 0; };
    if (due(run.train.validate_every) && !is_last) validate(step, result.after);
    if (due(run.train.save_every) || is_last) save(step);
    return metrics;
  }

  void end() {
    ranks.done();
    is_over = true;
    lock.reset();
  }

  TrainResult result_so_far() const {
    TrainResult so_far = result;
    so_far.step = done_step;
    so_far.interrupted = is_stopped;
    so_far.planned_memory_bytes = planned_bytes();
    so_far.peak_memory_bytes = device::peak_resident_bytes();
    so_far.counts_process = baseline_bytes > 0;
    so_far.experts = expert_history.sums().balance();
    so_far.expert_steps = expert_history.num_steps();
    so_far.disk = swap_to_string(session.store().swap());
    so_far.planned_step_seconds = price.seconds;
    if (!step_seconds.empty()) {
      std::vector<double> sorted = step_seconds;
      const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
      std::nth_element(sorted.begin(), middle, sorted.end());
      so_far.step_seconds = *middle;
    }
    return so_far;
  }

  template <class... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    listener.on_message(Severity::kInfo, fmt::format(format, std::forward<Args>(args)...));
  }
};

Trainer::Trainer(const RunConfig& run, runtime::swap::DeviceWrapper wrap_swap)
    : Trainer(run, silence(), std::move(wrap_swap)) {}
Trainer::Trainer(const RunConfig& run, RunListener& listener,
                 runtime::swap::DeviceWrapper wrap_swap, comm::MpiWorld* world)
    : impl_(std::make_unique<Impl>(run, listener, std::move(wrap_swap), world)) {}
Trainer::~Trainer() = default;

std::optional<StepMetrics> Trainer::step(const io::StepBatch* batch) {
  const auto text = [&](const std::exception& error) {
    impl_->is_over = true;
    impl_->ranks.abort(error.what());
    return error.what() + impl_->rescue();
  };
  try {
    return impl_->next_step(batch);
  } catch (const ResourceError& error) {
    throw ResourceError(text(error));
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(text(error));
  } catch (const InternalError& error) {
    throw InternalError(text(error));
  } catch (const CommError& error) {
    throw CommError(text(error));
  } catch (const std::exception& error) {
    throw Error(text(error));
  }
}

TrainResult Trainer::train() {
  while (step()) {
  }
  return result();
}

bool Trainer::is_over() const { return impl_->is_over; }
TrainResult Trainer::result() const { return impl_->result_so_far(); }

Evaluation Trainer::evaluate() {
  if (!impl_->evaluator)
    throw Unsupported("[train] data.validation: expected files to evaluate, got none");
  return impl_->rank_step->validate(impl_->done_step + 1, *impl_->evaluator);
}

std::filesystem::path Trainer::save() {
  impl_->save(impl_->done_step);
  return impl_->result.checkpoint;
}

const PlanSummary& Trainer::plan() const { return impl_->announced; }
const lower::Compiled& Trainer::compiled() const { return impl_->program->compiled; }
ModelSession& Trainer::session() { return impl_->session; }

std::unique_ptr<ModelSession> Trainer::take_session() {
  // Programs that are bound to the session are destroyed first.
  impl_->evaluator.reset();
  impl_->followers.reset();
  impl_->rank_step.reset();
  impl_->precision.reset();
  impl_->program.reset();
  return std::move(impl_->owned_session);
}

}  // namespace anabatic::train
