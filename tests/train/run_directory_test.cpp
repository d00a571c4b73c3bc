// SPDX-License-Identifier: Apache-2.0
// A run and its directory: who owns it, which checkpoint a run goes on from, what of an earlier run
// stays, and what a checkpoint binds.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <thread>

#include "anabatic/error.h"
#include "base/json.h"
#include "base/text.h"
#include "io/safetensors.h"
#include "support/run_binary.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/checkpoint/checkpoint_search.h"
#include "train/checkpoint/run_lock.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;
using anabatic::testing::checkpoint_bytes;
using anabatic::testing::flip_bit;
using anabatic::testing::json_lines;
using anabatic::testing::Outcome;
using anabatic::testing::Process;
using anabatic::testing::run_binary;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::tiny_run;
using anabatic::testing::write_tiny_config;
using anabatic::testing::write_tiny_tokens;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A run that saves every second step and keeps all, and the binary's `train` of it.
class RunDirectory : public ::testing::Test {
 protected:
  RunDirectory() : run_(tiny_run(folder_.path())), output_(run_.train.output) {
    run_.train.steps = 6;
    run_.train.save_every = 2;
    run_.train.keep_last = 0;
  }

  fs::path config() const {
    const fs::path file = folder_.path() / "run.yaml";
    write_file_atomically(file, to_yaml(run_));
    return file;
  }
  Outcome train(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments{"train", config()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_binary(arguments);
  }
  std::string train_well(const std::vector<std::string>& more = {}) const {
    const Outcome outcome = train(more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out;
  }
  std::string refusal(const std::vector<std::string>& more = {}) const {
    const Outcome outcome = train(more);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out << outcome.err;
    return outcome.err;
  }
  fs::path step(std::int64_t number) const { return output_ / checkpoint_name(number); }
  std::vector<std::string> steps() const {
    std::vector<std::string> names;
    for (const NamedCheckpoint& checkpoint : named_checkpoints(output_))
      names.push_back(checkpoint.directory.filename());
    return names;
  }
  // What an unbroken run of these settings ends with.
  std::string unbroken_bytes() const {
    const TemporaryDirectory folder;
    RunConfig run = run_;
    run.train.output = folder.path() / "run";
    return checkpoint_bytes(Trainer(run).train().checkpoint);
  }

  const TemporaryDirectory folder_;
  RunConfig run_;
  const fs::path output_;
};

TEST_F(RunDirectory, IsOfOneRunAtATime) {
  {
    Trainer first(run_);
    const std::string owner = fmt::format("in use by process {} on ", ::getpid());
    try {
      Trainer second(run_);
      FAIL() << "two runs of one process in one directory";
    } catch (const ResourceError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("train.output"), HasSubstr(owner)));
    }
    const Outcome other = train();
    EXPECT_EQ(other.exit_code, 1);
    EXPECT_THAT(other.err, AllOf(HasSubstr(owner), HasSubstr(" since "), HasSubstr("UTC")));
    EXPECT_TRUE(fs::exists(output_ / "run.lock"));
    first.train();
    EXPECT_FALSE(fs::exists(output_ / "run.lock"));
    EXPECT_THAT(train_well(), HasSubstr("nothing to do"));  // while `first` lives
  }
  EXPECT_TRUE(checkpoint_bytes(step(6)) == unbroken_bytes());
}

TEST_F(RunDirectory, IsTakenOverFromARunThatWasKilled) {
  run_.train.steps = 1000000;
  const fs::path file = config();
  {
    Process process({"train", file});
    for (int i = 0; i < 3000 && !fs::exists(step(2)); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ASSERT_TRUE(fs::exists(step(2)));
    const Outcome other = train();
    EXPECT_EQ(other.exit_code, 1) << other.out;
    EXPECT_THAT(other.err, HasSubstr("in use by process"));
    process.signal(SIGKILL);
    process.wait();
  }
  EXPECT_TRUE(fs::exists(output_ / "run.lock"));
  run_.train.steps = named_checkpoints(output_).back().step + 2;
  EXPECT_THAT(train_well(), AllOf(HasSubstr("took "), HasSubstr("which ended without releasing it"),
                                  HasSubstr("resuming from")));
  EXPECT_FALSE(fs::exists(output_ / "run.lock"));
}

TEST_F(RunDirectory, IsSearchedForTheNewestCheckpointWhateverLatestNames) {
  Trainer(run_).train();
  const std::string want = unbroken_bytes();
  fs::remove(output_ / "latest");
  EXPECT_THAT(train_well(), AllOf(HasSubstr("latest is missing"),
                                  HasSubstr("resuming from " + step(6).string())));
  fs::remove_all(step(6));
  for (const char* latest : {"step-00000006\n", "step-00000002\n", "", "../x\n"}) {
    write_file_atomically(output_ / "latest", latest);
    EXPECT_THAT(train_well(), AllOf(HasSubstr("step-00000004 is the newest whole"),
                                    HasSubstr("resuming from " + step(4).string() + " (step 4)")))
        << latest;
    EXPECT_TRUE(checkpoint_bytes(step(6)) == want);
    EXPECT_EQ(read_file(output_ / "latest"), "step-00000006\n");
    EXPECT_EQ(json_lines(output_ / "metrics.jsonl").size(), 6u);
    EXPECT_EQ(json_lines(output_ / "windows.jsonl").size(), 6u);
    fs::remove_all(step(6));
  }
}

TEST_F(RunDirectory, SaysThatAFinishedRunHasNothingToDo) {
  train_well();
  EXPECT_THAT(train_well(),
              AllOf(HasSubstr("complete at step 6: nothing to do"), HasSubstr("train.steps")));
  EXPECT_THAT(train_well({"--train.steps", "4"}), HasSubstr("complete at step 6: nothing to do"));
  EXPECT_THAT(train_well({"--train.steps", "7"}), Not(HasSubstr("nothing to do")));
}

// Every tensor of both files, in any byte.
TEST_F(RunDirectory, FindsAFlippedBitInAnyTensorAndNamesIt) {
  Trainer(run_).train();
  const std::string want = unbroken_bytes();
  for (const char* name : {"training_state.safetensors", "model.safetensors"}) {
    const fs::path file = step(6) / name;
    std::vector<std::pair<std::string, std::int64_t>> places;  // tensor, bytes from the end
    {
      const io::MappedFile mapped(file);
      const std::byte* end = mapped.bytes().data() + mapped.bytes().size();
      for (const io::TensorEntry& entry : io::parse_safetensors(mapped.bytes(), file)) {
        places.emplace_back(entry.name, end - entry.data.data());
        places.emplace_back(
            entry.name, end - entry.data.data() - static_cast<std::int64_t>(entry.data.size()) + 1);
      }
    }
    for (const auto& [tensor, from_end] : places) {
      flip_bit(file, from_end);
      const CheckpointSearch search = find_newest_checkpoint(output_, CheckpointDepth::kAll, 2);
      ASSERT_TRUE(search.newest);
      EXPECT_EQ(search.newest->directory, step(4));
      EXPECT_THAT(search.remarks.at(0),
                  AllOf(HasSubstr("step-00000006 is damaged"),
                        HasSubstr(fmt::format("{}: tensor {}: expected checksum", name, tensor))));
      flip_bit(file, from_end);
    }
  }
  EXPECT_EQ(find_newest_checkpoint(output_, CheckpointDepth::kAll, 1).newest->directory, step(6));
  flip_bit(step(6) / "training_state.safetensors", 1);
  EXPECT_THAT(train_well(), AllOf(HasSubstr("step-00000006 is damaged"),
                                  HasSubstr("resuming from " + step(4).string())));
  EXPECT_TRUE(checkpoint_bytes(step(6)) == want);
}

TEST_F(RunDirectory, PassesOverWhateverElseIsNotWhole) {
  Trainer(run_).train();
  const auto damage = [&](const std::string& name, auto&& body) {
    const fs::path kept = folder_.path() / "kept";
    fs::copy(step(6), kept, fs::copy_options::recursive);
    body(step(6) / name);
    const CheckpointSearch search = find_newest_checkpoint(output_, CheckpointDepth::kAll, 1);
    ASSERT_TRUE(search.newest) << name;
    EXPECT_EQ(search.newest->directory, step(4)) << name;
    EXPECT_THAT(search.remarks.at(0), AllOf(HasSubstr("step-00000006"), HasSubstr(name)));
    fs::remove_all(step(6));
    fs::rename(kept, step(6));
  };
  for (const char* name : {"training_state.safetensors", "model.safetensors", "checksums.json",
                           "training_state.json", "run_config.yaml"}) {
    damage(name, [](const fs::path& file) { fs::remove(file); });
    damage(name, [](const fs::path& file) { fs::resize_file(file, fs::file_size(file) / 2); });
  }
  // Bits of headers and of what says which step and run it is.
  for (const char* name : {"training_state.safetensors", "model.safetensors"})
    damage(name, [](const fs::path& file) {
      flip_bit(file, static_cast<std::int64_t>(fs::file_size(file)) - 40);
    });
  damage("training_state.json", [](const fs::path& file) {
    flip_bit(file, static_cast<std::int64_t>(fs::file_size(file) / 2));
  });
  EXPECT_EQ(find_newest_checkpoint(output_, CheckpointDepth::kAll, 1).newest->directory, step(6));
}

// A bit of any byte of what says which step and run a checkpoint is of, and of every fifth byte of
// its checksums. Of these some are harmless: those of single tensors, which only name a damage, and
// those of files that a resume does not read.
TEST_F(RunDirectory, FindsAFlippedBitInAnyByteOfAManifest) {
  run_.train.steps = 2;
  Trainer(run_).train();
  const CheckpointProgress whole = read_progress(step(2));
  std::int64_t num_found = 0;
  for (const auto& [name, stride] : {std::pair{"training_state.json", 1}, {"checksums.json", 5}}) {
    const fs::path file = step(2) / name;
    const auto size = static_cast<std::int64_t>(fs::file_size(file));
    for (std::int64_t from_end = 1; from_end <= size; from_end += stride) {
      flip_bit(file, from_end);
      if (!problems_of_checkpoint(step(2), CheckpointDepth::kAll, 1).empty()) {
        ++num_found;
      } else {
        const CheckpointProgress found = read_progress(step(2));
        EXPECT_EQ(file.filename(), "checksums.json") << from_end;
        EXPECT_TRUE(found.run == whole.run && found.step == whole.step &&
                    found.seed == whole.seed && found.contents == whole.contents);
      }
      flip_bit(file, from_end);
    }
    EXPECT_GT(num_found, size / stride / 4) << name;
    num_found = 0;
  }
  EXPECT_THAT(problems_of_checkpoint(step(2), CheckpointDepth::kAll, 1), IsEmpty());
}

TEST_F(RunDirectory, IsNotBegunAnewWhereNoCheckpointIsWhole) {
  Trainer(run_).train();
  for (const std::int64_t number : {2, 4, 6})
    flip_bit(step(number) / "training_state.safetensors", 9);
  fs::remove(output_ / "latest");
  const std::string message = refusal();
  EXPECT_THAT(message, AllOf(HasSubstr("found none"), HasSubstr("step-00000006 is damaged"),
                             HasSubstr("step-00000002 is damaged"), HasSubstr("tensor"),
                             HasSubstr("train.resume: never")));
  EXPECT_THAT(steps(), ElementsAre("step-00000002", "step-00000004", "step-00000006"));
  EXPECT_EQ(json_lines(output_ / "metrics.jsonl").size(), 6u);
}

TEST_F(RunDirectory, NamesAnotherFormatOfCheckpoints) {
  Trainer(run_).train();
  for (const std::int64_t number : {2, 4, 6}) {
    fs::remove(step(number) / "checksums.json");
    write_file_atomically(step(number) / "training_state.json",
                          fmt::format("{{\"format\": 1, \"step\": {}, \"seed\": 0}}\n", number));
  }
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("expected format 2 or 3, found 1"), HasSubstr("model.path")));
}

// The bytes of every file below a directory, by name.
std::map<std::string, std::string> files_of(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    if (entry.is_regular_file()) files[entry.path().filename()] = read_file(entry.path());
  return files;
}

TEST_F(RunDirectory, LosesNothingOfAnEarlierRunToOneThatBeginsAnew) {
  Trainer(run_).train();
  const auto old4 = files_of(step(4)), old6 = files_of(step(6));
  const std::string old_metrics = read_file(output_ / "metrics.jsonl");
  run_.train.keep_last = 1;
  run_.train.seed = 9;
  const std::vector<std::string> never{"--train.resume", "never", "--train.steps", "4"};
  EXPECT_THAT(train_well(never), AllOf(HasSubstr("a new run begins"), HasSubstr("step-00000006")));
  // Pruned to the newest of its own; step 4 of both cannot have one name.
  EXPECT_THAT(steps(), ElementsAre("step-00000004", "step-00000006"));
  EXPECT_TRUE(files_of(step(6)) == old6);
  EXPECT_FALSE(files_of(step(4)) == old4);
  std::map<std::string, std::string> aside;
  std::size_t num_second_steps = 0;
  for (const auto& entry : fs::recursive_directory_iterator(output_ / "before-1")) {
    num_second_steps += entry.path().filename() == "step-00000002";
    if (entry.path().filename() == "step-00000004") aside = files_of(entry.path());
  }
  EXPECT_TRUE(aside == old4);
  EXPECT_EQ(num_second_steps, 1u);
  EXPECT_EQ(read_file(output_ / "before-1" / "metrics.jsonl"), old_metrics);
  EXPECT_EQ(json_lines(output_ / "before-1" / "windows.jsonl").size(), 6u);
  EXPECT_TRUE(fs::exists(output_ / "before-1" / "run.json"));
  EXPECT_EQ(json_lines(output_ / "metrics.jsonl").size(), 4u);

  // What goes on is the run that began last, though the other one was farther.
  EXPECT_THAT(train_well({"--train.steps", "5"}), HasSubstr("resuming from " + step(4).string()));
  EXPECT_THAT(steps(), ElementsAre("step-00000005", "step-00000006"));
}

TEST_F(RunDirectory, IsClearedOfWhatASaveThatDidNotEndHasLeft) {
  Trainer(run_).train();
  fs::create_directory(output_ / "incomplete-checkpoint");
  for (const char* name : {"incomplete-checkpoint/model.safetensors", "latest.12-0.tmp",
                           "plan.txt.12-0.tmp", "anabatic-swap-aB3dE6"})
    std::ofstream(output_ / name) << "half";
  fs::rename(step(4), output_ / "replaced-checkpoint");
  const std::string out = train_well();
  EXPECT_THAT(out, AllOf(HasSubstr("removed " + (output_ / "incomplete-checkpoint").string()),
                         HasSubstr("restored step-00000004")));
  for (const char* name : {"incomplete-checkpoint", "latest.12-0.tmp", "plan.txt.12-0.tmp",
                           "anabatic-swap-aB3dE6", "replaced-checkpoint"})
    EXPECT_FALSE(fs::exists(output_ / name)) << name;
  EXPECT_THAT(problems_of_checkpoint(step(4), CheckpointDepth::kAll, 1), IsEmpty());
}

TEST_F(RunDirectory, RefusesOtherMathsNamingTheField) {
  Trainer(run_).train();
  for (const auto& [extra, text] :
       {std::pair{"\"rope_theta\": 500000.0",
                  "config.json: rope_theta: the checkpoint has 10000.0, this run 500000.0"},
        std::pair{"\"rms_norm_eps\": 1e-6", "config.json: rms_norm_eps"},
        std::pair{"\"router_aux_loss_coef\": 0.5", "config.json: router_aux_loss_coef"},
        std::pair{"\"eos_token_id\": 5", "config.json: eos_token_id"}}) {
    write_tiny_config(folder_.path(), extra);
    EXPECT_THAT(refusal(), AllOf(HasSubstr("cannot be resumed"), HasSubstr(text)));
  }
  write_tiny_config(folder_.path(), "\"dtype\": \"bfloat16\", \"transformers_version\": \"9\"");
  EXPECT_THAT(train_well(), HasSubstr("nothing to do"));
  EXPECT_THAT(refusal({"--train.precision", "bf16"}),
              HasSubstr("train.precision: the checkpoint has fp32, this run bf16"));
  write_file_atomically(fs::path(run_.model.path) / "tokenizer_config.json",
                        "{\"eos_token\": \"</s>\"}");
  EXPECT_THAT(refusal(), HasSubstr("tokenizer_config.json: eos_token: the checkpoint has none"));
  fs::remove(fs::path(run_.model.path) / "tokenizer_config.json");
  EXPECT_THAT(steps(), ElementsAre("step-00000002", "step-00000004", "step-00000006"));
}

TEST_F(RunDirectory, RefusesOtherDataUnlessItIsAllowed) {
  const std::string second = write_tiny_tokens(folder_.path(), "second", 20, 9);
  run_.data.train.push_back(second);
  Trainer(run_).train();
  run_.train.steps = 7;

  // Files may move.
  const fs::path moved = folder_.path() / "moved";
  for (const char* suffix : {".bin", ".idx"}) fs::rename(second + suffix, moved.string() + suffix);
  run_.data.train[1] = moved;
  EXPECT_THAT(train_well({"--train.steps", "6"}), HasSubstr("resuming from"));

  const auto is_refused = [&](const std::string& text) {
    EXPECT_THAT(refusal(), AllOf(HasSubstr("training data"), HasSubstr(text),
                                 HasSubstr("train.allow_changed_data: true")));
  };
  run_.data.train.pop_back();
  is_refused("second.bin: removed");
  run_.data.train = {moved, run_.data.train[0]};
  is_refused("another order");
  run_.data.train = {run_.data.train[1], moved, write_tiny_tokens(folder_.path(), "third", 3, 4)};
  is_refused("third.bin: added");
  run_.data.train.pop_back();
  write_tiny_tokens(folder_.path(), "train", 60, 8);  // other content under the same name
  is_refused("train.bin: changed");
  EXPECT_THAT(train_well({"--train.allow_changed_data"}),
              AllOf(HasSubstr("are not those of the checkpoint"), HasSubstr("train.bin: changed"),
                    HasSubstr("resuming from " + step(6).string())));
  // The checkpoint of step 7 binds the data as they are now.
  EXPECT_THAT(train_well({"--train.steps", "8"}), HasSubstr("resuming from " + step(7).string()));
}

TEST_F(RunDirectory, LoadsNoDamagedWeightsFromACheckpoint) {
  const fs::path checkpoint = Trainer(run_).train().checkpoint;
  const std::vector<std::string> evaluate{
      "evaluate",         "--model.path",           checkpoint, "--data.validation",
      run_.data.train[0], "--data.sequence_length", "16"};
  EXPECT_EQ(run_binary(evaluate).exit_code, 0);
  flip_bit(checkpoint / "model.safetensors", 5);
  const Outcome damaged = run_binary(evaluate);
  EXPECT_EQ(damaged.exit_code, 2);
  EXPECT_THAT(damaged.err, AllOf(HasSubstr("model.safetensors: tensor "),
                                 HasSubstr("expected checksum"), HasSubstr("checksums.json")));
  // Weights that were changed on purpose.
  fs::remove(checkpoint / "checksums.json");
  EXPECT_EQ(run_binary(evaluate).exit_code, 0);
}

}  // namespace
}  // namespace anabatic::train
