// SPDX-License-Identifier: Apache-2.0
// Sparse weights: masks follow from magnitudes by the schedule, what is absent is exactly 0 with
// its moments after every update, runs have equal bits however they are planned and resumed, and
// files hold the zeroes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "anabatic/error.h"
#include "base/json.h"
#include "base/philox.h"
#include "base/text.h"
#include "support/error_message.h"
#include "support/plan_changes.h"
#include "support/planned_run.h"
#include "support/tiny_run.h"
#include "support/trained_run.h"
#include "tensor/panels.h"
#include "train/convert/convert.h"
#include "train/evaluate.h"
#include "train/ranks/ranks.h"
#include "train/sparsity/choose_mask.h"
#include "train/sparsity/mask_manifest.h"
#include "train/sparsity/sparse_weights.h"
#include "train/state_tiers.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

using anabatic::testing::losses_of;
using anabatic::testing::message_of;
using anabatic::testing::plan_changes;
using anabatic::testing::PlanChange;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::trained_bytes;
using spec::SparsityPattern;
using ::testing::AllOf;
using ::testing::HasSubstr;

RunConfig sparse_run(const std::filesystem::path& folder, SparsityPattern pattern,
                     double density = 0.5) {
  RunConfig run =
      anabatic::testing::tiny_run(folder, R"("hidden_size": 64, "intermediate_size": 96)");
  run.train.precision = "bf16";
  run.train.steps = 8;
  run.data.sequence_length = 32;
  run.sparsity.weights = {{.units = {"experts.down", "layers.0.attention"},
                           .pattern = pattern,
                           .density = density,
                           .schedule = {.begin = 2, .end = 6, .every = 2}}};
  return run;
}

std::vector<float> random_matrix(std::int64_t elements, std::uint64_t stream) {
  std::vector<float> values(static_cast<std::size_t>(elements));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(random_normal(3, stream, i));
  return values;
}

std::vector<std::uint8_t> mask_of(const MaskForm& form, const std::vector<float>& matrix,
                                  std::int64_t rows, std::int64_t columns, std::int64_t kept) {
  std::vector<std::uint8_t> mask(
      static_cast<std::size_t>(spec::num_blocks(form.pattern, rows, columns)), 7);
  choose_mask(form, matrix, rows, columns, kept, mask);
  return mask;
}

TEST(ChooseMask, KeepsBlocksOfTheLargestNorm) {
  for (const auto pattern : {SparsityPattern::kBlock32, SparsityPattern::kBlock16}) {
    constexpr std::int64_t kRows = 70, kColumns = 100;  // shorter last blocks
    const std::int64_t side = spec::mask_block(pattern), across = (kColumns + side - 1) / side;
    const std::vector<float> matrix = random_matrix(kRows * kColumns, 0);
    std::map<std::int64_t, double> norms;
    for (std::int64_t i = 0; i < kRows * kColumns; ++i)
      norms[i / kColumns / side * across + i % kColumns / side] +=
          std::pow(double{matrix[static_cast<std::size_t>(i)]}, 2);
    for (const std::int64_t kept : {std::int64_t{1}, std::int64_t{5}, std::ssize(norms)}) {
      const auto mask = mask_of({pattern}, matrix, kRows, kColumns, kept);
      EXPECT_EQ(std::ranges::count(mask, 1), kept);
      double least = std::numeric_limits<double>::infinity(), most = 0;
      for (const auto& [block, norm] : norms)
        if (mask[static_cast<std::size_t>(block)] != 0)
          least = std::min(least, norm);
        else
          most = std::max(most, norm);
      EXPECT_GT(least, most);
    }
  }
}

TEST(ChooseMask, KeepsTheLowerIndexOfEqualScoresAndNaN) {
  const std::vector<float> equal(8 * 8, -2.0f);
  const auto first = mask_of({SparsityPattern::kUnstructured}, equal, 8, 8, 20);
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_EQ(first[i], i < 20 ? 1 : 0);
  const auto pairs = mask_of({SparsityPattern::kTwoOfFour}, equal, 8, 8, 32);
  for (std::size_t i = 0; i < pairs.size(); ++i) EXPECT_EQ(pairs[i], i % 4 < 2 ? 1 : 0);
  std::vector<float> one = equal;
  one[63] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(mask_of({SparsityPattern::kUnstructured}, one, 8, 8, 1)[63], 1);
}

TEST(ChooseMask, KeepsTheTwoLargestOfEachGroup) {
  const std::vector<float> matrix = random_matrix(12 * 20, 1);
  const auto mask = mask_of({SparsityPattern::kTwoOfFour}, matrix, 12, 20, 120);
  for (std::size_t first = 0; first < matrix.size(); first += 4) {
    std::vector<float> kept, gone;
    for (std::size_t i = first; i < first + 4; ++i)
      (mask[i] != 0 ? kept : gone).push_back(std::abs(matrix[i]));
    ASSERT_EQ(kept.size(), 2u);
    EXPECT_GE(*std::ranges::min_element(kept), *std::ranges::max_element(gone));
  }
}

// By every set of two columns in each row, rather than by the list of tiles.
TEST(ChooseMask, FindsTheBestTileThatIsTransposable) {
  EXPECT_EQ(two_of_four_tiles().size(), 90u);
  constexpr std::uint32_t kPairs[] = {3, 5, 6, 9, 10, 12};
  const std::vector<float> matrix = random_matrix(8 * 12, 2);
  const auto mask = mask_of({SparsityPattern::kTwoOfFour, true}, matrix, 8, 12, 48);
  for (std::size_t row = 0; row < 8; row += 4)
    for (std::size_t column = 0; column < 12; column += 4) {
      const auto at = [&](std::size_t i) { return (row + i / 4) * 12 + column + i % 4; };
      double best = 0, got = 0;
      for (std::size_t choice = 0; choice < 6 * 6 * 6 * 6; ++choice) {
        double sum = 0;
        std::uint32_t seen[4] = {};
        for (std::size_t i = 0, rest = choice; i < 4; ++i, rest /= 6)
          for (std::size_t c = 0; c < 4; ++c)
            if ((kPairs[rest % 6] >> c & 1) != 0) {
              sum += std::abs(matrix[at(4 * i + c)]);
              ++seen[c];
            }
        if (std::ranges::all_of(seen, [](std::uint32_t count) { return count == 2; }))
          best = std::max(best, sum);
      }
      std::uint32_t rows[4] = {}, columns[4] = {};
      for (std::size_t i = 0; i < 16; ++i)
        if (mask[at(i)] != 0) {
          got += std::abs(matrix[at(i)]);
          ++rows[i / 4];
          ++columns[i % 4];
        }
      EXPECT_EQ(got, best);
      for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(rows[i] + columns[i], 4u);
    }
}

// On the way to 2:4, groups that lose least are sparse first.
TEST(ChooseMask, MakesSomeGroupsSparse) {
  std::vector<float> matrix = random_matrix(4 * 16, 4);
  for (const bool is_transposable : {false, true}) {
    const MaskForm form{SparsityPattern::kTwoOfFour, is_transposable};
    const auto all = mask_of(form, matrix, 4, 16, 32), some = mask_of(form, matrix, 4, 16, 48);
    EXPECT_EQ(std::ranges::count(some, 1), 48);
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_GE(some[i], all[i]);
    EXPECT_EQ(std::ranges::count(mask_of(form, matrix, 4, 16, 64), 1), 64);
  }
}

TEST(SparsitySchedule, FallsByTheCube) {
  const spec::SparsitySchedule schedule{.begin = 10, .end = 50, .every = 15};
  std::vector<std::int64_t> due;
  for (std::int64_t step = 1; step <= 60; ++step)
    if (schedule.is_due(step)) due.push_back(step);
  EXPECT_THAT(due, ::testing::ElementsAre(10, 25, 40, 50));
  EXPECT_EQ(schedule.density_after(9, 0.25), 1);
  EXPECT_EQ(schedule.density_after(10, 0.25), 1);
  EXPECT_EQ(schedule.density_after(25, 0.25), 0.25 + 0.75 * 0.625 * 0.625 * 0.625);
  EXPECT_EQ(schedule.density_after(39, 0.25), schedule.density_after(25, 0.25));
  EXPECT_EQ(schedule.density_after(50, 0.25), 0.25);
  EXPECT_EQ(schedule.density_after(1000, 0.25), 0.25);
}

TEST(Sparsity, RoundsDensitiesToWhatShapesCanGive) {
  EXPECT_EQ(spec::kept_blocks(SparsityPattern::kBlock32, 96, 64, 0.5), 3);
  EXPECT_EQ(spec::kept_blocks(SparsityPattern::kBlock32, 96, 64, 0.01), 1);
  EXPECT_EQ(spec::kept_blocks(SparsityPattern::kBlock32, 33, 33, 1), 4);
  EXPECT_EQ(spec::kept_blocks(SparsityPattern::kTwoOfFour, 3, 8, 0.5), 12);
  EXPECT_EQ(spec::kept_blocks(SparsityPattern::kTwoOfFour, 3, 8, 0.75), 18);
  EXPECT_EQ(spec::kept_blocks(SparsityPattern::kUnstructured, 3, 5, 0.5), 8);
}

// Values of a state in rows, as f32; of 8 bits its elements.
std::vector<float> values_of(ModelSession& session, Name state) {
  const TensorType& type = *session.store().find(state).type;
  std::vector<float> values(static_cast<std::size_t>(type.num_elements()));
  if (type.is_quantized() || type.dtype == DType::kUInt8) {
    const TensorView view = session.store().find(state);
    for (std::int64_t i = 0; i < type.num_elements(); ++i)
      values[static_cast<std::size_t>(i)] = view.as<std::uint8_t>()[element_offset(type, i)];
  } else {
    StateCursor(session.store()).read(state, 0, values);
  }
  return values;
}

// Elements of a weight that its mask has.
std::vector<bool> presence(ModelSession& session, const ir::State& mask, const TensorType& weight) {
  const std::vector<float> blocks = values_of(session, mask.name);
  const std::int64_t side = spec::mask_block(*mask.pattern), rows = weight.dim(-2),
                     columns = weight.dim(-1), down = (rows + side - 1) / side,
                     across = (columns + side - 1) / side;
  std::vector<bool> result;
  for (std::int64_t i = 0; i < weight.num_elements(); ++i) {
    const std::int64_t row = i / columns, line = row / rows * down + row % rows / side;
    result.push_back(blocks[static_cast<std::size_t>(line * across + i % columns / side)] != 0);
  }
  return result;
}

// That what is absent is 0 in the weight, its moments and all that products read. The number of
// absent elements.
std::int64_t expect_zeros(Trainer& trainer, const ir::State& mask) {
  ModelSession& session = trainer.session();
  const std::vector<bool> is_present =
      presence(session, mask, *session.store().find(mask.owner).type);
  const auto expect = [&](Name state) {
    const std::vector<float> values = values_of(session, state);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (is_present[i]) continue;
      EXPECT_EQ(std::bit_cast<std::uint32_t>(values[i]), 0u) << text(state) << " " << i;
      if (values[i] != 0) return;
    }
  };
  expect(mask.owner);
  int num_moments = 0;
  for (const ir::State& state : trainer.compiled().graph.states) {
    if (state.owner != mask.owner) continue;
    const bool is_moment =
        state.role == ir::StateRole::kFirstMoment || state.role == ir::StateRole::kSecondMoment;
    if (is_moment || (state.kind() == ir::StateKind::kDerived &&
                      !session.store().find(state.name).type->is_quantized() &&
                      state.role == ir::StateRole::kRowMajorCopy))
      expect(state.name);
    num_moments += is_moment ? 1 : 0;
  }
  EXPECT_EQ(num_moments, 2) << text(mask.owner);
  return std::ranges::count(is_present, false);
}

TEST(Sparsity, MakesWhatIsAbsentZeroAfterEveryUpdate) {
  struct Case {
    const char *precision, *moments;
    SparsityPattern pattern;
  };
  for (const auto& [precision, moments, pattern] :
       {Case{"bf16", "fp32", SparsityPattern::kBlock32},
        Case{"bf16", "bf16", SparsityPattern::kBlock16},
        Case{"bf16", "int8", SparsityPattern::kTwoOfFour},
        Case{"bf16", "fp32", SparsityPattern::kUnstructured},
        Case{"fp32", "int8", SparsityPattern::kBlock16},
        Case{"fp32", "fp32", SparsityPattern::kTwoOfFour},
        Case{"fp32", "bf16", SparsityPattern::kUnstructured}}) {
    SCOPED_TRACE(fmt::format("{} {} {}", precision, moments, to_string(pattern)));
    const TemporaryDirectory folder;
    RunConfig run = sparse_run(folder.path(), pattern);
    run.train.precision = precision;
    run.train.steps = 6;
    run.optimizer.state_precision = moments;
    Trainer trainer(run);
    ASSERT_EQ(trainer.session().masks().size(), 2u + 4);  // of two layers, and of q, k, v, o
    std::int64_t absent = 0, before = 0;
    while (const auto metrics = trainer.step()) {
      EXPECT_EQ(!metrics->sparsity.empty(), metrics->step % 2 == 0);
      before = std::exchange(absent, 0);
      for (const ir::State& mask : trainer.session().masks()) absent += expect_zeros(trainer, mask);
      EXPECT_GE(absent, before);
      EXPECT_EQ(absent > 0, metrics->step >= 4);
    }
    std::int64_t elements = 0;
    for (const ir::State& mask : trainer.session().masks())
      elements += trainer.session().store().find(mask.owner).type->num_elements();
    EXPECT_EQ(absent, elements / 2);
  }
}

// Each step's masks are those of the weights that the step before has left.
TEST(Sparsity, ChoosesMasksByTheWeightsAheadOfTheStep) {
  for (const SparsityPattern pattern : spec::kSparsityPatterns) {
    const TemporaryDirectory folder;
    const RunConfig run = sparse_run(folder.path(), pattern, 0.5);
    Trainer trainer(run);
    ModelSession& session = trainer.session();
    std::map<Name, std::vector<float>> weights, masks;
    const auto take = [&] {
      for (const ir::State& mask : session.masks()) {
        weights[mask.owner] = values_of(session, mask.owner);
        masks[mask.owner] = values_of(session, mask.name);
      }
    };
    take();
    while (const auto metrics = trainer.step()) {
      const auto old_weights = weights, old_masks = masks;
      take();
      for (const auto& [name, got] : masks) {
        const bool is_due = metrics->step == 2 || metrics->step == 4 || metrics->step == 6;
        if (!is_due) {
          EXPECT_EQ(got, old_masks.at(name)) << metrics->step;
          continue;
        }
        const TensorType& type = *session.store().find(name).type;
        const std::int64_t rows = type.dim(-2), columns = type.dim(-1);
        const double left = 1 - static_cast<double>(metrics->step - 2) / 4;
        const auto matrices = type.ndim() == 3 ? type.dim(0) : 1;
        const std::int64_t kept =
            spec::kept_blocks(pattern, rows, columns, 0.5 + 0.5 * left * left * left);
        const std::vector<float>& old = old_weights.at(name);
        std::vector<float> want;
        for (std::int64_t m = 0; m < matrices; ++m) {
          const auto mask = mask_of(
              {pattern}, {old.begin() + m * rows * columns, old.begin() + (m + 1) * rows * columns},
              rows, columns, kept);
          EXPECT_EQ(std::ranges::count(mask, 1), kept);
          want.insert(want.end(), mask.begin(), mask.end());
        }
        EXPECT_EQ(got, want) << text(name) << " " << metrics->step;
      }
    }
  }
}

// A density of 1 leaves every bit of the weights as it is without masks.
TEST(Sparsity, ChangesNothingAtADensityOfOne) {
  const TemporaryDirectory folder;
  RunConfig run = sparse_run(folder.path(), SparsityPattern::kBlock16, 1);
  run.optimizer.clip_grad_norm = 0;  // a product may sum squares in another order
  // They round elsewhere, and leave weights with masks alone.
  for (const char* pass : {"fuse_gate_up", "fuse_qkv", "move_router_weight"})
    run.compiler.disable_passes.emplace_back(pass);
  const auto got = anabatic::testing::training_state(Trainer(run).train().checkpoint);
  run.sparsity = {};
  run.train.output = folder.path() / "plain";
  const auto want = anabatic::testing::training_state(Trainer(run).train().checkpoint);
  EXPECT_EQ(got.size(), want.size() + 2 + 4);
  for (const auto& [name, bytes] : want) EXPECT_TRUE(got.at(name) == bytes) << name;
}

TEST(Sparsity, HasEqualBitsHoweverItIsPlanned) {
  const TemporaryDirectory folder;
  RunConfig base = sparse_run(folder.path(), SparsityPattern::kBlock32);
  base.sparsity.weights[0].units = {"experts.down"};
  base.sparsity.weights.push_back({.units = {"attention"},
                                   .pattern = SparsityPattern::kTwoOfFour,
                                   .density = 0.5,
                                   .schedule = {.begin = 1, .end = 4},
                                   .is_transposable = true});
  const std::string want = trained_bytes(base);
  int number = 0;
  for (const PlanChange& change : plan_changes()) {
    RunConfig run = base;
    run.train.output = folder.path() / std::to_string(number++);
    change.apply(run);
    EXPECT_TRUE(trained_bytes(run) == want) << change.name;
  }
}

TEST(Sparsity, ResumesWithEqualBitsDuringTheRampAndAfterIt) {
  const TemporaryDirectory folder;
  RunConfig run = sparse_run(folder.path(), SparsityPattern::kBlock16, 0.25);
  run.train.save_every = 1;
  run.train.keep_last = 0;
  const std::string want = trained_bytes(run);
  for (const std::int64_t step : {7, 6, 5, 3, 1}) {
    anabatic::testing::go_back_to(run.train.output, step);
    EXPECT_TRUE(trained_bytes(run) == want) << step;
  }
}

class Messages : public RunListener {
 public:
  void on_message(Severity, const std::string& text) override {
    if (text.starts_with("sparsity: ")) lines.push_back(text);
  }
  std::vector<std::string> lines;
};

// Another program takes over where masks stay, with the bits of all states. A run that goes on from
// there begins with that program.
TEST(Sparsity, IsPlannedAnewOnceMasksStay) {
  const TemporaryDirectory folder;
  RunConfig run = sparse_run(folder.path(), SparsityPattern::kBlock16, 0.25);
  run.sparsity.weights[0].units = {"experts.down"};
  run.sparsity.weights[0].threshold = 0.5;  // sparse products, whatever their price
  run.train.save_every = 7;
  run.train.keep_last = 0;
  run.data.validation = {anabatic::testing::write_tiny_tokens(folder.path(), "validation", 12, 8)};
  Messages first, second;
  const TrainResult whole = Trainer(run, first).train();
  ASSERT_EQ(first.lines.size(), 3u);
  EXPECT_THAT(first.lines[0], HasSubstr("experts.down: block16, density 0.25, falling from 1"));
  EXPECT_EQ(first.lines[1], "sparsity: experts.down: block16 at density 0.25 from step 6 on");
  EXPECT_EQ(first.lines[2], "sparsity: planned anew, for masks stay as they are from here");
  const std::string want = anabatic::testing::checkpoint_bytes(whole.checkpoint);
  anabatic::testing::go_back_to(run.train.output, 7);
  const TrainResult rest = Trainer(run, second).train();
  EXPECT_EQ(second.lines.size(), 1u);
  EXPECT_TRUE(anabatic::testing::checkpoint_bytes(rest.checkpoint) == want);
  EXPECT_EQ(rest.after->loss, whole.after->loss);
}

// A plan of final masks does not touch what is absent, so it must not begin with something there.
TEST(Sparsity, RefusesFinalMasksOverWeightsThatAreNotZero) {
  const TemporaryDirectory folder;
  const RunConfig run = sparse_run(folder.path(), SparsityPattern::kBlock16);
  Trainer trainer(run);
  ModelSession& session = trainer.session();
  while (trainer.step()) {
  }
  const SparseWeights weights(run, trainer.compiled().graph);
  EXPECT_NO_THROW(weights.require_zeroes(session));
  const ir::State& mask = session.masks().at(1);
  const TensorType& type = *session.store().find(mask.owner).type;
  const std::vector<bool> is_present = presence(session, mask, type);
  const auto absent = std::ranges::find(is_present, false) - is_present.begin();
  StateCursor cursor(session.store());
  cursor.write(mask.owner, absent, std::vector<float>{1.5f});
  cursor.flush();
  EXPECT_THAT(message_of<InvalidArgument>([&] { weights.require_zeroes(session); }),
              AllOf(HasSubstr(text(mask.owner)), HasSubstr("the checkpoint was changed")));
  weights.clear(session);
  EXPECT_NO_THROW(weights.require_zeroes(session));
}

TEST(Sparsity, TakesMicroBatchesAndUpdatesInTheBackward) {
  const TemporaryDirectory folder;
  RunConfig run = sparse_run(folder.path(), SparsityPattern::kBlock16);
  run.train.gradient_accumulation_steps = 2;
  for (const char* update : {"in_backward", "after_backward"}) {
    run.optimizer.update = update;
    run.train.output = folder.path() / update;
    Trainer trainer(run);
    trainer.train();
    for (const ir::State& mask : trainer.session().masks())
      EXPECT_GT(expect_zeros(trainer, mask), 0);
  }
}

TEST(Sparsity, IsExportedWithItsZeroes) {
  const TemporaryDirectory folder;
  RunConfig run = sparse_run(folder.path(), SparsityPattern::kUnstructured, 0.25);
  run.sparsity.weights[0].units = {"experts.down"};
  Trainer trainer(run);
  trainer.train();
  const std::filesystem::path checkpoint = trainer.result().checkpoint;
  convert(checkpoint, folder.path() / "hf", {.dtype = DType::kFloat32});
  convert(checkpoint, folder.path() / "a.gguf", {.writes_gguf = true});
  for (const std::filesystem::path& model :
       {checkpoint, folder.path() / "hf", folder.path() / "a.gguf"}) {
    const Json json = parse_json(read_file(mask_manifest_path(model)));
    const auto parameters = find_sparse_parameters(model);
    ASSERT_TRUE(parameters.has_value());
    EXPECT_EQ(parameters->size(), 2u);
    EXPECT_EQ(parameters->at("layers.0.experts.down.weight"),
              (SparseParameter{SparsityPattern::kUnstructured, false, 0.25}));
    std::int64_t elements = 0, zeros = 0;
    for (const Json& tensor : json["tensors"]) {
      EXPECT_EQ(tensor["pattern"], "unstructured");
      EXPECT_EQ(tensor["density"], 0.25);
      elements += tensor["elements"].get<std::int64_t>();
      zeros += tensor["zeros"].get<std::int64_t>();
    }
    EXPECT_EQ(elements, 2 * 4 * 64 * 96) << model;
    EXPECT_EQ(zeros, elements * 3 / 4) << model;
  }
}

// A model that is read from a checkpoint is the masked one that the run has.
TEST(Sparsity, IsEvaluatedAsItIsTrained) {
  const TemporaryDirectory folder;
  RunConfig run = sparse_run(folder.path(), SparsityPattern::kBlock16, 0.25);
  run.data.validation = {anabatic::testing::write_tiny_tokens(folder.path(), "validation", 12, 8)};
  run.train.save_dtype = "fp32";
  Trainer trainer(run);
  const TrainResult result = trainer.train();
  ASSERT_TRUE(result.after.has_value());
  RunConfig again = run;
  again.sparsity = {};
  again.model = {.path = result.checkpoint.string()};
  again.train.output = folder.path() / "again";
  again.train.steps = 0;
  EXPECT_EQ(Trainer(again).train().after->loss, result.after->loss);
}

TEST(Sparsity, HasItsMasksInTheAccountAndInThePlan) {
  const TemporaryDirectory folder;
  RunConfig run = sparse_run(folder.path(), SparsityPattern::kUnstructured, 0.3);
  run.sparsity.weights[0].units = {"experts.down"};
  const auto plan = anabatic::testing::plan_of(run);
  EXPECT_EQ(plan.budgeted.memory.bytes("masks"), 2 * 4 * 64 * 96);
  const auto lines = sparsity_lines(plan.budgeted.plan.training.graph, run);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], AllOf(HasSubstr("experts.down: unstructured, density 0.299967"),
                              HasSubstr("asked for 0.3"), HasSubstr("in steps 2 to 6, every 2"),
                              HasSubstr("2 weights of 49152 elements")));
}

TEST(Sparsity, IsRefusedByTheNamesOfKeys) {
  const auto problems = [](const std::string& weights, Overrides overrides = {}) {
    overrides.insert({"sparsity.weights", {weights}});
    return message_of<InvalidArgument>([&] { load_run_config("", overrides); });
  };
  const std::string good = "{units: [experts], pattern: block32, density: 0.25}";
  EXPECT_THAT(problems("{units: [experts], pattern: block32, density: 0}"),
              HasSubstr("sparsity.weights: density: expected a number in (0, 1], got 0"));
  EXPECT_THAT(problems("{units: [experts], pattern: block32, density: 1.5}"),
              HasSubstr("got 1.5; the nearest is 1"));
  EXPECT_THAT(problems("{units: [experts], pattern: block23, density: 1}"),
              HasSubstr("got 'block23'; did you mean block32?"));
  EXPECT_THAT(problems("{units: [experts], pattern: 2:4, density: 0.25}"),
              HasSubstr("expected 0.5 with pattern: 2:4, got 0.25"));
  EXPECT_THAT(problems("{units: [experts], pattern: block16, density: 1, transposable: true}"),
              HasSubstr("transposable: expected pattern: 2:4 with it, got block16"));
  EXPECT_THAT(problems("{unit: [experts], pattern: block32, density: 1}"),
              HasSubstr("unknown key 'unit', did you mean units?"));
  EXPECT_THAT(problems("{units: [experts], pattern: block32}"), HasSubstr("density: expected"));
  EXPECT_THAT(problems("{pattern: block32, density: 0.5}"), HasSubstr("units: expected units"));
  EXPECT_THAT(problems("{units: [experts], pattern: block32, density: 0.5, schedule: {begin: 9, "
                       "end: 3}}"),
              HasSubstr("expected begin <= end, got begin 9 and end 3; the nearest end is 9"));
  EXPECT_THAT(problems("{units: [experts], pattern: block32, density: 0.5, threshold: 2}"),
              HasSubstr("threshold: expected a number in (0, 1]"));
  EXPECT_THAT(problems("{units: [experts], pattern: block32, density: 0.5, schedule: {begin: 9, "
                       "end: 300}}"),
              HasSubstr("schedule.end of 'experts' to be at most train.steps = 100, got 300"));
  EXPECT_THAT(problems(good, {{"lora.targets", {"all"}}}),
              HasSubstr("lora.targets: expected none"));
  EXPECT_THAT(problems(good, {{"parallel.local_ranks", {"2"}}}),
              HasSubstr("parallel.local_ranks: expected 1"));
  RunConfig of_processes = load_run_config("", {{"sparsity.weights", {good}}});
  of_processes.parallel.local_ranks = 2;  // as a launcher has it
  EXPECT_THAT(message_of<Unsupported>([&] { require_supported_by_ranks(of_processes); }),
              HasSubstr("sparsity.weights: expected one rank, got 2"));
}

TEST(Sparsity, ComesBackFromItsText) {
  const Overrides overrides{
      {"sparsity.weights",
       {"{units: experts.down, pattern: 2:4, transposable: true, threshold: 0.6}",
        "{units: [attention], pattern: block16, density: 0.1, schedule: {begin: 5, end: 50, every: "
        "5}}"}}};
  const RunConfig run = load_run_config("", overrides);
  const TemporaryDirectory folder;
  write_file_atomically(folder.path() / "run.yaml", to_yaml(run));
  EXPECT_EQ(load_run_config(folder.path() / "run.yaml", {}).sparsity.weights, run.sparsity.weights);
  write_file_atomically(folder.path() / "list.yaml",
                        "sparsity:\n  - {units: [attention], pattern: block16, density: 0.1, "
                        "schedule: {begin: 5, end: 50, every: 5}}\n");
  EXPECT_EQ(load_run_config(folder.path() / "list.yaml", {}).sparsity.weights[0],
            run.sparsity.weights[1]);
  write_file_atomically(folder.path() / "map.yaml", "sparsity: {units: [attention]}\n");
  EXPECT_THAT(message_of<InvalidArgument>([&] { load_run_config(folder.path() / "map.yaml", {}); }),
              HasSubstr("expected a list, got one map"));
}

TEST(Sparsity, NamesUnitsAndWeightsThatDoNotFit) {
  const TemporaryDirectory folder;
  RunConfig run = sparse_run(folder.path(), SparsityPattern::kBlock32);
  const auto refusal = [&] { return message_of<InvalidArgument>([&] { Trainer(run).train(); }); };
  run.sparsity.weights[0].units = {"expert"};
  EXPECT_THAT(refusal(), HasSubstr("sparsity.units: expected a unit with products, got 'expert'; "
                                   "did you mean 'experts'?"));
  run.sparsity.weights[0].units = {"experts"};
  run.sparsity.weights.push_back(run.sparsity.weights[0]);
  run.sparsity.weights[1].units = {"layers.0.experts.down"};
  EXPECT_THAT(refusal(), AllOf(HasSubstr("expected each weight in one entry, got "
                                         "'layers.0.experts.down.weight' in experts"),
                               HasSubstr("and in layers.0.experts.down")));
  run.sparsity.weights.pop_back();
  run.sparsity.weights[0].pattern = SparsityPattern::kUnstructured;
  run.quantization.enable = true;
  EXPECT_THAT(refusal(), HasSubstr("which quantization has on the grid int8_channel"));
}

// Masks are part of what a step computes.
TEST(Sparsity, IsNotChangedByAResume) {
  const TemporaryDirectory folder;
  RunConfig run = sparse_run(folder.path(), SparsityPattern::kBlock32);
  Trainer(run).train();
  run.train.steps += 2;
  run.sparsity.weights[0].density = 0.25;
  EXPECT_THAT(message_of<InvalidArgument>([&] { Trainer(run).train(); }),
              HasSubstr("sparsity.weights: the checkpoint has"));
}

}  // namespace
}  // namespace anabatic::train
