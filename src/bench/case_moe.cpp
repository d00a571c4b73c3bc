// SPDX-License-Identifier: Apache-2.0
// The MoE layer, router to combine.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/philox.h"
#include "bench/cases.h"
#include "bench/graph_case.h"

namespace anabatic::bench {
namespace {

using ir::Phase;

constexpr std::uint64_t kRoutingStream = 1;

struct MoeSizes {
  std::int64_t tokens, hidden, intermediate, experts, top_k;
  double zipf;
};

// The router's weight is the identity on the first E columns, so these columns of a token say how
// its experts score: chosen ones lead by about 4.
std::function<float(std::string_view, std::int64_t)> with_routing(
    const MoeSizes& sizes, std::int64_t num_tokens,
    std::function<float(std::string_view, std::int64_t)> value) {
  std::vector<bool> leads(static_cast<std::size_t>(num_tokens * sizes.experts), false);
  for (std::int64_t token = 0; token < num_tokens; ++token)
    for (const std::int64_t expert : choose_experts(sizes.experts, sizes.top_k, sizes.zipf, token))
      leads[static_cast<std::size_t>(token * sizes.experts + expert)] = true;
  return [=, leads = std::move(leads)](std::string_view name, std::int64_t i) {
    const std::int64_t row = i / sizes.hidden, column = i % sizes.hidden;
    if (name == "router.weight") return row == column ? 1.0f : 0.1f * value(name, i);
    if (name != "x" || column >= sizes.experts) return value(name, i);
    const bool lead = leads[static_cast<std::size_t>(row * sizes.experts + column)];
    return (lead ? 4.0f : 0.0f) + 0.25f * value(name, i);
  };
}

GraphCase moe_case(const MoeSizes& sizes, std::int64_t num_tokens) {
  CaseBuilder builder("moe", num_tokens);
  const std::int64_t experts = sizes.experts, hidden = sizes.hidden, inner = sizes.intermediate;
  const ir::ValueId x = builder.rows("x", hidden);
  const ir::ValueId router = builder.parameter("router.weight", {experts, hidden}),
                    gate = builder.parameter("experts.gate.weight", {experts, inner, hidden}),
                    up = builder.parameter("experts.up.weight", {experts, inner, hidden}),
                    down = builder.parameter("experts.down.weight", {experts, hidden, inner});
  const ir::ValueId logits = builder.timed("router").add1("linear", {x, router});
  const auto routed = builder.timed("router").add("router", {logits},
                                                  {{"normalize", true}, {"top_k", sizes.top_k}});
  const auto sorted =
      builder.timed("dispatch").add("route_sort", {routed[1]}, {{"num_experts", experts}});
  const ir::ValueId rows =
      builder.timed("dispatch").add1("permute", {x, sorted[0]}, {{"top_k", sizes.top_k}});
  ir::GraphBuilder& ops = builder.timed("experts");
  const ir::ValueId activation = ops.add1("activation",
                                          {ops.add1("grouped_linear", {rows, gate, sorted[2]}),
                                           ops.add1("grouped_linear", {rows, up, sorted[2]})},
                                          {{"activation", std::string("swiglu")}});
  const ir::ValueId out = ops.add1("grouped_linear", {activation, down, sorted[2]});
  const ir::ValueId y = builder.timed("combine").add1("unpermute", {out, routed[0], sorted[1]});

  const double matrix = static_cast<double>(hidden * inner);
  const double products =
      6 * static_cast<double>(sizes.tokens) * static_cast<double>(sizes.top_k) * matrix;
  const double floor_bytes = 8 * 3 * static_cast<double>(experts) * matrix;
  GraphCase made = builder.finish(
      y, {{{"total", 3 * products, floor_bytes},
           {Phase::kForward, Phase::kBackwardInput, Phase::kBackwardWeight}},
          {{"forward", products, 0}, {Phase::kForward}},
          {{"backward", 2 * products, 0}, {Phase::kBackwardInput, Phase::kBackwardWeight}}});
  made.value = with_routing(sizes, num_tokens, std::move(made.value));
  return made;
}

}  // namespace

std::vector<std::int64_t> choose_experts(std::int64_t experts, std::int64_t top_k, double zipf,
                                         std::int64_t token) {
  std::vector<double> popularity(static_cast<std::size_t>(experts));
  for (std::size_t expert = 0; expert < popularity.size(); ++expert)
    popularity[expert] = std::pow(static_cast<double>(expert + 1), -zipf);
  std::vector<std::int64_t> chosen;
  for (std::int64_t slot = 0; slot < top_k; ++slot) {
    double sum = 0;
    for (const double value : popularity) sum += value;
    double left =
        sum * random_uniform(0, kRoutingStream, static_cast<std::uint64_t>(token * top_k + slot));
    std::size_t expert = 0;
    while (expert + 1 < popularity.size() &&
           (popularity[expert] == 0 || left >= popularity[expert]))
      left -= popularity[expert++];
    while (popularity[expert] == 0) --expert;  // rounding may lead past the last one left
    popularity[expert] = 0;
    chosen.push_back(static_cast<std::int64_t>(expert));
  }
  return chosen;
}

std::unique_ptr<Benchmark> make_moe(const train::RunConfig& run, Settings& settings,
                                    bool accumulate) {
  const MoeSizes sizes{.tokens = settings.integer("tokens", 1024),
                       .hidden = settings.integer("hidden", 512),
                       .intermediate = settings.integer("intermediate", 1536),
                       .experts = settings.integer("experts", 8),
                       .top_k = settings.integer("top_k", 2),
                       .zipf = settings.number("zipf", 0, 0, 10)};
  ANABATIC_REQUIRE(sizes.top_k <= sizes.experts && sizes.experts <= sizes.hidden,
                   "[bench] expected --top_k <= --experts <= --hidden, got {}, {} and {}",
                   sizes.top_k, sizes.experts, sizes.hidden);
  return make_graph_benchmark(
      run, [=](std::int64_t first) { return moe_case(sizes, first > 0 ? first : sizes.tokens); },
      accumulate);
}

}  // namespace anabatic::bench
