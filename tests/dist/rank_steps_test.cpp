// SPDX-License-Identifier: Apache-2.0
// What holds of every step of several ranks: it takes nothing from the heap, each gradient is
// summed once, all ranks run one list of exchanges, and no sample is skipped or repeated.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "device/topology.h"
#include "dist/mpi_ranks.h"
#include "io/data/loader.h"
#include "runtime/verify_schedule.h"
#include "spec/shards.h"
#include "support/counted_allocations.h"
#include "support/own_code.h"
#include "support/test_config.h"
#include "support/tiny_run.h"
#include "train/objective/run_model.h"
#include "train/open_dataset.h"
#include "train/ranks/agreed_machine.h"
#include "train/ranks/agreement.h"
#include "train/ranks/planned_exchanges.h"
#include "train/ranks/rank_step.h"
#include "train/ranks/ranks.h"
#include "train/ranks/run_mesh.h"
#include "train/run_plan.h"
#include "train/trainer.h"
#include "train/training_step.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;
using anabatic::testing::json_lines;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::tiny_run;
using anabatic::testing::write_tiny_tokens;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

struct Form {
  std::int64_t ranks = 2, expert = 1;
  const char* optimizer = "sharded";
  const char* precision = "bf16";
};

std::string to_string(const Form& form) {
  return fmt::format("{} ranks, expert {}, {}, {}", form.ranks, form.expert, form.optimizer,
                     form.precision);
}

const std::vector<Form> kForms{{.ranks = 2},
                               {.ranks = 2, .optimizer = "replicated", .precision = "fp32"},
                               {.ranks = 2, .expert = 2},
                               {.ranks = 4, .expert = 2}};

// Stacks of experts are large enough to be cut over ranks.
RunConfig run_of(const TemporaryDirectory& folder, const Form& form) {
  RunConfig run = tiny_run(folder.path(), "\"intermediate_size\": 1100");
  run.train.gradient_accumulation_steps = 2;
  run.train.precision = form.precision;
  run.parallel.local_ranks = form.ranks;
  run.parallel.expert = form.expert;
  run.parallel.optimizer = form.optimizer;
  return run;
}

// --- What the plan goes by ---

Machine machine_of(double flops, double share, double fixed, std::int64_t process_bytes,
                   std::int64_t available_bytes) {
  Machine machine{.device = device::describe_cpu(1),
                  .price_source = "its own",
                  .limits = {.process_bytes = process_bytes, .available_bytes = available_bytes}};
  machine.device.fp32_flops_per_second = flops;
  machine.device.bf16_flops_per_second = 2 * flops;
  machine.device.copy_bytes_per_second = flops / 10;
  machine.efficiency.share_of_roof = {{"linear bf16", share}};
  machine.efficiency.fixed_seconds = {{"linear bf16", fixed}};
  machine.efficiency.fixed_weight_bytes = {{"linear bf16", 1e6 * fixed}};
  return machine;
}

Machine agreed_by_first(const std::vector<Machine>& machines) {
  const TemporaryDirectory folder;
  const auto num_ranks = static_cast<std::int64_t>(machines.size());
  const RunConfig run = run_of(folder, {.ranks = num_ranks});
  Ranks ranks(run);
  Machine result;
  std::exception_ptr refused;  // by the first rank
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < num_ranks; ++rank)
    threads.emplace_back([&, rank] {
      const Machine& own = machines[static_cast<std::size_t>(rank)];
      StepSums sums(ranks.of_thread(rank), 1);
      try {
        const Machine agreed = agree_on_machine(sums, own);
        if (rank == 0)
          result = agreed;
        else
          EXPECT_EQ(to_text(agreed), to_text(own));
      } catch (const InvalidArgument&) {
        refused = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  ranks.done();
  if (refused != nullptr) std::rethrow_exception(refused);
  return result;
}

TEST(RankMachines, TheSlowestAndTheFewestBytesAreTheFirstRanks) {
  const Machine first = machine_of(4e10, 0.5, 2e-6, 100, 9000);
  const Machine agreed = agreed_by_first({first, machine_of(3e10, 0.75, 1e-6, 300, 8000),
                                          machine_of(5e10, 0.25, 5e-6, 200, 7000),
                                          machine_of(6e10, 1, 1e-6, 50, 9500)});
  EXPECT_EQ(agreed.device.fp32_flops_per_second, 3e10);
  EXPECT_EQ(agreed.device.bf16_flops_per_second, 6e10);
  EXPECT_EQ(agreed.device.copy_bytes_per_second, 3e9);
  EXPECT_EQ(agreed.device.model, first.device.model);
  EXPECT_EQ(agreed.device.num_threads, first.device.num_threads);
  EXPECT_EQ(agreed.efficiency.share_of_roof.at("linear bf16"), 0.25);
  EXPECT_EQ(agreed.efficiency.fixed_seconds.at("linear bf16"), 5e-6);
  EXPECT_EQ(agreed.efficiency.fixed_weight_bytes.at("linear bf16"), 5);
  EXPECT_EQ(agreed.limits.process_bytes, 300);
  EXPECT_EQ(agreed.limits.available_bytes, 7000);
  EXPECT_EQ(agreed.price_source, "the slowest of 4 ranks' machines");
}

TEST(RankMachines, PricesOfEqualMachinesAreTheFirstRanksOwn) {
  const Machine agreed = agreed_by_first(
      {machine_of(4e10, 0.5, 2e-6, 100, 900), machine_of(4e10, 0.5, 2e-6, 120, 800)});
  EXPECT_EQ(agreed.price_source, "its own");
  EXPECT_EQ(agreed.limits.process_bytes, 120);
  EXPECT_EQ(agreed.limits.available_bytes, 800);
}

TEST(RankMachines, AnUnmeasuredOneTakesTheSharesOfTheOther) {
  Machine unmeasured = machine_of(4e10, 0.5, 2e-6, 0, 0);
  unmeasured.efficiency = plan::default_efficiency();
  const Machine agreed = agreed_by_first({unmeasured, machine_of(4e10, 0.5, 2e-6, 0, 0)});
  EXPECT_EQ(agreed.efficiency.share_of_roof.at("linear bf16"), 0.5);
  EXPECT_EQ(agreed.efficiency.fixed_weight_bytes.at("linear bf16"), 2);
}

TEST(RankMachines, OthersWithOtherKernelsAreRefusedWithTheSetsThatAllHave) {
  const auto refusal = [](const std::vector<std::string>& first,
                          const std::vector<std::string>& second) {
    Machine machines[] = {machine_of(4e10, 0.5, 2e-6, 0, 0), machine_of(4e10, 0.5, 2e-6, 0, 0)};
    machines[0].device.instruction_sets = first;
    machines[1].device.instruction_sets = second;
    try {
      (void)agreed_by_first({machines[0], machines[1]});
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(
      refusal({"avx2", "avx512f", "avx512_bf16"}, {"avx2", "avx512f"}),
      AllOf(HasSubstr("rank 1"), HasSubstr("(avx2, avx512f, avx512_bf16), got avx2, avx512f"),
            HasSubstr("ANABATIC_MAX_ISA=avx512f")));
  EXPECT_THAT(refusal({"avx2"}, {"avx2", "avx512f"}), HasSubstr("ANABATIC_MAX_ISA=avx2"));
  EXPECT_THAT(refusal({}, {"avx2"}),
              AllOf(HasSubstr("(none)"), HasSubstr("ANABATIC_MAX_ISA=portable")));
  EXPECT_EQ(refusal({"avx2"}, {"avx2"}), "");
}

TEST(RankMachines, ATextThatIsNoneNamesRankAndMember) {
  EXPECT_THAT([] { (void)read_machine("{}", 3); },
              ThrowsMessage<InvalidArgument>(HasSubstr("machine of rank 3")));
  std::string text = to_text(machine_of(4e10, 0.5, 2e-6, 100, 900));
  text.replace(text.find("900"), 3, "-90");
  EXPECT_THAT([&] { (void)read_machine(text, 1); },
              ThrowsMessage<InvalidArgument>(HasSubstr("available_bytes")));
}

// --- Memory ---

// Bytes of the states of each parameter, by kind. A packing in place of the parameter counts as it.
struct StateBytes {
  std::int64_t parameter = 0, second_packing = 0, optimizer = 0;
  bool operator==(const StateBytes&) const = default;
};

std::map<std::string, StateBytes> bytes_of_states(const RunConfig& run,
                                                  const model::ModelConfig& config,
                                                  std::int32_t rank) {
  const lower::Compiled training =
      plan_run(run, config, device::describe_cpu(1), plan::default_efficiency(), {.rank = rank})
          ->training;
  std::map<std::string, StateBytes> bytes;
  for (const runtime::StateSlot& state : training.program.states) {
    const spec::StatePart& part = state.part;
    StateBytes& of = bytes[std::string(text(spec::has_owner(part.role) ? part.owner : state.name))];
    const std::int64_t size = element_bytes(state.type);
    if (part.role == spec::StateRole::kPackingTransposed)
      of.second_packing += size;
    else if (part.kind() == spec::StateKind::kOptimizer)
      of.optimizer += size;
    else
      of.parameter += size;
  }
  return bytes;
}

// By all passes, whatever the test config leaves out.
RunConfig run_of_closed_forms(const TemporaryDirectory& folder) {
  RunConfig run = tiny_run(folder.path(),
                           R"("hidden_size": 128, "intermediate_size": 512, "vocab_size": 1024)");
  run.compiler.disable_passes.clear();
  run.train.precision = "bf16";
  return run;
}

// In bf16 with upper and lower 16 bits and moments in f32 a parameter takes 2 + (2 + 8) / d bytes,
// and 2 more where it is packed twice. d: the ranks over which it is whole, which share its
// optimizer's state. Those of fewer than 64 Ki elements are on all ranks alike. No dimension pads a
// panel.
TEST(RankMemory, OfStatesIsTheClosedForm) {
  constexpr std::int64_t kFewest = 64 << 10;
  const TemporaryDirectory folder;
  RunConfig run = run_of_closed_forms(folder);
  const model::ModelConfig config = load_run_model(run);
  const std::map<std::string, StateBytes> whole = bytes_of_states(run, config, 0);
  for (const auto& [ranks, expert] : {std::pair{1, 1}, {2, 1}, {4, 1}, {2, 2}, {4, 2}, {4, 4}}) {
    run.parallel.local_ranks = ranks;
    run.parallel.expert = expert;
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      int num_large = 0;
      for (const auto& [name, bytes] : bytes_of_states(run, config, rank)) {
        SCOPED_TRACE(fmt::format("{}: rank {} of {}, expert {}", name, rank, ranks, expert));
        const bool is_expert = name.find("experts") != std::string::npos;
        const StateBytes& alone = whole.at(name);
        // Norms and routers are small, f32 or padded, and as they are on one rank.
        if (alone.parameter / 2 < kFewest) {
          EXPECT_EQ(bytes, alone);
          continue;
        }
        const std::int64_t elements = alone.parameter / 2 / (is_expert ? expert : 1);
        const std::int64_t sharers = is_expert ? ranks / expert : ranks;
        ++num_large;
        EXPECT_EQ(bytes.parameter, 2 * elements);
        EXPECT_EQ(bytes.optimizer, (2 + 8) * elements / sharers);
        EXPECT_EQ(bytes.second_packing, alone.second_packing == 0 ? 0 : 2 * elements);
      }
      EXPECT_GE(num_large, 6);
    }
  }
}

// A rank sends (d - 1) / d of each large gradient in f32, and as much of the updated parameter in
// bf16.
TEST(RankTraffic, OfGradientsAndParametersIsTheClosedForm) {
  constexpr std::int64_t kFewest = 64 << 10;
  const TemporaryDirectory folder;
  RunConfig run = run_of_closed_forms(folder);
  const model::ModelConfig config = load_run_model(run);
  std::int64_t large = 0;
  for (const auto& [name, bytes] : bytes_of_states(run, config, 0))
    if (bytes.parameter / 2 >= kFewest) large += bytes.parameter / 2;
  for (const std::int64_t ranks : {2, 4}) {
    run.parallel.local_ranks = ranks;
    const lower::Compiled training =
        plan_run(run, config, device::describe_cpu(1), plan::default_efficiency())->training;
    std::int64_t sent_gradients = 0, sent_parameters = 0;
    for (const PlannedExchange& exchange : planned_exchanges(training, mesh_of(run), 1)) {
      if (exchange.kind == comm::ExchangeKind::kReduceScatter)
        sent_gradients += exchange.count * exchange.sent_bytes;
      if (exchange.kind == comm::ExchangeKind::kAllGather)
        sent_parameters += exchange.count * exchange.sent_bytes;
    }
    EXPECT_EQ(sent_gradients, 4 * large * (ranks - 1) / ranks) << ranks << " ranks";
    EXPECT_EQ(sent_parameters, 2 * large * (ranks - 1) / ranks) << ranks << " ranks";
  }
}

// Every parameter is on its way before the first one is awaited. They are awaited in the order of
// their posts.
TEST(RankTraffic, MovesWhileOthersAreComputed) {
  const TemporaryDirectory folder;
  RunConfig run = run_of_closed_forms(folder);
  run.parallel.local_ranks = 2;
  run.compiler.trivial_planners = false;  // which keep the order of the graph
  for (const std::int64_t micro_batches : {1, 2}) {
    run.train.gradient_accumulation_steps = micro_batches;
    const lower::Compiled training =
        plan_run(run, load_run_model(run), device::describe_cpu(1), plan::default_efficiency())
            ->training;
    std::vector<std::int32_t> posted, awaited;
    std::int32_t last_update = 0;
    const runtime::Program& program = training.program;
    const runtime::Variant& update = program.variants.at(spec::Action::kUpdate).front();
    for (const runtime::ExchangePoint& point : update.exchange_points) {
      if (program.exchanges[static_cast<std::size_t>(point.exchange)].kind !=
          comm::ExchangeKind::kAllGather)
        continue;
      const bool is_post = point.step == runtime::ExchangeStep::kPost;
      EXPECT_FALSE(is_post && !awaited.empty()) << "post of " << point.exchange;
      (is_post ? posted : awaited).push_back(point.exchange);
      if (is_post) last_update = point.call;
    }
    EXPECT_GE(posted.size(), 6u);
    EXPECT_EQ(awaited, posted);
    // No update comes after the posts.
    for (auto call = static_cast<std::size_t>(last_update); call < update.calls.size(); ++call)
      EXPECT_EQ(
          program.calls[static_cast<std::size_t>(update.calls[call])].label.find("optimizer_step"),
          std::string::npos);
  }
}

// One rank's steps, as train/ranks/follower.h takes them. Calls before_step(step) on all ranks.
void run_steps(const Ranks& ranks, const RunConfig& run, const runtime::RankContext& rank,
               std::int64_t num_steps, const std::function<void(std::int64_t)>& before_step) {
  ModelSession session(ranks.of_one(run, 0), false, {}, rank);
  const io::Dataset dataset = open_dataset(run.data.train, run, session.config());
  ModelSession::CompileRequest request = training_request(session.run(), session.config());
  request.rank = rank.rank();
  const std::unique_ptr<BoundProgram> program = session.bind(request);
  session.load_parameters();
  session.refresh_derived();
  LossScaler scaler = make_loss_scaler(run);
  RankStep steps(run, session, *program, scaler, rank);
  io::Loader loader(dataset, loader_options(run, rank));
  for (std::int64_t step = 1; before_step(step), steps.begin(step, step <= num_steps); ++step) {
    StepMetrics metrics{.step = step, .learning_rate = 1e-3};
    steps.run(loader.load_step(step - 1), metrics);
  }
}

// Blocks that all threads of all ranks take from the heap in steps after the first ones.
long allocations_of_steps(const RunConfig& run) {
  constexpr std::int64_t kWarm = 3, kSteps = 8;
  Ranks ranks(run);
  std::barrier barrier(ranks.num_threads());
  long begin = 0, allocated = -1;
  std::vector<std::string> errors(static_cast<std::size_t>(ranks.num_threads()));
  std::vector<std::jthread> threads;
  for (std::int32_t thread = 0; thread < ranks.num_threads(); ++thread)
    threads.emplace_back([&, thread] {
      const runtime::RankContext rank = ranks.of_thread(thread);
      const auto before_step = [&](std::int64_t step) {
        if (step != kWarm + 1 && step != kSteps + 1) return;
        barrier.arrive_and_wait();
        if (rank.is_first() && step == kWarm + 1) begin = num_allocations;
        if (rank.is_first() && step == kSteps + 1) allocated = num_allocations - begin;
        barrier.arrive_and_wait();
      };
      try {
        run_steps(ranks, run, rank, kSteps, before_step);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(thread)] = error.what();
        if (rank.communicator != nullptr) rank.communicator->abort(error.what());
        barrier.arrive_and_drop();
      }
    });
  threads.clear();
  ranks.done();
  EXPECT_THAT(errors, Each(IsEmpty()));
  return allocated;
}

TEST(RankSteps, TakeNothingFromTheHeap) {
  const TemporaryDirectory folder;
  for (const Form& form : kForms)
    EXPECT_EQ(allocations_of_steps(run_of(folder, form)), 0) << to_string(form);
  EXPECT_EQ(allocations_of_steps(run_of(folder, {.ranks = 1})), 0);
}

#ifndef ANABATIC_IS_SANITIZED
class ProcessSteps : public ::testing::TestWithParam<comm::MpiWorld*> {};

// Ours take nothing, helper threads included. MPI's are printed: its progress may take some.
TEST_P(ProcessSteps, TakeNothingOfOursFromTheHeap) {
  constexpr std::int64_t kWarm = 3, kSteps = 8;
  anabatic::testing::find_own_code();
  const TemporaryDirectory folder;
  for (const std::int64_t expert : {1, GetParam()->size()})
    for (const char* exchange : {"ordered", "mpi"}) {
      RunConfig run = run_of(folder, {.ranks = GetParam()->size(), .expert = expert});
      run.parallel.exchange = exchange;
      run.parallel.reduction = exchange == std::string("mpi") ? "fast" : "ordered";
      Ranks ranks(run, GetParam());
      long own = -1, begin = 0;
      const auto before_step = [&](std::int64_t step) {
        if (step == kWarm + 1) {
          counts_caller = anabatic::testing::is_own;
          begin = num_allocations;
        }
        if (step == kSteps + 1) {
          own = num_allocations - begin;
          counts_caller = nullptr;
        }
      };
      run_steps(ranks, run, ranks.own(), kSteps, before_step);
      ranks.done();
      EXPECT_EQ(own, 0) << "expert " << expert << ", exchange " << exchange;
    }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ProcessSteps);
INSTANTIATE_TEST_SUITE_P(World, ProcessSteps, ::testing::ValuesIn(anabatic::testing::mpi_worlds()));
#endif

// --- Sums ---

lower::Compiled compile(const RunConfig& run, std::int32_t rank, std::int64_t bytes = 0,
                        const spec::DeviceSpec& device = device::describe_cpu(1),
                        const spec::Decisions* replay = nullptr) {
  return plan_run(run, load_run_model(run), device, plan::default_efficiency(),
                  {.bytes = bytes, .replay = replay, .rank = rank})
      ->training;
}

// Posts of each exchange in a step, and in which micro-batches.
std::map<std::int32_t, std::vector<std::int32_t>> posts_of_step(const runtime::Program& program,
                                                                std::int64_t num_micro_batches) {
  std::map<std::int32_t, std::vector<std::int32_t>> posts;
  for (const spec::StepEntry& entry : runtime::schedule_of(program, num_micro_batches))
    for (const runtime::ExchangePoint& point : program.variants.at(entry.action)
                                                   .at(static_cast<std::size_t>(entry.variant))
                                                   .exchange_points)
      if (point.step == runtime::ExchangeStep::kPost)
        posts[point.exchange].push_back(entry.micro_batch);
  return posts;
}

// Whether the parts of a group's members are all stored elements, each once.
bool are_all_elements(const TensorType& type, std::int64_t num_members) {
  std::int64_t end = 0;
  for (std::int64_t member = 0; member < num_members; ++member) {
    const spec::ElementRange range = spec::shard_elements(type, num_members, member);
    if (range.begin != end) return false;
    end = range.end;
  }
  return end * size_bytes(type.dtype) == type.num_bytes();
}

bool is_sum_of_gradient(const runtime::Exchange& exchange) {
  const bool is_sum = exchange.kind == comm::ExchangeKind::kAllReduce ||
                      exchange.kind == comm::ExchangeKind::kReduceScatter;
  return is_sum && exchange.buffer.state >= 0 && exchange.buffer.arena != spec::Arena::kPersistent;
}

// The gradients of which a step does not sum each element exactly once over the ranks that hold the
// same parameter, and nobody else. Counts those that it has to sum.
std::string wrongly_summed(const lower::Compiled& training, const spec::Mesh& mesh,
                           std::int64_t num_micro_batches, int& num_summed) {
  const runtime::Program& program = training.program;
  std::map<Name, std::vector<const runtime::Exchange*>> sums;
  std::string wrong;
  for (const auto& [which, micro_batches] : posts_of_step(program, num_micro_batches)) {
    const runtime::Exchange& exchange = program.exchanges[static_cast<std::size_t>(which)];
    if (!is_sum_of_gradient(exchange)) continue;
    const Name gradient = program.gradients[static_cast<std::size_t>(exchange.buffer.state)];
    for (const std::int32_t micro_batch : micro_batches) {
      sums[gradient].push_back(&exchange);
      if (micro_batch != num_micro_batches - 1) wrong += fmt::format("{} early ", text(gradient));
    }
  }
  for (const ir::State& state : training.graph.states) {
    if (state.role != ir::StateRole::kGradient) continue;
    const bool is_whole = training.graph.find_state(state.owner)->rows.is_whole();
    const spec::Axes axes{is_whole ? spec::Axis::kData : spec::Axis::kExpertData};
    const auto& found = sums[state.name];
    const std::size_t wanted = mesh.size(axes) > 1 ? 1 : 0;
    num_summed += static_cast<int>(wanted);
    bool is_good = found.size() == wanted;
    for (const runtime::Exchange* sum : found)
      is_good = is_good && sum->group == axes &&
                sum->buffer.type == training.graph.value(state.before).type &&
                are_all_elements(sum->buffer.type, mesh.size(axes));
    if (!is_good) wrong += fmt::format("{} ", text(state.name));
  }
  return wrong;
}

TEST(RankSteps, SumEachElementOfEachGradientOnce) {
  const TemporaryDirectory folder;
  for (const Form& form : kForms) {
    const RunConfig run = run_of(folder, form);
    const std::int64_t num_micro_batches = run.train.gradient_accumulation_steps;
    for (std::int32_t rank = 0; rank < form.ranks; ++rank) {
      lower::Compiled training = compile(run, rank);
      const auto count = [&](auto&& is_counted) {
        return std::ranges::count_if(training.graph.states, is_counted);
      };
      const auto is_trained = [](const ir::State& state) {
        return state.role == ir::StateRole::kParameter || state.role == ir::StateRole::kUpper;
      };
      const auto num_gradients =
          count([](const ir::State& state) { return state.role == ir::StateRole::kGradient; });
      const auto num_experts = count(
          [&](const ir::State& state) { return is_trained(state) && !state.rows.is_whole(); });
      EXPECT_EQ(num_gradients, count(is_trained));
      EXPECT_EQ(num_experts > 0, form.expert > 1);
      int num_summed = 0;
      EXPECT_EQ(wrongly_summed(training, mesh_of(run), num_micro_batches, num_summed), "")
          << to_string(form) << " rank " << rank;
      EXPECT_EQ(num_summed, num_gradients - (form.ranks == form.expert ? num_experts : 0));
      // Planted: a sum takes the gradient before it a second time, and its own not at all.
      std::vector<runtime::Exchange*> sums;
      for (runtime::Exchange& exchange : training.program.exchanges)
        if (is_sum_of_gradient(exchange)) sums.push_back(&exchange);
      ASSERT_GT(sums.size(), 1u);
      sums[1]->buffer = sums[0]->buffer;
      EXPECT_THAT([&] { runtime::schedule_of(training.program, num_micro_batches); },
                  ThrowsMessage<InternalError>(HasSubstr("gradients exchanged once")));
    }
  }
}

// --- Plans ---

// Another rank's machine has other peaks and other bandwidth, and would choose otherwise.
TEST(RankSteps, AreTheFirstRanksWhateverTheMachinesPricesAre) {
  const TemporaryDirectory folder;
  for (const Form& form : kForms) {
    RunConfig run = run_of(folder, form);
    run.compiler.trivial_planners = false;
    const spec::DeviceSpec first = device::describe_cpu(1);
    spec::DeviceSpec other = first;
    other.fp32_flops_per_second = other.bf16_flops_per_second = 5e12;
    other.copy_bytes_per_second = 1e9;
    const std::int64_t bytes = compile(run, 0).plan.peak_bytes() * 97 / 100;
    const lower::Compiled of_first = compile(run, 0, bytes, first);
    const lower::Compiled of_other = compile(run, 1, 0, other, &of_first.memory.decisions);
    EXPECT_EQ(of_other.memory.decisions, of_first.memory.decisions);
    EXPECT_EQ(exchanges_of(of_other), exchanges_of(of_first)) << to_string(form);
  }
}

// --- Samples ---

using Sources = std::vector<std::optional<io::TokenSource>>;

// Where each token of the step comes from, in the order of the ranks.
Sources sources_of(const io::Dataset& dataset, RunConfig run, std::int64_t step) {
  Sources sources;
  const auto ranks = static_cast<std::int32_t>(run.parallel.local_ranks);
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    io::LoaderOptions options = loader_options(run, {.mesh = {.data = ranks}});
    options.part = rank;
    io::Loader loader(dataset, options);
    for (const io::MicroBatch& batch : loader.load_step(step).micro_batches)
      for (const std::int64_t sample : batch.samples)
        for (std::int64_t at = 0; at < run.data.sequence_length; ++at)
          sources.push_back(dataset.locate(sample, at));
  }
  return sources;
}

// File, document and offset of each token: a run that goes on with more ranks, and with fewer.
TEST(RankSteps, SeeEachSampleOnceOverResumesWithOtherNumbers) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path());
  run.data.train.push_back(write_tiny_tokens(folder.path(), "second", 45, 9));
  const ModelSession session(run, false);
  const io::Dataset dataset = open_dataset(run.data.train, run, session.config());
  const auto at_step = [&](std::int64_t ranks, std::int64_t step) {
    run.parallel.local_ranks = ranks;
    run.train.gradient_accumulation_steps = 12 / ranks;
    return sources_of(dataset, run, step);
  };
  Sources resumed, whole;
  std::int64_t step = 0;
  for (const std::int64_t ranks : {2, 4, 3, 1, 6})
    for (const std::int64_t end = step + 2; step < end; ++step) {
      for (const auto& source : at_step(ranks, step)) resumed.push_back(source);
      for (const auto& source : at_step(1, step)) whole.push_back(source);
    }
  EXPECT_TRUE(resumed == whole);
  // Within an epoch each token is there once.
  const auto epoch = static_cast<std::size_t>(dataset.num_samples() * run.data.sequence_length);
  ASSERT_GT(resumed.size(), epoch);
  std::map<std::array<std::int64_t, 3>, int> times;
  for (std::size_t i = 0; i < epoch; ++i)
    if (resumed[i])
      ++times[{static_cast<std::int64_t>(resumed[i]->file), resumed[i]->document,
               resumed[i]->offset}];
  EXPECT_EQ(std::ssize(times), dataset.num_tokens());
  for (const auto& [source, count] : times) ASSERT_EQ(count, 1);
}

// Micro-batches of validation that neither two nor three ranks divide, and the last of which is not
// full.
TEST(RankSteps, ValidateOnWhatRanksDoNotDivide) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path());
  run.train.steps = 1;
  const ModelSession session(run, false);
  for (int documents = 8;; ++documents) {
    run.data.validation = {write_tiny_tokens(folder.path(), "validation", documents, 3)};
    const std::int64_t samples =
        open_dataset(run.data.validation, run, session.config()).num_samples();
    const std::int64_t batches = (samples + 1) / run.train.micro_batch_size;
    if (samples % 2 == 1 && batches % 2 == 1 && batches % 3 != 0) break;
  }
  const auto validations_of = [&](std::int64_t ranks) {
    run.parallel.local_ranks = ranks;
    run.train.gradient_accumulation_steps = 6 / ranks;
    run.train.output = folder.path() / fmt::format("ranks-{}", ranks);
    Trainer(run).train();
    return json_lines(fs::path(run.train.output) / "validation.jsonl").at(0).dump();
  };
  const std::string one = validations_of(1);
  EXPECT_EQ(validations_of(2), one);
  EXPECT_EQ(validations_of(3), one);
}

}  // namespace
}  // namespace anabatic::train
