// SPDX-License-Identifier: Apache-2.0
#include "train/tasks/sequence_scorer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "io/data/dataset.h"
#include "train/caches.h"

namespace anabatic::train {
namespace {

// Rows of the program for what is left of a batch, and the most rows of the other one: enough to
// fill GEMM tiles.
constexpr std::int64_t kRestRows = 64, kMostChunkRows = 512;
constexpr std::int32_t kNoLabel = -100, kNoPlace = -1;

}  // namespace

std::int64_t BranchedContext::num_rows() const {
  std::size_t longest = 0;
  for (const Branch& branch : branches) longest = std::max(longest, branch.tokens.size());
  return static_cast<std::int64_t>(prefix.size() + longest);
}

SequenceScorer::SequenceScorer(ModelSession& session, std::int64_t batch_tokens,
                               std::int64_t longest)
    : session_(session),
      capacity_(std::max({batch_tokens, longest, kRestRows})),
      chunk_rows_(std::clamp(batch_tokens, kRestRows, kMostChunkRows)) {
  const auto bind = [&](const char* name, std::int64_t rows) {
    return session.bind({.name = name,
                         .build = {.num_tokens = rows,
                                   .longest_document = longest,
                                   .with_loss = false,
                                   .with_log_probabilities = true,
                                   .cache_capacity = capacity_}});
  };
  chunk_ = bind("score", chunk_rows_);
  rest_ = bind("score_rest", kRestRows);
  if (!session.has_parameters()) session.load_parameters();
  session.refresh_derived();
}

SequenceScorer::~SequenceScorer() { drop_caches(session_, {&chunk_, &rest_}); }

void SequenceScorer::add_rows(std::span<const std::int32_t> tokens,
                              std::span<const std::int32_t> labels, std::int64_t begin,
                              std::int64_t first, BranchScore* score) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto position = static_cast<std::int32_t>(first + static_cast<std::int64_t>(i)),
               place = static_cast<std::int32_t>(begin) + position;
    rows_.push_back({.token = tokens[i],
                     .position = position,
                     .label = labels.empty() ? kNoLabel : labels[i],
                     .key_begin = static_cast<std::int32_t>(begin),
                     .key_end = place + 1,
                     .place = place,
                     .score = score});
  }
}

void SequenceScorer::run(BoundProgram& program, std::int64_t num_rows, std::span<const Row> rows) {
  const auto set = [&](const char* input, std::int32_t Row::*member, std::int32_t padding) {
    values_.assign(static_cast<std::size_t>(num_rows), padding);
    for (std::size_t i = 0; i < rows.size(); ++i) values_[i] = rows[i].*member;
    program.set(input, values_);
  };
  // Padding sees no key, and key ranges never decrease.
  const std::int32_t end = rows.back().key_end;
  set("tokens", &Row::token, 0);
  set("positions", &Row::position, 0);
  set("labels", &Row::label, kNoLabel);
  set("key_begin", &Row::key_begin, end);
  set("key_end", &Row::key_end, end);
  set("cache_places", &Row::place, kNoPlace);
  program.run_alone(spec::Action::kForward);
  const auto* log_probabilities = program.executor->output("log_probabilities").as<const float>();
  const auto* margins = program.executor->output("margins").as<const float>();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].label == kNoLabel) continue;
    ANABATIC_REQUIRE(std::isfinite(log_probabilities[i]),
                     "[evaluate] the model gives token {} a log-probability of {}", rows[i].label,
                     log_probabilities[i]);
    rows[i].score->log_probability += log_probabilities[i];
    rows[i].score->is_greedy &= margins[i] >= 0;
  }
}

void SequenceScorer::run_rows() {
  std::span<const Row> rest = rows_;
  while (!rest.empty()) {
    const auto left = static_cast<std::int64_t>(rest.size());
    const bool is_chunk = left > chunk_rows_ / 2;
    const std::int64_t num_rows = is_chunk ? chunk_rows_ : kRestRows;
    const auto taken = static_cast<std::size_t>(std::min(num_rows, left));
    run(is_chunk ? *chunk_ : *rest_, num_rows, rest.first(taken));
    rest = rest.subspan(taken);
  }
  rows_.clear();
}

std::vector<std::vector<BranchScore>> SequenceScorer::score(
    std::span<const BranchedContext> contexts) {
  std::vector<std::vector<BranchScore>> scores(contexts.size());
  std::vector<std::size_t> order(contexts.size());
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    scores[i].resize(contexts[i].branches.size());
    ANABATIC_CHECK(contexts[i].num_rows() <= capacity_, "[evaluate] {} rows, room for {}",
                   contexts[i].num_rows(), capacity_);
  }
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return contexts[a].num_rows() > contexts[b].num_rows();
  });
  for (std::size_t first = 0, last = 0; first < order.size(); first = last) {
    std::vector<std::int64_t> begins;
    std::size_t most_branches = 0;
    for (std::int64_t rows = 0; last < order.size(); ++last) {
      const BranchedContext& context = contexts[order[last]];
      if (rows + context.num_rows() > capacity_) break;
      begins.push_back(rows);
      rows += context.num_rows();
      most_branches = std::max(most_branches, context.branches.size());
    }
    // The first branches go with their prefixes. The others overwrite them, one after the other.
    for (std::size_t branch = 0; branch < most_branches; ++branch) {
      for (std::size_t i = first; i < last; ++i) {
        const BranchedContext& context = contexts[order[i]];
        const std::int64_t begin = begins[i - first],
                           length = static_cast<std::int64_t>(context.prefix.size());
        if (branch >= context.branches.size()) continue;
        BranchScore* score = &scores[order[i]][branch];
        if (branch == 0) add_rows(context.prefix, {}, begin, 0, score);
        add_rows(context.branches[branch].tokens, context.branches[branch].labels, begin, length,
                 score);
      }
      run_rows();
    }
  }
  return scores;
}

}  // namespace anabatic::train
