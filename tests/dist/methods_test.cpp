// SPDX-License-Identifier: Apache-2.0
// Which method does an exchange: by keys, by what can be done, and by what was measured.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/text.h"
#include "comm/mpi_world.h"
#include "support/scoped_variable.h"
#include "support/tiny_run.h"
#include "train/ranks/exchange_methods.h"

namespace anabatic::train {
namespace {

using comm::ExchangeKind;
using comm::ExchangeProblem;
using comm::Method;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int64_t kBytes = 1 << 20;

ExchangeProblem sum_of(std::int64_t num_ranks, DType dtype = DType::kFloat32) {
  return {.kind = ExchangeKind::kAllReduce,
          .group_size = num_ranks,
          .dtype = dtype,
          .num_elements = kBytes / 4};
}
ExchangeProblem gather_of(std::int64_t num_ranks) {
  return {.kind = ExchangeKind::kAllGather, .group_size = num_ranks, .num_elements = kBytes / 64};
}

void expect_choice(const ExchangeProblem& problem, const MethodPolicy& policy, Method method,
                   const char* reason, std::int64_t bytes = kBytes) {
  const MethodChoice choice = choose_method(problem, bytes, policy);
  EXPECT_EQ(choice.method, method) << choice.reason;
  EXPECT_THAT(choice.reason, HasSubstr(reason));
}

TEST(ExchangeMethods, GoByTheKeyOfWhatAddsAndOfWhatDoesNot) {
  const MethodPolicy moves{.reduction = "ordered", .exchange = "mpi"};
  expect_choice(sum_of(16), moves, Method::kOrdered, "parallel.reduction: ordered");
  expect_choice(gather_of(2), moves, Method::kMpi, "parallel.exchange: mpi");
  const MethodPolicy adds{.reduction = "fast", .exchange = "ordered"};
  expect_choice(sum_of(8), adds, Method::kMpi, "not measured");
  expect_choice(sum_of(7), adds, Method::kOrdered, "not measured");
  expect_choice(gather_of(8), adds, Method::kOrdered, "parallel.exchange: ordered");
  expect_choice(gather_of(8), {.exchange = "auto"}, Method::kOrdered, "not measured");
}

TEST(ExchangeMethods, AreOrderedWhereMpiCannot) {
  const MethodPolicy all{.reduction = "fast", .exchange = "mpi"};
  expect_choice(sum_of(8, DType::kBFloat16), all, Method::kOrdered, "MPI has no sum of bf16");
  expect_choice(gather_of(1), all, Method::kOrdered, "a group of one");
  ExchangeProblem rows{.kind = ExchangeKind::kExchangeRows, .group_size = 4, .num_elements = 100};
  expect_choice(rows, all, Method::kMpi, "parallel.exchange: mpi");
  rows.by_index = true;
  expect_choice(rows, all, Method::kOrdered, "MPI sends no rows by an index");
  ExchangeProblem large = sum_of(8);
  large.num_elements = std::int64_t{1} << 40;
  expect_choice(large, all, Method::kOrdered, "elements are more than");
  const MethodPolicy threads{.reduction = "fast", .exchange = "auto", .refusal = "are threads"};
  expect_choice(sum_of(8), threads, Method::kOrdered, "are threads");
}

TEST(ExchangeMethods, GoByTheNearestSizeThatWasMeasured) {
  const MethodPolicy policy{.reduction = "fast",
                            .exchange = "auto",
                            .measured = {{ExchangeKind::kAllReduce, 4, 1 << 20, 2, 1},
                                         {ExchangeKind::kAllReduce, 4, 64 << 20, 1, 3},
                                         {ExchangeKind::kAllGather, 4, 1 << 20, 3, 2}}};
  expect_choice(sum_of(4), policy, Method::kMpi, "measured, 2.00 x", 100);
  expect_choice(sum_of(4), policy, Method::kMpi, "measured, 2.00 x", 7 << 20);
  expect_choice(sum_of(4), policy, Method::kOrdered, "measured, 3.00 x", 9 << 20);
  expect_choice(sum_of(2), policy, Method::kOrdered, "not measured");
  expect_choice(gather_of(4), policy, Method::kMpi, "measured, 1.50 x");
}

TEST(ExchangeMethods, AreMeasuredOnceForAMachine) {
  const testing::TemporaryDirectory folder;
  const testing::ScopedVariable cache("XDG_CACHE_HOME", folder.path().string());
  EXPECT_THAT(stored_exchanges(), IsEmpty());
  const MeasuredExchange old{ExchangeKind::kAllReduce, 4, 1 << 20, 2, 1},
      other{ExchangeKind::kAllReduce, 2, 1 << 20, 0.1, 1.0 / 3},
      fresh{ExchangeKind::kAllReduce, 4, 1 << 20, 2, 3};
  store_exchanges({old, other});
  store_exchanges({fresh});
  EXPECT_THAT(stored_exchanges(), ElementsAre(other, fresh));
  write_file_atomically(exchanges_file(), "{\"machine\": 3}");
  EXPECT_THAT(stored_exchanges(), IsEmpty());
}

TEST(ExchangeMethods, OfMpiAreRefusedWhereThereIsNone) {
  RunConfig run;
  run.parallel.exchange = "mpi";
  EXPECT_NO_THROW((void)method_policy(run, false)) << "one rank exchanges nothing";
  run.parallel.local_ranks = 2;
  const auto refusal = [&](bool has_processes) {
    try {
      (void)method_policy(run, has_processes);
    } catch (const Unsupported& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refusal(false), HasSubstr("got mpi: ranks are threads"));
  if (comm::mpi_library().empty()) {
    EXPECT_THAT(refusal(true), HasSubstr("built without MPI"));
    return;
  }
  EXPECT_EQ(refusal(true), "accepted");
  run.parallel.emulate = "cluster.json";
  EXPECT_THAT(refusal(true), HasSubstr("parallel.emulate"));
}

TEST(CollectiveGroups, AreThoseOfAllAxesOnce) {
  const spec::Mesh mesh{.data = 4, .expert = 2};
  EXPECT_THAT(collective_groups(mesh, 1),
              ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(0, 1), ElementsAre(1, 3)));
  EXPECT_THAT(collective_groups({}, 0), IsEmpty());
}

}  // namespace
}  // namespace anabatic::train
