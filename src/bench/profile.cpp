// SPDX-License-Identifier: Apache-2.0
#include "bench/profile.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <span>

#include "base/error.h"
#include "bench/benchmark.h"
#include "bench/final_masks.h"
#include "device/memory.h"
#include "device/probe.h"
#include "io/data/loader.h"
#include "lower/call_info.h"
#include "plan/budget_error.h"
#include "plan/prices.h"
#include "runtime/swap/swap_space.h"
#include "spec/key_blocks.h"
#include "train/attention/key_blocks.h"
#include "train/budget.h"
#include "train/open_dataset.h"
#include "train/ranks/follower.h"
#include "train/ranks/planned_exchanges.h"
#include "train/ranks/rank_step.h"
#include "train/schedule.h"
#include "train/training_step.h"

namespace anabatic::bench {
namespace {

constexpr int kProbesAStep = 5;

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Totals of the runs of one call.
struct Sums {
  std::int64_t count = 0, nanoseconds = 0;
  std::int64_t longest_busy = 0, total_busy = 0;  // nanoseconds: of the slowest thread, of all
};

// The calls of a program by the row of the profile that they go to: twins share one.
class Rows {
 public:
  explicit Rows(const lower::Compiled& compiled)
      : calls_(compiled.program.calls), infos_(lower::call_infos(compiled)) {
    for (std::size_t i = 0; i < infos_.size(); ++i) {
      if (i == 0 || !infos_[i].is_twin_of(infos_[i - 1])) first_call_.push_back(i);
      row_of_call_.push_back(static_cast<std::int32_t>(first_call_.size()) - 1);
    }
  }
  std::size_t size() const { return first_call_.size(); }
  const lower::CallInfo& info(std::size_t row) const { return infos_[first_call_[row]]; }
  const runtime::Call& call(std::size_t row) const { return calls_[first_call_[row]]; }
  std::int32_t of(const runtime::Call& call) const {
    return row_of_call_[static_cast<std::size_t>(&call - calls_.data())];
  }

 private:
  std::span<const runtime::Call> calls_;
  std::vector<lower::CallInfo> infos_;   // by call
  std::vector<std::size_t> first_call_;  // by row
  std::vector<std::int32_t> row_of_call_;
};

// Notes every call while it is attached; nothing in it allocates then.
class Recorder {
 public:
  Recorder(const Rows& rows, device::ThreadTeam& team, std::size_t most_events)
      : rows_(rows),
        team_(team),
        busy_(static_cast<std::size_t>(team.num_threads()), 0),
        sums_(rows.size()) {
    events_.reserve(most_events);
  }

  void attach(runtime::Executor& executor, std::int32_t step) {
    step_ = step;
    std::fill(busy_.begin(), busy_.end(), 0);
    team_.measure_busy(busy_.data());
    executor.observe({.on_call = on_call, .context = this});
  }
  void detach(runtime::Executor& executor) {
    executor.observe({});
    team_.measure_busy(nullptr);
  }

  const std::vector<Sums>& sums() const { return sums_; }
  std::vector<TraceEvent> take_events() { return std::move(events_); }

 private:
  static void on_call(void* context, const runtime::CallEvent& event) {
    static_cast<Recorder*>(context)->note(event);
  }

  void note(const runtime::CallEvent& event) {
    const std::int32_t index = rows_.of(event.call);
    Sums& sums = sums_[static_cast<std::size_t>(index)];
    std::int64_t total = 0, longest = 0;
    for (std::int64_t& busy : busy_) {
      total += busy;
      longest = std::max(longest, busy);
      busy = 0;
    }
    // A kernel that does not ask the team runs on the caller.
    if (longest == 0) total = longest = event.nanoseconds;
    ++sums.count;
    sums.nanoseconds += event.nanoseconds;
    sums.longest_busy += longest;
    sums.total_busy += total;
    if (events_.size() < events_.capacity())
      events_.push_back({index, step_, event.begin_nanoseconds, event.nanoseconds});
  }

  const Rows& rows_;
  device::ThreadTeam& team_;
  std::vector<std::int64_t> busy_;  // a thread, in the call that runs
  std::vector<Sums> sums_;          // a row
  std::vector<TraceEvent> events_;
  std::int32_t step_ = 0;
};

// Unmasked pairs of one head against those that the op's estimate takes: one causal document.
double pairs_ratio(const model::ModelConfig& config, const io::MicroBatch& batch,
                   std::int64_t window) {
  const double pairs = train::unmasked_pairs(config, batch, window);
  const auto rows = static_cast<double>(batch.key_begin.size());
  const double causal = rows * (rows + 1) / 2;
  return pairs / (window > 0 ? std::min(causal, rows * static_cast<double>(window)) : causal);
}

bool is_attention(const ir::Node& node) { return node.op->name.starts_with("attention"); }

// Mean of pairs_ratio over all micro-batches that a run looked at, by window.
class PairsRatios {
 public:
  PairsRatios(const Rows& rows, const model::ModelConfig& config) : config_(config) {
    for (std::size_t row = 0; row < rows.size(); ++row)
      if (is_attention(*rows.info(row).node)) sums_[window(rows.info(row))] = 0;
  }
  void add(const io::StepBatch& batch) {
    for (const io::MicroBatch& micro_batch : batch.micro_batches) {
      for (auto& [window, sum] : sums_) sum += pairs_ratio(config_, micro_batch, window);
      ++count_;
    }
  }
  double of(const lower::CallInfo& info) const {
    if (!is_attention(*info.node) || count_ == 0) return 1;
    return sums_.at(window(info)) / static_cast<double>(count_) /
           spec::get_double_or(info.node->attributes, spec::kBlockDensity, 1.0);
  }

 private:
  static std::int64_t window(const lower::CallInfo& info) {
    return spec::get_int_or(info.node->attributes, "window", 0);
  }
  const model::ModelConfig& config_;
  std::map<std::int64_t, double> sums_;
  std::int64_t count_ = 0;
};

// While a group grows, its imbalance is in seconds.
void add(ProfileRow& sum, const ProfileRow& row) {
  sum.calls += row.calls;
  sum.seconds += row.seconds;
  sum.flops += row.flops;
  sum.bytes += row.bytes;
  sum.roof_seconds += row.roof_seconds;
  sum.imbalance += row.imbalance * row.seconds;
}

std::vector<ProfileRow> grouped(const std::vector<ProfileRow>& calls,
                                const std::vector<std::string>& names) {
  std::map<std::string, ProfileRow> groups;
  for (std::size_t i = 0; i < calls.size(); ++i) add(groups[names[i]], calls[i]);
  std::vector<ProfileRow> rows;
  for (auto& [name, row] : groups) {
    row.name = name;
    if (row.seconds > 0) row.imbalance /= row.seconds;
    rows.push_back(std::move(row));
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const ProfileRow& a, const ProfileRow& b) { return a.seconds > b.seconds; });
  return rows;
}

// As `train` plans it where a budget or a saved plan is asked for; else the fastest plan.
std::unique_ptr<train::BoundProgram> bind_program(train::ModelSession& session,
                                                  const ProfileOptions& options) {
  const train::RunConfig& run = session.run();
  if (options.decisions)
    return session.bind(
        std::move(train::plan_run(run, session.config(), session.device(),
                                  plan::default_efficiency(), {.replay = &*options.decisions})
                      ->training));
  if (run.memory.budget <= 0 && run.memory.plan.empty()) return train::bind_training(session);
  train::BudgetedRun planned = plan::value_or_throw(train::plan_as_asked(
      run, session.config(),
      train::priced_machine(session.device(),
                            {.process_bytes = device::current_resident_bytes()})));
  return session.bind(std::move(planned.plan.training));
}

class Profiler {
 public:
  Profiler(const train::RunConfig& run, const ProfileOptions& options)
      : run_(with_steps(run, options)),
        options_(options),
        ranks_(run_),
        session_(ranks_.of_one(run_, 0), false, {}, ranks_.own()) {
    train::require_supported_by_ranks(run_, session_.config());
    if (!run.data.train.empty())
      dataset_.emplace(train::open_dataset(run.data.train, run_, session_.config()));
    ANABATIC_REQUIRE(dataset_ || ranks_.num_threads() == 1,
                     "[profile] data.train: expected files, for {} ranks, got none",
                     ranks_.num_threads());
    program_ = bind_program(session_, options_);
    if (ranks_.num_threads() > 1) {
      followers_.emplace(ranks_, run_, *dataset_, nullptr);
      train::StepSums sums(ranks_.own(), 1);
      tell(sums, agreement_of(run_, program_->compiled));
    }
    session_.load_parameters();
    choose_masks(session_, run_, program_->compiled.graph);
    session_.refresh_derived();
    if (dataset_)
      loader_.emplace(*dataset_, train::loader_options(run_, ranks_.own()));
    else
      random_ =
          train::random_step(run_, session_.config(), static_cast<std::uint64_t>(run.train.seed));
    rank_step_.emplace(run_, session_, *program_, scaler_, ranks_.own());
    rank_step_->compare_states(1);
  }

  Profile run() {
    const Rows rows(program_->compiled);
    const std::int64_t accumulation = run_.train.gradient_accumulation_steps;
    Recorder recorder(rows, session_.team(),
                      rows.size() * static_cast<std::size_t>(options_.num_steps * accumulation));
    PairsRatios ratios(rows, session_.config());
    measure(recorder, ratios);
    (void)rank_step_->begin(options_.num_warmup_steps + options_.num_steps + 1, false);
    ranks_.done();
    fill_calls(rows, recorder, ratios);
    result_.events = recorder.take_events();
    group(rows);
    describe();
    return std::move(result_);
  }

 private:
  // From one batch to the next, as the trainer does it.
  Profile::Step run_step(std::int64_t step) {
    (void)rank_step_->begin(step, true);
    Profile::Step times{.begin_nanoseconds = now()};
    const io::StepBatch& batch = loader_ ? loader_->load_step(step - 1) : random_;
    last_ = &batch;
    StepMetrics metrics{.step = step};
    metrics.learning_rate = train::learning_rate(run_.optimizer, step, run_.train.steps);
    rank_step_->run(batch, metrics);
    times.nanoseconds = now() - times.begin_nanoseconds;
    return times;
  }

  void measure(Recorder& recorder, PairsRatios& ratios) {
    device::PeakProbe probe(session_.team(), session_.device());
    std::vector<double> fp32, bf16, int8, copy, seconds;
    std::int64_t step = 0;
    while (step < options_.num_warmup_steps) run_step(++step);
    const runtime::swap::SwapStats before = disk_so_far();
    const std::vector<comm::CommStats> exchanged = program_->executor->exchanges_took();
    for (std::int64_t i = 0; i < options_.num_steps; ++i) {
      for (int round = 0; round < kProbesAStep; ++round) {
        fp32.push_back(probe.fp32_flops_per_second());
        // Without bf16 products their peak is that of fp32; one series of numbers then.
        bf16.push_back(session_.device().has("avx512_bf16") ? probe.bf16_flops_per_second()
                                                            : fp32.back());
        if (train::uses_int8(run_)) int8.push_back(probe.int8_ops_per_second());
        copy.push_back(probe.copy_bytes_per_second());
      }
      recorder.attach(*program_->executor, static_cast<std::int32_t>(i));
      result_.steps.push_back(run_step(++step));
      recorder.detach(*program_->executor);
      ratios.add(*last_);
      for (const io::MicroBatch& micro_batch : last_->micro_batches)
        result_.model_flops += train::micro_batch_flops(session_.config(), micro_batch) /
                               static_cast<double>(options_.num_steps);
      seconds.push_back(1e-9 * static_cast<double>(result_.steps.back().nanoseconds));
    }
    add_disk(before);
    add_exchanges(exchanged);
    result_.fp32_flops_per_second = median(std::move(fp32));
    result_.bf16_flops_per_second = median(std::move(bf16));
    if (!int8.empty()) result_.int8_ops_per_second = median(std::move(int8));
    result_.copy_bytes_per_second = median(std::move(copy));
    result_.step_seconds =
        std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(seconds.size());
    result_.median_step_seconds = median(std::move(seconds));
  }

  void add_exchanges(const std::vector<comm::CommStats>& before) {
    const std::vector<comm::CommStats> after = program_->executor->exchanges_took();
    const std::vector<train::PlannedExchange> planned = train::planned_exchanges(
        program_->compiled, ranks_.own().mesh, run_.train.gradient_accumulation_steps);
    const auto a_step = [&](std::int64_t number) {
      return static_cast<double>(number) / static_cast<double>(options_.num_steps);
    };
    for (std::size_t i = 0; i < planned.size(); ++i) {
      const comm::CommStats took = after[i] - before[i];
      result_.exchanges.push_back({.name = planned[i].name,
                                   .kind = std::string(comm::to_string(planned[i].kind)),
                                   .count = static_cast<double>(planned[i].count),
                                   .sent_bytes = a_step(took.sent_bytes),
                                   .busy_seconds = 1e-9 * a_step(took.busy_nanoseconds),
                                   .exposed_seconds = 1e-9 * a_step(took.waited_nanoseconds)});
    }
  }

  runtime::swap::SwapStats disk_so_far() {
    const auto* swap = session_.store().swap();
    return swap ? swap->stats() : runtime::swap::SwapStats{};
  }

  void add_disk(const runtime::swap::SwapStats& before) {
    const runtime::swap::SwapStats after = disk_so_far();
    const auto steps = static_cast<double>(options_.num_steps);
    result_.disk_bytes = static_cast<double>(after.read_bytes + after.written_bytes -
                                             before.read_bytes - before.written_bytes) /
                         steps;
    result_.disk_seconds =
        1e-9 * static_cast<double>(after.busy_nanoseconds - before.busy_nanoseconds) / steps;
    result_.disk_waited_seconds =
        1e-9 * static_cast<double>(after.waited_nanoseconds - before.waited_nanoseconds) / steps;
  }

  void fill_calls(const Rows& rows, const Recorder& recorder, const PairsRatios& ratios) {
    const auto steps = static_cast<double>(options_.num_steps),
               threads = static_cast<double>(session_.team().num_threads());
    result_.outside_seconds = result_.step_seconds;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Sums& sums = recorder.sums()[i];
      const lower::CallInfo& info = rows.info(i);
      const runtime::Call& call = rows.call(i);
      ProfileRow row{.name = call.label, .kernel = std::string(call.kernel->name)};
      if (info.layout > 0) row.name += " first micro-batch";
      row.calls = static_cast<double>(sums.count) / steps;
      row.seconds = 1e-9 * static_cast<double>(sums.nanoseconds) / steps;
      row.flops = row.calls * ratios.of(info) * static_cast<double>(info.cost.flops);
      row.bytes = row.calls * static_cast<double>(info.cost.bytes_read + info.cost.bytes_written);
      const double peak = result_.peak_of(info.precision);
      row.roof_seconds = std::max(row.flops / peak, row.bytes / result_.copy_bytes_per_second);
      if (sums.longest_busy > 0)
        row.imbalance = 1 - static_cast<double>(sums.total_busy) /
                                static_cast<double>(sums.longest_busy) / threads;
      result_.outside_seconds -= row.seconds;
      result_.calls.push_back(std::move(row));
    }
  }

  void group(const Rows& rows) {
    std::vector<std::string> ops, phases;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const lower::CallInfo& info = rows.info(i);
      ops.emplace_back(info.is_zero_fill ? "fill" : ir::op_and_form(*info.node));
      phases.emplace_back(to_string(info.node->tag.phase));
      result_.call_segments.emplace_back(text(info.node->tag.segment));
      result_.call_keys.push_back(info.is_zero_fill ? "fill"
                                                    : plan::price_key(*info.graph, *info.node));
      result_.call_weight_bytes.push_back(plan::weight_bytes(*info.graph, *info.node));
    }
    result_.by_op = grouped(result_.calls, ops);
    result_.by_segment = grouped(result_.calls, result_.call_segments);
    result_.by_phase = grouped(result_.calls, phases);
  }

  void describe() {
    result_.model_type = session_.config().model_type;
    result_.precision = run_.train.precision;
    result_.cpu = session_.device().model;
    result_.num_threads = session_.device().num_threads;
    result_.num_steps = options_.num_steps;
    result_.num_warmup_steps = options_.num_warmup_steps;
    result_.tokens = run_.train.micro_batch_size * run_.data.sequence_length *
                     run_.train.gradient_accumulation_steps * ranks_.own().mesh.data;
    result_.has_data = dataset_.has_value();
    result_.num_ranks = ranks_.own().mesh.world();
  }

  // With as many steps as are run, for the schedule of the learning rate.
  static train::RunConfig with_steps(train::RunConfig run, const ProfileOptions& options) {
    run.train.steps = std::max(run.train.steps, options.num_warmup_steps + options.num_steps);
    run.data.validation.clear();  // no rank validates
    return with_final_masks(std::move(run));
  }

  train::RunConfig run_;
  ProfileOptions options_;
  train::Ranks ranks_;
  train::ModelSession session_;
  std::optional<io::Dataset> dataset_;
  std::optional<io::Loader> loader_;
  io::StepBatch random_;
  const io::StepBatch* last_ = nullptr;
  std::unique_ptr<train::BoundProgram> program_;
  train::LossScaler scaler_ = train::make_loss_scaler(run_);
  std::optional<train::RankStep> rank_step_;
  Profile result_;
  std::optional<train::Followers> followers_;  // end before what they use
};

}  // namespace

Profile profile(const train::RunConfig& run, const ProfileOptions& options) {
  ANABATIC_REQUIRE(!run.model.path.empty(), "[profile] model.path: expected a value, got none");
  ANABATIC_REQUIRE(options.num_steps > 0 && options.num_warmup_steps >= 0,
                   "[profile] expected at least one measured step, got {} after {} of warm-up",
                   options.num_steps, options.num_warmup_steps);
  return Profiler(train::with_training_precision(run), options).run();
}

}  // namespace anabatic::bench
