// SPDX-License-Identifier: Apache-2.0
// Errors in the middle of a run and disks that are too small: what is known before the first step,
// what is saved first, and what is left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "anabatic/error.h"
#include "base/text.h"
#include "support/error_message.h"
#include "support/file_size_limit.h"
#include "support/tiny_run.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/checkpoint/checkpoint_search.h"
#include "train/checkpoint/preflight.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;
using anabatic::testing::checkpoint_bytes;
using anabatic::testing::FileSizeLimit;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::tiny_run;
using anabatic::testing::write_tiny_tokens;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(Rescue, SavesTheLastGoodStepWhenDataCannotBeRead) {
  const TemporaryDirectory folder, whole_folder;
  RunConfig run = tiny_run(folder.path());
  run.data.shuffle = false;
  run.data.train = {write_tiny_tokens(folder.path(), "a", 8, 1),
                    write_tiny_tokens(folder.path(), "b", 60, 2)};
  run.train.steps = 20;
  RunConfig whole = run;
  whole.train.output = whole_folder.path() / "run";
  const fs::path want = Trainer(whole).train().checkpoint;

  const fs::path second = folder.path() / "b.bin", kept = folder.path() / "kept";
  fs::copy_file(second, kept);
  const std::string message = testing::message_of([&] {
    Trainer trainer(run);
    fs::resize_file(second, 0);
    trainer.train();
  });
  const auto latest = latest_checkpoint(run.train.output);
  ASSERT_TRUE(latest) << message;
  EXPECT_THAT(message, AllOf(HasSubstr("b.bin"), HasSubstr("is saved, the run stops here"),
                             HasSubstr("its last checkpoint is " + latest->string())));
  EXPECT_GT(latest->filename(), checkpoint_name(0));
  EXPECT_LT(latest->filename(), checkpoint_name(20));
  EXPECT_FALSE(fs::exists(fs::path(run.train.output) / "run.lock"));

  fs::copy_file(kept, second, fs::copy_options::overwrite_existing);
  EXPECT_TRUE(checkpoint_bytes(Trainer(run).train().checkpoint) == checkpoint_bytes(want));
}

TEST(Rescue, DoesNotSaveNumbersThatAreNotFinite) {
  for (const char* update : {"after_backward", "in_backward"}) {
    const TemporaryDirectory folder;
    RunConfig run = tiny_run(folder.path());
    run.optimizer.learning_rate = 1e30;
    run.optimizer.warmup_steps = 0;
    run.optimizer.clip_grad_norm = 0;
    run.optimizer.update = update;
    const std::string message = testing::message_of([&] { Trainer(run).train(); });
    EXPECT_THAT(message, HasSubstr("[train] step "));
    const auto latest = latest_checkpoint(run.train.output);
    if (latest) {
      EXPECT_THAT(problems_of_checkpoint(*latest, CheckpointDepth::kAll, 1), IsEmpty());
      EXPECT_THAT(message, HasSubstr("is saved"));
    } else {
      EXPECT_THAT(message, HasSubstr("before its first checkpoint"));
    }
  }
}

TEST(Rescue, LeavesTheLastCheckpointWhereTheNextOneFindsNoRoom) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path());
  run.train.steps = 2;
  run.train.keep_last = 1;
  Trainer(run).train();
  run.train.steps = 4;
  const fs::path output = run.train.output;
  Trainer trainer(run);
  {
    const FileSizeLimit limit(std::int64_t{16} << 10);  // of the logs, but not of a checkpoint
    const std::string message = testing::message_of([&] { trainer.train(); });
    EXPECT_THAT(message, AllOf(HasSubstr("File too large"), Not(HasSubstr("is saved")),
                               HasSubstr("its last checkpoint is " +
                                         (output / checkpoint_name(2)).string())));
  }
  EXPECT_FALSE(fs::exists(output / "incomplete-checkpoint"));
  EXPECT_FALSE(fs::exists(output / checkpoint_name(4)));
  EXPECT_EQ(read_file(output / "latest"), "step-00000002\n");
  EXPECT_THAT(problems_of_checkpoint(output / checkpoint_name(2), CheckpointDepth::kAll, 1),
              IsEmpty());
  EXPECT_EQ(Trainer(run).train().checkpoint, output / checkpoint_name(4));
}

TEST(Preflight, RefusesALimitOfFileSizesBeforeTheFirstStep) {
  const TemporaryDirectory folder;
  const RunConfig run = tiny_run(folder.path());
  const FileSizeLimit limit(std::int64_t{64} << 10);
  const std::string message = testing::message_of([&] { Trainer trainer(run); });
  EXPECT_THAT(message, AllOf(HasSubstr("train.output: expected a limit of file sizes of at least"),
                             HasSubstr("got 64.00 KiB"), HasSubstr("ulimit -f")));
  EXPECT_FALSE(fs::exists(fs::path(run.train.output) / "metrics.jsonl"));
}

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

TEST(Preflight, CountsTheCheckpointsThatStandAtOnce) {
  const auto most = [](std::int64_t saves, std::int64_t present, std::int64_t keep) {
    return most_new_checkpoints({.num_saves = saves, .num_present = present, .keep_last = keep});
  };
  EXPECT_EQ(most(10, 0, 2), 3);  // two, and the third before the first is removed
  EXPECT_EQ(most(1, 0, 2), 1);
  EXPECT_EQ(most(2, 0, 2), 2);
  EXPECT_EQ(most(10, 1, 2), 2);
  EXPECT_EQ(most(10, 2, 2), 1);
  EXPECT_EQ(most(10, 5, 2), 1);
  EXPECT_EQ(most(0, 1, 2), 0);
  EXPECT_EQ(most(10, 3, 0), 1);
  EXPECT_EQ(count_saves(1, 10, 0), 1);
  EXPECT_EQ(count_saves(1, 10, 3), 4);  // 3, 6, 9, 10
  EXPECT_EQ(count_saves(4, 9, 3), 2);   // 6, 9
  EXPECT_EQ(count_saves(11, 10, 3), 0);
}

TEST(Preflight, NamesWhatIsNeededAndWhatIsFree) {
  DiskNeed need{.checkpoint_bytes = 2 * kGiB,
                .largest_file_bytes = kGiB,
                .num_saves = 5,
                .keep_last = 2,
                .log_bytes = kGiB / 4};
  const auto message = [&](std::int64_t free_bytes) {
    return testing::message_of(
        [&] { require_disk_room("/data/run", need, {.free_bytes = free_bytes}); });
  };
  EXPECT_EQ(message(7 * kGiB), "");
  EXPECT_THAT(message(6 * kGiB),
              AllOf(HasSubstr("expected 6.25 GiB free in /data/run for 3 checkpoints of 2.00 GiB"),
                    HasSubstr("train.keep_last: 2"), HasSubstr("256.00 MiB of logs"),
                    HasSubstr("got 6.00 GiB"), HasSubstr("lower train.keep_last")));
  need.num_saves = 0;
  EXPECT_EQ(message(0), "");
  EXPECT_GT(disk_room(fs::temp_directory_path()).free_bytes, 0);
}

}  // namespace
}  // namespace anabatic::train
