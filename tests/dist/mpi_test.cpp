// SPDX-License-Identifier: Apache-2.0
// Ranks as processes: the bits of ranks as threads, and errors that reach all of them. Every
// process runs every test; outside mpirun there is none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "base/philox.h"
#include "comm/mpi_blocking.h"
#include "dist/exchange_program.h"
#include "dist/mpi_ranks.h"
#include "support/faulty_transport.h"

namespace anabatic::testing {
namespace {

using comm::Communicator;
using comm::ExchangeKind;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class MpiRanks : public ::testing::TestWithParam<comm::MpiWorld*> {
 protected:
  RanksOptions options(double patience = 60) const {
    RanksOptions result;
    result.communicator.patience_seconds = patience;
    result.mpi = GetParam();
    return result;
  }
  std::vector<std::string> run(const RanksOptions& options,
                               const std::function<void(Communicator&)>& body) const {
    return run_ranks(GetParam()->size(), options, body);
  }
};

// Sums of values that do not add exactly: of each rank's part, and of all parts.
class Sums {
 public:
  Sums(std::int32_t rank, std::int32_t num_ranks, DType dtype, std::uint64_t seed,
       std::int64_t num_values)
      : dtype_(dtype),
        counts_(comm::even_counts(num_values, num_ranks)),
        bytes_(static_cast<std::size_t>(num_values * size_bytes(dtype))),
        workspace_(std::max(comm::workspace_bytes(num_ranks),
                            comm::workspace_bytes(num_ranks, comm::Method::kMpi))) {
    for (std::int32_t each = 0; each < num_ranks; ++each) group_.push_back(each);
    std::int64_t before = 0;
    for (std::int32_t each = 0; each < rank; ++each)
      before += counts_[static_cast<std::size_t>(each)];
    own_first_ = static_cast<std::size_t>(before * size_bytes(dtype));
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(num_values); ++i) {
      const auto value = static_cast<float>(
          random_normal(seed, static_cast<std::uint64_t>(rank), i % 991 + i / 991));
      const BFloat16 half = to_bfloat16(value);
      if (dtype == DType::kBFloat16)
        std::memcpy(bytes_.data() + 2 * i, &half, 2);
      else
        std::memcpy(bytes_.data() + 4 * i, &value, 4);
    }
  }
  comm::Exchange exchange(ExchangeKind kind, comm::Method method = comm::Method::kOrdered) {
    const bool is_scatter = kind == ExchangeKind::kReduceScatter;
    return {.kind = kind,
            .method = method,
            .group = group_,
            .counts = counts_,
            .row_bytes = size_bytes(dtype_),
            .dtype = dtype_,
            .input = bytes_.data() + (kind == ExchangeKind::kAllGather ? own_first_ : 0),
            .output = bytes_.data() + (is_scatter ? own_first_ : 0),
            .label = "sums"};
  }
  std::span<std::byte> workspace() { return workspace_.span(); }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  DType dtype_;
  std::vector<std::int32_t> group_;
  std::vector<std::int64_t> counts_;
  std::vector<std::byte> bytes_;
  AlignedBytes workspace_;
  std::size_t own_first_ = 0;
};

std::vector<std::byte> sums_of(Communicator& communicator, ExchangeKind kind, DType dtype) {
  Sums sums(communicator.rank(), communicator.size(), dtype, 17, 200'003);
  or_abort(communicator, [&] {
    communicator.begin_step(1, 1);
    communicator.await(communicator.post(sums.exchange(kind), sums.workspace()));
  });
  return sums.bytes();
}

TEST_P(MpiRanks, SumToTheBitsOfThreads) {
  const auto num_ranks = static_cast<std::size_t>(GetParam()->size());
  const auto me = static_cast<std::size_t>(GetParam()->rank());
  for (const auto kind : {ExchangeKind::kAllReduce, ExchangeKind::kReduceScatter})
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      std::vector<std::vector<std::byte>> of_threads(num_ranks);
      std::vector<std::byte> of_processes;
      EXPECT_THAT(run_ranks(GetParam()->size(), {},
                            [&](Communicator& communicator) {
                              of_threads[static_cast<std::size_t>(communicator.rank())] =
                                  sums_of(communicator, kind, dtype);
                            }),
                  Each(IsEmpty()));
      EXPECT_THAT(run(options(),
                      [&](Communicator& communicator) {
                        of_processes = sums_of(communicator, kind, dtype);
                      }),
                  Each(IsEmpty()));
      EXPECT_TRUE(of_processes == of_threads[me]) << to_string(kind) << " of " << to_string(dtype);
    }
}

// Rank 1 posts long after the others. Which kinds need buffers: sums, and rows by an index.
TEST_P(MpiRanks, WaitForBuffersInTheOrderOfPosts) {
  constexpr std::size_t kExchanges = 30;  // more than there are buffers for
  const auto n = static_cast<std::size_t>(GetParam()->size());
  std::vector<ExchangeCase> cases;
  for (std::size_t i = 0; i < kExchanges; ++i) {
    ExchangeCase& each = cases.emplace_back();
    each = {.kind = i % 3 == 0   ? ExchangeKind::kAllReduce
                    : i % 3 == 1 ? ExchangeKind::kReduceScatter
                                 : ExchangeKind::kExchangeRows,
            .row_elements = 250,
            .seed = i};
    for (std::int32_t rank = 0; rank < GetParam()->size(); ++rank) each.group.push_back(rank);
    each.by_index = each.kind == ExchangeKind::kExchangeRows;
    each.in_place = !each.by_index && i % 2 == 0;
    if (each.by_index) each.to_from.assign(n, std::vector<std::int64_t>(n, 600));
    if (!each.by_index) each.counts.assign(n, 600);
  }
  const auto body = [&](Communicator& communicator) {
    std::vector<std::unique_ptr<RankExchange>> mine;
    for (const ExchangeCase& each : cases)
      mine.push_back(std::make_unique<RankExchange>(each, communicator.rank()));
    or_abort(communicator, [&] {
      communicator.begin_step(1, 1);
      for (const auto& each : mine) {
        communicator.post(each->exchange(), each->workspace());
        if (communicator.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      for (std::size_t i = kExchanges; i > 0; --i) {
        communicator.await(static_cast<std::uint32_t>(i - 1));
        if (const auto text = mine[i - 1]->difference(); !text.empty())
          throw std::logic_error(text);
      }
    });
  };
  EXPECT_THAT(run(options(), body), Each(IsEmpty()));
}

// MPI sends so few at once. What it waits to send when an error comes stays open for ever, and a
// process with open requests cannot end MPI.
constexpr std::int64_t kFew = 100;

void sum_twice(Communicator& communicator, std::uint64_t plan = 1) {
  Sums first(communicator.rank(), communicator.size(), DType::kFloat32, 1, kFew);
  Sums second(communicator.rank(), communicator.size(), DType::kFloat32, 2, kFew);
  or_abort(communicator, [&] {
    communicator.begin_step(plan, 4);
    communicator.post(first.exchange(ExchangeKind::kAllReduce), first.workspace());
    communicator.await(0);
    if (communicator.rank() == 1 && plan == 0xFA11) throw std::runtime_error("rank 1: disk full");
    communicator.post(second.exchange(ExchangeKind::kAllReduce), second.workspace());
    communicator.await(1);
  });
}

TEST_P(MpiRanks, ThatThrowEndTheOthersWithTheirText) {
  EXPECT_THAT(run(options(), [](Communicator& communicator) { sum_twice(communicator, 0xFA11); }),
              ElementsAre("rank 1: disk full"));
}

TEST_P(MpiRanks, OfDifferentPlansAreReported) {
  EXPECT_THAT(
      run(options(),
          [](Communicator& communicator) {
            sum_twice(communicator, communicator.rank() == 0 ? 0xA : 0xB);
          }),
      ElementsAre(AllOf(HasSubstr("plan 000000000000000a"), HasSubstr("plan 000000000000000b"),
                        HasSubstr("exchange 0 of step 4"))));
}

// MPI itself gathers them without a word. It does so in one round, and nobody looks at it before
// all have posted, so that no request stays open. Neighbours in a group differ.
TEST_P(MpiRanks, OfDifferentPlansAreReportedOfMpiRows) {
  RanksOptions options = this->options();
  options.communicator.has_helper = false;
  options.transport.groups.emplace_back();
  for (std::int32_t rank = 0; rank < GetParam()->size(); ++rank)
    options.transport.groups.front().push_back(rank);
  const auto body = [](Communicator& communicator) {
    Sums sums(communicator.rank(), communicator.size(), DType::kFloat32, 1, kFew);
    or_abort(communicator, [&] {
      communicator.begin_step(communicator.rank() % 2 == 0 ? 0xA : 0xB, 4);
      const std::uint32_t number = communicator.post(
          sums.exchange(ExchangeKind::kAllGather, comm::Method::kMpi), sums.workspace());
      comm::mpi_barrier();
      communicator.await(number);
    });
  };
  EXPECT_THAT(run(options, body), ElementsAre(AllOf(HasSubstr("plan 000000000000000a"),
                                                    HasSubstr("plan 000000000000000b"),
                                                    HasSubstr("exchange 0 of step 4"))));
}

TEST_P(MpiRanks, ReportAMessageUnderAnotherNumber) {
  RanksOptions options = this->options();
  options.wrap = [](std::unique_ptr<comm::Transport> transport) {
    const bool is_bad = transport->rank() == 1;
    return std::make_unique<FaultyTransport>(
        std::move(transport),
        NetworkFaultPlan{.fault = is_bad ? NetworkFault::kWrongNumber : NetworkFault::kNone});
  };
  EXPECT_THAT(run(options, [](Communicator& communicator) { sum_twice(communicator); }),
              ElementsAre(AllOf(HasSubstr("rank 1 is at exchange 1 of step 4"),
                                HasSubstr("rank 0 at exchange 0 of step 4"), HasSubstr("sums"))));
}

// Rank 0 never posts the second one. It hears of the others' end while it computes.
TEST_P(MpiRanks, ThatStopEndThePatienceOfTheOthers) {
  EXPECT_THAT(
      run(options(0.3),
          [](Communicator& communicator) {
            Sums first(communicator.rank(), communicator.size(), DType::kFloat32, 1, kFew);
            Sums second(communicator.rank(), communicator.size(), DType::kFloat32, 2, kFew);
            or_abort(communicator, [&] {
              communicator.begin_step(1, 4);
              communicator.await(
                  communicator.post(first.exchange(ExchangeKind::kAllReduce), first.workspace()));
              if (communicator.rank() == 0)
                std::this_thread::sleep_for(std::chrono::milliseconds(900));
              communicator.await(
                  communicator.post(second.exchange(ExchangeKind::kAllReduce), second.workspace()));
            });
          }),
      ElementsAre(AllOf(HasSubstr("waited 0.3 s for exchange 1 of step 4 (all_reduce of sums)"),
                        HasSubstr("nothing came from rank 0"))));
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MpiRanks);
INSTANTIATE_TEST_SUITE_P(World, MpiRanks, ::testing::ValuesIn(mpi_worlds()));

}  // namespace
}  // namespace anabatic::testing
