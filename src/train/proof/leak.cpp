// SPDX-License-Identifier: Apache-2.0
#include "train/proof/leak.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <span>

#include "base/error.h"
#include "base/philox.h"
#include "train/objective/mtp_batch.h"
#include "train/objective/run_model.h"
#include "train/open_dataset.h"
#include "train/ranks/ranks.h"
#include "train/training_step.h"

namespace anabatic::train {
namespace {

constexpr std::int64_t kMostSteps = 100;  // that are searched for two documents in one sample
constexpr std::uint64_t kSeed = 1;        // of other tokens
constexpr std::array kLosses{"loss", "mtp_loss"};
constexpr const char* kGradient = "gradients.embedding.weight";

std::int32_t count_documents(const std::vector<std::int32_t>& documents) {
  return documents.empty() ? 0 : 1 + *std::max_element(documents.begin(), documents.end());
}

// Whether a sample has two documents: in order, the later one could see the earlier one.
bool is_packed(const io::MicroBatch& batch) {
  return batch.num_documents > std::count_if(batch.samples.begin(), batch.samples.end(),
                                             [](std::int64_t sample) { return sample >= 0; });
}

std::vector<bool> documents_with_bit(std::int32_t count, int bit, bool value) {
  std::vector<bool> result;
  for (std::int32_t document = 0; document < count; ++document)
    result.push_back((((document >> bit) & 1) != 0) == value);
  return result;
}

std::vector<bool> others(std::vector<bool> documents) {
  documents.flip();
  return documents;
}

bool has(const std::vector<bool>& named, std::int32_t document) {
  return document >= 0 && named[static_cast<std::size_t>(document)];
}

void run_forward(BoundProgram& program, const io::MicroBatch& batch) {
  program.set_batch(batch);
  set_loss_scales(program, totals_of(batch));
  set_mtp_scales(program, {&batch, 1});
  program.run_alone(spec::Action::kForward);
}

std::vector<float> copy_of(const BoundProgram& program, const std::string& output) {
  const TensorView view = program.executor->output(output);
  const auto* values = view.as<const float>();
  return {values, values + view.type->num_elements()};
}

bool has_equal_bits(std::span<const float> a, std::span<const float> b) {
  return std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

class Search {
 public:
  Search(BoundProgram& program, const io::MicroBatch& batch, std::int64_t vocab_size)
      : program_(program),
        batch_(batch),
        documents_(number_documents(batch)),
        vocab_size_(vocab_size) {}

  LeakReport run() {
    LeakReport report{.documents = count_documents(documents_)};
    const auto count = static_cast<std::int32_t>(report.documents);
    run_forward(program_, batch_);
    logits_ = copy_of(program_, "logits");
    for (int bit = 0; (1 << bit) < count; ++bit)
      for (const bool value : {false, true}) {
        ++report.rounds;
        report.leak = leak_from(documents_with_bit(count, bit, value));
        if (!report.leak.empty()) return report;
      }
    return report;
  }

 private:
  std::string leak_from(const std::vector<bool>& changes) {
    const io::MicroBatch labelled = with_labels_of(batch_, documents_, others(changes));
    const io::MicroBatch changed = with_other_tokens(labelled, documents_, changes, vocab_size_);
    const std::vector<float> before = embedding_gradient(labelled);
    const std::vector<float> after = embedding_gradient(changed);
    if (const std::int64_t row = first_changed_row(changes); row >= 0)
      return fmt::format("the logits of {} change with the tokens of {}", place_of(row),
                         source_of(row, changes));
    // Zeroes may have either sign.
    for (std::size_t i = 0; i < before.size(); ++i)
      if (before[i] != after[i])
        return fmt::format(
            "the loss of {} has a gradient with respect to the embeddings of {}: that of token {} "
            "is {} or {}, by the tokens of these",
            names_of(others(changes)), names_of(changes),
            i / (before.size() / static_cast<std::size_t>(vocab_size_)), before[i], after[i]);
    return "";
  }

  std::vector<float> embedding_gradient(const io::MicroBatch& batch) {
    run_forward(program_, batch);
    if (!program_.executor->has_output(kGradient)) return {};
    program_.run_alone(spec::Action::kBackward);
    return copy_of(program_, kGradient);
  }

  // A row of a document that kept its tokens, after a forward with the changed ones; -1: none.
  std::int64_t first_changed_row(const std::vector<bool>& changes) const {
    const std::vector<float> now = copy_of(program_, "logits");
    const auto width = static_cast<std::size_t>(vocab_size_);
    for (std::size_t row = 0; row < documents_.size(); ++row)
      if (documents_[row] >= 0 && !has(changes, documents_[row]) &&
          !has_equal_bits(std::span(now).subspan(row * width, width),
                          std::span(logits_).subspan(row * width, width)))
        return static_cast<std::int64_t>(row);
    return -1;
  }

  // Which of the changed documents the row sees: each of them changed alone.
  std::string source_of(std::int64_t row, const std::vector<bool>& changes) {
    const auto width = static_cast<std::size_t>(vocab_size_),
               begin = static_cast<std::size_t>(row) * width;
    for (std::size_t document = 0; document < changes.size(); ++document) {
      if (!changes[document]) continue;
      std::vector<bool> alone(changes.size());
      alone[document] = true;
      run_forward(program_, with_other_tokens(batch_, documents_, alone, vocab_size_));
      const std::vector<float> now = copy_of(program_, "logits");
      if (!has_equal_bits(std::span(now).subspan(begin, width),
                          std::span(logits_).subspan(begin, width)))
        return names_of(alone);
    }
    return names_of(changes);
  }

  std::string place_of(std::int64_t row) const {
    const auto i = static_cast<std::size_t>(row);
    return fmt::format("row {} (document {}, its token {})", row, documents_[i],
                       batch_.positions[i]);
  }

  static std::string names_of(const std::vector<bool>& named) {
    std::string text;
    for (std::size_t document = 0; document < named.size(); ++document)
      if (named[document]) text += fmt::format("{}{}", text.empty() ? "" : ", ", document);
    return fmt::format("document{} {}", text.find(',') == std::string::npos ? "" : "s", text);
  }

  BoundProgram& program_;
  const io::MicroBatch& batch_;
  std::vector<std::int32_t> documents_;
  std::int64_t vocab_size_;
  std::vector<float> logits_;
};

io::MicroBatch first_packed_batch(const RunConfig& run, const io::Dataset& dataset) {
  io::Loader loader(dataset, loader_options(run, {}));
  for (std::int64_t step = 0; step < std::min(kMostSteps, run.train.steps); ++step)
    for (const io::MicroBatch& batch : loader.load_step(step).micro_batches)
      if (is_packed(batch)) return batch;
  throw InvalidArgument(fmt::format(
      "[check] leak: expected a sample with two documents in the first {} steps, found none",
      std::min(kMostSteps, run.train.steps)));
}

}  // namespace

std::vector<std::int32_t> number_documents(const io::MicroBatch& batch) {
  std::vector<std::int32_t> numbers;
  std::int32_t number = -1, begin = -1;
  for (const std::int32_t document : batch.documents) {
    if (document >= 0 && document != begin) {
      begin = document;
      ++number;
    }
    numbers.push_back(document >= 0 ? number : -1);
  }
  return numbers;
}

io::MicroBatch with_other_tokens(const io::MicroBatch& batch,
                                 const std::vector<std::int32_t>& documents,
                                 const std::vector<bool>& changes, std::int64_t vocab_size) {
  io::MicroBatch other = batch;
  const auto most = static_cast<std::uint64_t>(vocab_size - 1);
  for (std::size_t row = 0; row < documents.size(); ++row)
    if (has(changes, documents[row]))
      other.tokens[row] = static_cast<std::int32_t>(
          (static_cast<std::uint64_t>(other.tokens[row]) + 1 + random_below(kSeed, 0, row, most)) %
          static_cast<std::uint64_t>(vocab_size));
  return other;
}

io::MicroBatch with_labels_of(const io::MicroBatch& batch,
                              const std::vector<std::int32_t>& documents,
                              const std::vector<bool>& keeps) {
  io::MicroBatch other = batch;
  other.unmasked_tokens = 0;
  other.sum_of_weights = 0;
  for (std::size_t row = 0; row < documents.size(); ++row) {
    if (!has(keeps, documents[row])) other.labels[row] = io::kIgnoredLabel;
    const float weight = other.weights.empty() ? 1.0f : other.weights[row];
    if (other.labels[row] == io::kIgnoredLabel || weight == 0.0f) continue;
    ++other.unmasked_tokens;
    other.sum_of_weights += weight;
  }
  return other;
}

std::unique_ptr<BoundProgram> bind_leak_program(ModelSession& session, std::int64_t num_tokens) {
  return session.bind({.name = "leak",
                       .build = {.num_tokens = num_tokens,
                                 .with_logits = true,
                                 .balance_loss = model::BalanceLoss::kNone},
                       .training = true,
                       .with_update = false});
}

LeakReport find_leak(BoundProgram& program, const io::MicroBatch& batch, std::int64_t vocab_size) {
  return Search(program, batch, vocab_size).run();
}

LeakReport check_leak(const RunConfig& run) {
  ANABATIC_REQUIRE(run.data.packing != "concatenated",
                   "[check] leak: with data.packing concatenated documents of a sample see each "
                   "other by design; expected isolated");
  ModelSession session(without_mtp(run), false);
  const model::ModelConfig& config = session.config();
  check_sample_length(run, config);
  const io::Dataset dataset = open_dataset(run.data.train, run, config);
  const io::MicroBatch batch = first_packed_batch(run, dataset);
  const auto program = bind_leak_program(session, std::ssize(batch.tokens));
  session.load_parameters();
  session.refresh_derived();
  return find_leak(*program, batch, config.spec.vocab_size);
}

std::int64_t require_no_leak(BoundProgram& program, const io::MicroBatch& batch,
                             std::int64_t vocab_size) {
  if (!is_packed(batch)) return 0;
  const std::vector<std::int32_t> documents = number_documents(batch);
  const std::vector<bool> changes = documents_with_bit(count_documents(documents), 0, false);
  const io::MicroBatch labelled = with_labels_of(batch, documents, others(changes));
  const auto losses_of = [&](const io::MicroBatch& each) {
    run_forward(program, each);
    std::vector<double> losses;
    for (const char* loss : kLosses)
      losses.push_back(program.executor->has_output(loss) ? program.scalar(loss) : 0);
    return losses;
  };
  const std::vector<double> before = losses_of(labelled),
                            after = losses_of(
                                with_other_tokens(labelled, documents, changes, vocab_size));
  for (std::size_t i = 0; i < kLosses.size(); ++i)
    if (std::memcmp(&before[i], &after[i], sizeof before[i]) != 0)
      throw InternalError(fmt::format(
          "documents of a packed sample see each other: {} of every second document of the first "
          "micro-batch is {:.9g}, and {:.9g} after the tokens of the others changed; `anabatic "
          "check leak` names the rows, train.check_leak: off trains anyway",
          kLosses[i], before[i], after[i]));
  return std::count(changes.begin(), changes.end(), false);
}

}  // namespace anabatic::train
