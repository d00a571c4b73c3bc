// SPDX-License-Identifier: Apache-2.0
// Whether documents of a packed micro-batch see each other. Tokens of some documents are replaced.
// Then nothing that belongs to the others may change a bit: no row of their logits, no loss, no
// gradient of their embeddings. Auxiliary losses are left out, for they couple documents by design.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/data/loader.h"
#include "train/model_session.h"

namespace anabatic::train {

// The documents of a micro-batch by row, numbered from 0 in their order; -1: padding.
std::vector<std::int32_t> number_documents(const io::MicroBatch& batch);

// The same with another token in each row of a document that `changes` names.
io::MicroBatch with_other_tokens(const io::MicroBatch& batch,
                                 const std::vector<std::int32_t>& documents,
                                 const std::vector<bool>& changes, std::int64_t vocab_size);

// The same with labels in the documents that `keeps` names alone.
io::MicroBatch with_labels_of(const io::MicroBatch& batch,
                              const std::vector<std::int32_t>& documents,
                              const std::vector<bool>& keeps);

struct LeakReport {
  std::int64_t documents = 0;  // of the micro-batch
  std::int64_t rounds = 0;     // in which half of them changed
  std::string leak;            // which row saw which document; empty: none did
};

// The program that find_leak runs: with `logits` and gradients, without an update.
std::unique_ptr<BoundProgram> bind_leak_program(ModelSession& session, std::int64_t num_tokens);

// Compares logits by row, and the gradient of the embedding unless that is frozen, in rounds that
// separate each pair of documents in both directions.
LeakReport find_leak(BoundProgram& program, const io::MicroBatch& batch, std::int64_t vocab_size);

// Reads the first micro-batch of the run that has two documents in one sample, and compiles the
// program. InvalidArgument where there is none, or where data.packing lets documents share
// attention.
LeakReport check_leak(const RunConfig& run);

// The check of every job: two forwards of its own program, before the first step. Every
// second document changes. InternalError where a loss of the others does. Returns how many kept
// theirs; 0: no sample has two documents.
std::int64_t require_no_leak(BoundProgram& program, const io::MicroBatch& batch,
                             std::int64_t vocab_size);

}  // namespace anabatic::train
