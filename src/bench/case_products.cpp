// SPDX-License-Identifier: Apache-2.0
// The benchmarks around matrix products: gemm, loss, optimizer.
#include <fmt/core.h>

#include <algorithm>

#include "base/philox.h"
#include "base/rounding.h"
#include "bench/cases.h"
#include "bench/graph_case.h"

namespace anabatic::bench {
namespace {

using ir::Phase;

double product(std::int64_t a, std::int64_t b, std::int64_t c = 1) {
  return static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c);
}

double element_bytes(const train::RunConfig& run) { return train::uses_bf16(run) ? 2 : 4; }

// Makes one element of some blocks of x outweigh the others, as far as int8 values go.
void plant_outliers(GraphCase& made, const GemmSizes& sizes) {
  if (sizes.outliers == 0) return;
  made.value = [value = made.value, sizes](std::string_view name, std::int64_t i) {
    constexpr std::int64_t kBlock = 128;
    constexpr float kFactor = 1000;
    const float plain = value(name, i);
    if (name != "x") return plain;
    const std::int64_t column = i % sizes.in, block = column / kBlock,
                       width = std::min(kBlock, sizes.in - block * kBlock);
    const auto place =
        static_cast<std::uint64_t>(i / sizes.in * ceil_div(sizes.in, kBlock) + block);
    const bool has_one = random_uniform(0, stream_of("outliers"), place) < sizes.outliers;
    const auto at = static_cast<std::int64_t>(
        random_below(0, stream_of("places"), place, static_cast<std::uint64_t>(width)));
    return has_one && column % kBlock == at ? kFactor * (plain < 0 ? -1.0f : 1.0f) : plain;
  };
}

}  // namespace

GraphCase gemm_case(const GemmSizes& sizes, std::int64_t num_tokens) {
  CaseBuilder builder("gemm", num_tokens);
  const ir::ValueId x = builder.rows("x", sizes.in);
  const ir::ValueId weight = builder.parameter("weight", {sizes.out, sizes.in});
  const ir::ValueId y = builder.timed("mlp").add1("linear", {x, weight});
  const double flops = 2 * product(sizes.rows, sizes.in, sizes.out);
  const double x_bytes = sizes.element * product(sizes.rows, sizes.in),
               y_bytes = sizes.element * product(sizes.rows, sizes.out),
               weights = product(sizes.in, sizes.out);
  const double one = x_bytes + y_bytes + sizes.element * weights,
               gradient = x_bytes + y_bytes + 4 * weights;
  GraphCase made =
      builder.finish(y, {{{"total", 3 * flops, 2 * one + gradient},
                          {Phase::kForward, Phase::kBackwardInput, Phase::kBackwardWeight}},
                         {{"forward", flops, one}, {Phase::kForward}},
                         {{"input_gradient", flops, one}, {Phase::kBackwardInput}},
                         {{"weight_gradient", flops, gradient}, {Phase::kBackwardWeight}}});
  plant_outliers(made, sizes);
  return made;
}

namespace {

struct LossSizes {
  std::int64_t tokens, hidden, vocabulary;
  double ignored;
};

GraphCase loss_case(const LossSizes& sizes, std::int64_t num_tokens) {
  CaseBuilder builder("loss", num_tokens);
  const ir::ValueId x = builder.rows("x", sizes.hidden);
  const ir::ValueId weight = builder.parameter("head.weight", {sizes.vocabulary, sizes.hidden});
  const ir::ValueId logits = builder.timed("head").add1("linear", {x, weight}, {}, "logits");
  const double flops =
      6 * (1 - sizes.ignored) * product(sizes.tokens, sizes.hidden, sizes.vocabulary);
  return builder.finish_with_loss(
      logits,
      {{{"total", flops, 0}, {Phase::kForward, Phase::kBackwardInput, Phase::kBackwardWeight}}},
      sizes.ignored);
}

struct OptimizerSizes {
  std::int64_t matrices, out, in;
  double bytes;  // of an update, a parameter
};

// Read and written: the parameter, the gradient, both moments; a bf16 copy.
double update_bytes(const train::RunConfig& run) {
  const std::string& moments = run.optimizer.state_precision;
  const double moment = moments == "int8" ? 1 + 4.0 / 256 : moments == "bf16" ? 2 : 4;
  return 12 + 4 * moment + (train::uses_bf16(run) ? 2 : 0);
}

// A chain of products, back and forth between both widths.
GraphCase optimizer_case(const OptimizerSizes& sizes, std::int64_t num_tokens) {
  CaseBuilder builder("optimizer", num_tokens);
  ir::ValueId x = builder.rows("x", sizes.in);
  std::int64_t width = sizes.in;
  for (std::int64_t i = 0; i < sizes.matrices; ++i) {
    const std::int64_t next = width == sizes.in ? sizes.out : sizes.in;
    const ir::ValueId weight = builder.parameter(fmt::format("weight.{}", i), {next, width});
    x = builder.timed("mlp").add1("linear", {x, weight});
    width = next;
  }
  const double parameters =
      product(sizes.matrices, sizes.out, sizes.in) + product(num_tokens, sizes.in);
  GraphCase made = builder.finish(x, {{{"total", 0, sizes.bytes * parameters}, {Phase::kUpdate}}});
  made.with_update = true;
  return made;
}

}  // namespace

std::unique_ptr<Benchmark> make_gemm(const train::RunConfig& run, Settings& settings,
                                     bool accumulate) {
  const GemmSizes sizes{.rows = settings.integer("rows", 1024),
                        .in = settings.integer("in", 512),
                        .out = settings.integer("out", 512),
                        .element = element_bytes(run),
                        .outliers = settings.number("outliers", 0, 0, 1)};
  return make_graph_benchmark(
      run, [=](std::int64_t first) { return gemm_case(sizes, first > 0 ? first : sizes.rows); },
      accumulate);
}

std::unique_ptr<Benchmark> make_loss(const train::RunConfig& run, Settings& settings,
                                     bool accumulate) {
  const LossSizes sizes{.tokens = settings.integer("tokens", 2048),
                        .hidden = settings.integer("hidden", 512),
                        .vocabulary = settings.integer("vocabulary", 32000),
                        .ignored = settings.number("ignored", 0, 0, 0.99)};
  return make_graph_benchmark(
      run, [=](std::int64_t first) { return loss_case(sizes, first > 0 ? first : sizes.tokens); },
      accumulate);
}

std::unique_ptr<Benchmark> make_optimizer(const train::RunConfig& run, Settings& settings,
                                          bool accumulate) {
  const OptimizerSizes sizes{.matrices = settings.integer("matrices", 4),
                             .out = settings.integer("out", 2048),
                             .in = settings.integer("in", 2048),
                             .bytes = update_bytes(run)};
  const std::int64_t tokens = settings.integer("update_tokens", 16);
  return make_graph_benchmark(
      run, [=](std::int64_t first) { return optimizer_case(sizes, first > 0 ? first : tokens); },
      accumulate);
}

}  // namespace anabatic::bench
