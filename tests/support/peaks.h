// SPDX-License-Identifier: Apache-2.0
// The peak of memory of a run of the binary, next to what it predicted.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/text.h"
#include "support/run_binary.h"

namespace anabatic::testing {

struct Peaks {
  std::int64_t predicted = 0, measured = 0;
};

// Reads the last line "memory: predicted peak 263.03 MiB, measured peak 284.93 MiB".
inline Peaks peaks_of(const std::vector<std::string>& arguments) {
  const Outcome outcome = run_binary(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto after = [&](const std::string& lead) {
    const auto at = outcome.out.rfind(lead);
    if (at == std::string::npos) return std::int64_t{0};
    const std::string rest = outcome.out.substr(at + lead.size());
    return parse_bytes(rest.substr(0, rest.find_first_of(",\n"))).value_or(0);
  };
  const Peaks peaks{after("memory: predicted peak "), after("measured peak ")};
  EXPECT_GT(peaks.predicted, 0) << outcome.out;
  EXPECT_GT(peaks.measured, 0) << outcome.out;
  return peaks;
}

}  // namespace anabatic::testing
