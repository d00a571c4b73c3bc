// SPDX-License-Identifier: Apache-2.0
// Checkpoints that all ranks write: any layout reads what any other one wrote, and what of one is
// damaged, missing or there twice is named.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "anabatic/error.h"
#include "base/json.h"
#include "base/text.h"
#include "support/file_size_limit.h"
#include "support/tiny_run.h"
#include "support/tolerance.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_search.h"
#include "train/checkpoint/state_files.h"
#include "train/ranks/rank_step.h"
#include "train/ranks/ranks.h"
#include "train/run_plan.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;
using anabatic::testing::checkpoint_bytes;
using anabatic::testing::FileSizeLimit;
using anabatic::testing::flip_bit;
using anabatic::testing::go_back_to;
using anabatic::testing::json_lines;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::tiny_run;
using anabatic::testing::training_state;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Layout = std::pair<std::int64_t, std::int64_t>;  // ranks, of which so many share experts

constexpr Layout kLayouts[] = {{4, 1}, {4, 2}, {4, 4}, {2, 2}, {1, 1}};

RunConfig with(RunConfig run, Layout layout) {
  run.parallel.local_ranks = layout.first;
  run.parallel.expert = layout.second;
  return run;
}

// Half the experts are large enough to be cut over ranks, and their last panels are not full.
RunConfig run_in(const TemporaryDirectory& folder, const std::string& precision) {
  RunConfig run = tiny_run(folder.path(), "\"intermediate_size\": 2100");
  run.train.precision = precision;
  run.train.steps = 2;
  run.train.save_every = 1;
  run.data.validation.clear();
  return run;
}

fs::path checkpoint_of(const RunConfig& run, std::int64_t step) {
  return fs::path(run.train.output) / checkpoint_name(step);
}

// Ranks of a layout read the newest checkpoint of the run and save what they hold as step 3.
void read_and_save(const RunConfig& run, const fs::path& from) {
  Ranks ranks(run);
  const auto on_rank = [&](std::int32_t rank, const std::function<void(RankStep&)>& body) {
    const runtime::RankContext context = ranks.of_thread(rank);
    ModelSession session(ranks.of_one(run, 0), false, {}, context);
    const std::unique_ptr<BoundProgram> program =
        session.bind(training_request(run, session.config()));
    load_checkpoint(from, session);
    LossScaler scaler = make_loss_scaler(run);
    RankStep steps(run, session, *program, scaler, context);
    steps.compare_states(1);
    body(steps);
  };
  const auto run_or_abort = [&](std::int32_t rank, const std::function<void(RankStep&)>& body) {
    try {
      on_rank(rank, body);
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << rank << ": " << error.what();
      ranks.abort(error.what());
    }
  };
  std::vector<std::jthread> others;
  for (std::int32_t rank = 1; rank < ranks.num_threads(); ++rank)
    others.emplace_back([&, rank] {
      run_or_abort(rank, [](RankStep& steps) { EXPECT_FALSE(steps.begin(4, true)); });
    });
  run_or_abort(0, [&](RankStep& steps) {
    CheckpointProgress progress = read_progress(from);
    progress.step = 3;
    progress.boxes.clear();
    (void)steps.save(4, progress, {.keep_last = 0, .run_id = progress.run.id, .in_use = {}});
    EXPECT_FALSE(steps.begin(4, false));
  });
  others.clear();  // joins
  ranks.done();
}

// What a layout wrote is read by the next one, and so on.
void expect_the_same_through(const std::vector<Layout>& layouts, const std::string& precision,
                             const std::string& moments) {
  const TemporaryDirectory folder;
  RunConfig run = run_in(folder, precision);
  run.train.save_every = 0;
  run.optimizer.state_precision = moments;
  Trainer(with(run, layouts.front())).train();
  const fs::path saved = checkpoint_of(run, 3), read = checkpoint_of(run, 2);
  const auto want = training_state(read);
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(
        fmt::format("{} {}, {} ranks, expert {}", precision, moments, layout.first, layout.second));
    read_and_save(with(run, layout), read);
    ASSERT_TRUE(training_state(saved) == want);
    ASSERT_THAT(problems_of_checkpoint(saved, CheckpointDepth::kAll, 1), IsEmpty());
    EXPECT_EQ(fs::exists(saved / kStatesFile), layout.first == 1);
    // The next one reads it.
    fs::remove_all(read);
    fs::rename(saved, read);
    Json progress = parse_json(read_file(read / kProgressFile));
    progress["step"] = 2;
    write_file_atomically(read / kProgressFile, dump_json(progress));
  }
}

// Each pair of neighbours once, the same twice included.
std::vector<Layout> every_pair() {
  std::vector<Layout> layouts;
  for (const Layout* one = std::begin(kLayouts); one != std::end(kLayouts); ++one) {
    layouts.push_back(*one);
    for (const Layout* other = one + 1; other != std::end(kLayouts); ++other)
      layouts.insert(layouts.end(), {*one, *other});
  }
  layouts.push_back(kLayouts[0]);
  return layouts;
}

// Label slow.
TEST(EveryPair, OfLayoutsReadsWhatEachOneWrote) {
  expect_the_same_through(every_pair(), "bf16", "fp32");
  expect_the_same_through(every_pair(), "fp32", "bf16");
}

TEST(Reshard, ALayoutReadsWhatAnotherOneWrote) {
  expect_the_same_through({{4, 2}, {1, 1}, {4, 4}, {2, 2}, {4, 1}}, "bf16", "fp32");
  expect_the_same_through({{4, 1}, {2, 2}}, "fp32", "bf16");
  expect_the_same_through({{3, 1}, {1, 1}}, "bf16", "int8");
}

// --- 20 more steps ---

constexpr std::int64_t kSavedStep = 4, kLastStep = kSavedStep + 20;

struct Outcome {
  std::string checkpoint;
  std::vector<double> losses;  // of the steps after kSavedStep
};

Outcome outcome_of(const RunConfig& run) {
  Outcome outcome{checkpoint_bytes(Trainer(run).train().checkpoint), {}};
  for (const Json& line : json_lines(fs::path(run.train.output) / "metrics.jsonl"))
    if (line["step"].get<std::int64_t>() > kSavedStep)
      outcome.losses.push_back(line["loss"].get<double>());
  return outcome;
}

// A run of one layout, and what becomes of its fourth step in others. Nobody changes another key:
// each keeps the micro-batches of a step.
void expect_steps_to_go_on(Layout saved, const std::vector<Layout>& others,
                           const std::string& precision) {
  const TemporaryDirectory folder;
  RunConfig run = with(run_in(folder, precision), saved);
  run.train.gradient_accumulation_steps = 4 / saved.first;
  run.train.steps = kLastStep;
  run.train.save_every = kSavedStep;
  run.train.keep_last = 0;
  const Outcome whole = outcome_of(run);
  ASSERT_EQ(std::ssize(whole.losses), kLastStep - kSavedStep);
  go_back_to(run.train.output, kSavedStep);
  for (const Layout& layout : others) {
    SCOPED_TRACE(fmt::format("{}: {} ranks, expert {}, then {} ranks, expert {}", precision,
                             saved.first, saved.second, layout.first, layout.second));
    RunConfig resumed = with(run, layout);
    resumed.train.output =
        folder.path() / fmt::format("resumed-{}-{}", layout.first, layout.second);
    fs::copy(run.train.output, resumed.train.output, fs::copy_options::recursive);
    const Outcome outcome = outcome_of(resumed);
    ASSERT_EQ(outcome.losses.size(), whole.losses.size());
    // One rank's sums have the order of more ranks; those of more have not that of one.
    const bool keeps_order = layout == saved || (saved.second == 1 && layout.second == 1 &&
                                                 saved.first % layout.first == 0);
    if (keeps_order) {
      EXPECT_EQ(outcome.losses, whole.losses);
      EXPECT_TRUE(outcome.checkpoint == whole.checkpoint);
      continue;
    }
    const DType dtype = precision == "fp32" ? DType::kFloat32 : DType::kBFloat16;
    for (std::size_t i = 0; i < whole.losses.size(); ++i)
      EXPECT_LE(std::abs(outcome.losses[i] - whole.losses[i]),
                anabatic::testing::loss_tolerance(whole.losses[i], dtype))
          << "step " << kSavedStep + 1 + static_cast<std::int64_t>(i);
  }
}

// Label slow.
TEST(EveryPair, OfLayoutsGoesOnForTwentySteps) {
  for (const char* precision : {"fp32", "bf16"})
    for (const Layout& saved : kLayouts)
      expect_steps_to_go_on(saved, {std::begin(kLayouts), std::end(kLayouts)}, precision);
}

TEST(Reshard, ALayoutGoesOnWithWhatAnotherOneSaved) {
  expect_steps_to_go_on({4, 1}, {{1, 1}}, "bf16");
  expect_steps_to_go_on({2, 2}, {{2, 2}, {4, 4}}, "fp32");
}

class Boxes : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TemporaryDirectory>();
    run_ = with(run_in(*folder_, "bf16"), {4, 2});
    newest_ = Trainer(run_).train().checkpoint;
  }
  static void TearDownTestSuite() { folder_.reset(); }

  CheckpointSearch search() const {
    return find_newest_checkpoint(run_.train.output, CheckpointDepth::kAll, 1);
  }

  // What of the newest checkpoint is wrong after a change of one of its files.
  std::string remark_after(const std::string& name,
                           const std::function<void(const fs::path&)>& body) {
    const fs::path kept = folder_->path() / "kept";
    fs::copy(newest_, kept);
    body(newest_ / name);
    const CheckpointSearch found = search();
    EXPECT_TRUE(found.newest && found.newest->directory == checkpoint_of(run_, 1)) << name;
    fs::remove_all(newest_);
    fs::rename(kept, newest_);
    return found.remarks.empty() ? "none" : found.remarks[0];
  }

  // The error of a box map that was changed.
  std::string refusal_after(const std::function<void(Json& tensors)>& change) const {
    Json progress = parse_json(read_file(newest_ / kProgressFile));
    change(progress["tensors"]);
    try {
      (void)read_boxes(JsonNode(progress, kProgressFile).at("tensors"));
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "it was taken";
  }

  static inline std::unique_ptr<TemporaryDirectory> folder_;
  static inline RunConfig run_;
  static inline fs::path newest_;
};

TEST_F(Boxes, AFlippedBitOfAnyFileIsFound) {
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    const std::string file = states_file(rank, 4);
    for (const std::int64_t from_end : {1, 1000})
      EXPECT_THAT(remark_after(file, [&](const fs::path& path) { flip_bit(path, from_end); }),
                  AllOf(HasSubstr("is damaged"), HasSubstr(file + ": tensor ")));
    EXPECT_THAT(remark_after(file, [](const fs::path& path) { fs::remove(path); }),
                HasSubstr(file + " is missing"));
  }
  const std::size_t size = read_file(newest_ / kProgressFile).size();
  for (std::size_t i = 1; i < size; i += size / 40)
    EXPECT_THAT(
        remark_after(kProgressFile,
                     [&](const fs::path& path) { flip_bit(path, static_cast<std::int64_t>(i)); }),
        HasSubstr("is no use: "));
  EXPECT_EQ(search().newest->directory, newest_);
}

TEST_F(Boxes, AGapAndAnOverlapAreNamed) {
  const BoxMap map = read_progress(newest_).boxes;
  const auto cut =
      std::ranges::find_if(map, [](const auto& tensor) { return tensor.second.boxes.size() == 4; });
  ASSERT_NE(cut, map.end());
  const auto& [name, tensor] = *cut;
  const Box &first = tensor.boxes[0], &second = tensor.boxes[1], &last = tensor.boxes[3];
  const auto boxes_after = [&](const std::function<void(Json & boxes)>& change) {
    return refusal_after([&, key = name](Json& tensors) { change(tensors[key]["boxes"]); });
  };
  EXPECT_THAT(boxes_after([](Json& boxes) { boxes.erase(1); }),
              AllOf(HasSubstr("training_state.json: tensors"),
                    HasSubstr(fmt::format("{}: rows [{}, {}) are in no file", name,
                                          second.first_row, second.first_row + second.num_rows))));
  EXPECT_THAT(
      boxes_after([](Json& boxes) { boxes.erase(3); }),
      HasSubstr(fmt::format("rows [{}, {}) are in no file", last.first_row, tensor.num_rows())));
  EXPECT_THAT(
      boxes_after([](Json& boxes) {
        boxes[1]["first_row"] = boxes[1]["first_row"].get<std::int64_t>() - 3;
        boxes[1]["rows"] = boxes[1]["rows"].get<std::int64_t>() + 3;
      }),
      HasSubstr(fmt::format("{}: rows [{}, {}) are in {} and in {}", name, second.first_row - 3,
                            second.first_row, first.file, second.file)));
  EXPECT_THAT(boxes_after([](Json& boxes) { boxes[3]["rows"] = 1 << 20; }),
              HasSubstr(fmt::format("beyond the tensor's {} rows", tensor.num_rows())));
  EXPECT_THAT(boxes_after([](Json& boxes) { boxes[0]["file"] = "../training_state-1"; }),
              HasSubstr("file: expected a file training_state-"));
  EXPECT_THAT(boxes_after([](Json& boxes) { boxes[0]["rows"] = -1; }), HasSubstr("rows"));
  EXPECT_THAT(boxes_after([](Json&) {}), HasSubstr("it was taken"));
}

// The map has each row once, but says so of another file or of fewer tensors.
TEST_F(Boxes, FilesThatTheMapDoesNotDescribeAreNamed) {
  BoxMap map = read_progress(newest_).boxes;
  const auto refusal = [&](const BoxMap& changed) -> std::string {
    try {
      const StateFiles files(newest_, changed);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "they were taken";
  };
  EXPECT_EQ(refusal(map), "they were taken");
  BoxMap fewer = map;
  const Box only = fewer.begin()->second.boxes[0];
  fewer.erase(fewer.begin());
  EXPECT_THAT(refusal(fewer), AllOf(HasSubstr("do not fit training_state.json"),
                                    HasSubstr(only.file + ": expected ")));
  auto& [name, tensor] =
      *std::ranges::find_if(map, [](const auto& other) { return other.second.boxes.size() > 1; });
  std::swap(tensor.boxes[0].file, tensor.boxes[1].file);
  tensor.dtype = "BF16";
  EXPECT_THAT(refusal(map), HasSubstr(fmt::format("{}: expected BF16 [", name)));
}

// Where each holds all, none writes more than another one by more than a tensor.
TEST(RanksThatSave, WriteAboutAsManyBytesEach) {
  const TemporaryDirectory folder;
  RunConfig run = with(run_in(folder, "bf16"), {4, 1});
  run.parallel.optimizer = "replicated";
  const fs::path checkpoint = Trainer(run).train().checkpoint;
  std::vector<std::uintmax_t> sizes;
  for (std::int64_t rank = 0; rank < 4; ++rank)
    sizes.push_back(fs::file_size(checkpoint / states_file(rank, 4)));
  sizes[0] += fs::file_size(checkpoint / "model.safetensors");
  std::size_t largest = 0;
  for (const auto& [name, bytes] : training_state(checkpoint))
    largest = std::max(largest, bytes.size());
  EXPECT_LE(*std::ranges::max_element(sizes) - *std::ranges::min_element(sizes), largest);
}

// One rank finds no room: its file alone is larger than the limit.
TEST(RanksThatSave, EndWithTheErrorOfOneAndLeaveTheLastCheckpoint) {
  const TemporaryDirectory folder;
  RunConfig run = with(run_in(folder, "bf16"), {2, 1});
  run.parallel.optimizer = "replicated";
  run.train.steps = 1;
  Trainer(run).train();
  const fs::path whole = checkpoint_of(run, 1);
  const auto limit = fs::file_size(whole / states_file(1, 2)) - 1;
  ASSERT_LT(fs::file_size(whole / states_file(0, 2)), limit);
  ASSERT_LT(fs::file_size(whole / "model.safetensors"), limit);
  run.train.steps = 2;
  Trainer trainer(run);
  std::string message;
  {
    const FileSizeLimit lower(limit);
    try {
      trainer.train();
    } catch (const CommError& error) {
      message = error.what();
    }
  }
  EXPECT_THAT(message, AllOf(HasSubstr("rank 1: "), HasSubstr(states_file(1, 2)),
                             HasSubstr("File too large"), Not(HasSubstr("is saved")),
                             HasSubstr("its last checkpoint is " + whole.string())));
  EXPECT_FALSE(fs::exists(fs::path(run.train.output) / "incomplete-checkpoint"));
  EXPECT_FALSE(fs::exists(checkpoint_of(run, 2)));
  EXPECT_EQ(read_file(fs::path(run.train.output) / "latest"), "step-00000001\n");
  EXPECT_THAT(problems_of_checkpoint(whole, CheckpointDepth::kAll, 1), IsEmpty());
  EXPECT_EQ(Trainer(run).train().checkpoint, checkpoint_of(run, 2));
}

}  // namespace
}  // namespace anabatic::train
