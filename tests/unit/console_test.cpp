// SPDX-License-Identifier: Apache-2.0
// What `train` shows of a run, on a terminal and elsewhere.
#include "cli/console.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "base/text.h"
#include "cli/progress.h"
#include "support/tiny_run.h"

namespace anabatic::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;

// A file that a console writes to.
class Output {
 public:
  Output() : file_(std::fopen((folder_.path() / "out").c_str(), "w")) {}
  ~Output() { std::fclose(file_); }
  std::FILE* file() { return file_; }
  std::string text() {
    std::fflush(file_);
    return read_file(folder_.path() / "out");
  }

 private:
  TemporaryDirectory folder_;
  std::FILE* file_;
};

std::int64_t fake_now = 0;
std::int64_t fake_clock() { return fake_now; }

std::vector<std::int64_t> shown(std::int64_t first, std::int64_t last, std::int64_t log_every) {
  std::vector<std::int64_t> steps;
  for (std::int64_t step = first; step <= last; ++step)
    if (is_shown(step, first, last, log_every)) steps.push_back(step);
  return steps;
}

TEST(Progress, ShowsEveryStepOfAShortRunAndFewOfALongOne) {
  EXPECT_THAT(shown(1, 8, 0), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_EQ(shown(1, 20, 0).size(), 20u);
  EXPECT_THAT(shown(1, 130, 0),
              ElementsAre(1, 2, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120, 130));
  EXPECT_THAT(shown(1, 7, 3), ElementsAre(1, 3, 6, 7));
  EXPECT_THAT(shown(501, 507, 100), ElementsAre(501, 507));
  for (const std::int64_t length : {21, 99, 1000, 1479, 31415, 2000000}) {
    for (const std::int64_t first : {std::int64_t{1}, std::int64_t{123457}}) {
      const auto steps = shown(first, first + length - 1, 0);
      EXPECT_EQ(steps.front(), first);
      EXPECT_EQ(steps.back(), first + length - 1);
      EXPECT_LE(steps.size(), 40u) << length;
      EXPECT_GE(steps.size(), 10u) << length;
      for (std::size_t i = 1; i < steps.size(); ++i)  // no long silence
        EXPECT_LE(steps[i] - steps[i - 1], length / 5) << length;
    }
  }
}

TEST(Progress, CountsHoursOnlyWhereThereAreSome) {
  EXPECT_EQ(format_duration(7.4), "0:07");
  EXPECT_EQ(format_duration(59.6), "1:00");
  EXPECT_EQ(format_duration(754), "12:34");
  EXPECT_EQ(format_duration(3723), "1:02:03");
  EXPECT_EQ(format_duration(100 * 3600), "100:00:00");
}

TEST(Console, ShowsElapsedAndRemainingTimeOnATerminal) {
  Output output;
  fake_now = 0;
  Console console(output.file(),
                  {.is_terminal = true, .columns = 80, .last_step = 40, .now = fake_clock});
  const auto second = [](int seconds) { fake_now = std::int64_t{1000000000} * seconds; };
  second(3);
  console.on_step({.step = 11, .steps = 40, .step_time_s = 3});
  EXPECT_THAT(output.text(), HasSubstr("[#####...............] 11/40  0:03 elapsed, 1:27 left | "));
  second(30);
  console.on_step({.step = 20, .steps = 40, .step_time_s = 3});
  const std::string text = output.text();
  const std::string last = text.substr(text.rfind('\r'));
  EXPECT_THAT(last, HasSubstr("[##########..........] 20/40  0:30 elapsed, 1:00 left | "));
  EXPECT_EQ(last.size(), std::string("\r\033[K").size() + 79);  // wraps nowhere
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST(Console, WritesMessagesBesideTheBarOfATerminal) {
  Output output;
  Console console(output.file(), {.is_terminal = true, .last_step = 2});
  console.on_step({.step = 1, .steps = 2});
  console.on_message(Severity::kWarning, "a message");
  console.on_step({.step = 2, .steps = 2});
  console.clear_bar();
  EXPECT_THAT(output.text(), HasSubstr("\r\033[Kwarning: a message\n[####################] 2/2"));
  EXPECT_THAT(output.text(), EndsWith("\r\033[K"));
}

TEST(Console, WritesPlainLinesThatFitElsewhere) {
  Output output;
  Console console(output.file(), {.last_step = 123456});
  StepMetrics metrics{
      .step = 123456,
      .steps = 123456,
      .loss = 10.1234,
      .grad_norm = 1.234,
      .learning_rate = 1e-3,
      .tokens_per_second = 12345,
      .mfu = 0.701,
      .experts = {{.layer = 0, .max_over_mean = 1.5}, {.layer = 1, .max_over_mean = 2.25}}};
  console.on_step(metrics);
  metrics.mfu.reset();
  console.on_step(metrics);
  metrics.experts.clear();
  metrics.step_time_s = 2;
  metrics.comm = {.bytes = 1 << 20, .busy_s = 0.3, .exposed_s = 0.5, .waited_for = 3};
  console.on_step(metrics);
  EXPECT_EQ(output.text(),
            "step 123456/123456 | loss 10.1234 | grad_norm 1.234 | lr 1.00e-03 | 12345 tokens/s | "
            "MFU 70.1 % | load 2.25\n"
            "step 123456/123456 | loss 10.1234 | grad_norm 1.234 | lr 1.00e-03 | 12345 tokens/s | "
            "MFU n/a | load 2.25\n"
            "step 123456/123456 | loss 10.1234 | grad_norm 1.234 | lr 1.00e-03 | 12345 tokens/s | "
            "MFU n/a | comm exposed 25.0 %, rank 3\n");
}

TEST(Console, NamesTheLargestConsumersAndTheFileWithAllOfThem) {
  const std::string text = plan_to_string({.peak_memory_bytes = 100 << 20,
                                           .memory = {{"optimizer state", 40 << 20},
                                                      {"parameters", 20 << 20},
                                                      {"gradients", 10 << 20},
                                                      {"packings", 10 << 20},
                                                      {"batches", 5 << 20}},
                                           .num_choices = 3,
                                           .step_seconds = 0.5,
                                           .price_source = "default prices",
                                           .text = "a long account",
                                           .file = "run/plan.txt"});
  EXPECT_EQ(text,
            "memory: predicted peak 100.00 MiB\n  of which optimizer state 40.00 MiB, parameters "
            "20.00 MiB, gradients 10.00 MiB, packings 10.00 MiB, other 20.00 MiB\n  3 values are "
            "not kept for the backward: recomputed, compressed or on disk\nstep: predicted 0.5 s "
            "(default prices); run/plan.txt lists every byte");
}

TEST(Console, EndsWithLossesMemoryAndFiles) {
  Output output;
  fake_now = 0;
  Console console(output.file(), {.last_step = 1, .output = "run", .now = fake_clock});
  console.on_step({.step = 1, .steps = 1, .step_time_s = 61});
  console.on_end({.step = 1,
                  .loss = 4.5,
                  .before = EvaluationSummary{.loss = 8.25},
                  .after = EvaluationSummary{.loss = 3.5},
                  .checkpoint = "run/step-00000001",
                  .planned_memory_bytes = 2 << 20,
                  .planned_step_seconds = 60,
                  .step_seconds = 61});
  const std::string text = output.text();
  EXPECT_EQ(text.substr(text.find('\n') + 1),
            "trained steps 1 to 1 in 1:01, loss of the last 4.5000\n"
            "validation loss 8.2500 before, 3.5000 after\n"
            "memory: predicted peak 2.00 MiB, measured peak unknown\n"
            "step: predicted 60 s, measured 61 s (median)\n"
            "model: run/step-00000001, which Hugging Face loads too\n"
            "metrics: run/metrics.jsonl and run/validation.jsonl; TensorBoard reads run\n");
}

TEST(Console, StopsARunByASignal) {
  Output output;
  Console console(output.file(), {.last_step = 1});
  EXPECT_FALSE(console.stop_requested());
  {
    const InterruptGuard interrupt;
    console.set_interrupt(interrupt);
    EXPECT_FALSE(console.stop_requested());
    ::raise(SIGTERM);
    EXPECT_TRUE(console.stop_requested());
  }
  const InterruptGuard next;  // of another run
  console.set_interrupt(next);
  EXPECT_FALSE(console.stop_requested());
}

}  // namespace
}  // namespace anabatic::cli
