// SPDX-License-Identifier: Apache-2.0
#include "train/proof/cuts.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <map>
#include <span>

#include "base/error.h"
#include "base/philox.h"
#include "train/objective/mtp_batch.h"
#include "train/objective/run_model.h"
#include "train/open_dataset.h"
#include "train/ranks/ranks.h"
#include "train/run_plan.h"
#include "train/training_step.h"

namespace anabatic::train {
namespace {

constexpr std::int64_t kSamples = 8;  // that are cut
constexpr std::uint64_t kWeightSeed = 1;

// The bound of compare_cuts().
constexpr double kConfidence = 4, kMostBlockTerms = 512, kLeastBlockTerms = 256;
constexpr double kUnitRoundoff = 0x1.0p-24, kFloorShare = 0x1.0p-10;

void count_labels(io::MicroBatch& batch) {
  batch.unmasked_tokens = batch.real_tokens = batch.num_documents = 0;
  batch.sum_of_weights = 0;
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
    if (batch.documents[i] == io::kNoDocument) continue;
    ++batch.real_tokens;
    batch.num_documents += batch.documents[i] == static_cast<std::int32_t>(i) ? 1 : 0;
    const float weight = batch.weights.empty() ? 1.0f : batch.weights[i];
    if (batch.labels[i] == io::kIgnoredLabel || weight == 0.0f) continue;
    ++batch.unmasked_tokens;
    batch.sum_of_weights += weight;
  }
}

// Rows [begin, end), which no row outside attends to.
io::MicroBatch rows_between(const io::MicroBatch& batch, std::int64_t begin, std::int64_t end) {
  const auto part = [&](const auto& values) {
    using Values = std::decay_t<decltype(values)>;
    return values.empty() ? Values() : Values(values.begin() + begin, values.begin() + end);
  };
  io::MicroBatch result{part(batch.tokens),    part(batch.labels),  part(batch.positions),
                        part(batch.key_begin), part(batch.key_end), part(batch.documents),
                        part(batch.weights)};
  const auto first = static_cast<std::int32_t>(begin);
  for (std::size_t i = 0; i < result.tokens.size(); ++i) {
    result.key_begin[i] -= first;
    result.key_end[i] -= first;
    if (result.documents[i] != io::kNoDocument) result.documents[i] -= first;
  }
  count_labels(result);
  return result;
}

void pad_to(io::MicroBatch& batch, std::size_t length) {
  const auto first = static_cast<std::int32_t>(batch.tokens.size());
  for (std::int32_t i = 0; batch.tokens.size() < length; ++i) {
    batch.tokens.push_back(batch.tokens.front());
    batch.labels.push_back(io::kIgnoredLabel);
    batch.positions.push_back(i);
    batch.key_begin.push_back(first);
    batch.key_end.push_back(first + i + 1);
    batch.documents.push_back(io::kNoDocument);
    if (!batch.weights.empty()) batch.weights.push_back(0);
  }
}

double norm_of(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

// The gradient of a state in all rows: their sum, and that of their norms.
struct RowSum {
  std::vector<double> values;
  double norms = 0;
};

class Comparison {
 public:
  Comparison(ModelSession& session, const std::vector<io::MicroBatch>& rows)
      : session_(session), rows_(rows) {
    for (const io::MicroBatch& row : rows) step_.count(row);
  }

  CutsReport run(const std::vector<Cut>& cuts) {
    CutsReport report{.rows = std::ssize(rows_), .labels = step_.unmasked_tokens};
    run_rows();
    report.states = std::ssize(sums_);
    for (const auto& [state, sum] : sums_) floor_ = std::max(floor_, kFloorShare * sum.norms);
    ANABATIC_REQUIRE(floor_ > 0, "[check] cuts: expected a gradient of {} states, all are 0",
                     report.states);
    report.loss = loss_;
    for (const Cut& cut : cuts) report.cuts.push_back(run_cut(cut));
    return report;
  }

 private:
  std::unique_ptr<BoundProgram> bind(std::size_t num_tokens, std::size_t micro_batches) {
    ModelSession::CompileRequest request = training_request(session_.run(), session_.config());
    request.name = fmt::format("cuts_{}x{}", micro_batches, num_tokens);
    request.build.num_tokens = static_cast<std::int64_t>(num_tokens);
    request.build.balance_loss = model::BalanceLoss::kNone;
    request.build.balance_coef = request.build.z_loss_coef = 0;
    request.build.with_weights = true;
    request.build.dropout = {};
    request.with_update = request.is_of_ranks = request.as_trained = false;
    request.micro_batches = static_cast<std::int64_t>(micro_batches);
    std::unique_ptr<BoundProgram> program = session_.bind(request);
    if (!session_.has_parameters()) session_.load_parameters();
    session_.refresh_derived();
    set_loss_scales(*program, totals_of(step_));
    set_mtp_scales(*program, rows_);
    return program;
  }

  static double loss_of(const BoundProgram& program) {
    const bool has_mtp = program.executor->has_output("mtp_loss");
    return program.scalar("loss") + (has_mtp ? program.scalar("mtp_loss") : 0);
  }

  template <class Visit>
  void for_gradients(const BoundProgram& program, Visit&& visit) const {
    for (const Name name : session_.store().names()) {
      const std::string output = fmt::format("gradients.{}", text(name));
      if (!program.executor->has_output(output)) continue;
      const TensorView view = program.executor->output(output);
      visit(std::string(text(name)),
            std::span(view.as<const float>(), static_cast<std::size_t>(view.type->num_elements())));
    }
  }

  void run_rows() {
    std::map<std::size_t, std::vector<const io::MicroBatch*>> by_length;
    for (const io::MicroBatch& row : rows_) by_length[row.tokens.size()].push_back(&row);
    for (const auto& [length, rows] : by_length) {
      const std::unique_ptr<BoundProgram> program = bind(length, 1);
      for (const io::MicroBatch* row : rows) {
        program->set_batch(*row);
        program->run_alone(spec::Action::kForward);
        loss_ += loss_of(*program);
        program->run_alone(spec::Action::kBackward);
        for_gradients(*program, [&](const std::string& state, std::span<const float> values) {
          RowSum& sum = sums_[state];
          sum.values.resize(values.size());
          for (std::size_t i = 0; i < values.size(); ++i) sum.values[i] += values[i];
          sum.norms += norm_of(values);
        });
      }
    }
  }

  CutResult run_cut(const Cut& cut) {
    const std::size_t length = cut.micro_batches.front().tokens.size(),
                      count = cut.micro_batches.size();
    CutResult result{.name = cut.name, .bound = bound_of(length * count)};
    const std::unique_ptr<BoundProgram> program = bind(length, count);
    for (const spec::StepEntry& entry : program->schedule(std::ssize(cut.micro_batches))) {
      if (entry.action == spec::Action::kForward)
        program->set_batch(cut.micro_batches[static_cast<std::size_t>(entry.micro_batch)]);
      program->executor->run(entry);
      if (entry.action == spec::Action::kForward) result.loss += loss_of(*program);
    }
    result.holds = std::abs(result.loss - loss_) <= result.bound * loss_;
    for_gradients(*program, [&](const std::string& state, std::span<const float> values) {
      const RowSum& want = sums_.at(state);
      double squares = 0;
      for (std::size_t i = 0; i < values.size(); ++i)
        squares += std::pow(values[i] - want.values[i], 2);
      const double share = std::sqrt(squares) / (want.norms + floor_);
      if (!(share <= result.bound)) result.holds = false;
      if (!(share <= result.difference)) {
        result.worst = state;
        result.difference = share;
      }
    });
    return result;
  }

  static double bound_of(std::size_t num_tokens) {
    const double roundings =
        2 * kMostBlockTerms + static_cast<double>(num_tokens) / kLeastBlockTerms + 2;
    return kConfidence * std::sqrt(roundings) * kUnitRoundoff;
  }

  ModelSession& session_;
  const std::vector<io::MicroBatch>& rows_;
  io::StepBatch step_;
  std::map<std::string, RowSum> sums_;
  double loss_ = 0, floor_ = 0;
};

}  // namespace

std::vector<Cut> cuts_of(const io::MicroBatch& batch, std::int64_t length) {
  std::vector<Cut> cuts;
  for (const std::int64_t size : {kSamples, kSamples / 2, std::int64_t{1}}) {
    Cut& cut = cuts.emplace_back();
    cut.name = fmt::format("{} x {}", kSamples / size, size);
    for (std::int64_t first = 0; first < kSamples; first += size)
      cut.micro_batches.push_back(rows_between(batch, first * length, (first + size) * length));
  }
  return cuts;
}

std::vector<io::MicroBatch> documents_alone(const io::MicroBatch& batch) {
  std::vector<io::MicroBatch> documents;
  const auto count = static_cast<std::int64_t>(batch.tokens.size());
  for (std::int64_t begin = 0, end = 0; begin < count; begin = end) {
    const std::int32_t document = batch.documents[static_cast<std::size_t>(begin)];
    for (end = begin + 1;
         end < count && batch.documents[static_cast<std::size_t>(end)] == document;)
      ++end;
    if (document == io::kNoDocument) continue;
    documents.push_back(rows_between(batch, begin, end));
    pad_to(documents.back(), std::bit_ceil(static_cast<std::size_t>(end - begin)));
  }
  return documents;
}

io::MicroBatch with_uneven_weights(const io::MicroBatch& batch) {
  io::MicroBatch uneven = batch;
  uneven.weights.resize(batch.tokens.size(), 1.0f);
  for (std::size_t i = 0; i < uneven.weights.size(); ++i)
    uneven.weights[i] *= static_cast<float>(1 + random_below(kWeightSeed, 0, i, 4)) / 2;
  count_labels(uneven);
  return uneven;
}

bool CutsReport::holds() const {
  return std::ranges::all_of(cuts, [](const CutResult& cut) { return cut.holds; });
}

CutsReport compare_cuts(ModelSession& session, const std::vector<io::MicroBatch>& rows,
                        const std::vector<Cut>& cuts) {
  return Comparison(session, rows).run(cuts);
}

CutsReport check_cuts(const RunConfig& run) {
  if (trains_on_pairs(run))
    throw Unsupported("[check] cuts: expected train.objective lm or sft, got dpo");
  ModelSession session(run, false);
  const model::ModelConfig& config = session.config();
  check_sample_length(run, config);
  const io::Dataset dataset = open_dataset(run.data.train, run, config);
  io::LoaderOptions options = loader_options(run, {});
  options.micro_batch_size = kSamples;
  options.accumulation_steps = options.num_parts = 1;
  const io::MicroBatch batch =
      with_uneven_weights(io::Loader(dataset, options).load_step(0).micro_batches[0]);
  const std::vector<Cut> cuts = cuts_of(batch, run.data.sequence_length);
  return compare_cuts(
      session,
      packing_of(run) == "concatenated" ? cuts.back().micro_batches : documents_alone(batch), cuts);
}

}  // namespace anabatic::train
