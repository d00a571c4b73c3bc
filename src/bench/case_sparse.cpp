// SPDX-License-Identifier: Apache-2.0
// Products with a sparse weight, next to those with a dense weight of the same shape.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/philox.h"
#include "base/rounding.h"
#include "bench/cases.h"
#include "bench/graph_case.h"
#include "ops/table.h"
#include "spec/state.h"

namespace anabatic::bench {
namespace {

using ir::Phase;

constexpr const char* kWeight = "sparse.weight";

struct SparseSizes {
  std::int64_t rows, in, out, experts;  // experts 0: one matrix for all rows
  spec::SparsityPattern pattern;
  double density;
  double element;  // bytes

  std::int64_t num_matrices() const { return std::max<std::int64_t>(experts, 1); }
  std::int64_t num_blocks() const { return spec::num_blocks(pattern, out, in); }
  std::int64_t kept() const { return spec::kept_blocks(pattern, out, in, density); }
  std::vector<std::int64_t> shape() const {
    return experts > 0 ? std::vector{experts, out, in} : std::vector{out, in};
  }
};

// Two of four in each row and column of each tile of 4 x 4: row r has columns r + first and
// r + second, modulo 4.
std::vector<std::uint8_t> draw_two_of_four(const SparseSizes& sizes) {
  std::vector<std::uint8_t> mask(
      static_cast<std::size_t>(sizes.num_matrices() * sizes.out * sizes.in), 0);
  const std::int64_t across = sizes.in / 4, tiles = sizes.num_matrices() * sizes.out / 4 * across;
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    const std::uint64_t bits = random_bits(0, stream_of("mask"), static_cast<std::uint64_t>(tile));
    const std::uint64_t first = bits % 4, second = first + 1 + bits / 4 % 3;
    for (std::int64_t r = 0; r < 4; ++r)
      for (const std::uint64_t place : {first, second})
        mask[static_cast<std::size_t>((tile / across * 4 + r) * sizes.in + tile % across * 4 +
                                      (r + static_cast<std::int64_t>(place)) % 4)] = 1;
  }
  return mask;
}

// 1 for the present blocks of each matrix, drawn at random.
std::vector<std::uint8_t> draw_mask(const SparseSizes& sizes) {
  if (sizes.pattern == spec::SparsityPattern::kTwoOfFour) return draw_two_of_four(sizes);
  const auto blocks = static_cast<std::size_t>(sizes.num_blocks());
  std::vector<std::uint8_t> mask(blocks * static_cast<std::size_t>(sizes.num_matrices()), 0);
  std::vector<std::size_t> order(blocks);
  for (std::size_t first = 0; first < mask.size(); first += blocks) {
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (std::size_t i = blocks; i > 1; --i)
      std::swap(order[i - 1], order[random_below(0, stream_of("mask"), first + i, i)]);
    for (std::int64_t i = 0; i < sizes.kept(); ++i)
      mask[first + order[static_cast<std::size_t>(i)]] = 1;
  }
  return mask;
}

// An even share of the rows for each expert, of which the first `num_tokens` are there.
std::vector<std::int32_t> even_offsets(const SparseSizes& sizes, std::int64_t num_tokens) {
  std::vector<std::int32_t> offsets;
  for (std::int64_t e = 0; e <= sizes.experts; ++e)
    offsets.push_back(
        static_cast<std::int32_t>(std::min(num_tokens, sizes.rows * e / sizes.experts)));
  return offsets;
}

// Two products of rows of their own, of which the first one's weight has a mask.
GraphCase sparse_case(const SparseSizes& sizes, std::int64_t num_tokens) {
  CaseBuilder builder("sparse", num_tokens);
  const ir::ValueId x = builder.rows("x", sizes.in), x_dense = builder.rows("x.dense", sizes.in);
  const ir::ValueId weight = builder.parameter(kWeight, sizes.shape()),
                    dense = builder.parameter("dense.weight", sizes.shape());
  std::vector<ir::ValueId> offsets;
  if (sizes.experts > 0)
    offsets.push_back(
        builder.batch("offsets", {sizes.experts + 1}, even_offsets(sizes, num_tokens)));
  const auto product = [&](const char* segment, ir::ValueId rows, ir::ValueId matrix) {
    std::vector<ir::ValueId> inputs{rows, matrix};
    inputs.insert(inputs.end(), offsets.begin(), offsets.end());
    return builder.timed(segment).add1(offsets.empty() ? "linear" : "grouped_linear",
                                       std::move(inputs));
  };
  const ir::ValueId y = product("sparse", x, weight), of_dense = product("dense", x_dense, dense);

  const double share = static_cast<double>(sizes.kept()) / static_cast<double>(sizes.num_blocks());
  const double rows = static_cast<double>(sizes.rows),
               matrices = static_cast<double>(sizes.num_matrices()),
               elements = static_cast<double>(sizes.in * sizes.out);
  const double flops = 2 * rows * elements,
               activations = sizes.element * rows * static_cast<double>(sizes.in + sizes.out);
  const auto bytes = [&](double of_weights) {
    return activations + of_weights * matrices * elements;
  };
  // That of weights that are not in blocks stays dense.
  const double of_gradient = spec::mask_block(sizes.pattern) == 1 ? 1 : share;
  const double read = bytes(sizes.element * share), written = bytes(4 * of_gradient);
  const double dense_read = bytes(sizes.element), dense_written = bytes(4);
  GraphCase made = builder.finish(
      builder.timed(kSeedSegment).add1("add", {y, of_dense}),
      {{{"total", (2 * share + of_gradient) * flops, 2 * read + written},
        {Phase::kForward, Phase::kBackwardInput, Phase::kBackwardWeight},
        "sparse"},
       {{"forward", share * flops, read}, {Phase::kForward}, "sparse"},
       {{"input_gradient", share * flops, read}, {Phase::kBackwardInput}, "sparse"},
       {{"weight_gradient", of_gradient * flops, written}, {Phase::kBackwardWeight}, "sparse"},
       {{"dense_forward", flops, dense_read}, {Phase::kForward}, "dense"},
       {{"dense_input_gradient", flops, dense_read}, {Phase::kBackwardInput}, "dense"},
       {{"dense_weight_gradient", flops, dense_written}, {Phase::kBackwardWeight}, "dense"}});
  // As in training: an update reads what is present of a gradient, so no more is written.
  made.with_update = true;

  const std::vector<std::uint8_t> mask = draw_mask(sizes);
  ir::GraphBuilder states(made.graph, ops::find_op);
  const TensorType type = made.graph.value(weight).type;
  states.state_of(intern(kWeight), ir::StateRole::kMask, spec::mask_type(sizes.pattern, type));
  made.graph.states.back().pattern = sizes.pattern;
  made.masks[spec::state_name(ir::StateRole::kMask, kWeight)] = mask;
  made.sparsity = {
      .entries = {{.pattern = sizes.pattern,
                   .density = sizes.density,
                   .threshold = 0,
                   .is_transposable = sizes.pattern == spec::SparsityPattern::kTwoOfFour}},
      .is_final = true};
  const std::int64_t side = spec::mask_block(sizes.pattern);
  made.value = [sizes, side, mask, value = std::move(made.value)](std::string_view name,
                                                                  std::int64_t i) {
    if (name != kWeight) return value(name, i);
    const std::int64_t matrix = i / (sizes.in * sizes.out), n = i / sizes.in % sizes.out,
                       k = i % sizes.in;
    const std::int64_t block =
        matrix * sizes.num_blocks() + n / side * ceil_div(sizes.in, side) + k / side;
    return mask[static_cast<std::size_t>(block)] != 0 ? value(name, i) : 0.0f;
  };
  return made;
}

}  // namespace

std::unique_ptr<Benchmark> make_sparse(const train::RunConfig& run, Settings& settings,
                                       bool accumulate) {
  const std::string word = settings.word("pattern", {"block32", "block16", "2:4", "unstructured"});
  const SparseSizes sizes{.rows = settings.integer("rows", 1024),
                          .in = settings.integer("in", 512),
                          .out = settings.integer("out", 1536),
                          .experts = settings.integer("experts", 0, 0),
                          .pattern = *spec::sparsity_pattern_from_string(word),
                          .density = settings.number("density", 0.25, 1e-6, 1),
                          .element = train::uses_bf16(run) ? 2.0 : 4.0};
  if (sizes.pattern == spec::SparsityPattern::kTwoOfFour)
    for (const auto& [name, size] : {std::pair{"in", sizes.in}, {"out", sizes.out}})
      ANABATIC_REQUIRE(size % 4 == 0,
                       "[bench] {}: expected a multiple of 4 for 2:4, got {}; {} is one", name,
                       size, round_up(size, std::int64_t{4}));
  return make_graph_benchmark(
      run, [=](std::int64_t first) { return sparse_case(sizes, first > 0 ? first : sizes.rows); },
      accumulate);
}

}  // namespace anabatic::bench
