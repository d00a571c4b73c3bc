// SPDX-License-Identifier: Apache-2.0
// Loss, logits and every gradient of tiny models against numbers that torch computed
// (tests/support/make_model_goldens.py).
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "io/safetensors.h"
#include "model/float_conversion.h"
#include "model/model.h"
#include "passes/pipelines.h"
#include "support/test_config.h"
#include "support/tolerance.h"
#include "train/gradients.h"
#include "unit/io/test_files.h"

namespace anabatic::train {
namespace {

struct Summary {
  double norm = 0, projection = 0;
};

std::vector<float> values_of(const io::TensorEntry& entry) {
  std::vector<float> values(static_cast<std::size_t>(entry.num_elements()));
  model::to_floats(entry.dtype.value(), entry.data, values);
  return values;
}

// The 2-norm, and the product with cos(0), cos(1), ...
Summary summarize(const io::TensorEntry& entry) {
  const std::vector<float> values = values_of(entry);
  Summary summary;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double value = values[i];
    summary.norm += value * value;
    summary.projection += value * std::cos(static_cast<double>(i));
  }
  summary.norm = std::sqrt(summary.norm);
  return summary;
}

class ModelGolden : public ::testing::TestWithParam<const char*> {};

// A projection errs by at most the error's norm times that of the cosines, √n.
void expect_summary(const std::string& name, const io::TensorEntry& entry, const Summary& want,
                    double bound) {
  const Summary got = summarize(entry);
  const double error = bound * want.norm;
  EXPECT_LE(std::abs(got.norm - want.norm), error) << name;
  EXPECT_LE(std::abs(got.projection - want.projection),
            error * std::sqrt(static_cast<double>(entry.num_elements())))
      << name;
}

std::filesystem::path golden_of(const std::string& model_name) {
  return std::filesystem::path(ANABATIC_SOURCE_DIR) / "tests/integration/goldens" / model_name;
}

// Writes loss, logits and gradients of the golden batch to FOLDER/NAME.safetensors and opens it.
io::SafetensorsDirectory gradients_of(const std::string& model_name, const std::string& precision,
                                      const std::filesystem::path& file, bool is_fused = true) {
  const std::filesystem::path golden = golden_of(model_name);
  RunConfig run;
  run.model.path = golden.string();
  run.train.precision = precision;
  run.device.threads = 2;
  testing::apply_test_config(run);
  if (!is_fused)
    for (const passes::Pass& pass : passes::training_pipeline())
      if (!pass.required) run.fusions.off.insert(std::string(pass.name));
  write_gradients(run, golden / "tokens.safetensors", file);
  return io::SafetensorsDirectory::open(file);
}

// Summaries against torch's in fp32.
void compare(const std::string& model_name, const std::string& precision, DType dtype) {
  const io::TempDirectory folder;
  const auto out = gradients_of(model_name, precision, folder / "out.safetensors");
  const model::ModelConfig config = model::load_config(golden_of(model_name));
  const auto bounds = testing::parity_bounds(static_cast<std::int64_t>(config.spec.layers.size()),
                                             config.spec.hidden_size, dtype);
  std::ifstream lines(golden_of(model_name) / "expected.txt");
  std::string name;
  Summary want;
  std::size_t count = 0;
  while (lines >> name >> want.norm >> want.projection) {
    ++count;
    const io::TensorEntry* entry = out.find(name);
    ASSERT_NE(entry, nullptr) << name;
    expect_summary(name, *entry, want,
                   name == "logits" || name == "loss" ? bounds.logits : bounds.gradient);
  }
  EXPECT_GT(count, 20u);
  EXPECT_EQ(count, out.entries().size());
}

TEST_P(ModelGolden, GradientsInFp32EqualTorch) { compare(GetParam(), "fp32", DType::kFloat32); }
TEST_P(ModelGolden, GradientsInBf16AreWithinTheirBound) {
  compare(GetParam(), "bf16", DType::kBFloat16);
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(double{a[i]} - b[i], 2);
  return std::sqrt(sum);
}

// Against fp32, which equals torch: off by at most twice what the ops apart are off, which round in
// other places.
TEST_P(ModelGolden, GradientsInBf16AreOffByRoundingNoise) {
  constexpr double kLeast = 0.005;
  // In bf16 one token of qwen3_moe goes to another expert than in fp32.
  const double most_noise = std::string(GetParam()) == "qwen3_moe" ? 0.3 : 0.1;
  const io::TempDirectory folder;
  const auto exact = gradients_of(GetParam(), "fp32", folder / "exact.safetensors"),
             got = gradients_of(GetParam(), "bf16", folder / "got.safetensors"),
             apart = gradients_of(GetParam(), "bf16", folder / "apart.safetensors", false);
  for (const auto& [name, entry] : exact.entries()) {
    const std::vector<float> want = values_of(entry), other = values_of(*apart.find(name));
    const double size = distance(want, std::vector<float>(want.size(), 0)),
                 noise = distance(other, want);
    EXPECT_LE(noise, most_noise * size) << name;
    EXPECT_LE(distance(values_of(*got.find(name)), want), 2 * noise + kLeast * size) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ModelGolden, ::testing::Values("llama", "mixtral", "qwen3_moe"),
                         [](const auto& golden) { return std::string(golden.param); });

}  // namespace
}  // namespace anabatic::train
