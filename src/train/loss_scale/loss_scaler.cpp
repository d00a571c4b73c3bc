// SPDX-License-Identifier: Apache-2.0
#include "train/loss_scale/loss_scaler.h"

#include <cmath>
#include <limits>

#include "base/json_node.h"
#include "base/log.h"

namespace anabatic::train {
namespace {

constexpr std::int64_t kGrowthSteps = 2000, kMostSkipsInRow = 20;
constexpr float kGrowth = 2.0f, kBackoff = 0.5f, kLeastScale = 1.0f;

bool is_power_of_two(double value) {
  int exponent = 0;
  return std::frexp(value, &exponent) == 0.5;
}

}  // namespace

Json to_json(const LossScaleState& state) {
  return {{"scale", state.scale},
          {"clean_steps", state.clean_steps},
          {"skipped", state.skipped},
          {"skipped_in_row", state.skipped_in_row}};
}

LossScaleState read_loss_scale(const Json& json) {
  LossScaleState state;
  if (json.is_null()) return state;
  const JsonNode node(json, "loss_scale");
  state.scale = static_cast<float>(
      node.at("scale").as_number(kLeastScale, std::numeric_limits<float>::max()));
  state.clean_steps = node.at("clean_steps").as_integer(0);
  state.skipped = node.at("skipped").as_integer(0);
  state.skipped_in_row = node.at("skipped_in_row").as_integer(0);
  return state;
}

void LossScaler::take(bool overflowed) {
  if (!is_dynamic_) return;
  if (overflowed) {
    state_.scale *= kBackoff;
    state_.clean_steps = 0;
    ++state_.skipped;
    ++state_.skipped_in_row;
    return;
  }
  state_.skipped_in_row = 0;
  if (++state_.clean_steps < kGrowthSteps) return;
  state_.clean_steps = 0;
  if (const float larger = state_.scale * kGrowth; std::isfinite(larger)) state_.scale = larger;
}

bool LossScaler::gives_up() const {
  return is_dynamic_ && (state_.scale < kLeastScale || state_.skipped_in_row >= kMostSkipsInRow);
}

double loss_scale_of(const RunConfig& run) {
  using Keys = RunConfig::Precision;
  if (run.precision.loss_scale != Keys::kByPrecision) return run.precision.loss_scale;
  return has_gradients_in_fp16(run) ? Keys::kDynamic : 1.0;
}

bool scales_loss(const RunConfig& run) { return loss_scale_of(run) != 1.0; }

LossScaler make_loss_scaler(const RunConfig& run) {
  const double scale = loss_scale_of(run);
  if (scale == RunConfig::Precision::kDynamic) return LossScaler(LossScaleState{});
  if (!is_power_of_two(scale))
    log_warning("precision.loss_scale: {} is no power of two, so it rounds gradients; {} does not",
                scale, std::exp2(std::round(std::log2(scale))));
  return LossScaler(scale);
}

}  // namespace anabatic::train
