// SPDX-License-Identifier: Apache-2.0
// Attention over sequences or packed documents.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/philox.h"
#include "bench/cases.h"
#include "bench/graph_case.h"
#include "spec/dropout.h"
#include "spec/key_blocks.h"

namespace anabatic::bench {
namespace {

using ir::Phase;

constexpr std::uint64_t kDocumentStream = 2;

struct AttentionSizes {
  std::int64_t batch, sequence, documents, heads, kv_heads, head_dim, v_head_dim, window, sinks;
  std::int64_t blocks;  // keys of one; 0: no lists of them
  double density;
  double dropout;  // of probabilities
  std::int64_t tokens() const { return batch * sequence; }
};

// First key of each row: its sequence's first token, or its document's. Lengths are uniform in
// [1, 2·mean - 1] and end with the sequence.
std::vector<std::int32_t> first_keys(const AttentionSizes& sizes) {
  std::vector<std::int32_t> first(static_cast<std::size_t>(sizes.tokens()));
  std::int64_t begin = 0, end = 0, number = 0;
  for (std::int64_t i = 0; i < sizes.tokens(); ++i) {
    if (i == end) {
      begin = i;
      const std::int64_t sequence_end = (i / sizes.sequence + 1) * sizes.sequence;
      const auto length = static_cast<std::int64_t>(random_below(
          0, kDocumentStream, static_cast<std::uint64_t>(number++),
          static_cast<std::uint64_t>(std::max<std::int64_t>(1, 2 * sizes.documents - 1))));
      end = sizes.documents > 0 ? std::min(sequence_end, i + 1 + length) : sequence_end;
    }
    first[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(begin);
  }
  return first;
}

// The pattern whose density is nearest: half of a row's blocks are the nearest ones, half are
// drawn.
spec::BlockLists block_lists(const AttentionSizes& sizes) {
  spec::BlockLists nearest;
  double error = 2;
  for (std::int64_t count = 1; count <= sizes.sequence / sizes.blocks + 1; ++count) {
    spec::BlockLists lists = spec::make_block_lists(
        {.size = sizes.blocks, .local = (count + 1) / 2, .random = count / 2}, sizes.sequence);
    const double distance = std::abs(lists.density(sizes.sequence, sizes.window) - sizes.density);
    if (distance > error) break;
    error = distance;
    nearest = std::move(lists);
  }
  return nearest;
}

double unmasked_pairs(const AttentionSizes& sizes, const std::vector<std::int32_t>& first,
                      const spec::BlockLists& lists) {
  double pairs = 0;
  for (std::size_t i = 0; i < first.size(); ++i) {
    const auto keys = static_cast<std::int64_t>(i) + 1 - first[i];
    if (sizes.blocks > 0) {
      pairs += lists.listed_keys(keys - 1, sizes.window);
      continue;
    }
    pairs += static_cast<double>(sizes.window > 0 ? std::min(keys, sizes.window) : keys);
  }
  return pairs;
}

GraphCase attention_case(const AttentionSizes& sizes, std::int64_t num_tokens) {
  std::vector<std::int32_t> begin = first_keys(sizes);
  const spec::BlockLists lists = sizes.blocks > 0 ? block_lists(sizes) : spec::BlockLists{};
  const double pairs = unmasked_pairs(sizes, begin, lists) * static_cast<double>(sizes.heads);
  begin.resize(static_cast<std::size_t>(num_tokens));
  std::vector<std::int32_t> end(begin.size());
  for (std::size_t i = 0; i < end.size(); ++i) end[i] = static_cast<std::int32_t>(i + 1);

  CaseBuilder builder("attention", num_tokens);
  const ir::ValueId q = builder.rows("q", sizes.heads * sizes.head_dim),
                    k = builder.rows("k", sizes.kv_heads * sizes.head_dim),
                    v = builder.rows("v", sizes.kv_heads * sizes.v_head_dim);
  const ir::ValueId key_begin = builder.batch("key_begin", {num_tokens}, std::move(begin)),
                    key_end = builder.batch("key_end", {num_tokens}, std::move(end));
  std::vector<ir::ValueId> inputs{q, k, v, key_begin, key_end};
  if (sizes.sinks > 0) inputs.push_back(builder.parameter("sinks", {sizes.heads}));
  spec::Attributes attributes{{"num_heads", sizes.heads},
                              {"num_kv_heads", sizes.kv_heads},
                              {"scale", 1.0 / std::sqrt(static_cast<double>(sizes.head_dim))},
                              {"window", sizes.window}};
  if (sizes.dropout > 0) {
    const spec::DropoutDraws draws = spec::dropout_draws(0, 1, 0);
    attributes[std::string(spec::kDropoutRate)] = sizes.dropout;
    attributes[std::string(spec::kDropoutSite)] = std::string("attention.probabilities.dropout");
    inputs.push_back(
        builder.batch(spec::kDropoutDraws, {spec::kNumDropoutDraws}, {draws.begin(), draws.end()}));
  }
  if (sizes.blocks > 0) {
    attributes[std::string(spec::kBlockSize)] = sizes.blocks;
    inputs.push_back(
        builder.batch(spec::kBlockOffsets, {lists.groups, lists.blocks + 1}, lists.offsets));
    inputs.push_back(builder.batch(spec::kBlockIds, {std::ssize(lists.ids)}, lists.ids));
  }
  const ir::ValueId y =
      builder.timed("attention").add("attention", std::move(inputs), std::move(attributes))[0];
  const auto qk = static_cast<double>(sizes.head_dim), dv = static_cast<double>(sizes.v_head_dim);
  const double forward = 2 * pairs * (qk + dv), backward = 2 * pairs * (3 * qk + 2 * dv);
  return builder.finish(
      y, {{{"total", forward + backward, 0},
           {Phase::kForward, Phase::kBackwardInput, Phase::kBackwardWeight}},
          {{"forward", forward, 0}, {Phase::kForward}},
          {{"backward", backward, 0}, {Phase::kBackwardInput, Phase::kBackwardWeight}}});
}

}  // namespace

std::unique_ptr<Benchmark> make_attention(const train::RunConfig& run, Settings& settings,
                                          bool accumulate) {
  AttentionSizes sizes{.batch = settings.integer("batch", 1),
                       .sequence = settings.integer("sequence", 2048),
                       .documents = settings.integer("documents", 0, 0),
                       .heads = settings.integer("heads", 8),
                       .kv_heads = settings.integer("kv_heads", 0, 0),
                       .head_dim = settings.integer("head_dim", 64),
                       .v_head_dim = settings.integer("v_head_dim", 0, 0),
                       .window = settings.integer("window", 0, 0),
                       .sinks = settings.integer("sinks", 0, 0),
                       .blocks = settings.integer("blocks", 0, 0),
                       .density = 1,
                       .dropout = settings.number("dropout", 0, 0, 1)};
  if (sizes.blocks > 0) sizes.density = settings.number("density", 0.25, 0, 1);
  if (sizes.kv_heads == 0) sizes.kv_heads = sizes.heads;
  if (sizes.v_head_dim == 0) sizes.v_head_dim = sizes.head_dim;
  ANABATIC_REQUIRE(sizes.heads % sizes.kv_heads == 0,
                   "[bench] expected --heads to be a multiple of --kv_heads, got {} and {}",
                   sizes.heads, sizes.kv_heads);
  return make_graph_benchmark(
      run,
      [=](std::int64_t first) { return attention_case(sizes, first > 0 ? first : sizes.tokens()); },
      accumulate);
}

}  // namespace anabatic::bench
