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
#include "support/test_config.h"
#include "support/tolerance.h"
#include "train/gradients.h"
#include "unit/io/test_files.h"

namespace anabatic::train {
namespace {

struct Summary {
  double norm = 0, projection = 0;
};

// The 2-norm, and the product with cos(0), cos(1), ...
Summary summarize(const io::TensorEntry& entry) {
  std::vector<float> values(static_cast<std::size_t>(entry.num_elements()));
  model::to_floats(entry.dtype.value(), entry.data, values);
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

void compare(const std::string& model_name, const std::string& precision, DType dtype) {
  const std::filesystem::path golden =
      std::filesystem::path(ANABATIC_SOURCE_DIR) / "tests/integration/goldens" / model_name;
  const io::TempDirectory folder;
  RunConfig run;
  run.model.path = golden.string();
  run.train.precision = precision;
  run.device.threads = 2;
  testing::apply_test_config(run);
  write_gradients(run, golden / "tokens.safetensors", folder / "out.safetensors");
  const auto out = io::SafetensorsDirectory::open(folder / "out.safetensors");
  const model::ModelConfig config = model::load_config(golden);
  const auto bounds = testing::parity_bounds(static_cast<std::int64_t>(config.spec.layers.size()),
                                             config.spec.hidden_size, dtype);
  std::ifstream lines(golden / "expected.txt");
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

INSTANTIATE_TEST_SUITE_P(Families, ModelGolden, ::testing::Values("llama", "mixtral", "qwen3_moe"),
                         [](const auto& golden) { return std::string(golden.param); });

}  // namespace
}  // namespace anabatic::train
