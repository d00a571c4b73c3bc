// SPDX-License-Identifier: Apache-2.0
// Exchanges of 1 to 8 ranks have the bits of a serial model, in any order of posts and awaits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <thread>

#include "base/error.h"
#include "base/philox.h"
#include "comm/paced_transport.h"
#include "comm/sum.h"
#include "dist/exchange_program.h"
#include "dist/mpi_ranks.h"
#include "support/faulty_transport.h"

namespace anabatic::testing {
namespace {

using comm::Communicator;
using comm::ExchangeKind;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

enum class Network { kPlain, kPaced, kDelayed };

struct Setting {
  const char* name;
  std::int32_t num_ranks;
  Network network = Network::kPlain;
  bool has_helper = true;
  bool is_mpi = false;
  comm::Method method{};
  std::int64_t most_count = comm::kMostCount;
};

std::vector<std::int32_t> ranks_below(std::int32_t end) {
  std::vector<std::int32_t> group;
  for (std::int32_t rank = 0; rank < end; ++rank) group.push_back(rank);
  return group;
}

std::ostream& operator<<(std::ostream& out, const Setting& setting) {
  return out << setting.name << " " << setting.num_ranks;
}

RanksOptions options_of(const Setting& setting) {
  RanksOptions options;
  options.communicator.has_helper = setting.has_helper;
  if (setting.is_mpi) options.mpi = mpi_world();
  if (setting.method == comm::Method::kMpi)
    options.transport = {.groups = {ranks_below(setting.num_ranks)},
                         .most_count = setting.most_count};
  options.wrap =
      [network = setting.network](
          std::unique_ptr<comm::Transport> transport) -> std::unique_ptr<comm::Transport> {
    switch (network) {
      case Network::kPlain:
        break;
      case Network::kPaced:
        return comm::make_paced(std::move(transport),
                                {{{"node", 2, {5e-6, 4e9}}, {"cluster", 8, {5e-5, 1e9}}}});
      case Network::kDelayed:
        return std::make_unique<FaultyTransport>(
            std::move(transport),
            NetworkFaultPlan{
                .fault = NetworkFault::kDelay, .count = 1 << 30, .delay_nanoseconds = 200'000});
    }
    return transport;
  };
  return options;
}

class Exchanges : public ::testing::TestWithParam<Setting> {
 protected:
  std::vector<std::string> run(const std::function<void(Communicator&)>& body) const {
    return run_ranks(GetParam().num_ranks, options_of(GetParam()), body);
  }
  std::vector<std::int32_t> everyone() const { return ranks_below(GetParam().num_ranks); }
};

// Each kind by itself: no rows, one row, ragged rows with an empty part, and more than a piece.
TEST_P(Exchanges, MoveDataToTheBit) {
  const auto n = static_cast<std::size_t>(GetParam().num_ranks);
  std::vector<ExchangeCase> cases;
  for (const auto kind :
       {ExchangeKind::kAllGather, ExchangeKind::kBroadcast, ExchangeKind::kReduceScatter,
        ExchangeKind::kAllReduce, ExchangeKind::kExchangeRows})
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
      for (const std::int64_t rows : {0, 1, 13, 6500})
        for (const bool option : {false, true}) {
          if (rows > 1000 && option == (dtype == DType::kFloat32)) continue;
          ExchangeCase each{.kind = kind, .group = everyone(), .row_elements = 11, .dtype = dtype};
          each.seed = cases.size();
          if (kind == ExchangeKind::kExchangeRows) {
            each.by_index = option;
            for (std::size_t to = 0; to < n; ++to) {
              auto& from = each.to_from.emplace_back();
              for (std::size_t i = 0; i < n; ++i)
                from.push_back(to == n / 2 ? 0 : rows / (1 + static_cast<std::int64_t>(i)));
            }
          } else {
            each.in_place = option;
            for (std::size_t i = 0; i < n; ++i)
              each.counts.push_back(i == n / 2 && n > 1 ? 0 : rows);
            if (kind == ExchangeKind::kBroadcast)
              for (std::size_t i = 0; i < n; ++i) each.counts[i] = i == n - 1 ? rows : 0;
          }
          cases.push_back(each);
        }
  EXPECT_THAT(run([&](Communicator& communicator) {
                communicator.begin_step(1, 1);
                for (const ExchangeCase& each : cases) {
                  RankExchange mine(by(GetParam().method, each, communicator), communicator.rank());
                  communicator.await(communicator.post(mine.exchange(), mine.workspace()));
                  if (const std::string text = mine.difference(); !text.empty())
                    throw InternalError(text);
                }
              }),
              Each(IsEmpty()));
}

// Every rank posts and awaits at its own pace; nothing depends on it.
TEST_P(Exchanges, InAnyProgramEqualASerialModel) {
  const auto seed = static_cast<std::uint64_t>(GetParam().num_ranks) * 100 + 7;
  constexpr int kSteps = 3, kExchanges = 60;
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::vector<ExchangeCase> cases;
  for (std::uint64_t i = 0; i < kExchanges; ++i)
    cases.push_back(random_case(seed, i, GetParam().num_ranks, i % 10 == 0 ? 20000 : 40));
  const auto body = [&](Communicator& communicator) {
    const auto rank = static_cast<std::uint64_t>(communicator.rank());
    std::uint64_t draw = 0;
    const auto below = [&](std::uint64_t bound) {
      return random_below(seed, 1000 + rank, draw++, bound);
    };
    for (int step = 0; step < kSteps; ++step) {
      communicator.begin_step(seed, step);
      std::vector<std::unique_ptr<RankExchange>> mine;
      std::vector<std::uint32_t> open;
      const auto await_one = [&] {
        const std::size_t which = below(open.size());
        const std::uint32_t number = open[which];
        open.erase(open.begin() + static_cast<std::ptrdiff_t>(which));
        if (below(3) == 0) (void)communicator.test(number);
        communicator.await(number);
        if (const std::string text = mine[number]->difference(); !text.empty())
          throw InternalError(fmt::format("exchange {}: {}", number, text));
      };
      for (const ExchangeCase& each : cases) {
        mine.push_back(std::make_unique<RankExchange>(by(GetParam().method, each, communicator),
                                                      communicator.rank()));
        open.push_back(communicator.post(mine.back()->exchange(), mine.back()->workspace()));
        if (below(8) == 0) std::this_thread::sleep_for(std::chrono::microseconds(below(300)));
        while (!open.empty() && (open.size() > 12 || below(4) == 0)) await_one();
      }
      while (!open.empty()) await_one();
    }
  };
  EXPECT_THAT(run(body), Each(IsEmpty()));
}

// Sums of values that do not add exactly, against the tree written down as a recursion.
float tree_sum(std::span<const float> terms) {
  if (terms.size() == 1) return terms[0];
  std::size_t left = 1;
  while (left * 2 < terms.size()) left *= 2;
  return tree_sum(terms.first(left)) + tree_sum(terms.subspan(left));
}

float deviate(std::uint64_t member, std::uint64_t at) {
  return static_cast<float>(random_normal(5, member, at));
}

TEST(SumTerms, AddsByABalancedTree) {
  for (std::size_t num_terms = 1; num_terms <= 19; ++num_terms)
    for (const std::size_t count : {std::size_t{1}, std::size_t{700}})
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        std::vector<std::vector<float>> values(num_terms);
        std::vector<std::vector<BFloat16>> halves(num_terms);
        std::vector<const std::byte*> terms;
        const bool is_half = dtype == DType::kBFloat16;
        for (std::size_t term = 0; term < num_terms; ++term) {
          for (std::size_t i = 0; i < count; ++i) {
            halves[term].push_back(to_bfloat16(deviate(term, i)));
            values[term].push_back(is_half ? to_float(halves[term][i]) : deviate(term, i));
          }
          terms.push_back(is_half ? reinterpret_cast<const std::byte*>(halves[term].data())
                                  : reinterpret_cast<const std::byte*>(values[term].data()));
        }
        std::vector<std::byte> got(count * static_cast<std::size_t>(size_bytes(dtype)));
        std::vector<std::byte> expected;
        for (std::size_t i = 0; i < count; ++i) {
          std::vector<float> column;
          for (const auto& term : values) column.push_back(term[i]);
          const float sum = tree_sum(column);
          const BFloat16 half = to_bfloat16(sum);
          const auto* bytes = is_half ? reinterpret_cast<const std::byte*>(&half)
                                      : reinterpret_cast<const std::byte*>(&sum);
          expected.insert(expected.end(), bytes, bytes + size_bytes(dtype));
        }
        comm::sum_terms(terms, static_cast<std::int64_t>(got.size()), dtype, got.data());
        ASSERT_EQ(got, expected) << num_terms << " terms of " << to_string(dtype);
        // Over one of its terms.
        auto* over = const_cast<std::byte*>(terms[num_terms / 2]);
        comm::sum_terms(terms, static_cast<std::int64_t>(got.size()), dtype, over);
        ASSERT_EQ(std::memcmp(over, expected.data(), expected.size()), 0);
      }
}

// By a tree; MPI's own in an order that it does not say, but in the same one each time.
TEST_P(Exchanges, SumToTheSameBitsEachTime) {
  const bool is_ordered = GetParam().method == comm::Method::kOrdered;
  const auto n = static_cast<std::size_t>(GetParam().num_ranks);
  constexpr std::size_t kCount = 150'000;
  std::vector<float> expected;
  std::vector<std::vector<float>> inputs(n);
  for (std::size_t i = 0; i < kCount; ++i) {
    for (std::size_t member = 0; member < n; ++member)
      inputs[member].push_back(deviate(member, i % 997 + i / 997));
    std::vector<float> column;
    for (const auto& input : inputs) column.push_back(input[i]);
    expected.push_back(tree_sum(column));
  }
  const std::vector<std::int32_t> group = everyone();
  const std::vector<std::int64_t> counts = comm::even_counts(kCount, GetParam().num_ranks);
  const auto body = [&](Communicator& communicator) {
    AlignedBytes workspace(comm::workspace_bytes(static_cast<std::int64_t>(n), GetParam().method));
    std::vector<float> first = is_ordered ? expected : std::vector<float>{};
    for (int repeat = 0; repeat < (is_ordered ? 4 : 20); ++repeat) {
      communicator.begin_step(1, repeat);
      std::vector<float> sums = inputs[static_cast<std::size_t>(communicator.rank())];
      auto* bytes = reinterpret_cast<std::byte*>(sums.data());
      communicator.await(communicator.post({.kind = ExchangeKind::kAllReduce,
                                            .method = GetParam().method,
                                            .group = group,
                                            .counts = counts,
                                            .row_bytes = sizeof(float),
                                            .input = bytes,
                                            .output = bytes},
                                           workspace.span()));
      if (first.empty()) first = sums;
      if (std::memcmp(sums.data(), first.data(), kCount * sizeof(float)) != 0)
        throw InternalError(fmt::format("other bits in repetition {}", repeat));
    }
    // On all ranks.
    if (communicator.size() == 1) return;
    AlignedBytes own_workspace(comm::workspace_bytes(communicator.size()));
    std::vector<float> of_first = first;
    std::vector<std::int64_t> from_first(n, 0);
    from_first[0] = kCount;
    communicator.await(communicator.post(
        {.kind = ExchangeKind::kBroadcast,
         .group = group,
         .counts = from_first,
         .row_bytes = sizeof(float),
         .input = reinterpret_cast<const std::byte*>(of_first.data()),
         .output =
             communicator.rank() == 0 ? nullptr : reinterpret_cast<std::byte*>(of_first.data())},
        own_workspace.span()));
    if (std::memcmp(of_first.data(), first.data(), kCount * sizeof(float)) != 0)
      throw InternalError("other bits than the first rank");
  };
  EXPECT_THAT(run(body), Each(IsEmpty()));
}

// As in every kernel, whichever thread adds.
TEST_P(Exchanges, SumWithDenormalsAsZero) {
  if (GetParam().num_ranks == 1) return;  // a copy
  const std::vector<std::int32_t> group = everyone();
  const std::vector<std::int64_t> counts = comm::even_counts(64, GetParam().num_ranks);
  const auto body = [&](Communicator& communicator) {
    AlignedBytes workspace(comm::workspace_bytes(communicator.size(), GetParam().method));
    std::vector<float> sums(64, std::numeric_limits<float>::denorm_min() * 1000);
    auto* bytes = reinterpret_cast<std::byte*>(sums.data());
    communicator.begin_step(1, 1);
    const std::uint32_t number = communicator.post({.kind = ExchangeKind::kAllReduce,
                                                    .method = GetParam().method,
                                                    .group = group,
                                                    .counts = counts,
                                                    .row_bytes = sizeof(float),
                                                    .input = bytes,
                                                    .output = bytes},
                                                   workspace.span());
    // Left to the helper on some ranks.
    while (GetParam().has_helper && communicator.rank() % 2 == 0 && !communicator.test(number))
      std::this_thread::yield();
    communicator.await(number);
    for (const float each : sums)
      if (std::bit_cast<std::uint32_t>(each) != 0) throw InternalError("a denormal sum");
  };
  EXPECT_THAT(run(body), Each(IsEmpty()));
}

std::vector<Setting> settings() {
  if (const comm::MpiWorld* world = mpi_world(); world != nullptr)
    return {{"mpi", world->size(), Network::kPlain, true, true},
            {"mpi_without_helper", world->size(), Network::kPlain, false, true},
            {"mpi_rows", world->size(), Network::kPlain, true, true, comm::Method::kMpi},
            {"mpi_rows_without_helper", world->size(), Network::kPlain, false, true,
             comm::Method::kMpi},
            {"mpi_rows_in_cuts", world->size(), Network::kPlain, true, true, comm::Method::kMpi,
             15'000 * std::int64_t{world->size()}},
            {"mpi_paced", world->size(), Network::kPaced, true, true},
            {"mpi_delayed", world->size(), Network::kDelayed, true, true}};
  return {{"local", 1},
          {"local", 2},
          {"local", 3},
          {"local", 4},
          {"local", 8},
          {"without_helper", 4, Network::kPlain, false},
          {"paced", 2, Network::kPaced},
          {"paced", 4, Network::kPaced},
          {"delayed", 3, Network::kDelayed}};
}

INSTANTIATE_TEST_SUITE_P(Ranks, Exchanges, ::testing::ValuesIn(settings()), [](const auto& each) {
  return fmt::format("{}_{}", each.param.name, each.param.num_ranks);
});

// One way of a link takes latency + bytes / bandwidth, and messages share it.
TEST(PacedTransport, LetsNothingArriveSooner) {
  constexpr double kLatency = 0.01, kBandwidth = 100e6;
  constexpr std::int64_t kBytes = 1 << 20;
  RanksOptions options;
  options.wrap = [&](std::unique_ptr<comm::Transport> transport) {
    return comm::make_paced(std::move(transport), {{{"node", 2, {kLatency, kBandwidth}}}});
  };
  const std::vector<std::int32_t> group{0, 1};
  const std::vector<std::int64_t> counts{kBytes, 0};
  std::chrono::steady_clock::time_point sent, arrived;
  EXPECT_THAT(
      run_ranks(2, options,
                [&](Communicator& communicator) {
                  std::vector<std::byte> data(kBytes), other(kBytes);
                  std::vector<AlignedBytes> workspaces(2, AlignedBytes(comm::workspace_bytes(2)));
                  communicator.begin_step(1, 1);
                  if (communicator.rank() == 0) sent = std::chrono::steady_clock::now();
                  for (int i = 0; i < 2; ++i)
                    communicator.post({.kind = ExchangeKind::kSend,
                                       .group = group,
                                       .counts = counts,
                                       .row_bytes = 1,
                                       .input = data.data(),
                                       .output = communicator.rank() == 0 ? nullptr : other.data()},
                                      workspaces[static_cast<std::size_t>(i)].span());
                  communicator.await(0);
                  communicator.await(1);
                  if (communicator.rank() == 1) arrived = std::chrono::steady_clock::now();
                }),
      Each(IsEmpty()));
  const double seconds = std::chrono::duration<double>(arrived - sent).count();
  constexpr double kExpected = kLatency + 2 * kBytes / kBandwidth;
  EXPECT_GE(seconds, kExpected);
  EXPECT_LT(seconds, 20 * kExpected);
}

TEST(PacedTransport, NeedsADeviceForEachRank) {
  auto transports = comm::local_transports(4);
  EXPECT_THAT(
      [&] {
        (void)comm::make_paced(std::move(transports[0]), {{{"node", 2, {}}}});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("a device for each of 4 ranks, got 2")));
}

}  // namespace
}  // namespace anabatic::testing
