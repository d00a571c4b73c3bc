// SPDX-License-Identifier: Apache-2.0
#include "train/preference/reference.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "anabatic/version.h"
#include "base/error.h"
#include "io/data/fingerprint.h"
#include "io/data/reference_file.h"
#include "train/attention/key_blocks.h"
#include "train/lora/run_adapter.h"
#include "train/objective/run_model.h"
#include "train/training_step.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;

constexpr int kReferenceFormat = 1;

// A hash of tokens and weights themselves: template, tokenizer and rows show in nothing else.
std::string hash_of(const io::TokenFile& file, int threads) {
  const fs::path bin = file.tokens.bin_path();
  const io::IndexedPaths pair{bin, fs::path(bin).replace_extension(".idx")};
  return fmt::format("{} {} {}", io::content_hash(pair.bin, threads),
                     io::content_hash(pair.idx, threads),
                     io::content_hash(io::weights_path(pair), threads));
}

}  // namespace

Reference::Reference(ModelSession& session, BoundProgram& training)
    : session_(session), program_(training) {}

Reference::Reference(ModelSession& session)
    : session_(session),
      own_(session.bind({.name = "reference",
                         .build = {.num_tokens = session.run().train.micro_batch_size *
                                                 session.run().data.sequence_length,
                                   .with_loss = false,
                                   .with_log_probabilities = true}})),
      program_(*own_) {}

Reference::~Reference() {
  for (const auto& [name, values] : adapter_)
    std::ranges::copy(values, session_.store().find(name).data);
}

void Reference::take_weights(std::string weights) {
  weights_ = std::move(weights);
  if (session_.config().adapter)
    for (const model::AdapterGroup& group : session_.config().adapter->groups)
      for (const model::AdapterPart& part : group.parts) {
        const Name name = intern(part.b());
        const TensorView b = session_.store().find(name);
        const std::span values(b.data, static_cast<std::size_t>(b.type->num_bytes()));
        adapter_[name].assign(values.begin(), values.end());
        std::ranges::fill(values, std::byte{});
      }
  session_.refresh_derived();
}

std::string Reference::rules() const {
  const RunConfig& run = session_.run();
  const std::int64_t half = run.data.sequence_length / 2;
  // Products are rounded where an adapter's are added.
  const std::string coverage =
      session_.config().adapter
          ? model::coverage_to_string(session_.config(), *session_.config().adapter)
          : "none";
  const auto& blocks = session_.config().key_blocks;
  std::vector<std::string> replaced;
  for (const plugin::Replacement& one : run.model.replace)
    replaced.push_back(plugin::to_string(one));
  return fmt::format(
      "{}\nengine {}\nmodel {}\nweights {}\nprecision {}\nbase {}\nadapter {}\nsets {}\noff {} "
      "{}\nops {}\n"
      "longest {} {}{}",
      kReferenceFormat, kVersion,
      io::content_hash(std::string_view(model::config_text(run.model.path))), weights_,
      uses_bf16(run) ? "bf16" : "fp32", run.lora.base, coverage,
      fmt::join(session_.device().instruction_sets, " "), fmt::join(run.fusions.off, " "),
      fmt::join(run.compiler.disable_passes, " "), fmt::join(replaced, " "),
      run.data.max_length == RunConfig::Data::kWholeSample ? half : run.data.max_length,
      run.data.truncation, blocks ? "\nkey blocks " + key_blocks_identity(*blocks) : "");
}

std::vector<float> Reference::log_probabilities(const io::MicroBatch& batch) {
  program_.set_batch(batch);
  set_loss_scales(program_, {});  // no token weighs anything, so that the head runs once
  program_.run_alone(spec::Action::kForward);
  const TensorView view = program_.executor->output("log_probabilities");
  const auto* values = view.as<const float>();
  std::vector<float> result(values, values + view.type->num_elements());
  for (const float value : result)
    ANABATIC_REQUIRE(std::isfinite(value),
                     "[reference] expected finite log-probabilities, got {}: are the weights of "
                     "the reference sound?",
                     value);
  return result;
}

std::int64_t Reference::attach(io::Dataset& dataset) {
  const int threads = num_threads_of(session_.run());
  const std::span<const io::TokenFile> files = dataset.files();
  std::vector<std::optional<io::ReferenceFile>> found(files.size());
  std::map<std::size_t, io::ReferenceFileWriter> writers;
  std::vector<std::string> keys;
  std::int64_t num_computed = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const fs::path path = io::ReferenceFile::path_of(files[i].tokens);
    const std::int64_t num_tokens = files[i].tokens.num_tokens();
    keys.push_back(io::content_hash(
        std::string_view(fmt::format("{}\n{}", rules(), hash_of(files[i], threads)))));
    found[i] = io::ReferenceFile::find(path, keys[i], num_tokens);
    if (found[i]) continue;
    writers.try_emplace(i, path, keys[i], num_tokens);
    num_computed += num_tokens;
  }
  if (!writers.empty()) write(dataset, writers);
  for (auto& [i, writer] : writers) {
    writer.finish();
    found[i] = io::ReferenceFile::find(io::ReferenceFile::path_of(files[i].tokens), keys[i],
                                       files[i].tokens.num_tokens());
  }
  std::vector<io::ReferenceFile> all;
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (!found[i])
      throw ResourceError(
          fmt::format("[reference] {} differs from what was written; does another run write it?",
                      io::ReferenceFile::path_of(files[i].tokens).string()));
    all.push_back(std::move(*found[i]));
  }
  dataset.set_reference(std::move(all));
  return num_computed;
}

void Reference::write(const io::Dataset& dataset,
                      std::map<std::size_t, io::ReferenceFileWriter>& writers) {
  const std::int64_t size = session_.run().train.micro_batch_size,
                     length = dataset.options().sequence_length;
  std::vector<std::int64_t> samples(static_cast<std::size_t>(size));
  io::MicroBatch batch;
  io::SampleScratch scratch;
  for (std::int64_t first = 0; first < dataset.num_samples(); first += size) {
    for (std::int64_t i = 0; i < size; ++i)
      samples[static_cast<std::size_t>(i)] = first + i < dataset.num_samples() ? first + i : -1;
    io::fill_micro_batch(dataset, samples, batch, scratch);
    const std::vector<float> values = log_probabilities(batch);
    for (std::int64_t i = 0; i < size && samples[static_cast<std::size_t>(i)] >= 0; ++i) {
      auto at = static_cast<std::size_t>(i * length);
      for (const io::Row& row : dataset.rows_of(samples[static_cast<std::size_t>(i)])) {
        const auto count = static_cast<std::size_t>(row.length);
        // The label of a row is the token after its own; the last one has none.
        if (const auto writer = writers.find(static_cast<std::size_t>(row.file));
            writer != writers.end())
          writer->second.write(row.begin + 1, std::span(values).subspan(at, count - 1));
        at += count;
      }
    }
  }
}

OtherModel::OtherModel(const RunConfig& run, const model::ModelConfig& policy) {
  RunConfig other = run;
  other.model.path = run.dpo.reference;
  other.model.init = "pretrained";
  other.lora = {};
  other.memory.budget = 0;
  session_ = std::make_unique<ModelSession>(without_mtp(other), false);
  const std::int64_t vocabulary = session_->config().spec.vocab_size;
  ANABATIC_REQUIRE(vocabulary == policy.spec.vocab_size,
                   "[dpo] dpo.reference: expected a model with {} tokens, as model.path has, got "
                   "{} ({})",
                   policy.spec.vocab_size, vocabulary, run.dpo.reference);
  reference_ = std::make_unique<Reference>(*session_);
  weights_ = base_identity(other, session_->load_parameters());
  reference_->take_weights(weights_);
}

double packing_bound(const RunConfig& run) {
  // A log-probability is a difference of logits of about 16, each rounded a few times in a bf16
  // residual stream (2^-9), or in f32 sums (2^-24) over some thousand terms.
  return uses_bf16(run) ? 0x1.0p-5 : 0x1.0p-14;
}

double require_stored(const io::MicroBatch& batch, const std::vector<float>& own, double bound) {
  struct Sum {
    double stored = 0, own = 0, tokens = 0;
  };
  std::map<std::int32_t, Sum> sums;
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (batch.completions[i] < 0) continue;
    Sum& sum = sums[batch.completions[i]];
    sum.stored += batch.reference[i];
    sum.own += own[i];
    ++sum.tokens;
  }
  double largest = 0;
  for (const auto& [completion, sum] : sums) {
    const double difference = std::abs(sum.stored - sum.own) / sum.tokens;
    if (!(difference <= bound))
      throw InternalError(fmt::format(
          "the stored reference is not the reference: the {} completion of pair {} of a "
          "micro-batch of the first step has a log-probability of {:.9g} in the file, and of "
          "{:.9g} computed again, {} tokens; expected a difference of at most {:.3g} a token",
          completion % 2 == 0 ? "chosen" : "rejected", completion / 2, sum.stored, sum.own,
          sum.tokens, bound));
    largest = std::max(largest, difference);
  }
  return largest;
}

}  // namespace anabatic::train
