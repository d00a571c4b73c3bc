// SPDX-License-Identifier: Apache-2.0
// Runs whose moments are on disk: the bits of resident runs, resuming from one to the other, and
// disks that fail.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>

#include "anabatic/error.h"
#include "base/json.h"
#include "base/text.h"
#include "plan/budget_error.h"
#include "runtime/swap/swap_space.h"
#include "support/faulty_device.h"
#include "support/sanitized.h"
#include "support/scoped_variable.h"
#include "support/test_config.h"
#include "support/tiny_run.h"
#include "tensor/tensor_type.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/state_rows.h"
#include "train/state_tiers.h"
#include "train/swap_tier.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;
using anabatic::testing::checkpoint_bytes;
using anabatic::testing::Fault;
using anabatic::testing::FaultPlan;
using anabatic::testing::kIsSanitized;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::tiny_run;
using anabatic::testing::with_fault;
using anabatic::testing::write_tiny_config;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// Odd sides, so that panels have ends.
constexpr const char* kOdd = "\"intermediate_size\": 23, \"hidden_size\": 24";

RunConfig run_in(const TemporaryDirectory& folder, const char* precision, const char* tier,
                 std::int64_t micro_batches = 1) {
  RunConfig run = tiny_run(folder.path(), kOdd);
  run.train.precision = precision;
  run.train.gradient_accumulation_steps = micro_batches;
  run.memory.optimizer_state = tier;
  return run;
}

std::vector<nlohmann::json> metrics_of(const RunConfig& run) {
  std::vector<nlohmann::json> lines;
  std::istringstream text(read_file(fs::path(run.train.output) / "metrics.jsonl"));
  for (std::string line; std::getline(text, line);) lines.push_back(parse_json(line));
  return lines;
}

void expect_equal_runs(const RunConfig& got, const RunConfig& want) {
  EXPECT_TRUE(checkpoint_bytes(*latest_checkpoint(got.train.output)) ==
              checkpoint_bytes(*latest_checkpoint(want.train.output)));
  const auto a = metrics_of(got), b = metrics_of(want);
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    for (const char* key : {"step", "loss", "grad_norm"}) EXPECT_EQ(a[i][key], b[i][key]) << i;
}

TEST(DiskState, TrainsBitForBitLikeResidentState) {
  for (const auto& [precision, micro_batches] : {std::pair{"fp32", 1}, std::pair{"bf16", 2}}) {
    SCOPED_TRACE(precision);
    const TemporaryDirectory resident_folder;
    const RunConfig resident = run_in(resident_folder, precision, "resident", micro_batches);
    Trainer(resident).train();
    for (const std::int64_t slice : {std::int64_t{8} << 20, std::int64_t{8192}}) {
      SCOPED_TRACE(slice);
      const TemporaryDirectory disk_folder;
      RunConfig disk = run_in(disk_folder, precision, "disk", micro_batches);
      disk.memory.swap_directory = disk_folder.path() / "scratch";
      disk.memory.swap_slice = slice;
      for (const char* masters : {"resident", "disk"}) {
        if (masters == std::string("disk") && disk.train.precision == "fp32") continue;
        SCOPED_TRACE(masters);
        disk.memory.masters = masters;
        disk.train.resume = "never";
        Trainer(disk).train();
        expect_equal_runs(disk, resident);
        EXPECT_TRUE(fs::is_empty(disk.memory.swap_directory));
      }
    }
  }
}

TEST(DiskState, TrainsBitForBitWithHalfMomentsAndUpdatesInTheBackward) {
  const TemporaryDirectory resident_folder;
  const auto lean = [&](const TemporaryDirectory& folder, const char* tier) {
    RunConfig run = run_in(folder, "bf16", tier);
    write_tiny_config(folder.path(), std::string(kOdd) + ", \"num_local_experts\": 8");
    run.optimizer.state_precision = "bf16";
    run.optimizer.update = "in_backward";
    return run;
  };
  const RunConfig resident = lean(resident_folder, "resident");
  Trainer(resident).train();
  for (const bool poison : {false, true})
    for (const std::int64_t threads : {1, 3}) {
      const TemporaryDirectory disk_folder;
      RunConfig disk = lean(disk_folder, "disk");
      disk.compiler.poison |= poison;
      disk.device.threads = threads;
      disk.memory.swap_slice = poison ? 6144 : 8 << 20;
      disk.memory.masters = threads == 3 ? "disk" : "resident";
      Trainer(disk).train();
      expect_equal_runs(disk, resident);
    }
}

// What the backward reads waits on disk, and so do the moments of the same segment.
RunConfig run_with_cold_activations(const TemporaryDirectory& folder, const char* precision) {
  RunConfig run = tiny_run(folder.path(), "\"hidden_size\": 96, \"intermediate_size\": 129");
  run.train.precision = precision;
  run.train.gradient_accumulation_steps = 2;
  run.data.sequence_length = 512;
  run.train.micro_batch_size = 8;
  run.train.steps = kIsSanitized ? 1 : 3;
  run.memory.activations = "disk";
  run.memory.cold = {"experts"};
  return run;
}

TEST(DiskActivations, TrainBitForBit) {
  for (const char* precision : {"fp32", "bf16"}) {
    SCOPED_TRACE(precision);
    const TemporaryDirectory want_folder, got_folder;
    RunConfig want = run_with_cold_activations(want_folder, precision);
    want.memory.activations = "resident";
    want.memory.cold.clear();
    Trainer(want).train();
    const RunConfig got = run_with_cold_activations(got_folder, precision);
    Trainer(got).train();
    if (!testing::plans_trivially()) {
      EXPECT_THAT(read_file(fs::path(got.train.output) / "plan.txt"),
                  HasSubstr("experts.activation on disk"));
    }
    expect_equal_runs(got, want);
  }
}

// The check of leaks runs forwards alone. On a disk this slow they begin reads for a backward that
// does not come, and the next forward takes the bytes that these reads were to fill.
TEST(DiskActivations, TrainBitForBitAfterForwardsWithoutABackward) {
  const TemporaryDirectory want_folder, got_folder;
  const testing::ScopedVariable cache("XDG_CACHE_HOME", got_folder.path() / "cache");
  RunConfig want = run_with_cold_activations(want_folder, "fp32");
  RunConfig got = run_with_cold_activations(got_folder, "fp32");
  for (RunConfig* run : {&want, &got}) {
    run->train.steps = run->train.gradient_accumulation_steps = 1;
    ASSERT_EQ(run->train.check_leak, "first");
  }
  want.memory.activations = "resident";
  want.memory.cold.clear();
  Trainer(want).train();
  store_disk_speed(swap_directory(got), {2e8, 2e8});
  Trainer(got, with_fault({.fault = Fault::kSlow, .delay = std::chrono::milliseconds(8)})).train();
  expect_equal_runs(got, want);
}

TEST(DiskActivations, StopTheRunWhereTheDiskGivesOtherBytes) {
  const TemporaryDirectory folder;
  RunConfig run = run_with_cold_activations(folder, "bf16");
  run.compiler.trivial_planners = false;
  std::string message = "no error";
  try {
    Trainer(run, with_fault({Fault::kFlip})).train();
  } catch (const ResourceError& error) {
    message = error.what();
  }
  EXPECT_THAT(message, AllOf(HasSubstr("[swap] file in " + run.train.output), HasSubstr("experts"),
                             HasSubstr("the disk returned other bytes")));
}

// Of 16 million parameters, whose moments are most of what a run holds.
RunConfig heavy_run(const TemporaryDirectory& folder) {
  RunConfig run =
      tiny_run(folder.path(),
               "\"hidden_size\": 256, \"intermediate_size\": 512, \"num_local_experts\": 8, "
               "\"num_hidden_layers\": 5");
  run.train.precision = "bf16";
  run.train.steps = 3;
  run.optimizer.update = "in_backward";
  run.memory.swap_slice = 1 << 20;
  run.compiler.trivial_planners = false;
  return run;
}

class BudgetedDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kIsSanitized) GTEST_SKIP() << "a sanitizer's own memory is none of the budget's";
    // What a plan leaves on disk depends on the disk's speed and the machine's. A disk that no step
    // hides makes it the same on every machine, however busy.
    constexpr plan::DiskSpeed kSlow{5e6, 5e6};
    store_disk_speed(swap_directory(run_), kSlow);
    ASSERT_TRUE(stored_disk_speed(run_).is_measured);
    whole_ = Trainer(resident_).train();
  }

  // Within `budget_bytes`, to the bits of the run that keeps everything in memory.
  TrainResult train_within(std::int64_t budget_bytes) {
    run_.memory.budget = budget_bytes;
    const TrainResult result = Trainer(run_).train();
    EXPECT_LE(result.planned_memory_bytes, budget_bytes);
    expect_equal_runs(run_, resident_);
    return result;
  }

  const TemporaryDirectory resident_folder_, folder_;
  // For this test alone: the slow disk is none of the next one's.
  const testing::ScopedVariable cache_{"XDG_CACHE_HOME", folder_.path() / "cache"};
  const RunConfig resident_ = heavy_run(resident_folder_);
  RunConfig run_ = heavy_run(folder_);
  TrainResult whole_;
};

TEST_F(BudgetedDisk, TrainsAModelWhoseResidentNeedsAreTwiceTheBudget) {
  if (!testing::has_optional_passes()) GTEST_SKIP() << "copies of weights take too much of it";
  const std::int64_t budget = whole_.planned_memory_bytes / 2;
  run_.memory.budget = budget;
  run_.memory.optimizer_state = "resident";
  EXPECT_THROW(Trainer(run_).train(), plan::BudgetError);
  run_.memory.optimizer_state = "auto";
  EXPECT_GT(train_within(budget).planned_memory_bytes, 0);
}

TEST_F(BudgetedDisk, LeavesInMemoryWhatThereIsRoomFor) {
  if (!testing::has_pass("slice_optimizer")) GTEST_SKIP() << "moments of a stack move as a whole";
  const std::int64_t budget = whole_.planned_memory_bytes * 3 / 4;
  EXPECT_GT(train_within(budget).planned_memory_bytes, budget * 9 / 10);
}

TEST(DiskSpeed, IsMeasuredOnceAndKept) {
  const TemporaryDirectory folder;
  const testing::ScopedVariable cache("XDG_CACHE_HOME", folder.path() / "cache");
  RunConfig run = run_in(folder, "fp32", "resident");
  measure_disk_once(run);  // which such a run does not need
  EXPECT_FALSE(stored_disk_speed(run).is_measured);
  EXPECT_THAT(stored_disk_speed(run).source, HasSubstr("not measured"));
  run.memory.optimizer_state = "disk";
  measure_disk_once(run);
  const DiskMeasurement measured = stored_disk_speed(run);
  EXPECT_TRUE(measured.is_measured);
  EXPECT_GT(measured.speed.read_bytes_per_second, 0);
  EXPECT_GT(measured.speed.written_bytes_per_second, 0);
  store_disk_speed(swap_directory(run), {5e6, 4e6});
  measure_disk_once(run);
  EXPECT_EQ(efficiency_of({}, run).disk.read_bytes_per_second, 5e6);
  EXPECT_EQ(efficiency_of({}, run).disk.written_bytes_per_second, 4e6);
  for (const auto& entry : fs::directory_iterator(folder.path() / "cache" / "anabatic"))
    write_file_atomically(entry.path(), "no measurement");
  EXPECT_FALSE(stored_disk_speed(run).is_measured);
  EXPECT_EQ(stored_disk_speed(run).speed.read_bytes_per_second,
            plan::DiskSpeed{}.read_bytes_per_second);
}

TEST(SwapPlace, IsTheNearestDirectoryUnlessItLiesInMemory) {
  const TemporaryDirectory folder;
  RunConfig run = run_in(folder, "fp32", "auto");
  run.memory.swap_directory = folder.path() / "not" / "there";
  EXPECT_EQ(find_swap_place(run).refusal, "");
  EXPECT_GT(find_swap_place(run).free_bytes, 0);
  if (!fs::exists("/dev/shm")) GTEST_SKIP() << "this system has no /dev/shm";
  run.memory.swap_directory = "/dev/shm/anabatic";
  EXPECT_THAT(find_swap_place(run).refusal,
              AllOf(HasSubstr("/dev/shm"), HasSubstr("memory"), HasSubstr("swap_directory")));
}

TEST(DiskState, ResumesFromResidentStateAndBack) {
  const TemporaryDirectory whole_folder;
  const RunConfig whole = run_in(whole_folder, "bf16", "resident");
  Trainer(whole).train();
  for (const bool begins_on_disk : {true, false}) {
    const TemporaryDirectory folder;
    RunConfig run = run_in(folder, "bf16", begins_on_disk ? "disk" : "resident");
    run.memory.swap_slice = 8192;
    run.memory.masters = begins_on_disk ? "disk" : "auto";
    run.train.save_every = 3;
    run.train.keep_last = 0;
    Trainer(run).train();
    anabatic::testing::go_back_to(run.train.output, 3);
    run.memory.optimizer_state = begins_on_disk ? "resident" : "disk";
    run.memory.masters = begins_on_disk ? "auto" : "disk";
    Trainer(run).train();
    expect_equal_runs(run, whole);
  }
}

TEST(DiskState, KeepsItsBitsOnASlowDiskThatMovesShortOfWhatIsAsked) {
  const TemporaryDirectory want_folder, got_folder;
  const RunConfig want = run_in(want_folder, "fp32", "resident", 2);
  Trainer(want).train();
  for (const Fault fault : {Fault::kSlow, Fault::kShort}) {
    RunConfig got = run_in(got_folder, "fp32", "disk", 2);
    got.train.resume = "never";
    Trainer(got, with_fault({fault})).train();
    expect_equal_runs(got, want);
  }
}

struct Case {
  FaultPlan plan;
  const char* found;
  const char* masters = "resident";
};

// Wherever the disk fails: the run ends before the step does, and a sound disk goes on from the
// last checkpoint to the bits of a run that never failed.
TEST(DiskState, StopsAtAFaultWithTheLastCheckpointWhole) {
  const TemporaryDirectory whole_folder;
  const RunConfig whole = run_in(whole_folder, "bf16", "resident");
  Trainer(whole).train();
  for (const auto& [plan, found, masters] :
       {Case{{Fault::kError, false, 150, EIO}, "Input/output error"},
        Case{{Fault::kError, true, 60, ENOSPC}, "No space left on device"},
        Case{{Fault::kFlip, false, 150}, "the disk returned other bytes"},
        Case{{Fault::kVanish, false, 150}, "then the end"},
        Case{{Fault::kFlip, false, 170}, "the disk returned other bytes", "disk"},
        Case{{Fault::kError, true, 80, ENOSPC}, "No space left on device", "disk"}}) {
    SCOPED_TRACE(fmt::format("{} {}", found, masters));
    const TemporaryDirectory folder;
    RunConfig run = run_in(folder, "bf16", "disk");
    run.train.save_every = 1;
    run.memory.masters = masters;
    std::string message = "no error";
    try {
      Trainer(run, with_fault(plan)).train();
    } catch (const ResourceError& error) {
      message = error.what();
    }
    EXPECT_THAT(message,
                AllOf(HasSubstr("[swap] file in " + run.train.output),
                      AnyOf(HasSubstr("_moment."), HasSubstr("low.")), HasSubstr("at offset"),
                      HasSubstr(found), HasSubstr("the run stops here, its last checkpoint is")));
    const auto latest = latest_checkpoint(run.train.output);
    ASSERT_TRUE(latest);
    EXPECT_LT(latest->filename(), checkpoint_name(run.train.steps));
    run.train.save_every = 0;
    Trainer(run).train();
    EXPECT_TRUE(checkpoint_bytes(*latest_checkpoint(run.train.output)) ==
                checkpoint_bytes(*latest_checkpoint(whole.train.output)));
  }
}

// A checkpoint is written from verified reads: a bad block stops it before it gets its name.
TEST(DiskState, WritesNoCheckpointFromBadBlocks) {
  const TemporaryDirectory folder;
  RunConfig run = run_in(folder, "fp32", "disk");
  run.train.steps = 1;
  run.train.save_every = 1;
  // The first step finds zeroes that were never written, so the first reads are the checkpoint's.
  EXPECT_THROW(Trainer(run, with_fault({Fault::kFlip})).train(), ResourceError);
  EXPECT_FALSE(latest_checkpoint(run.train.output));
}

TEST(DiskState, IsReadAndFilledInPartsOfAnyLayout) {
  const TemporaryDirectory folder;
  runtime::StateStore store;
  store.set_swap(std::make_unique<runtime::swap::SwapSpace>(
      runtime::swap::SwapOptions{.directory = folder.path()}));
  for (const char* text : {"f32[3,17,5]", "f32[3,17,5]@panels", "f32[2,40,70000]@panels",
                           "f32[70,100,400]@panels", "f32[2,1500,400]@panels",
                           "f32[17,33]@panels_transposed", "bf16[2,19,7]@panels", "f32[3000000]"}) {
    SCOPED_TRACE(text);
    const TensorType type = parse_tensor_type(text);
    const auto size = static_cast<std::size_t>(size_bytes(type.dtype));
    std::vector<std::byte> want(static_cast<std::size_t>(type.num_elements()) * size);
    for (std::size_t i = 0; i < want.size(); ++i) want[i] = static_cast<std::byte>(i * 7 % 251 + 1);
    for (const auto tier : {runtime::Tier::kMemory, runtime::Tier::kDisk}) {
      const Name name = intern(std::string(text) + (tier == runtime::Tier::kDisk ? " disk" : ""));
      store.add(name, type, tier);
      std::int64_t next = 0;
      fill_state(store, name, [&](std::int64_t first, std::span<std::byte> block) {
        EXPECT_EQ(first, next);
        next += static_cast<std::int64_t>(block.size() / size);
        std::copy_n(
            want.begin() + static_cast<std::ptrdiff_t>(first) * static_cast<std::ptrdiff_t>(size),
            block.size(), block.begin());
      });
      std::vector<std::byte> got;
      for_state_bytes(store, name, [&](std::span<const std::byte> block) {
        got.insert(got.end(), block.begin(), block.end());
      });
      EXPECT_TRUE(got == want);
    }
    // What is on disk are the bytes that memory holds.
    const TensorView resident = store.find(intern(text));
    std::vector<std::byte> stored(static_cast<std::size_t>(type.num_bytes()));
    store.swap()->read_bytes(store.region(intern(std::string(text) + " disk")), 0, stored);
    EXPECT_TRUE(std::equal(stored.begin(), stored.end(), resident.data));
  }
}

// The cursor against a map, in ranges that jump about, for lower 16 bits in memory, on disk, and in
// slices of either.
TEST(StateCursor, ReadsAndWritesHalvesWhereverTheyStand) {
  const TemporaryDirectory folder;
  runtime::StateStore store;
  store.set_swap(std::make_unique<runtime::swap::SwapSpace>(
      runtime::swap::SwapOptions{.directory = folder.path()}));
  const auto add_low = [&](const std::string& name, const std::vector<std::string>& types,
                           runtime::Tier tier) {
    spec::StatePart part{.role = StateRole::kLower, .owner = intern(name)};
    const TensorType& whole = *store.find(part.owner).type;
    for (std::size_t i = 0; i < types.size(); ++i) {
      const TensorType type = parse_tensor_type(types[i]);
      part.rows.total = whole.num_elements() / whole.dim(-1);
      part.rows.count = type.num_elements() / type.dim(-1);
      store.add(intern("low." + name + (types.size() > 1 ? fmt::format(".slice.{}", i) : "")), type,
                tier, part);
      part.rows.first += part.rows.count;
    }
  };
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases{
      {"bf16[37,16]", {"u16[37,16]"}},
      {"bf16[37,16]", {"u16[16,16]", "u16[21,16]"}},
      {"bf16[3,37,15]@panels", {"u16[3,37,15]@panels"}},
      {"bf16[3,37,15]@panels", {"u16[2,37,15]@panels", "u16[1,37,15]@panels"}},
      {"bf16[40,70000]@panels", {"u16[40,70000]@panels"}},
      {"bf16[2,37,15]@panels",
       {"u16[1,32,15]@panels", "u16[1,5,15]@panels", "u16[1,32,15]@panels", "u16[1,5,15]@panels"}}};
  for (const auto tier : {runtime::Tier::kMemory, runtime::Tier::kDisk})
    for (std::size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(fmt::format("{} {}", cases[i].second[0], static_cast<int>(tier)));
      const std::string text = fmt::format("w{}{}", i, tier == runtime::Tier::kDisk ? "d" : "");
      const Name name = intern(text);
      store.add(name, parse_tensor_type(cases[i].first));
      add_low(text, cases[i].second, tier);
      EXPECT_EQ(row_dtype(store, name), DType::kFloat32);
      const std::int64_t count = store.find(name).type->num_elements();
      std::vector<float> want(static_cast<std::size_t>(count));
      StateCursor cursor(store);
      cursor.write(name, 0, want);
      for (std::int64_t k = 0; k < 24; ++k) {
        const std::int64_t first = k * k * 1237 % count, most = 1 + k * 997 % count,
                           length = std::min(most, count - first);
        const std::span<float> part = std::span(want).subspan(static_cast<std::size_t>(first),
                                                              static_cast<std::size_t>(length));
        for (std::size_t j = 0; j < part.size(); ++j)
          part[j] = 1.0f / static_cast<float>(3 + 7 * k + static_cast<std::int64_t>(j));
        cursor.write(name, first, part);
        if (k % 5 == 0) cursor.flush();
      }
      cursor.flush();
      std::vector<float> got(want.size());
      StateCursor(store).read(name, 0, got);
      EXPECT_EQ(got, want);
      // What a checkpoint keeps, and a store that is filled from it.
      std::vector<std::byte> bytes;
      for_state_bytes(store, name, [&](std::span<const std::byte> block) {
        bytes.insert(bytes.end(), block.begin(), block.end());
      });
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), std::as_bytes(std::span(want)).begin()));
      std::fill(want.begin(), want.end(), 0.1f);
      fill_state(store, name, [&](std::int64_t first, std::span<std::byte> block) {
        const auto from =
            std::as_bytes(std::span(want))
                .subspan(static_cast<std::size_t>(first) * sizeof(float), block.size());
        std::copy(from.begin(), from.end(), block.begin());
      });
      StateCursor(store).read(name, 0, got);
      EXPECT_EQ(got, want);
    }
}

// As files have the matrices of experts: a piece of each parameter in turn, of more of them than
// the cursor has open, wherever upper and lower 16 bits are.
TEST(StateCursor, TakesParametersInTurn) {
  for (const auto& [upper, low] : {std::pair{runtime::Tier::kDisk, runtime::Tier::kDisk},
                                   std::pair{runtime::Tier::kDisk, runtime::Tier::kMemory},
                                   std::pair{runtime::Tier::kMemory, runtime::Tier::kDisk}})
    for (const std::size_t num_states : {std::size_t{3}, std::size_t{5}}) {
      const TemporaryDirectory folder;
      runtime::StateStore store;
      store.set_swap(std::make_unique<runtime::swap::SwapSpace>(
          runtime::swap::SwapOptions{.directory = folder.path()}));
      std::vector<Name> names;
      for (std::size_t i = 0; i < num_states; ++i) {
        names.push_back(intern(fmt::format("turn{}", i)));
        // The last is not split.
        const bool is_split = i + 1 < num_states;
        store.add(
            names.back(),
            parse_tensor_type(is_split ? "bf16[24,100,600]@panels" : "f32[24,100,600]@panels"),
            upper);
        if (is_split)
          store.add(intern(fmt::format("low.turn{}", i)),
                    parse_tensor_type("u16[24,100,600]@panels"), low,
                    {.role = StateRole::kLower, .owner = names.back()});
      }
      const auto value = [](std::size_t state, std::int64_t element) {
        return 1.0f / static_cast<float>(3 + element * 7 + static_cast<std::int64_t>(state));
      };
      constexpr std::int64_t kPiece = 100 * 600;
      std::vector<float> piece(kPiece);
      StateCursor writer(store), reader(store);
      for (std::int64_t matrix = 0; matrix < 24; ++matrix)
        for (std::size_t i = 0; i < num_states; ++i) {
          for (std::int64_t k = 0; k < kPiece; ++k)
            piece[static_cast<std::size_t>(k)] = value(i, matrix * kPiece + k);
          writer.write(names[i], matrix * kPiece, piece);
        }
      writer.flush();
      const std::int64_t before = store.swap()->stats().read_bytes;
      for (std::int64_t matrix = 0; matrix < 24; ++matrix)
        for (std::size_t i = 0; i < num_states; ++i) {
          reader.read(names[i], matrix * kPiece, piece);
          for (std::int64_t k = 0; k < kPiece; ++k)
            ASSERT_EQ(piece[static_cast<std::size_t>(k)], value(i, matrix * kPiece + k));
        }
      // Each block once, or twice where a part ends in it.
      if (num_states == 3 && upper == runtime::Tier::kDisk) {
        EXPECT_LE(store.swap()->stats().read_bytes - before, 3 * store.swap()->file_bytes());
      }
    }
}

}  // namespace
}  // namespace anabatic::train
