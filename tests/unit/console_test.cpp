// SPDX-License-Identifier: Apache-2.0
// What `train` shows of a run, on a terminal and elsewhere.
#include "cli/console.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "base/text.h"
#include "support/tiny_run.h"

namespace anabatic::cli {
namespace {

using ::testing::HasSubstr;
using testing::TemporaryDirectory;

// A file that a console writes to.
class Output {
 public:
  Output() : file_(std::fopen((folder_.path() / "out").c_str(), "w")) {}
  ~Output() { std::fclose(file_); }
  std::FILE* file() { return file_; }
  std::string text() { return read_file(folder_.path() / "out"); }

 private:
  TemporaryDirectory folder_;
  std::FILE* file_;
};

TEST(ConsoleLine, SaysThatAPeakIsUnknownWhereTheSystemDoesNotTell) {
  StepMetrics metrics{.step = 1, .steps = 2, .planned_memory_bytes = 1 << 20};
  EXPECT_THAT(console_line(metrics), HasSubstr("| memory unknown/1.00 MiB"));
  metrics.peak_memory_bytes = 3 << 20;
  EXPECT_THAT(console_line(metrics), HasSubstr("| memory 3.00 MiB/1.00 MiB"));
}

TEST(Console, WritesMessagesBesideTheBarOfATerminal) {
  Output output;
  Console console(output.file(), true, 1);
  console.on_step({.step = 1, .steps = 2});
  console.on_message(Severity::kWarning, "a message");
  console.on_step({.step = 2, .steps = 2});
  const std::string text = output.text();
  EXPECT_THAT(text, HasSubstr("[##########..........] step 1/2"));
  EXPECT_THAT(text, HasSubstr("\r\033[Kwarning: a message\n[####################] step 2/2"));
  EXPECT_EQ(text.back(), '\n');
}

TEST(Console, StopsARunByASignal) {
  Output output;
  Console console(output.file(), false, 1);
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
