// SPDX-License-Identifier: Apache-2.0
// Damaged graph text: an InvalidArgument or a graph that prints stably; never a crash, never memory
// beyond a small multiple of the text.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "anabatic/error.h"
#include "base/philox.h"
#include "ir/graph.h"
#include "ops/table.h"
#include "support/sanitized.h"
#include "unit/ir/fake_ops.h"
#include "unit/ir/random_graph.h"

namespace anabatic::ir {
namespace {

constexpr const char* kMoe = R"(graph "moe"
  batch %0 "x": bf16[4,8]
  batch %1 "logits": f32[4,3]
  batch %2 "places": i32[4]
  state %3 "experts": bf16[3,6,8]  parameter
  state %4 "cache": bf16[16,8]  cache -> %16
  %5: f32[4,2], %6: i32[4,2], %7: f32[4,3], %8: f32[3], %9: f32[3] = router(%1)  {normalize=true, top_k=2}  forward layer=0 segment=router
  %10: i32[8], %11: i32[8], %12: i32[4] = route_sort(%6)  {num_experts=3}  forward layer=0 segment=dispatch
  %13: bf16[8,8] = permute(%0, %10)  {top_k=2}  forward layer=0 segment=dispatch
  %14: bf16[8,6] = grouped_linear(%13, %3, %12)  forward layer=0 segment=experts
  %15 "out": bf16[4,6] = unpermute(%14, %5, %11)  forward layer=0 segment=combine
  %16: bf16[16,8] = cache_write(%4, %0, %2)  forward
  output %15
)";

// AddressSanitizer keeps freed memory aside, 256 MiB by default.
const long kLimitKilobytes = (testing::kIsSanitized ? 512 : 64) * 1024;

struct Outcome {
  int accepted = 0, refused = 0;
  void add(const std::string& text, FindOp find_op) {
    std::string printed;
    try {
      printed = print(parse(text, find_op));
    } catch (const InvalidArgument&) {
      ++refused;
      return;
    }
    ++accepted;
    ASSERT_EQ(print(parse(printed, find_op)), printed) << text;
  }
};

long peak_kilobytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

std::vector<std::pair<std::string, FindOp>> corpus() {
  return {{kMoe, ops::find_op},
          {print(random_graph(1, 12)), find_fake_op},
          {print(random_graph(2, 12)), find_fake_op}};
}

TEST(GraphTextFuzz, TheCorpusItselfIsSound) {
  Outcome outcome;
  for (const auto& [text, find_op] : corpus()) outcome.add(text, find_op);
  EXPECT_EQ(outcome.accepted, 3);
}

TEST(GraphTextFuzz, TruncatedAnywhere) {
  Outcome outcome;
  for (const auto& [text, find_op] : corpus())
    for (std::size_t length = 0; length < text.size(); ++length)
      outcome.add(text.substr(0, length), find_op);
  EXPECT_GT(outcome.accepted, 0);  // cut between two items
  EXPECT_GT(outcome.refused, 1000);
}

TEST(GraphTextFuzz, FlippedBits) {
  Outcome outcome;
  for (const auto& [text, find_op] : corpus()) {
    for (std::uint64_t round = 0; round < 3000; ++round) {
      std::string damaged = text;
      for (std::uint64_t flip = 0; flip <= round % 3; ++flip) {
        const std::uint64_t at = random_below(11, round, 2 * flip, damaged.size());
        damaged[at] =
            static_cast<char>(damaged[at] ^ (1 << random_below(11, round, 2 * flip + 1, 8)));
      }
      outcome.add(damaged, find_op);
    }
  }
  EXPECT_GT(outcome.accepted, 0);  // a letter of a name
  EXPECT_GT(outcome.refused, 1000);
}

TEST(GraphTextFuzz, PiecesMovedAndDoubled) {
  Outcome outcome;
  for (const auto& [text, find_op] : corpus()) {
    for (std::uint64_t round = 0; round < 1000; ++round) {
      const std::uint64_t from = random_below(12, round, 0, text.size());
      const std::uint64_t length = random_below(12, round, 1, 40);
      const std::uint64_t to = random_below(12, round, 2, text.size());
      std::string damaged = text;
      damaged.insert(to, text.substr(from, length));
      outcome.add(damaged, find_op);
    }
  }
  EXPECT_GT(outcome.refused, 1000);
}

std::string replaced(const std::string& text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.substr(0, at) + to + text.substr(at + from.size());
}

TEST(GraphTextFuzz, AbsurdSizes) {
  const long before = peak_kilobytes();
  Outcome outcome;
  const std::string text = kMoe;
  for (const char* number :
       {"-1", "4294967295", "4294967296", "1099511627776", "4611686018427387904",
        "9223372036854775807", "9223372036854775808", "99999999999999999999999999"}) {
    const std::string n = number;
    for (const std::string& damaged : {replaced(text, "%0 \"x\"", "%" + n + " \"x\""),
                                       replaced(text, "bf16[4,8]", "bf16[4," + n + "]"),
                                       replaced(text, "i32[4]", "i32[" + n + "," + n + "]"),
                                       replaced(text, "bf16[3,6,8]", "bf16[" + n + ",6,8]"),
                                       replaced(text, "top_k=2", "top_k=" + n),
                                       replaced(text, "num_experts=3", "num_experts=" + n),
                                       replaced(text, "layer=0", "layer=" + n)})
      outcome.add(damaged, ops::find_op);
  }
  EXPECT_GT(outcome.refused, 30);
  EXPECT_LT(peak_kilobytes() - before, kLimitKilobytes);
}

TEST(GraphTextFuzz, LongRunsOfOneThing) {
  const long before = peak_kilobytes();
  Outcome outcome;
  const std::size_t length = 200000;
  for (const std::string piece : {"(", "[", "{", "\"", "\\", "%", "#", ",", "%0", "graph ", "1,"})
    for (const char* head :
         {"graph \"g\"\n", "graph \"g\"\n%0: f32[", "graph \"g\" %0: f32[] = fill("}) {
      std::string text = head;
      while (text.size() < length) text += piece;
      outcome.add(text, ops::find_op);
    }
  EXPECT_GT(outcome.refused, 30);
  EXPECT_LT(peak_kilobytes() - before, kLimitKilobytes);
}

}  // namespace
}  // namespace anabatic::ir
