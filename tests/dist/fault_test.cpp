// SPDX-License-Identifier: Apache-2.0
// Every failure ends all ranks within a bound, with a text that says who and what.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/philox.h"
#include "comm/wire.h"
#include "support/faulty_transport.h"
#include "support/ranks.h"

namespace anabatic::testing {
namespace {

using comm::Communicator;
using comm::ExchangeKind;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

double seconds_of(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// all_gathers of a rank's own bytes among all, posted at once and awaited in turn.
class Gathers {
 public:
  Gathers(const Communicator& communicator, int count, std::int64_t rows = 100)
      : rows_(rows), rank_(communicator.rank()) {
    for (std::int32_t rank = 0; rank < communicator.size(); ++rank) group_.push_back(rank);
    counts_.assign(group_.size(), rows);
    for (int i = 0; i < count; ++i)
      parts_.push_back(
          {std::vector<std::byte>(static_cast<std::size_t>(rows), std::byte(16 * i + rank_)),
           std::vector<std::byte>(static_cast<std::size_t>(rows) * group_.size()),
           AlignedBytes(comm::workspace_bytes(communicator.size()))});
  }
  std::uint32_t post(Communicator& communicator, std::size_t which) {
    Part& part = parts_[which];
    return communicator.post({.kind = ExchangeKind::kAllGather,
                              .group = group_,
                              .counts = counts_,
                              .row_bytes = 1,
                              .input = part.input.data(),
                              .output = part.output.data(),
                              .label = "layers.3.experts"},
                             part.workspace.span());
  }
  void run(Communicator& communicator) {
    or_abort(communicator, [&] { post_and_await(communicator); });
  }

 private:
  void post_and_await(Communicator& communicator) {
    communicator.begin_step(0xABC, 5);
    for (std::size_t i = 0; i < parts_.size(); ++i) post(communicator, i);
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      communicator.await(static_cast<std::uint32_t>(i));
      for (std::size_t at = 0; at < parts_[i].output.size(); ++at)
        if (parts_[i].output[at] != std::byte(16 * i + at / static_cast<std::size_t>(rows_)))
          throw std::logic_error("other bytes");
    }
  }

  struct Part {
    std::vector<std::byte> input, output;
    AlignedBytes workspace;
  };
  std::int64_t rows_;
  std::int32_t rank_;
  std::vector<std::int32_t> group_;
  std::vector<std::int64_t> counts_;
  std::vector<Part> parts_;
};

constexpr int kGathers = 4;

// Rank 1's network has the fault.
std::vector<std::string> run_with(NetworkFaultPlan plan, double patience = 60) {
  RanksOptions options;
  options.communicator.patience_seconds = patience;
  options.wrap = [plan](std::unique_ptr<comm::Transport> transport) {
    NetworkFaultPlan mine = plan;
    if (transport->rank() != 1) mine.fault = NetworkFault::kNone;
    return std::make_unique<FaultyTransport>(std::move(transport), mine);
  };
  return run_ranks(3, options, [](Communicator& communicator) {
    Gathers(communicator, kGathers).run(communicator);
  });
}

TEST(NetworkFaults, DelayedMessagesArrive) {
  EXPECT_THAT(run_with({.fault = NetworkFault::kDelay, .after = 1, .count = 5}), Each(IsEmpty()));
}

// What ranks 1 and `receiver` end with, at once; the third one may have all it needs before that.
void expect_at_once(NetworkFaultPlan plan, std::size_t receiver, const std::string& sent,
                    const std::string& expected) {
  std::vector<std::string> errors;
  const double seconds = seconds_of([&] { errors = run_with(plan); });
  EXPECT_LT(seconds, 5);
  EXPECT_EQ(errors[1], errors[receiver]);
  EXPECT_THAT(errors[1],
              AllOf(HasSubstr(sent), HasSubstr(expected), HasSubstr("layers.3.experts")));
}

TEST(NetworkFaults, AReorderedMessageIsReportedWithBothNumbers) {
  expect_at_once({.fault = NetworkFault::kReorder, .after = 2}, 0,
                 "rank 1 is at exchange 2 of step 5", "rank 0 at exchange 1 of step 5");
}

TEST(NetworkFaults, AMessageUnderAnotherNumberIsReportedAtOnce) {
  expect_at_once({.fault = NetworkFault::kWrongNumber, .after = 3}, 2,
                 "rank 1 is at exchange 2 of step 5", "rank 2 at exchange 1 of step 5");
}

// Bits of a header flip, one to four of them: no other message is ever taken for the expected one.
TEST(NetworkFaults, AnyOtherHeaderIsRefused) {
  comm::Incoming expected{.peer = 1,
                          .header = {.plan = 0xABC,
                                     .step = 5,
                                     .number = 3,
                                     .kind = ExchangeKind::kReduceScatter,
                                     .bytes = 4096}};
  constexpr std::int64_t kMostPieceBytes = 1 << 19;
  comm::Wire good = comm::to_wire(expected.header);
  good.piece_bytes = kMostPieceBytes;
  EXPECT_NO_THROW(comm::check_wire(good, expected, 0, kMostPieceBytes));
  int num_refused = 0;
  constexpr std::uint64_t kRounds = 20'000;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    comm::Wire wire = good;
    const auto bytes = std::as_writable_bytes(std::span(&wire, 1));
    std::uint64_t draw = 0;
    for (std::uint64_t flips = 1 + random_below(5, round, draw++, 4); flips > 0; --flips) {
      const std::uint64_t bit = random_below(5, round, draw++, 8 * sizeof(wire));
      bytes[bit / 8] ^= std::byte(1 << bit % 8);
    }
    const bool is_same = wire.plan == good.plan && wire.step == good.step &&
                         wire.bytes == good.bytes && wire.number == good.number &&
                         wire.kind == good.kind;
    const bool is_good = is_same && wire.piece_bytes >= 1 && wire.piece_bytes <= kMostPieceBytes;
    try {
      comm::check_wire(wire, expected, 0, kMostPieceBytes);
      EXPECT_TRUE(is_good) << round;
    } catch (const CommError& error) {
      EXPECT_FALSE(is_good) << round;
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("rank 1 "), HasSubstr("exchange 3 of step 5 (reduce_scatter")));
      ++num_refused;
    }
  }
  EXPECT_GT(num_refused, static_cast<int>(kRounds / 2));
}

TEST(NetworkFaults, ADroppedMessageBeforeAnotherIsReportedAtOnce) {
  expect_at_once({.fault = NetworkFault::kDrop, .after = 0}, 0, "rank 1 is at exchange 1 of step 5",
                 "rank 0 at exchange 0 of step 5");
}

// Rank 0 has its own by then. Ranks 1 and 2 wait for one another.
TEST(NetworkFaults, ADroppedLastMessageEndsThePatience) {
  std::vector<std::string> errors;
  const double seconds = seconds_of(
      [&] { errors = run_with({.fault = NetworkFault::kDrop, .after = 2 * kGathers - 1}, 0.3); });
  const auto names_both =
      AnyOf(HasSubstr("rank 2 waited 0.3 s for exchange 3 of step 5 (all_gather of "
                      "layers.3.experts): nothing came from rank 1"),
            HasSubstr("rank 1 waited 0.3 s for exchange 3 of step 5 (all_gather of "
                      "layers.3.experts): rank 2 did not take its part"));
  EXPECT_THAT(errors, ElementsAre(IsEmpty(), names_both, names_both));
  EXPECT_GT(seconds, 0.25);
  EXPECT_LT(seconds, 5);
}

TEST(Ranks, WaitForEverWithoutALimitOfPatience) {
  RanksOptions options;
  options.communicator.patience_seconds = 0.05;
  EXPECT_THAT(run_ranks(2, options,
                        [](Communicator& communicator) {
                          Gathers gathers(communicator, 1);
                          communicator.begin_step(1, 1);
                          if (communicator.rank() == 1)
                            std::this_thread::sleep_for(std::chrono::milliseconds(200));
                          gathers.post(communicator, 0);
                          communicator.await(0, comm::Patience::kUnlimited);
                        }),
              Each(IsEmpty()));
}

// One line each time, of the first rank that is there.
TEST(Ranks, TellWhomTheyWaitFor) {
  for (const std::int32_t late : {2, 0}) {
    RanksOptions options;
    options.communicator.report_seconds = 0.1;
    std::mutex mutex;
    std::vector<std::string> lines;
    set_log_sink([&](Severity, const std::string& line) {
      const std::lock_guard lock(mutex);
      lines.push_back(line);
    });
    EXPECT_THAT(run_ranks(3, options,
                          [&](Communicator& communicator) {
                            Gathers gathers(communicator, 1);
                            if (communicator.rank() == late)
                              std::this_thread::sleep_for(std::chrono::milliseconds(350));
                            gathers.run(communicator);
                          }),
                Each(IsEmpty()));
    set_log_sink({});
    ASSERT_GE(lines.size(), 2u);
    const int teller = late == 0 ? 1 : 0;
    for (std::size_t i = 0; i < 2; ++i)
      EXPECT_EQ(
          lines[i],
          fmt::format("[exchange] rank {} waited {:g} s for exchange 0 of step 5 (all_gather of "
                      "layers.3.experts): nothing came from rank {}; rank {} did not take its "
                      "part; it goes on waiting",
                      teller, 0.1 * static_cast<double>(i + 1), late, late));
  }
}

// All wait for rank 2. In a sum the others have to wait for each other too: rank 1 cannot send what
// it has not got from rank 2.
TEST(Ranks, LoseTimeToTheOneThatIsLate) {
  for (const ExchangeKind kind : {ExchangeKind::kAllGather, ExchangeKind::kAllReduce}) {
    constexpr std::int64_t kRows = 1000;
    std::vector<std::vector<std::int64_t>> lost(3);
    std::vector<comm::CommStats> took(3);
    const auto errors = run_ranks(3, {}, [&](Communicator& communicator) {
      const std::vector<std::int32_t> group{0, 1, 2};
      const std::vector<std::int64_t> counts(3, kRows);
      const auto me = static_cast<std::size_t>(communicator.rank());
      std::vector<float> input(3 * kRows), output(3 * kRows);
      AlignedBytes workspace(comm::workspace_bytes(3));
      or_abort(communicator, [&] {
        communicator.begin_step(1, 1);
        if (me == 2) std::this_thread::sleep_for(std::chrono::milliseconds(100));
        const std::uint32_t number =
            communicator.post({.kind = kind,
                               .group = group,
                               .counts = counts,
                               .row_bytes = 4,
                               .input = std::as_bytes(std::span(input)).data(),
                               .output = std::as_writable_bytes(std::span(output)).data()},
                              workspace.span());
        took[me] = communicator.await(number);
      });
      lost[me].assign(communicator.lost_nanoseconds().begin(),
                      communicator.lost_nanoseconds().end());
    });
    EXPECT_THAT(errors, Each(IsEmpty()));
    for (std::size_t rank : {0, 1}) {
      EXPECT_GT(lost[rank][2], 50'000'000);
      EXPECT_GT(lost[rank][2], 2 * std::max(lost[rank][0], lost[rank][1]));
      EXPECT_GE(took[rank].waited_nanoseconds, lost[rank][2]);
    }
    // A part to each of the others, and the sum of the own part.
    const std::int64_t messages = kind == ExchangeKind::kAllReduce ? 4 : 2;
    for (const comm::CommStats& each : took) {
      EXPECT_EQ(each.sent_bytes, messages * kRows * 4);
      EXPECT_EQ(each.received_bytes, each.sent_bytes);
    }
  }
}

TEST(Ranks, ThatStopAreNamed) {
  RanksOptions options;
  options.communicator.patience_seconds = 0.3;
  std::atomic<int> num_ended{0};
  const double seconds = seconds_of([&] {
    const auto errors = run_ranks(4, options, [&](Communicator& communicator) {
      Gathers gathers(communicator, 2);
      communicator.begin_step(1, 1);
      gathers.post(communicator, 0);
      communicator.await(0);
      while (communicator.rank() == 2 && num_ended.load() < 3)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      try {
        gathers.post(communicator, 1);
        communicator.await(1);
      } catch (...) {
        ++num_ended;
        throw;
      }
    });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("waited 0.3 s for exchange 1 of step 1"),
                                   HasSubstr("nothing came from rank 2"),
                                   HasSubstr("rank 2 did not take its part"))));
  });
  EXPECT_LT(seconds, 5);
}

TEST(Ranks, ThatThrowEndTheOthersWithTheirText) {
  const double seconds = seconds_of([] {
    EXPECT_THAT(run_ranks(4, {},
                          [](Communicator& communicator) {
                            Gathers gathers(communicator, 2);
                            communicator.begin_step(1, 1);
                            or_abort(communicator, [&] {
                              gathers.post(communicator, 0);
                              if (communicator.rank() == 3)
                                throw std::runtime_error("rank 3: disk full");
                              gathers.post(communicator, 1);
                              communicator.await(1);
                            });
                          }),
                Each(std::string("rank 3: disk full")));
  });
  EXPECT_LT(seconds, 5);
}

// The communicator of rank 1 ends before its exchange, whose memory outlives it.
TEST(Ranks, ThatEndEarlyAbortTheOthers) {
  auto transports = comm::local_transports(2);
  Communicator first(std::move(transports[0]));
  auto second = std::make_unique<Communicator>(std::move(transports[1]));
  Gathers gathers(*second, 1);
  second->begin_step(1, 1);
  gathers.post(*second, 0);
  second.reset();
  EXPECT_THAT([&] { first.begin_step(1, 1); },
              ThrowsMessage<CommError>(HasSubstr("rank 1 ended before its exchange 0 of step 1 "
                                                 "(all_gather of layers.3.experts)")));
}

TEST(Ranks, OfDifferentPlansAreReported) {
  EXPECT_THAT(run_ranks(2, {},
                        [](Communicator& communicator) {
                          Gathers gathers(communicator, 1);
                          communicator.begin_step(communicator.rank() == 0 ? 0xA : 0xB, 1);
                          gathers.post(communicator, 0);
                          communicator.await(0);
                        }),
              Each(AllOf(HasSubstr("plan 000000000000000a"), HasSubstr("plan 000000000000000b"))));
}

TEST(Await, NeedsThePostsBelowIt) {
  EXPECT_THAT(run_ranks(2, {},
                        [](Communicator& communicator) {
                          Gathers gathers(communicator, 1);
                          communicator.begin_step(1, 1);
                          gathers.post(communicator, 0);
                          or_abort(communicator, [&] { communicator.await(1); });
                        }),
              Each(AllOf(HasSubstr("awaits exchange 1 of step 1 after 1 posts"))));
}

TEST(Step, EndsWithAllExchangesAwaited) {
  EXPECT_THAT(run_ranks(1, {},
                        [](Communicator& communicator) {
                          Gathers gathers(communicator, 1);
                          communicator.begin_step(1, 1);
                          gathers.post(communicator, 0);
                          or_abort(communicator, [&] { communicator.begin_step(1, 2); });
                        }),
              Each(HasSubstr("step 2 begins before the await of exchange 0 of step 1")));
}

TEST(Exchange, ThatContradictsItselfIsRefused) {
  const std::vector<std::int32_t> group{0};
  const std::vector<std::int64_t> counts{1, 2};
  AlignedBytes workspace(comm::workspace_bytes(1));
  std::byte bytes[8]{};
  EXPECT_THAT(run_ranks(1, {},
                        [&](Communicator& communicator) {
                          communicator.post({.kind = ExchangeKind::kAllGather,
                                             .group = group,
                                             .counts = counts,
                                             .row_bytes = 1,
                                             .input = bytes,
                                             .output = bytes},
                                            workspace.span());
                        }),
              Each(HasSubstr("2 counts for a group of 1")));
}

TEST(Exchange, NeedsItsWorkspace) {
  const std::vector<std::int32_t> group{0};
  const std::vector<std::int64_t> counts{1};
  AlignedBytes workspace(comm::workspace_bytes(1));
  std::byte bytes[8]{};
  const auto post_in = [&](std::span<std::byte> given) {
    return run_ranks(1, {}, [&](Communicator& communicator) {
      communicator.await(communicator.post({.kind = ExchangeKind::kAllGather,
                                            .group = group,
                                            .counts = counts,
                                            .row_bytes = 1,
                                            .input = bytes,
                                            .output = bytes},
                                           given));
    });
  };
  EXPECT_THAT(post_in(workspace.span()), Each(IsEmpty()));
  EXPECT_THAT(post_in(workspace.span().subspan(64)), Each(HasSubstr("a workspace with")));
  EXPECT_THAT(post_in(workspace.span().subspan(8)), Each(HasSubstr("not aligned to 64 bytes")));
}

// Whoever copies out of a rank's memory holds the mutex of its own seat.
TEST(Abort, ReturnsAfterTheCopyUnderWay) {
  auto transports = comm::local_transports(2);
  comm::Seat& peer = transports[1]->seat();
  Communicator communicator(std::move(transports[0]));
  std::atomic<bool> has_returned{false};
  std::jthread aborts;
  {
    const std::lock_guard copy(peer.mutex);
    aborts = std::jthread([&] {
      communicator.abort("enough");
      has_returned = true;
    });
    while (transports[1]->abort_text() == nullptr) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(has_returned);
  }
  aborts.join();
  EXPECT_TRUE(has_returned);
}

// Buffers are freed right after the error, while other ranks would still copy from them.
TEST(Abort, WaitsForCopiesUnderWay) {
  for (std::uint64_t repeat = 0; repeat < 20; ++repeat) {
    const auto microseconds = random_below(3, repeat, 0, 2000);
    const auto errors = run_ranks(4, {}, [&](Communicator& communicator) {
      for (int i = 0; i < 1000; ++i) {
        Gathers gathers(communicator, 2, 1 << 20);
        std::jthread timer;
        if (communicator.rank() == 1 && i == 0)
          timer = std::jthread([&] {
            std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
            communicator.abort("enough");
          });
        gathers.run(communicator);
      }
    });
    EXPECT_THAT(errors, Each(std::string("enough")));
  }
}

}  // namespace
}  // namespace anabatic::testing
