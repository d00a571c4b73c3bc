// SPDX-License-Identifier: Apache-2.0
#include "train/objective/mtp_batch.h"

#include "base/error.h"
#include "model/mtp.h"

namespace anabatic::train {
namespace {

// Whether row `i` has a token `further` rows on in its document.
bool reaches(const io::MicroBatch& batch, std::size_t i, std::size_t further) {
  return i + further < batch.documents.size() && batch.documents[i] != io::kNoDocument &&
         batch.documents[i + further] == batch.documents[i];
}

std::int32_t label_of(const io::MicroBatch& batch, std::size_t i, std::size_t depth) {
  return reaches(batch, i, depth + 1) ? batch.labels[i + depth] : io::kIgnoredLabel;
}

bool has_depth(const BoundProgram& program, std::int64_t depth) {
  return program.executor->has_input(model::mtp_input("mtp_tokens", depth));
}

template <class T>
std::span<T> rows_of(const BoundProgram& program, const char* name, std::int64_t depth) {
  const std::span<std::byte> bytes = program.executor->input(model::mtp_input(name, depth));
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

// What the label of label_of() weighs.
float weight_of(const io::MicroBatch& batch, std::size_t i, std::size_t depth) {
  if (batch.weights.empty()) return 1.0f;
  return reaches(batch, i, depth + 1) ? batch.weights[i + depth] : 0.0f;
}

}  // namespace

double mtp_label_weight(const io::MicroBatch& batch, std::int64_t depth) {
  double sum = 0;
  const auto further = static_cast<std::size_t>(depth);
  for (std::size_t i = 0; i < batch.labels.size(); ++i)
    if (label_of(batch, i, further) != io::kIgnoredLabel) sum += weight_of(batch, i, further);
  return sum;
}

// A row whose document ends before takes any token: no row that counts attends to it.
void set_mtp_rows(BoundProgram& program, const io::MicroBatch& batch) {
  const std::size_t num_rows = batch.tokens.size();
  for (std::int64_t depth = 1; has_depth(program, depth); ++depth) {
    const auto tokens = rows_of<std::int32_t>(program, "mtp_tokens", depth),
               labels = rows_of<std::int32_t>(program, "mtp_labels", depth),
               documents = rows_of<std::int32_t>(program, "mtp_documents", depth);
    std::span<float> weights;
    if (program.executor->has_input(model::mtp_input("mtp_weights", depth)))
      weights = rows_of<float>(program, "mtp_weights", depth);
    ANABATIC_CHECK(tokens.size() == num_rows, "[session] expected {} rows, got {}", tokens.size(),
                   num_rows);
    const auto further = static_cast<std::size_t>(depth);
    for (std::size_t i = 0; i < num_rows; ++i) {
      tokens[i] = batch.tokens[i + further < num_rows ? i + further : i];
      labels[i] = label_of(batch, i, further);
      if (!weights.empty()) weights[i] = weight_of(batch, i, further);
      documents[i] = reaches(batch, i, further) ? batch.documents[i] : io::kNoDocument;
    }
  }
}

void set_mtp_scales(BoundProgram& program, std::span<const io::MicroBatch> step) {
  for (std::int64_t depth = 1; has_depth(program, depth); ++depth) {
    double sum = 0;
    for (const io::MicroBatch& batch : step) sum += mtp_label_weight(batch, depth);
    program.set_scalar(model::mtp_input("inverse_mtp_labels", depth),
                       sum > 0 ? static_cast<float>(1.0 / sum) : 0.0f);
  }
}

}  // namespace anabatic::train
