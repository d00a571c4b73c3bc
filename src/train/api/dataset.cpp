// SPDX-License-Identifier: Apache-2.0
#include "anabatic/dataset.h"

#include "base/error.h"
#include "base/log.h"
#include "io/data/dataset.h"
#include "train/objective/run_model.h"
#include "train/open_dataset.h"
#include "train/run_config.h"

namespace anabatic {
namespace {

io::Dataset open(const Settings& settings, const std::string& yaml_file) {
  const train::RunConfig run =
      train::load_run_config(yaml_file, {settings.begin(), settings.end()});
  std::string missing;
  if (run.model.path.empty()) missing += "\n  model.path: expected a value, got none";
  if (run.data.train.empty()) missing += "\n  data.train: expected a value, got none";
  ANABATIC_REQUIRE(missing.empty(), "[dataset] the config is not complete:{}", missing);
  return train::open_dataset(run.data.train, run, train::load_run_model(run));
}

}  // namespace

struct Dataset::Impl {
  io::Dataset dataset;
};

Dataset::Dataset(const Settings& settings, const std::string& yaml_file, RunListener* listener) {
  const LogScope scope([listener](Severity severity, const std::string& text) {
    if (listener != nullptr) listener->on_message(severity, text);
  });
  impl_ = std::make_unique<Impl>(Impl{open(settings, yaml_file)});
}
Dataset::~Dataset() = default;
Dataset::Dataset(Dataset&&) noexcept = default;

std::int64_t Dataset::num_samples() const { return impl_->dataset.num_samples(); }
std::int64_t Dataset::num_tokens() const { return impl_->dataset.num_tokens(); }
std::int64_t Dataset::num_documents() const { return impl_->dataset.num_documents(); }

Sequence Dataset::sample(std::int64_t number) const {
  const io::Dataset& dataset = impl_->dataset;
  ANABATIC_REQUIRE(number >= 0 && number < dataset.num_samples(),
                   "[dataset] expected a sample in [0, {}), got {}", dataset.num_samples(), number);
  const auto length = static_cast<std::size_t>(dataset.options().sequence_length);
  std::vector<std::int32_t> tokens(length), labels(length), positions(length), key_begin(length),
      key_end(length), documents(length);
  io::SampleScratch scratch;
  const io::SampleCounts counts =
      dataset.read(number, 0, {tokens, labels, positions, key_begin, key_end, documents}, scratch);
  Sequence sequence{.tokens = std::move(tokens)};
  sequence.tokens.resize(static_cast<std::size_t>(counts.tokens));
  for (std::size_t i = 0; i < sequence.tokens.size(); ++i) {
    const bool begins = positions[i] == 0;
    if (begins) sequence.documents.push_back(0);
    ++sequence.documents.back();
    // In a batch, labels[i] is what follows tokens[i]; here it is what is at place i.
    sequence.labels.push_back(begins ? io::kIgnoredLabel : labels[i - 1]);
  }
  return sequence;
}

}  // namespace anabatic
