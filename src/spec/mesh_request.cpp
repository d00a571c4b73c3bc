// SPDX-License-Identifier: Apache-2.0
#include "spec/mesh_request.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace anabatic::spec {
namespace {

constexpr auto kData = "parallel.data", kTensor = "parallel.tensor", kContext = "parallel.context",
               kPipeline = "parallel.pipeline", kExpert = "parallel.expert",
               kLeaves = "train.gradient_leaves", kRanks = "ranks";

// The sizes of a request as numbers that do not overflow; 0 for data that does not come out even.
struct Sizes {
  std::int64_t tensor = 1, context = 1, data = 1, pipeline = 1, expert = 1;
  std::int64_t model() const { return tensor * context * pipeline; }
  std::int64_t ranks_of_stage() const { return tensor * context * data; }
};

Sizes sizes_of(const MeshRequest& request) {
  const auto positive = [](std::int32_t size) { return std::int64_t{std::max(size, 1)}; };
  Sizes sizes{positive(request.tensor), positive(request.context), 0, positive(request.pipeline),
              positive(request.expert)};
  if (request.data) {
    sizes.data = positive(*request.data);
  } else if (request.world % sizes.model() == 0) {
    sizes.data = request.world / sizes.model();
  }
  return sizes;
}

// How far apart two sizes are.
double distance(std::int64_t from, std::int64_t to) {
  return std::abs(std::log2(static_cast<double>(to) / static_cast<double>(from)));
}

std::vector<std::int64_t> divisors(std::int64_t number) {
  std::vector<std::int64_t> result;
  for (std::int64_t i = 1; i <= number; ++i)
    if (number % i == 0) result.push_back(i);
  return result;
}

// The valid setting nearest to a request. Model axes count double: their change moves weights.
class NearestSearch {
 public:
  explicit NearestSearch(const MeshRequest& request)
      : request_(request), wanted_(sizes_of(request)) {}

  MeshRequest find() {
    for (const std::int64_t pipeline : divisors(wanted_.pipeline))
      for (const std::int64_t context : divisors(wanted_.context))
        for (const std::int64_t tensor : divisors(wanted_.tensor))
          try_model(Sizes{tensor, context, 1, pipeline, 1});
    return best_;
  }

 private:
  void try_model(Sizes sizes) {
    std::int64_t world = request_.world;
    if (world % sizes.model() != 0) return;
    sizes.data = world / sizes.model();
    if (request_.num_samples && sizes.data > *request_.num_samples) {
      sizes.data = std::max<std::int64_t>(*request_.num_samples, 1);
      world = sizes.data * sizes.model();
    }
    const std::int64_t stage = sizes.ranks_of_stage();
    for (const std::int64_t expert : divisors(stage)) {
      if (request_.num_experts && *request_.num_experts % expert != 0) continue;
      sizes.expert = expert;
      consider(sizes, world);
    }
  }

  void consider(const Sizes& sizes, std::int64_t world) {
    const std::int64_t leaves = leaves_for(sizes.data);
    double cost =
        4 * distance(request_.world, world) +
        2 * (distance(wanted_.tensor, sizes.tensor) + distance(wanted_.context, sizes.context) +
             distance(wanted_.pipeline, sizes.pipeline)) +
        distance(wanted_.expert, sizes.expert);
    if (request_.data) cost += distance(wanted_.data, sizes.data);
    if (request_.gradient_leaves) cost += distance(wanted_leaves(), leaves);
    if (cost >= best_cost_) return;
    best_cost_ = cost;
    best_ = request_;
    best_.world = static_cast<std::int32_t>(world);
    best_.tensor = static_cast<std::int32_t>(sizes.tensor);
    best_.context = static_cast<std::int32_t>(sizes.context);
    best_.pipeline = static_cast<std::int32_t>(sizes.pipeline);
    best_.expert = static_cast<std::int32_t>(sizes.expert);
    if (request_.data) best_.data = static_cast<std::int32_t>(sizes.data);
    if (request_.gradient_leaves) best_.gradient_leaves = static_cast<std::int32_t>(leaves);
  }

  std::int64_t wanted_leaves() const { return std::max(*request_.gradient_leaves, 1); }

  // The nearest product of `data` and a power of two.
  std::int64_t leaves_for(std::int64_t data) const {
    if (!request_.gradient_leaves) return 1;
    std::int64_t leaves = data;
    while (distance(wanted_leaves(), 2 * leaves) < distance(wanted_leaves(), leaves)) leaves *= 2;
    return leaves;
  }

  const MeshRequest& request_;
  Sizes wanted_;
  MeshRequest best_{};
  double best_cost_ = std::numeric_limits<double>::infinity();
};

std::int64_t value_of(const MeshRequest& request, std::string_view key) {
  if (key == kData) return request.data.value_or(0);
  if (key == kTensor) return request.tensor;
  if (key == kContext) return request.context;
  if (key == kPipeline) return request.pipeline;
  if (key == kExpert) return request.expert;
  if (key == kLeaves) return request.gradient_leaves.value_or(0);
  ANABATIC_CHECK(key == kRanks, "[mesh] unknown key {}", key);
  return request.world;
}

// Equations that do not hold, each with the keys that it needs.
struct Broken {
  std::string equation;
  std::vector<const char*> keys;
};

void check_range(const MeshRequest& request, std::vector<Broken>& broken) {
  const auto check = [&](const char* key, std::int64_t value) {
    if (value < 1) broken.push_back({fmt::format("{} >= 1: {} wanted", key, value), {key}});
  };
  check(kTensor, request.tensor);
  check(kContext, request.context);
  check(kPipeline, request.pipeline);
  check(kExpert, request.expert);
  if (request.data) check(kData, *request.data);
  if (request.gradient_leaves) check(kLeaves, *request.gradient_leaves);
}

void check_product(const MeshRequest& request, const Sizes& sizes, std::vector<Broken>& broken) {
  const std::vector<const char*> keys{kTensor, kContext, kData, kPipeline, kRanks};
  const std::string model = fmt::format("tensor {} · context {} · pipeline {}", sizes.tensor,
                                        sizes.context, sizes.pipeline);
  if (!request.data && sizes.data == 0) {
    broken.push_back({fmt::format("ranks = {} · data: a multiple of {} wanted, {} there", model,
                                  sizes.model(), request.world),
                      keys});
  } else if (sizes.model() * sizes.data != request.world) {
    broken.push_back({fmt::format("ranks = {} · data {}: {} wanted, {} there", model, sizes.data,
                                  sizes.model() * sizes.data, request.world),
                      keys});
  }
}

void check_divisions(const MeshRequest& request, const Sizes& sizes, std::vector<Broken>& broken) {
  if (request.num_experts && *request.num_experts % sizes.expert != 0)
    broken.push_back(
        {fmt::format("experts of a layer % expert = 0: {} % {} = {}", *request.num_experts,
                     sizes.expert, *request.num_experts % sizes.expert),
         {kExpert}});
  if (sizes.data == 0) return;
  if (sizes.ranks_of_stage() % sizes.expert != 0)
    broken.push_back(
        {fmt::format("(tensor · context · data) % expert = 0: {} % {} = {}", sizes.ranks_of_stage(),
                     sizes.expert, sizes.ranks_of_stage() % sizes.expert),
         {kExpert}});
  if (request.gradient_leaves && *request.gradient_leaves % sizes.data != 0)
    broken.push_back(
        {fmt::format("gradient leaves % data = 0: {} % {} = {}", *request.gradient_leaves,
                     sizes.data, *request.gradient_leaves % sizes.data),
         {kLeaves}});
  else if (request.gradient_leaves && *request.gradient_leaves > 0 &&
           !std::has_single_bit(static_cast<std::uint32_t>(*request.gradient_leaves / sizes.data)))
    broken.push_back(
        {fmt::format("gradient leaves / data a power of two: {} / {} = {}",
                     *request.gradient_leaves, sizes.data, *request.gradient_leaves / sizes.data),
         {kLeaves}});
  if (request.num_samples && sizes.data > *request.num_samples)
    broken.push_back(
        {fmt::format("data <= samples: {} wanted, {} there", sizes.data, *request.num_samples),
         {kData, kRanks}});
}

}  // namespace

std::string to_string(const MeshProblem& problem) {
  std::string changes;
  for (const MeshChange& change : problem.nearest)
    changes += fmt::format("{}{} {}", changes.empty() ? "" : ", ", change.key, change.value);
  if (changes.empty()) changes = "that of the other equations";
  return fmt::format("expected {}; nearest setting: {}", problem.equation, changes);
}

std::vector<MeshProblem> problems_of(const MeshRequest& request) {
  ANABATIC_REQUIRE(request.world >= 1, "[mesh] expected at least one rank, got {}", request.world);
  std::vector<Broken> broken;
  const Sizes sizes = sizes_of(request);
  check_range(request, broken);
  check_product(request, sizes, broken);
  check_divisions(request, sizes, broken);
  if (broken.empty()) return {};
  const MeshRequest nearest = NearestSearch(request).find();
  // What no equation names has to change with the first one.
  for (const char* key : {kTensor, kContext, kPipeline, kData, kExpert, kLeaves, kRanks})
    if (std::none_of(broken.begin(), broken.end(), [&](const Broken& each) {
          return std::count(each.keys.begin(), each.keys.end(), key) != 0;
        }))
      broken.front().keys.push_back(key);
  std::vector<MeshProblem> problems;
  for (Broken& each : broken) {
    MeshProblem& problem = problems.emplace_back(MeshProblem{std::move(each.equation), {}});
    for (const char* key : each.keys)
      if (value_of(nearest, key) != value_of(request, key))
        problem.nearest.push_back({key, value_of(nearest, key)});
  }
  return problems;
}

MeshRequest with_changes(MeshRequest request, const std::vector<MeshChange>& changes) {
  for (const auto& [key, value] : changes) {
    const auto size = static_cast<std::int32_t>(value);
    if (key == kData) request.data = size;
    if (key == kTensor) request.tensor = size;
    if (key == kContext) request.context = size;
    if (key == kPipeline) request.pipeline = size;
    if (key == kExpert) request.expert = size;
    if (key == kLeaves) request.gradient_leaves = size;
    if (key == kRanks) request.world = size;
  }
  return request;
}

Mesh mesh_of(const MeshRequest& request) {
  const std::vector<MeshProblem> problems = problems_of(request);
  std::string text;
  for (const MeshProblem& problem : problems) text += "\n  " + to_string(problem);
  ANABATIC_REQUIRE(problems.empty(), "[parallel]{}", text);
  const Sizes sizes = sizes_of(request);
  return {request.tensor, request.context, static_cast<std::int32_t>(sizes.data), request.pipeline,
          request.expert};
}

}  // namespace anabatic::spec
