// SPDX-License-Identifier: Apache-2.0
#include "train/ranks/exchange_methods.h"

#include <algorithm>

#include "base/error.h"
#include "comm/mpi_world.h"
#include "train/ranks/run_mesh.h"

namespace anabatic::train {
namespace {

using comm::Method;

// From so many ranks on, sums that nobody measured are MPI's own.
constexpr std::int64_t kManyRanks = 8;

std::string refusal_of(const RunConfig& run, bool has_processes) {
  if (!has_processes) return "ranks are threads of one process";
  if (comm::mpi_library().empty()) return "this anabatic was built without MPI";
  if (!run.parallel.emulate.empty()) return "parallel.emulate paces our own messages alone";
  return {};
}

MethodChoice choose_measured(const MeasuredExchange& measured) {
  const bool is_mpi = measured.mpi_seconds < measured.ordered_seconds;
  const double factor = is_mpi ? measured.ordered_seconds / measured.mpi_seconds
                               : measured.mpi_seconds / measured.ordered_seconds;
  return {is_mpi ? Method::kMpi : Method::kOrdered, fmt::format("measured, {:.2f} x", factor)};
}

comm::ExchangeProblem problem_of(const runtime::Exchange& exchange, const spec::Mesh& mesh) {
  const TensorType& type = exchange.buffer.type;
  comm::ExchangeProblem problem{.kind = exchange.kind,
                                .group_size = mesh.size(exchange.group),
                                .dtype = type.dtype,
                                .num_elements = type.num_bytes() / size_bytes(type.dtype)};
  if (exchange.rows) {
    problem.num_elements = std::max(type.dim(0), exchange.rows->input.type.dim(0));
    problem.by_index = exchange.rows->row_map.has_value();
  }
  return problem;
}

}  // namespace

MethodPolicy method_policy(const RunConfig& run, bool has_processes) {
  MethodPolicy policy{.reduction = run.parallel.reduction,
                      .exchange = run.parallel.exchange,
                      .refusal = refusal_of(run, has_processes)};
  if (num_ranks(run) == 1) return policy;
  if (policy.exchange == "mpi" && !policy.refusal.empty())
    throw Unsupported(fmt::format(
        "[parallel] parallel.exchange: expected auto or ordered, got mpi: {}", policy.refusal));
  const bool asks = policy.reduction == "fast" || policy.exchange == "auto";
  if (asks && policy.refusal.empty()) policy.measured = stored_exchanges();
  return policy;
}

MethodChoice choose_method(const comm::ExchangeProblem& problem, std::int64_t bytes,
                           const MethodPolicy& policy) {
  const bool adds = comm::adds(problem.kind);
  const std::string& key = adds ? policy.reduction : policy.exchange;
  if (key == "ordered")
    return {Method::kOrdered, fmt::format("parallel.{}: ordered", adds ? "reduction" : "exchange")};
  if (!policy.refusal.empty()) return {Method::kOrdered, policy.refusal};
  if (const std::string refusal = comm::row_of(Method::kMpi).refusal(problem); !refusal.empty())
    return {Method::kOrdered, refusal};
  if (key == "mpi") return {Method::kMpi, "parallel.exchange: mpi"};
  if (const MeasuredExchange* measured =
          find_measured(policy.measured, problem.kind, problem.group_size, bytes);
      measured != nullptr)
    return choose_measured(*measured);
  if (adds && problem.group_size >= kManyRanks)
    return {Method::kMpi, fmt::format("not measured, {} ranks or more", kManyRanks)};
  return {Method::kOrdered, "not measured"};
}

std::int64_t choose_methods(runtime::Program& program, const spec::Mesh& mesh,
                            const MethodPolicy& policy) {
  std::int64_t num_changed = 0;
  for (runtime::Exchange& exchange : program.exchanges) {
    MethodChoice choice =
        choose_method(problem_of(exchange, mesh), exchange.buffer.type.num_bytes(), policy);
    num_changed += choice.method != exchange.method;
    exchange.method = choice.method;
    exchange.reason = std::move(choice.reason);
  }
  return num_changed;
}

std::vector<std::vector<std::int32_t>> collective_groups(const spec::Mesh& mesh,
                                                         std::int32_t rank) {
  std::vector<std::vector<std::int32_t>> groups;
  for (const spec::Axes grid : {spec::kDenseGrid, spec::kExpertGrid})
    for (unsigned subset = 0; subset < 1u << spec::kAxes.size(); ++subset) {
      spec::Axes axes;
      for (std::size_t i = 0; i < spec::kAxes.size(); ++i)
        if ((subset >> i & 1u) != 0) axes = axes | spec::Axes{spec::kAxes[i]};
      if ((axes - grid) != spec::Axes{} || mesh.size(axes) == 1) continue;
      std::vector<std::int32_t> group = spec::group_of(mesh, axes, rank);
      // Where two sets of axes give one rank the same group, they give it to all ranks.
      if (std::ranges::find(groups, group) == groups.end()) groups.push_back(std::move(group));
    }
  return groups;
}

}  // namespace anabatic::train
