// SPDX-License-Identifier: Apache-2.0
// Memory-bound ops, one at a time; a norm or dropout in front of a product.
#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/philox.h"
#include "bench/cases.h"
#include "bench/graph_case.h"
#include "spec/dropout.h"
#include "spec/rope.h"

namespace anabatic::bench {
namespace {

using ir::Phase;

constexpr std::uint64_t kGatherStream = 3;
constexpr std::int64_t kGatherExperts = 8;
constexpr std::string_view kNormSegment = "norm", kProductSegment = "mlp";

struct RowSizes {
  std::string op;
  std::int64_t rows, width, head_dim, top_k, out;
  double element;  // bytes
};

// How many arrays [rows, width] each direction reads and writes.
std::vector<TimedPart> streams(const RowSizes& sizes, double forward, double backward) {
  const double array =
      sizes.element * static_cast<double>(sizes.rows) * static_cast<double>(sizes.width);
  return {{{"total", 0, (forward + backward) * array},
           {Phase::kForward, Phase::kBackwardInput, Phase::kBackwardWeight}},
          {{"forward", 0, forward * array}, {Phase::kForward}},
          {{"backward", 0, backward * array}, {Phase::kBackwardInput, Phase::kBackwardWeight}}};
}

GraphCase norm_case(CaseBuilder& builder, const RowSizes& sizes, bool has_residual) {
  ir::ValueId x = builder.rows("x", sizes.width);
  const ir::ValueId other = has_residual ? builder.rows("residual", sizes.width) : ir::kNoValue;
  const ir::ValueId weight = builder.parameter("weight", {sizes.width});
  ir::GraphBuilder& ops = builder.timed("mlp");
  if (has_residual) x = ops.add1("add", {x, other});
  const ir::ValueId y = ops.add1("rms_norm", {x, weight}, {{"epsilon", 1e-5}});
  if (!has_residual) return builder.finish(y, streams(sizes, 2, 3));
  // The sum is an output too: two reads and two writes. In the backward both have gradients.
  return builder.finish(builder.timed(kSeedSegment).add1("add", {y, x}), streams(sizes, 4, 4));
}

ir::ValueId dropped(CaseBuilder& builder, ir::ValueId x, std::string_view segment) {
  const spec::DropoutDraws draws = spec::dropout_draws(0, 1, 0);
  const ir::ValueId input =
      builder.batch(spec::kDropoutDraws, {spec::kNumDropoutDraws}, {draws.begin(), draws.end()});
  const std::string site = "mlp.dropout";
  return builder.timed(segment).add1("dropout", {x, input}, {{"rate", 0.1}, {"site", site}}, site);
}

// Products that read a norm of a sum, or dropout: with fuse_norm_linear, and without it in turn.
// What takes dropout has its time.
GraphCase prologue_case(CaseBuilder& builder, const RowSizes& sizes, bool drops) {
  const ir::ValueId x = builder.rows("x", sizes.width),
                    matrix = builder.parameter("linear.weight", {sizes.out, sizes.width});
  ir::ValueId rows = ir::kNoValue;
  if (drops) {
    rows = dropped(builder, x, kProductSegment);
  } else {
    const ir::ValueId residual = builder.rows("residual", sizes.width),
                      weight = builder.parameter("weight", {sizes.width});
    ir::GraphBuilder& ops = builder.timed(kNormSegment);
    const ir::ValueId sum = ops.add1("add", {x, residual});
    rows = ops.add1("rms_norm", {sum, weight}, {{"epsilon", 1e-5}});
  }
  const ir::ValueId y = builder.timed(kProductSegment).add1("linear", {rows, matrix});
  const double flops = 2.0 * static_cast<double>(sizes.rows) * static_cast<double>(sizes.width) *
                       static_cast<double>(sizes.out);
  const double array =
      sizes.element * static_cast<double>(sizes.rows) * static_cast<double>(sizes.width);
  std::vector<TimedPart> parts{
      {{"total", 3 * flops, 0}, {Phase::kForward, Phase::kBackwardInput, Phase::kBackwardWeight}},
      {{"forward", flops, 0}, {Phase::kForward}, kProductSegment},
      {{"input_gradient", flops, 0}, {Phase::kBackwardInput}, kProductSegment},
      {{"weight_gradient", flops, 0}, {Phase::kBackwardWeight}, kProductSegment}};
  if (!drops)
    parts.insert(parts.begin() + 1, {{{"norm", 0, 3 * array}, {Phase::kForward}, kNormSegment},
                                     {{"norm_gradients", 0, 5 * array},
                                      {Phase::kBackwardInput, Phase::kBackwardWeight},
                                      kNormSegment}});
  GraphCase made = builder.finish(y, std::move(parts));
  made.without_pass = "fuse_norm_linear";
  return made;
}

GraphCase rope_case(CaseBuilder& builder, const RowSizes& sizes, std::int64_t num_tokens) {
  const ir::ValueId x = builder.rows("x", sizes.width);
  std::vector<std::int32_t> places(static_cast<std::size_t>(num_tokens));
  std::iota(places.begin(), places.end(), 0);
  const ir::ValueId positions = builder.batch("positions", {num_tokens}, std::move(places));
  spec::Rope rope;
  rope.rotary_dim = sizes.head_dim;
  const ir::ValueId table =
      builder.timed(kSeedSegment).add1("rope_table", {positions}, spec::to_attributes(rope));
  const ir::ValueId y =
      builder.timed("attention")
          .add1("rope", {x, table}, {{"head_dim", sizes.head_dim}, {"inverse", false}});
  return builder.finish(y, streams(sizes, 2, 2));
}

GraphCase swiglu_case(CaseBuilder& builder, const RowSizes& sizes) {
  const ir::ValueId gate = builder.rows("gate", sizes.width), up = builder.rows("up", sizes.width);
  return builder.finish(
      builder.timed("mlp").add1("activation", {gate, up}, {{"activation", std::string("swiglu")}}),
      streams(sizes, 3, 5));
}

GraphCase dropout_case(CaseBuilder& builder, const RowSizes& sizes) {
  const ir::ValueId x = builder.rows("x", sizes.width);
  return builder.finish(dropped(builder, x, "mlp"), streams(sizes, 2, 2));
}

// Rows to random experts: each token's row is read once and written top_k times; back, the other
// way round.
GraphCase gather_case(CaseBuilder& builder, const RowSizes& sizes, std::int64_t num_tokens) {
  const std::int64_t count = num_tokens * sizes.top_k;
  std::vector<std::int32_t> chosen(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    chosen[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(
        random_below(0, kGatherStream, static_cast<std::uint64_t>(i), kGatherExperts));
  std::vector<std::int32_t> order(chosen.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return chosen[static_cast<std::size_t>(a)] < chosen[static_cast<std::size_t>(b)];
  });

  const ir::ValueId x = builder.rows("x", sizes.width);
  const ir::ValueId experts =
      builder.batch("experts", {num_tokens, sizes.top_k}, std::move(chosen));
  const auto sorted =
      builder.timed(kSeedSegment).add("route_sort", {experts}, {{"num_experts", kGatherExperts}});
  const ir::ValueId y =
      builder.timed("dispatch").add1("permute", {x, sorted[0]}, {{"top_k", sizes.top_k}});
  const auto arrays = static_cast<double>(1 + sizes.top_k);
  return builder.finish(y, streams(sizes, arrays, arrays), sizes.top_k, std::move(order));
}

GraphCase row_case(const RowSizes& sizes, std::int64_t num_tokens) {
  CaseBuilder builder(sizes.op, num_tokens);
  if (sizes.op == "rope") return rope_case(builder, sizes, num_tokens);
  if (sizes.op == "swiglu") return swiglu_case(builder, sizes);
  if (sizes.op == "dropout") return dropout_case(builder, sizes);
  if (sizes.op == "norm_linear" || sizes.op == "dropout_linear")
    return prologue_case(builder, sizes, sizes.op == "dropout_linear");
  if (sizes.op == "gather") return gather_case(builder, sizes, num_tokens);
  return norm_case(builder, sizes, sizes.op == "residual");
}

}  // namespace

std::unique_ptr<Benchmark> make_norm(const train::RunConfig& run, Settings& settings,
                                     bool accumulate) {
  RowSizes sizes{.op = settings.word("op", {"rms_norm", "residual", "rope", "swiglu", "dropout",
                                            "gather", "norm_linear", "dropout_linear"}),
                 .rows = settings.integer("rows", 32768),
                 .width = settings.integer("width", 512),
                 .head_dim = 0,
                 .top_k = 0,
                 .out = 0,
                 .element = train::uses_bf16(run) ? 2.0 : 4.0};
  if (sizes.op == "rope") {
    sizes.head_dim = settings.integer("head_dim", std::min<std::int64_t>(64, sizes.width));
    ANABATIC_REQUIRE(sizes.width % sizes.head_dim == 0 && sizes.head_dim % 2 == 0,
                     "[bench] expected --width to be a multiple of an even --head_dim, got {} and "
                     "{}",
                     sizes.width, sizes.head_dim);
  }
  if (sizes.op.ends_with("_linear")) sizes.out = settings.integer("out", 3 * sizes.width);
  if (sizes.op == "gather") sizes.top_k = settings.integer("top_k", 2);
  return make_graph_benchmark(
      run, [=](std::int64_t first) { return row_case(sizes, first > 0 ? first : sizes.rows); },
      accumulate);
}

}  // namespace anabatic::bench
