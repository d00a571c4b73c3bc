// SPDX-License-Identifier: Apache-2.0
// Log-probabilities of given continuations. Those of one context share its rows, which go through
// the model once.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "train/model_session.h"

namespace anabatic::train {

// A continuation: what is read at each of its places, and what should come next there.
struct Branch {
  std::vector<std::int32_t> tokens, labels;
};
// The tokens before several branches.
struct BranchedContext {
  std::vector<std::int32_t> prefix;
  std::vector<Branch> branches;

  // Rows of a cache that it takes: every branch lies where the one before did.
  std::int64_t num_rows() const;
};

struct BranchScore {
  double log_probability = 0;
  bool is_greedy = true;  // no other token is likelier, at any place
};

// Contexts of like lengths share a batch, whose rows go through the model together. What a row
// computes does not depend on the rows around it: order and size of batches change no digit.
class SequenceScorer {
 public:
  // Binds two programs of the session, which takes its parameters from run.model.path if it has
  // none. A batch has `batch_tokens` rows, or the `longest` context's. A session has one scorer or
  // decoder at a time, which owns the caches.
  SequenceScorer(ModelSession& session, std::int64_t batch_tokens, std::int64_t longest);
  ~SequenceScorer();
  SequenceScorer(const SequenceScorer&) = delete;
  SequenceScorer& operator=(const SequenceScorer&) = delete;

  // The scores of each context's branches.
  std::vector<std::vector<BranchScore>> score(std::span<const BranchedContext> contexts);

 private:
  // A token on its way through the model.
  struct Row {
    std::int32_t token, position, label, key_begin, key_end, place;
    BranchScore* score;
  };
  void add_rows(std::span<const std::int32_t> tokens, std::span<const std::int32_t> labels,
                std::int64_t begin, std::int64_t first, BranchScore* score);
  // Runs all rows, which are left empty.
  void run_rows();
  void run(BoundProgram& program, std::int64_t num_rows, std::span<const Row> rows);

  ModelSession& session_;
  std::int64_t capacity_, chunk_rows_;
  std::unique_ptr<BoundProgram> chunk_, rest_;
  std::vector<Row> rows_;
  std::vector<std::int32_t> values_;
};

}  // namespace anabatic::train
