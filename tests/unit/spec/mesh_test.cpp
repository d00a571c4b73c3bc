// SPDX-License-Identifier: Apache-2.0
#include "spec/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <functional>
#include <set>

#include "anabatic/error.h"
#include "spec/mesh_request.h"

namespace anabatic::spec {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::int32_t kLargestWorld = 16;

// Every mesh of at most kLargestWorld ranks.
void for_each_mesh(const std::function<void(const Mesh&)>& body) {
  constexpr std::int32_t n = kLargestWorld;
  for (std::int32_t pipeline = 1; pipeline <= n; ++pipeline)
    for (std::int32_t data = 1; pipeline * data <= n; ++data)
      for (std::int32_t context = 1; pipeline * data * context <= n; ++context)
        for (std::int32_t tensor = 1; pipeline * data * context * tensor <= n; ++tensor)
          for (std::int32_t expert = 1; expert <= data * context * tensor; ++expert)
            if (data * context * tensor % expert == 0)
              body({tensor, context, data, pipeline, expert});
}

// Both grids, counted out: the fastest axis in the innermost loop.
std::vector<Coordinates> counted(const Mesh& mesh) {
  std::vector<Coordinates> result;
  for (std::int32_t p = 0; p < mesh.pipeline; ++p)
    for (std::int32_t d = 0; d < mesh.data; ++d)
      for (std::int32_t c = 0; c < mesh.context; ++c)
        for (std::int32_t t = 0; t < mesh.tensor; ++t) {
          Coordinates& at = result.emplace_back();
          at[Axis::kTensor] = t;
          at[Axis::kContext] = c;
          at[Axis::kData] = d;
          at[Axis::kPipeline] = p;
        }
  std::size_t rank = 0;
  for (std::int32_t p = 0; p < mesh.pipeline; ++p)
    for (std::int32_t o = 0; o < mesh.expert_data(); ++o)
      for (std::int32_t e = 0; e < mesh.expert; ++e) {
        EXPECT_EQ(result[rank][Axis::kPipeline], p);
        result[rank][Axis::kExpert] = e;
        result[rank++][Axis::kExpertData] = o;
      }
  EXPECT_EQ(rank, result.size());
  return result;
}

std::vector<Axes> subsets(const std::vector<Axis>& axes) {
  std::vector<Axes> result{Axes{}};
  for (const Axis axis : axes)
    for (std::size_t i = 0, n = result.size(); i < n; ++i) result.push_back(result[i] | Axes{axis});
  return result;
}

// Peers that differ in nothing but `axes` of a grid, in the order of a count along it.
std::vector<std::int32_t> counted_group(const std::vector<Coordinates>& at, Axes axes, Axes grid,
                                        std::size_t rank) {
  std::vector<std::int32_t> result;
  for (std::size_t peer = 0; peer < at.size(); ++peer) {
    bool is_member = true;
    for (const Axis axis : kAxes)
      if (grid.contains(axis) && !axes.contains(axis))
        is_member = is_member && at[peer][axis] == at[rank][axis];
    if (is_member) result.push_back(static_cast<std::int32_t>(peer));
  }
  return result;
}

TEST(Mesh, RanksCountAlongBothGrids) {
  int num_meshes = 0;
  for_each_mesh([&](const Mesh& mesh) {
    ++num_meshes;
    ASSERT_EQ(mesh.expert * mesh.expert_data() * mesh.pipeline, mesh.world()) << to_string(mesh);
    const std::vector<Coordinates> expected = counted(mesh);
    ASSERT_EQ(expected.size(), static_cast<std::size_t>(mesh.world()));
    for (std::int32_t rank = 0; rank < mesh.world(); ++rank)
      ASSERT_EQ(coordinates_of(mesh, rank), expected[static_cast<std::size_t>(rank)])
          << to_string(mesh) << " rank " << rank;
  });
  EXPECT_GT(num_meshes, 300);
}

TEST(Mesh, GroupsAlongAxesPartTheWorld) {
  const std::vector<Axes> dense =
      subsets({Axis::kTensor, Axis::kContext, Axis::kData, Axis::kPipeline});
  const std::vector<Axes> experts = subsets({Axis::kExpert, Axis::kExpertData, Axis::kPipeline});
  for_each_mesh([&](const Mesh& mesh) {
    const std::vector<Coordinates> at = counted(mesh);
    for (const auto& [grid, sets] : {std::pair(kDenseGrid, dense), std::pair(kExpertGrid, experts)})
      for (const Axes axes : sets) {
        std::set<std::vector<std::int32_t>> groups;
        for (std::size_t rank = 0; rank < at.size(); ++rank) {
          const auto group = group_of(mesh, axes, static_cast<std::int32_t>(rank));
          ASSERT_EQ(group, counted_group(at, axes, grid, rank))
              << to_string(mesh) << " along " << to_string(axes) << " rank " << rank;
          groups.insert(group);
        }
        ASSERT_EQ(static_cast<std::int32_t>(groups.size()) * mesh.size(axes), mesh.world());
      }
  });
}

TEST(Mesh, ExpertsCrossDenseAxes) {
  const Mesh mesh{.tensor = 2, .data = 4, .pipeline = 2, .expert = 4};
  EXPECT_THAT(group_of(mesh, {Axis::kData}, 3), ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(group_of(mesh, {Axis::kExpert}, 6), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(group_of(mesh, {Axis::kExpertData}, 6), ElementsAre(2, 6));
  EXPECT_THAT(group_of(mesh, {Axis::kPipeline}, 11), ElementsAre(3, 11));
  EXPECT_EQ(to_string(mesh), "tensor 2 · context 1 · data 4 · pipeline 2, expert 4");
  EXPECT_THAT(
      [&] {
        (void)group_of(mesh, {Axis::kData, Axis::kExpert}, 0);
      },
      ThrowsMessage<InternalError>(HasSubstr("axes of both grids: data, expert")));
  EXPECT_THAT([&] { (void)coordinates_of(mesh, 16); },
              ThrowsMessage<InternalError>(HasSubstr("rank 16 of 16")));
}

std::string all_of(const MeshRequest& request) {
  std::string text;
  for (const MeshProblem& problem : problems_of(request)) text += to_string(problem) + "\n";
  return text;
}

TEST(MeshRequest, NamesEachBrokenEquationWithTheNearestSetting) {
  EXPECT_EQ(all_of({.world = 32, .data = 8, .tensor = 4, .pipeline = 2}),
            "expected ranks = tensor 4 · context 1 · pipeline 2 · data 8: 64 wanted, 32 there; "
            "nearest setting: parallel.data 4\n");
  EXPECT_EQ(all_of({.world = 4, .expert = 3, .num_experts = 8, .gradient_leaves = 6}),
            "expected experts of a layer % expert = 0: 8 % 3 = 2; "
            "nearest setting: parallel.expert 4\n"
            "expected (tensor · context · data) % expert = 0: 4 % 3 = 1; "
            "nearest setting: parallel.expert 4\n"
            "expected gradient leaves % data = 0: 6 % 4 = 2; "
            "nearest setting: train.gradient_leaves 8\n");
  EXPECT_EQ(all_of({.world = 8, .num_samples = 5}),
            "expected data <= samples: 8 wanted, 5 there; nearest setting: ranks 5\n");
  EXPECT_EQ(all_of({.world = 32, .pipeline = 3}),
            "expected ranks = tensor 1 · context 1 · pipeline 3 · data: a multiple of 3 wanted, 32 "
            "there; nearest setting: parallel.pipeline 1\n");
  EXPECT_EQ(all_of({.world = 2, .expert = 0}),
            "expected parallel.expert >= 1: 0 wanted; nearest setting: parallel.expert 1\n");
}

TEST(MeshRequest, IsRefusedWithAllProblemsAtOnce) {
  EXPECT_THAT([] { (void)mesh_of({.world = 4, .data = 3, .expert = 2, .num_experts = 5}); },
              ThrowsMessage<InvalidArgument>(AllOf(
                  HasSubstr("3 wanted, 4 there"), HasSubstr("5 % 2 = 1"), HasSubstr("3 % 2 = 1"))));
}

bool is_valid(const MeshRequest& request, std::int32_t data) {
  return request.tensor * request.context * request.pipeline * data == request.world &&
         *request.num_experts % request.expert == 0 &&
         request.tensor * request.context * data % request.expert == 0 &&
         *request.gradient_leaves % data == 0 &&
         std::has_single_bit(static_cast<std::uint32_t>(*request.gradient_leaves / data)) &&
         data <= *request.num_samples;
}

// Small requests, valid or not.
void for_each_request(const std::function<void(const MeshRequest&)>& body) {
  for (const std::int32_t world : {1, 4, 6, 8})
    for (const std::int32_t tensor : {1, 2, 3})
      for (const std::int32_t pipeline : {1, 2})
        for (const std::int32_t data : {0, 1, 2, 4, 5})
          for (const std::int32_t expert : {1, 2, 3, 4, 8})
            for (const std::int32_t leaves : {1, 4, 6})
              for (const std::int64_t samples : {2, 100}) {
                MeshRequest request{.world = world,
                                    .tensor = tensor,
                                    .pipeline = pipeline,
                                    .expert = expert,
                                    .num_experts = 8,
                                    .gradient_leaves = leaves,
                                    .num_samples = samples};
                if (data > 0) request.data = data;
                body(request);
              }
}

TEST(MeshRequest, IsValidExactlyWhereAllEquationsHold) {
  int num_valid = 0;
  for_each_request([&](const MeshRequest& request) {
    const std::int32_t model = request.tensor * request.context * request.pipeline;
    const bool is_even = request.data || request.world % model == 0;
    const std::int32_t data = request.data.value_or(request.world / model);
    const bool expected = is_even && is_valid(request, data);
    ASSERT_EQ(problems_of(request).empty(), expected) << all_of(request);
    num_valid += expected;
    if (!expected) return;
    const Mesh mesh = mesh_of(request);
    ASSERT_EQ(mesh,
              (Mesh{request.tensor, request.context, data, request.pipeline, request.expert}));
  });
  EXPECT_GT(num_valid, 30);
}

TEST(MeshRequest, IsValidWithTheChangesOfAllProblems) {
  for_each_request([](const MeshRequest& request) {
    MeshRequest changed = request;
    for (const MeshProblem& problem : problems_of(request))
      changed = with_changes(changed, problem.nearest);
    ASSERT_EQ(all_of(changed), "") << all_of(request);
  });
}

}  // namespace
}  // namespace anabatic::spec
