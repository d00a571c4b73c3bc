// SPDX-License-Identifier: Apache-2.0
// Exchanges take nothing from the heap, on any rank, helper threads included.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>

#include "comm/paced_transport.h"
#include "dist/exchange_program.h"
#include "support/counted_allocations.h"

namespace anabatic::testing {
namespace {

using comm::Communicator;
using ::testing::Each;
using ::testing::IsEmpty;

TEST(ExchangeAllocations, AreNone) {
  constexpr std::int32_t kRanks = 4;
  constexpr std::uint64_t kExchanges = 40;
  for (const bool is_paced : {false, true}) {
    RanksOptions options;
    if (is_paced)
      options.wrap = [](std::unique_ptr<comm::Transport> transport) {
        return comm::make_paced(std::move(transport), {{{"node", kRanks, {1e-6, 8e9}}}});
      };
    std::barrier barrier(kRanks);
    long allocated = -1;
    EXPECT_THAT(
        run_ranks(kRanks, options,
                  [&](Communicator& communicator) {
                    std::vector<std::unique_ptr<RankExchange>> mine;
                    for (std::uint64_t i = 0; i < kExchanges; ++i)
                      mine.push_back(std::make_unique<RankExchange>(
                          random_case(11, i, kRanks, i % 8 == 0 ? 9000 : 30), communicator.rank()));
                    barrier.arrive_and_wait();
                    const long before = num_allocations;
                    for (int step = 0; step < 3; ++step) {
                      communicator.begin_step(1, step);
                      for (std::uint32_t i = 0; i < kExchanges; ++i) {
                        communicator.post(mine[i]->exchange(), mine[i]->workspace());
                        if (i >= 5) communicator.await(i - 5);
                      }
                      for (std::uint32_t i = kExchanges - 5; i < kExchanges; ++i)
                        communicator.await(i);
                    }
                    barrier.arrive_and_wait();
                    if (communicator.rank() == 0) allocated = num_allocations - before;
                    barrier.arrive_and_wait();
                  }),
        Each(IsEmpty()));
    EXPECT_EQ(allocated, 0);
  }
}

}  // namespace
}  // namespace anabatic::testing
