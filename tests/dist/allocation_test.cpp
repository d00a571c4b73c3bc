// SPDX-License-Identifier: Apache-2.0
// Exchanges take nothing from the heap, on any rank, helper threads included.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <cstdint>

#include "comm/paced_transport.h"
#include "dist/exchange_program.h"
#include "dist/mpi_ranks.h"
#include "support/counted_allocations.h"
#include "support/own_code.h"

namespace anabatic::testing {
namespace {

using comm::Communicator;
using ::testing::Each;
using ::testing::IsEmpty;

constexpr std::uint64_t kExchanges = 40;

std::vector<std::unique_ptr<RankExchange>> exchanges_of(const Communicator& communicator) {
  std::vector<std::unique_ptr<RankExchange>> mine;
  for (std::uint64_t i = 0; i < kExchanges; ++i)
    mine.push_back(std::make_unique<RankExchange>(
        random_case(11, i, communicator.size(), i % 8 == 0 ? 9000 : 30), communicator.rank()));
  return mine;
}

void run_steps(Communicator& communicator, std::vector<std::unique_ptr<RankExchange>>& mine) {
  for (int step = 0; step < 3; ++step) {
    communicator.begin_step(1, step);
    for (std::uint32_t i = 0; i < kExchanges; ++i) {
      communicator.post(mine[i]->exchange(), mine[i]->workspace());
      if (i >= 5) communicator.await(i - 5);
    }
    for (std::uint32_t i = kExchanges - 5; i < kExchanges; ++i) communicator.await(i);
  }
}

// In the first round helper threads may still be starting, which takes blocks of the C library.
TEST(ExchangeAllocations, AreNone) {
  constexpr std::int32_t kRanks = 4;
  for (const bool is_paced : {false, true}) {
    RanksOptions options;
    if (is_paced)
      options.wrap = [](std::unique_ptr<comm::Transport> transport) {
        return comm::make_paced(std::move(transport), {{{"node", kRanks, {1e-6, 8e9}}}});
      };
    std::barrier barrier(kRanks);
    long allocated = -1;
    EXPECT_THAT(run_ranks(kRanks, options,
                          [&](Communicator& communicator) {
                            auto mine = exchanges_of(communicator);
                            run_steps(communicator, mine);
                            barrier.arrive_and_wait();
                            const long before = num_allocations;
                            run_steps(communicator, mine);
                            barrier.arrive_and_wait();
                            if (communicator.rank() == 0) allocated = num_allocations - before;
                            barrier.arrive_and_wait();
                          }),
                Each(IsEmpty()));
    EXPECT_EQ(allocated, 0);
  }
}

#ifndef ANABATIC_IS_SANITIZED
class MpiAllocations : public ::testing::TestWithParam<comm::MpiWorld*> {};

// The first round finds how many messages are under way at once.
TEST_P(MpiAllocations, AreNoneOfOurs) {
  find_own_code();
  RanksOptions options;
  options.mpi = GetParam();
  long before = 0, made = 0;
  EXPECT_THAT(run_ranks(GetParam()->size(), options,
                        [&](Communicator& communicator) {
                          auto mine = exchanges_of(communicator);
                          run_steps(communicator, mine);
                          counts_caller = is_own;
                          before = num_allocations;
                          const auto block = std::make_unique<int>(1);
                          made = num_allocations - before;
                          before = num_allocations;
                          run_steps(communicator, mine);
                          before = num_allocations - before;
                          counts_caller = nullptr;
                        }),
              Each(IsEmpty()));
  EXPECT_EQ(made, 1);  // it counts
  EXPECT_EQ(before, 0);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MpiAllocations);
INSTANTIATE_TEST_SUITE_P(World, MpiAllocations, ::testing::ValuesIn(mpi_worlds()));
#endif

}  // namespace
}  // namespace anabatic::testing
