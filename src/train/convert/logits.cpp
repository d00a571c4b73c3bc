// SPDX-License-Identifier: Apache-2.0
#include "train/convert/logits.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/log.h"
#include "train/model_session.h"
#include "train/state_rows.h"

namespace anabatic::train {

std::vector<std::int32_t> probe_tokens(std::int64_t vocab_size, std::int64_t count) {
  constexpr std::int64_t kStride =
      7919;  // a prime, so that ids differ in all but tiny vocabularies
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 1; i <= count; ++i)
    tokens.push_back(static_cast<std::int32_t>(i * kStride % vocab_size));
  return tokens;
}

std::vector<std::int32_t> probe_tokens(const model::ModelConfig& config) {
  constexpr std::int64_t kMost = 64;
  const std::int64_t learned = config.spec.learned_positions;
  return probe_tokens(config.spec.vocab_size, learned > 0 ? std::min(learned, kMost) : kMost);
}

namespace {

void merge_into(runtime::StateStore& store, const model::AdapterValues& adapter) {
  const model::StateReader merged = model::merged_reader(
      [&](std::string_view state, std::int64_t first, std::span<float> values) {
        read_rows(find_rows(store, intern(state)), first, values);
      },
      adapter);
  for (const model::AdapterGroup& group : adapter.adapter().groups)
    for (const model::AdapterPart& part : group.parts) {
      const StateRows rows = find_rows(store, intern(part.parameter));
      for_row_blocks(rows.state.type->num_elements(),
                     [&](std::int64_t first, std::span<float> block) {
                       merged(part.parameter, first, block);
                       write_rows(rows, first, block);
                     });
    }
}

}  // namespace

std::vector<float> logits_of(const std::filesystem::path& model,
                             std::span<const std::int32_t> tokens, const std::string& adapter,
                             const model::AdapterValues* merged) {
  const LogScope quiet({});
  ModelSession session(load_run_config("", {{"model.path", {model.string()}},
                                            {"model.adapter", {adapter}},
                                            {"train.precision", {"fp32"}},
                                            {"model.keep_mtp", {"false"}}}),
                       false);
  const std::size_t length = tokens.size();
  const auto program = session.bind({.name = "logits",
                                     .build = {.num_tokens = static_cast<std::int64_t>(length),
                                               .with_loss = false,
                                               .with_logits = true}});
  session.load_parameters();
  if (merged != nullptr) merge_into(session.store(), *merged);
  session.refresh_derived();
  std::vector<std::int32_t> positions(length), key_end(length);
  std::iota(positions.begin(), positions.end(), 0);
  std::iota(key_end.begin(), key_end.end(), 1);
  program->set("tokens", tokens);
  program->set("positions", positions);
  program->set("key_begin", std::vector<std::int32_t>(length));
  program->set("key_end", key_end);
  program->run_alone(spec::Action::kForward);
  const TensorView logits = program->executor->output("logits");
  const float* first = logits.as<const float>();
  return {first, first + logits.type->num_elements()};
}

LogitsComparison compare_logits(std::span<const float> a, std::span<const float> b,
                                std::int64_t vocab_size) {
  ANABATIC_CHECK(a.size() == b.size() && vocab_size > 0,
                 "[convert] expected as many logits, got {} and {}", a.size(), b.size());
  LogitsComparison result;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(double{a[i]} - double{b[i]});
    if (!(difference <= result.largest_difference))
      result.largest_difference =
          std::isnan(result.largest_difference) ? result.largest_difference : difference;
  }
  const auto width = static_cast<std::size_t>(vocab_size);
  const auto best = [&](std::span<const float> row) {
    return std::max_element(row.begin(), row.end()) - row.begin();
  };
  for (std::size_t at = 0; at + width <= a.size(); at += width) {
    ++result.tokens;
    result.agreeing += best(a.subspan(at, width)) == best(b.subspan(at, width)) ? 1 : 0;
  }
  return result;
}

}  // namespace anabatic::train
