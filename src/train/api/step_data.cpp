// SPDX-License-Identifier: Apache-2.0
#include "train/api/step_data.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace anabatic::train {
namespace {

void check(const Sequence& sequence, std::size_t number, const StepShape& shape) {
  const auto length = static_cast<std::int64_t>(sequence.tokens.size());
  ANABATIC_REQUIRE(length > 0 && length <= shape.sequence_length,
                   "[session] sequence {}: expected 1 to {} tokens (data.sequence_length), got {}",
                   number, shape.sequence_length, length);
  ANABATIC_REQUIRE(sequence.labels.empty() || sequence.labels.size() == sequence.tokens.size(),
                   "[session] sequence {}: expected a label for each of {} tokens, or none, got {}",
                   number, length, sequence.labels.size());
  for (std::size_t i = 0; i < sequence.tokens.size(); ++i)
    ANABATIC_REQUIRE(sequence.tokens[i] >= 0 && sequence.tokens[i] < shape.vocabulary,
                     "[session] sequence {}, token {}: expected an id in [0, {}), got {}", number,
                     i, shape.vocabulary, sequence.tokens[i]);
  for (std::size_t i = 0; i < sequence.labels.size(); ++i) {
    const std::int32_t label = sequence.labels[i];
    ANABATIC_REQUIRE(label == io::kIgnoredLabel || (label >= 0 && label < shape.vocabulary),
                     "[session] sequence {}, label {}: expected an id in [0, {}) or {}, got {}",
                     number, i, shape.vocabulary, io::kIgnoredLabel, label);
  }
  if (sequence.documents.empty()) return;
  std::int64_t sum = 0;
  for (const std::int64_t document : sequence.documents) {
    ANABATIC_REQUIRE(document > 0 && document <= length - sum,
                     "[session] sequence {}: expected lengths of documents that add up to its {} "
                     "tokens, got one of {} after {} tokens",
                     number, length, document, sum);
    sum += document;
  }
  ANABATIC_REQUIRE(sum == length,
                   "[session] sequence {}: expected documents of {} tokens in all, got {}", number,
                   length, sum);
}

// The rows of one sequence in a micro-batch, from `first` on.
class BatchRows {
 public:
  BatchRows(io::MicroBatch& batch, std::int64_t first) : batch_(batch), first_(first) {}

  void fill(const Sequence& sequence) {
    const std::int64_t whole[] = {static_cast<std::int64_t>(sequence.tokens.size())};
    const std::span<const std::int64_t> documents =
        sequence.documents.empty() ? std::span<const std::int64_t>(whole) : sequence.documents;
    const std::vector<std::int32_t>& labels =
        sequence.labels.empty() ? sequence.tokens : sequence.labels;
    std::int64_t begin = 0;
    for (const std::int64_t length : documents) {
      for (std::int64_t i = begin; i < begin + length; ++i) {
        const bool is_last = i + 1 == begin + length;
        const auto place = static_cast<std::size_t>(i);
        const std::int32_t label = is_last ? io::kIgnoredLabel : labels[place + 1];
        set(i, begin, sequence.tokens[place], label, static_cast<std::int32_t>(first_ + begin));
        batch_.unmasked_tokens += label != io::kIgnoredLabel;
      }
      begin += length;
    }
    batch_.real_tokens += begin;
    batch_.num_documents += static_cast<std::int64_t>(documents.size());
  }

  // Rows [begin, end), a document of their own.
  void pad(std::int64_t begin, std::int64_t end, std::int32_t pad_id) {
    for (std::int64_t i = begin; i < end; ++i)
      set(i, begin, pad_id, io::kIgnoredLabel, io::kNoDocument);
  }

 private:
  void set(std::int64_t i, std::int64_t begin, std::int32_t token, std::int32_t label,
           std::int32_t document) {
    const auto row = static_cast<std::size_t>(first_ + i);
    batch_.tokens[row] = token;
    batch_.labels[row] = label;
    batch_.positions[row] = static_cast<std::int32_t>(i - begin);
    batch_.key_begin[row] = static_cast<std::int32_t>(first_ + begin);
    batch_.key_end[row] = static_cast<std::int32_t>(first_ + i) + 1;
    batch_.documents[row] = document;
  }

  io::MicroBatch& batch_;
  std::int64_t first_;
};

io::MicroBatch make_micro_batch(std::span<const Sequence> sequences, const StepShape& shape) {
  io::MicroBatch batch;
  const auto rows = static_cast<std::size_t>(shape.micro_batch_size * shape.sequence_length);
  for (auto* array : {&batch.tokens, &batch.labels, &batch.positions, &batch.key_begin,
                      &batch.key_end, &batch.documents})
    array->resize(rows);
  for (std::int64_t i = 0; i < shape.micro_batch_size; ++i) {
    BatchRows part(batch, i * shape.sequence_length);
    const auto place = static_cast<std::size_t>(i);
    const bool is_given = place < sequences.size();
    if (is_given) part.fill(sequences[place]);
    part.pad(is_given ? static_cast<std::int64_t>(sequences[place].tokens.size()) : 0,
             shape.sequence_length, shape.pad_id);
    batch.samples.push_back(is_given ? i : -1);
  }
  return batch;
}

}  // namespace

StepShape step_shape(const RunConfig& run, const ModelSession& model) {
  const std::vector<std::int64_t>& ends = model.config().eos_token_ids;
  return {.sequence_length = run.data.sequence_length,
          .micro_batch_size = run.train.micro_batch_size,
          .vocabulary = model.config().spec.vocab_size,
          .pad_id = static_cast<std::int32_t>(ends.empty() ? 0 : ends.front())};
}

io::StepBatch make_step(std::span<const Sequence> sequences, const StepShape& shape) {
  for (std::size_t i = 0; i < sequences.size(); ++i) check(sequences[i], i, shape);
  io::StepBatch step;
  const auto size = static_cast<std::size_t>(shape.micro_batch_size);
  for (std::size_t first = 0; first < sequences.size(); first += size) {
    step.micro_batches.push_back(make_micro_batch(
        sequences.subspan(first, std::min(size, sequences.size() - first)), shape));
    step.count(step.micro_batches.back());
  }
  return step;
}

}  // namespace anabatic::train
