// SPDX-License-Identifier: Apache-2.0
#include "report/windows.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "unit/io/test_files.h"

namespace anabatic::report {
namespace {

using io::TempDirectory;
using io::write_text;

TEST(Windows, GiveEachExpertsShareOfItsLayer) {
  const TempDirectory directory;
  write_text(directory / "w",
             "{\"step\":2,\"first_step\":1,\"experts\":{\"1\":[3,1],\"10\":[0,0]}}\n"
             "{\"step\":4,\"first_step\":3,\"experts\":{\"1\":[1,1],\"10\":[2,6]}}\n");
  Windows windows;
  EXPECT_EQ(windows.read(directory / "w"), 0);
  const OrderedJson json = windows.experts_json();
  EXPECT_EQ(json["columns"], parse_json("[[1,2],[3,4]]"));
  EXPECT_EQ(json["layers"]["1"], parse_json("[[150,50],[100,100]]"));
  EXPECT_EQ(json["layers"]["10"], parse_json("[[0,0],[50,150]]"));
  EXPECT_EQ(windows.times_json(), nullptr);
  EXPECT_EQ(windows.memory_json(), nullptr);
}

TEST(Windows, SumNeighboursWhereTheyAreTooMany) {
  const TempDirectory directory;
  std::string text;
  for (int step = 1; step <= 480; ++step)
    text += fmt::format("{{\"step\":{},\"experts\":{{\"0\":[{},8]}}}}\n", step, step % 2 ? 0 : 8);
  write_text(directory / "w", text);
  Windows windows;
  windows.read(directory / "w");
  const OrderedJson json = windows.experts_json(1);
  EXPECT_EQ(json["columns"].size(), 24u);
  EXPECT_EQ(json["columns"][1], parse_json("[21,40]"));
  EXPECT_EQ(json["layers"]["0"][1], parse_json("[67,133]"));
}

TEST(Windows, KeepTimesAndTheLastLookAtMemory) {
  const TempDirectory directory;
  write_text(directory / "w",
             "{\"step\":1,\"time\":{\"step\":1,\"outside_seconds\":0.5,\"segments\":{\"a\":1}},"
             "\"memory\":{\"step\":1}}\n"
             "{\"step\":2,\"time\":{\"step\":2,\"segments\":{\"a\":2,\"b\":3}},"
             "\"memory\":{\"step\":2}}\n");
  Windows windows;
  windows.read(directory / "w");
  EXPECT_EQ(parse_json(show_json(windows.times_json())),
            parse_json("{\"steps\":[1,2],\"seconds\":{\"a\":[1,2],\"b\":[0,3]},"
                       "\"outside\":[0.5,0]}"));
  EXPECT_EQ(windows.memory_json()["step"], 2);
}

TEST(Windows, LeaveOutWhatIsNoWindow) {
  const TempDirectory directory;
  write_text(directory / "w",
             "{\"step\":1,\"experts\":{\"0\":[1,1]}}\nrubbish\n"
             "{\"step\":2,\"experts\":{\"0\":[1,\"x\"]},\"time\":3}\n"
             "{\"step\":3,\"experts\":{\"0\":[1,2,3]}}\n{\"step\":4,\"experts\":{\"0\":[1,");
  Windows windows;
  EXPECT_EQ(windows.read(directory / "w"), 1);
  EXPECT_EQ(windows.experts_json()["columns"].size(), 1u);
}

}  // namespace
}  // namespace anabatic::report
