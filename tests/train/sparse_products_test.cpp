// SPDX-License-Identifier: Apache-2.0
// Runs whose products read the present blocks of sparse weights, once masks stay: the bits of runs
// whose products are dense, however they are planned and resumed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "base/text.h"
#include "support/error_message.h"
#include "support/plan_changes.h"
#include "support/planned_run.h"
#include "support/test_config.h"
#include "support/tiny_run.h"
#include "support/trained_run.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/trainer.h"

namespace {

// Which request for memory of an arena or a state is refused: 1 is the next; 0: none.
std::atomic<int> g_refused_request = 0;

}  // namespace

// device::Memory asks here in place of the C library, whose heap does not.
extern "C" void* mmap(void* address, std::size_t bytes, int protection, int flags, int file,
                      off_t offset) noexcept {
  if ((flags & MAP_ANONYMOUS) != 0 && g_refused_request > 0 && --g_refused_request == 0) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return reinterpret_cast<void*>(
      syscall(SYS_mmap, address, bytes, protection, flags, file, offset));
}

namespace anabatic::train {
namespace {

using anabatic::testing::plan_changes;
using anabatic::testing::PlanChange;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::trained_bytes;
using spec::SparsityPattern;

constexpr const char* kPass = "sparse_products";

// Masks stay from step 3 of 6 on.
RunConfig sparse_run(const std::filesystem::path& folder, SparsityPattern pattern,
                     std::optional<double> threshold = 0.01) {
  RunConfig run =
      anabatic::testing::tiny_run(folder, R"("hidden_size": 64, "intermediate_size": 96)");
  run.train.precision = "bf16";
  run.train.steps = 6;
  run.data.sequence_length = 32;
  run.sparsity.weights = {{.units = {"experts", "layers.0.attention"},
                           .pattern = pattern,
                           .density = 0.5,
                           .schedule = {.begin = 1, .end = 3, .every = 2},
                           .threshold = threshold,
                           .is_transposable = pattern == SparsityPattern::kTwoOfFour}};
  return run;
}

RunConfig with_dense_products(RunConfig run) {
  run.compiler.disable_passes.emplace_back(kPass);
  return run;
}

// Nodes of a step after the last mask whose op has this word.
std::int64_t count(RunConfig run, std::string_view word) {
  run.sparsity.is_final = true;
  const auto planned = anabatic::testing::plan_of(run);
  const ir::Graph& graph = planned.budgeted.plan.training.graph;
  return std::ranges::count_if(graph.nodes, [&](const ir::Node& node) {
    return node.op->name.find(word) != node.op->name.npos;
  });
}

TEST(SparseProducts, ReadWhatIsPresentInAllDirections) {
  if (!anabatic::testing::has_pass(kPass)) GTEST_SKIP() << "the pass is off";
  const TemporaryDirectory folder;
  const RunConfig run = sparse_run(folder.path(), SparsityPattern::kBlock16);
  for (const char* op : {"grouped_sparse_linear", "sparse_linear_input_gradient",
                         "sparse_linear_weight_gradient", "pack_sparse"})
    EXPECT_GT(count(run, op), 0) << op;
  EXPECT_EQ(count(run, "grouped_linear"), 0);
  // Forward and input gradient of 2:4, and the weight gradient dense.
  RunConfig fours = sparse_run(folder.path(), SparsityPattern::kTwoOfFour);
  for (const char* op : {"grouped_sparse_linear_input_gradient", "sparse_linear_input_gradient"})
    EXPECT_GT(count(fours, op), 0) << op;
  EXPECT_EQ(count(fours, "sparse_linear_weight_gradient"), 0);
  fours.sparsity.weights[0].is_transposable = false;
  EXPECT_GT(count(fours, "grouped_sparse_linear"), 0);
  EXPECT_EQ(count(fours, "sparse_linear_input_gradient"), 0);
  EXPECT_EQ(count(with_dense_products(run), "sparse"), 0);
  // A threshold that zeroes do not reach.
  EXPECT_EQ(count(sparse_run(folder.path(), SparsityPattern::kBlock16, 0.6), "sparse"), 0);
}

TEST(SparseProducts, GiveRunsTheBitsOfDenseOnes) {
  struct Form {
    SparsityPattern pattern;
    const char* precision;
    std::int64_t micro_batches;
  };
  for (const Form& form : {Form{SparsityPattern::kBlock16, "bf16", 2},
                           {SparsityPattern::kBlock32, "bf16", 1},
                           {SparsityPattern::kBlock16, "fp32", 1},
                           {SparsityPattern::kTwoOfFour, "bf16", 2},
                           {SparsityPattern::kTwoOfFour, "fp32", 1}}) {
    SCOPED_TRACE(fmt::format("{} {}", to_string(form.pattern), form.precision));
    const TemporaryDirectory sparse, dense;
    const auto run_in = [&](const TemporaryDirectory& folder) {
      RunConfig run = sparse_run(folder.path(), form.pattern);
      run.train.precision = form.precision;
      run.train.gradient_accumulation_steps = form.micro_batches;
      return run;
    };
    EXPECT_TRUE(trained_bytes(run_in(sparse)) == trained_bytes(with_dense_products(run_in(dense))));
  }
}

TEST(SparseProducts, GiveRunsTheirBitsWhateverThePlan) {
  for (const auto pattern : {SparsityPattern::kBlock16, SparsityPattern::kTwoOfFour}) {
    const TemporaryDirectory folder;
    const std::string want = trained_bytes(sparse_run(folder.path(), pattern));
    for (const PlanChange& change : plan_changes()) {
      SCOPED_TRACE(fmt::format("{} {}", to_string(pattern), change.name));
      const TemporaryDirectory own;
      RunConfig run = sparse_run(own.path(), pattern);
      change.apply(run);
      EXPECT_TRUE(trained_bytes(run) == want);
    }
  }
}

// The one run is planned anew from step 4 on, and then updates present blocks alone. The other
// keeps its plan, for moments are on disk, and makes what is absent 0 in each step.
TEST(SparseProducts, ComeWithUpdatesOfPresentBlocksThatHaveTheBitsOfWholeOnes) {
  for (const char* moments : {"fp32", "bf16"}) {
    SCOPED_TRACE(moments);
    const TemporaryDirectory in_memory, on_disk;
    const auto run_in = [&](const TemporaryDirectory& folder) {
      RunConfig run = sparse_run(folder.path(), SparsityPattern::kBlock16);
      run.optimizer.state_precision = moments;
      return run;
    };
    RunConfig run = run_in(in_memory), other = run_in(on_disk);
    run.sparsity.is_final = true;
    const auto planned = anabatic::testing::plan_of(run);
    std::int64_t settled = 0;
    for (const ir::Node& node : planned.budgeted.plan.training.graph.nodes)
      settled += node.op->name == "optimizer_step" && node.attributes.contains("kept") ? 1 : 0;
    EXPECT_GT(settled, 0);
    run.sparsity.is_final = false;
    other.memory.optimizer_state = "disk";
    EXPECT_TRUE(trained_bytes(run) == trained_bytes(other));
  }
}

// Steps up to the one before which masks stay, and then the others, while the n-th request for
// memory is refused. Whether it came to that.
bool is_refused(RunConfig run, int n, std::string& said) {
  struct Listener final : RunListener {
    void on_message(Severity, const std::string& text) override { said += text + "\n"; }
    std::string said;
  } listener;
  Trainer trainer(run, listener);
  for (int step = 1; step <= 3; ++step) trainer.step();
  g_refused_request = n;
  trainer.step();
  const bool refused = g_refused_request == 0;
  g_refused_request = 0;
  while (trainer.step()) {
  }
  said = listener.said;
  return refused;
}

// Whatever the plan that takes over finds no room for, the run goes on with the one that it had.
TEST(SparseProducts, AreLeftOutWhereTheirPlanFindsNoMemory) {
  if (!anabatic::testing::has_pass(kPass)) GTEST_SKIP() << "the pass is off";
  const TemporaryDirectory folder;
  RunConfig run = sparse_run(folder.path(), SparsityPattern::kBlock16);
  run.data.validation = {anabatic::testing::write_tiny_tokens(folder.path(), "validation", 12, 8)};
  run.compiler.trivial_planners = false;
  const std::string want = trained_bytes(run);
  int num_refused = 0;
  for (int n = 1;; ++n) {
    run.train.output = folder.path() / std::to_string(n);
    std::string said;
    const bool refused = is_refused(run, n, said);
    EXPECT_TRUE(anabatic::testing::checkpoint_bytes(*latest_checkpoint(run.train.output)) == want)
        << n;
    EXPECT_EQ(said.find("products stay dense until a resume: [memory]") != said.npos, refused)
        << n << said;
    EXPECT_EQ(said.find("planned anew") != said.npos, !refused) << n;
    if (!refused) break;
    ++num_refused;
  }
  EXPECT_GE(num_refused, 3);  // states that change their form, arenas, and those of a refresh
}

}  // namespace
}  // namespace anabatic::train
