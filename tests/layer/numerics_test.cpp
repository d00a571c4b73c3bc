// SPDX-License-Identifier: Apache-2.0
// Layers against the same in double, and against finite differences; equal bits for any number of
// threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "layer/layer_fixture.h"
#include "support/comparator.h"
#include "support/tolerance.h"

namespace anabatic::testing {
namespace {

constexpr std::uint64_t kSeed = 7;

std::vector<std::string> names() {
  std::vector<std::string> result;
  for (const LayerCase& one : layer_cases()) result.push_back(one.name);
  return result;
}

double norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

// ‖got - want‖ <= bound · ‖want‖.
void expect_close(const std::string& name, const HostTensor& got, const Values& want,
                  double bound) {
  const Values values = got.values();
  ASSERT_EQ(values.data.size(), want.data.size()) << name;
  std::vector<double> error;
  for (std::size_t i = 0; i < values.data.size(); ++i)
    error.push_back(values.data[i] - want.data[i]);
  const double wanted = norm(want.data);
  EXPECT_TRUE(norm(error) <= bound * wanted)
      << name << ": error " << norm(error) << " of " << wanted << ", bound " << bound * wanted;
}

class Layers : public ::testing::TestWithParam<std::string> {
 protected:
  const LayerCase& one() const { return layer_case(GetParam()); }
  const LayerSignature& signature() const { return one().signature; }
  ParityBounds bounds() const {
    return parity_bounds(1, one().width, one().rounds_to_bf16 ? DType::kBFloat16 : DType::kFloat32);
  }
};

TEST_P(Layers, EqualTheSameInDouble) {
  LayerEngine engine({.poison = true});
  const LayerCall call = engine.layer(signature());
  const ValuesByName inputs = make_inputs(signature(), kSeed), seeds = make_seeds(call, kSeed);
  const Tensors got = run_layer(call, signature(), inputs, seeds);
  const ValuesByName want = run_in_double(signature(), inputs, seeds);
  for (const auto& [name, tensor] : got) {
    const bool is_gradient = name.starts_with("gradients.");
    ASSERT_TRUE(want.contains(name)) << name;
    expect_close(name, tensor, want.at(name), is_gradient ? bounds().gradient : bounds().logits);
  }
}

// The passes find other patterns where some gradients are not asked for.
TEST_P(Layers, EqualTheSameInDoubleForEachGradientAlone) {
  LayerEngine engine;
  const ValuesByName inputs = make_inputs(signature(), kSeed);
  const ValuesByName seeds = make_seeds(engine.layer(signature()), kSeed);
  const ValuesByName want = run_in_double(signature(), inputs, seeds);
  for (const std::string& input : signature().gradients) {
    LayerSignature alone = signature();
    alone.gradients = {input};
    const Tensors got = run_layer(engine.layer(alone), alone, inputs, seeds);
    const std::string name = "gradients." + input;
    expect_close(name, got.at(name), want.at(name), bounds().gradient);
  }
  LayerSignature none = signature();
  none.gradients.clear();
  const Tensors got = run_layer(engine.layer(none), none, inputs, seeds);
  for (const auto& [name, tensor] : got) expect_close(name, tensor, want.at(name), bounds().logits);
}

TEST_P(Layers, RepeatTheirBitsOnAnyNumberOfThreads) {
  LayerEngine engine;
  const LayerCall first = engine.layer(signature());
  const ValuesByName inputs = make_inputs(signature(), kSeed), seeds = make_seeds(first, kSeed);
  const Tensors want = run_layer(first, signature(), inputs, seeds);
  for (const int threads : {1, 2, 3}) {
    engine.set_threads(threads);
    const Tensors got = run_layer(engine.layer(signature()), signature(), inputs, seeds);
    for (const auto& [name, tensor] : got)
      EXPECT_EQ(compare_bits(tensor, want.at(name), {.zeros_expected = true}).report, "")
          << name << " on " << threads << " threads";
  }
}

INSTANTIATE_TEST_SUITE_P(All, Layers, ::testing::ValuesIn(names()),
                         [](const auto& one) { return one.param; });

class LayerGradients : public Layers {};

// The objective is the sum of all outputs in double, each times its seed. Some elements of each
// input are tried.
TEST_P(LayerGradients, EqualFiniteDifferences) {
  LayerEngine engine;
  const LayerCall call = engine.layer(signature());
  const ValuesByName inputs = make_inputs(signature(), kSeed), seeds = make_seeds(call, kSeed);
  const Tensors got = run_layer(call, signature(), inputs, seeds);
  const auto objective = [&](const ValuesByName& at) {
    double sum = 0;
    for (const auto& [name, output] : forward_in_double(signature(), at))
      for (std::size_t i = 0; i < output.data.size(); ++i)
        sum += output.data[i] * seeds.at(name).data[i];
    return sum;
  };
  const double h = difference_step();
  for (const std::string& input : signature().gradients) {
    const Values gradient = got.at("gradients." + input).values();
    ValuesByName changed = inputs;
    const std::size_t count = gradient.data.size(), step = 1 + count / 20;
    const double largest = norm(gradient.data);
    for (std::size_t i = 0; i < count; i += step) {
      double& value = changed.at(input).data[i];
      const double at = value;
      value = at + h;
      const double above = objective(changed);
      value = at - h;
      const double want = (above - objective(changed)) / (2 * h);
      value = at;
      const double allowed = bounds().gradient * largest + difference_tolerance(largest);
      EXPECT_TRUE(std::abs(gradient.data[i] - want) <= allowed)
          << input << " element " << i << ": " << gradient.data[i] << ", differences " << want;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, LayerGradients,
    ::testing::Values("rms_norm_f32", "add_rms_norm_f32", "swiglu_f32", "mlp_f32", "mlp_geglu_f32",
                      "gated_mlp_f32", "linear_f32", "moe_experts_f32", "moe_experts_all_of_them",
                      "moe_experts_biases_f32", "moe_experts_biases_f32_by_columns",
                      "linear_cross_entropy_f32", "grouped_linear_f32", "attention_f32", "rope_f32",
                      "decoder_f32", "region_of_experts_f32"),
    [](const auto& one) { return one.param; });

}  // namespace
}  // namespace anabatic::testing
