// SPDX-License-Identifier: Apache-2.0
// Quantization-aware training: products read the values of the grid, gradients go to the weights as
// they are, runs have equal bits however they are planned and resumed, and files hold what products
// read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "anabatic/error.h"
#include "base/text.h"
#include "io/gguf.h"
#include "model/compressed_tensors.h"
#include "support/error_message.h"
#include "support/plan_changes.h"
#include "support/planned_run.h"
#include "support/test_config.h"
#include "support/tiny_run.h"
#include "support/trained_run.h"
#include "tensor/grid_elements.h"
#include "tensor/panels.h"
#include "train/config/quantization_keys.h"
#include "train/convert/convert.h"
#include "train/convert/stored_model.h"
#include "train/convert/trained_grid.h"
#include "train/state_tiers.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

using anabatic::testing::checkpoint_bytes;
using anabatic::testing::losses_of;
using anabatic::testing::message_of;
using anabatic::testing::plan_changes;
using anabatic::testing::PlanChange;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::trained_bytes;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kExperts = R"("hidden_size": 64, "intermediate_size": 96)";
constexpr const char* kSinks = R"("model_type": "gpt_oss", "hidden_size": 64,
    "intermediate_size": 96, "head_dim": 16, "num_experts": 4, "sliding_window": 6,
    "rope_scaling": null)";

RunConfig quantized_run(const std::filesystem::path& folder, const std::string& format,
                        const std::string& extra = kExperts) {
  RunConfig run = anabatic::testing::tiny_run(folder, extra);
  run.train.precision = "bf16";
  run.train.steps = 4;
  run.data.sequence_length = 32;
  run.quantization.enable = true;
  run.quantization.format = format;
  return run;
}

// Values of the grid, by the encoder of an element.
void round_to_grid(const WeightGrid& grid, std::span<float> row) {
  const std::size_t group = grid.group > 0 ? static_cast<std::size_t>(grid.group) : row.size();
  with_grid_elements(grid.format, [&]<class Encoder>(Encoder) {
    for (std::size_t first = 0; first < row.size(); first += group) {
      const auto values = row.subspan(first, group);
      const GridScale scale = Encoder::scale_of(
          *std::ranges::max_element(values, {}, [](float value) { return std::abs(value); }));
      for (float& value : values)
        value = Encoder::value_of(Encoder::element_of(value, scale.rule), scale.scale);
    }
  });
}

struct Weight {
  Name name;
  WeightGrid grid;
  TensorType type;
};

// The weights on a grid of a trainer's program.
std::vector<Weight> weights_of(Trainer& trainer) {
  std::vector<Weight> weights;
  for (const ir::State& state : trainer.compiled().graph.states)
    if (state.role == ir::StateRole::kParameter && state.grid)
      weights.push_back(
          {state.name, *state.grid, *trainer.session().store().find(state.name).type});
  return weights;
}

std::vector<float> values_of(ModelSession& session, const Weight& weight) {
  std::vector<float> values(static_cast<std::size_t>(weight.type.num_elements()));
  StateCursor(session.store()).read(weight.name, 0, values);
  return values;
}

std::vector<float> rounded(const Weight& weight, std::vector<float> values) {
  const auto columns = static_cast<std::size_t>(weight.type.dim(-1));
  for (std::size_t first = 0; first < values.size(); first += columns)
    round_to_grid(weight.grid, std::span(values).subspan(first, columns));
  return values;
}

// Elements in row-major order.
std::vector<float> values_of(const TensorView& view) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < view.type->num_elements(); ++i) {
    const std::int64_t at = element_offset(*view.type, i);
    values.push_back(view.type->dtype == DType::kBFloat16 ? to_float(view.as<const BFloat16>()[at])
                                                          : view.as<const float>()[at]);
  }
  return values;
}

// Every state that products read of the weight has these values, rounded to its dtype. Returns how
// many there are.
int expect_read(Trainer& trainer, const Weight& weight, const std::vector<float>& values) {
  int count = 0;
  for (const ir::State& state : trainer.compiled().graph.states) {
    if (state.kind() != ir::StateKind::kDerived || state.owner != weight.name) continue;
    const TensorView view = trainer.session().store().find(state.name);
    std::vector<float> want = values;
    if (view.type->dtype == DType::kBFloat16)
      for (float& value : want) value = to_float(to_bfloat16(value));
    const std::vector<float> found = values_of(view);
    EXPECT_EQ(std::memcmp(found.data(), want.data(), want.size() * sizeof(float)), 0)
        << text(state.name);
    ++count;
  }
  return count;
}

constexpr const char* kFormats[] = {"int8_channel", "int4_group", "q8_0", "q4_0", "mxfp4"};

TEST(Quantization, HasProductsReadTheGridAfterEveryUpdate) {
  for (const char* precision : {"bf16", "fp32"})
    for (const char* format : kFormats) {
      SCOPED_TRACE(std::string(precision) + " " + format);
      const TemporaryDirectory folder;
      RunConfig run = quantized_run(folder.path(), format);
      run.train.precision = precision;
      run.train.steps = 2;
      Trainer trainer(run);
      trainer.train();
      const std::vector<Weight> weights = weights_of(trainer);
      EXPECT_EQ(weights.size(), 2u * 3);  // gate, up and down of two layers
      for (const Weight& weight : weights) {
        const std::vector<float> values = values_of(trainer.session(), weight);
        const std::vector<float> wanted = rounded(weight, values);
        EXPECT_NE(values, wanted) << text(weight.name);
        EXPECT_GE(expect_read(trainer, weight, wanted), 1);
      }
    }
}

// The step of a plain model whose weights are those of the grid: equal gradients, so equal moments.
TEST(Quantization, PassesGradientsStraightThrough) {
  for (const auto& [precision, format] :
       {std::pair{"fp32", "q4_0"}, std::pair{"fp32", "int4_group"}, std::pair{"bf16", "mxfp4"},
        std::pair{"int8", "q4_0"}, std::pair{"int8", "int8_channel"}}) {
    SCOPED_TRACE(std::string(precision) + " " + format);
    const TemporaryDirectory folder, other;
    RunConfig run = quantized_run(folder.path(), format);
    run.train.precision = precision;
    run.train.steps = 1;
    RunConfig plain = run;
    plain.train.output = other.path() / "run";
    plain.quantization = {};
    Trainer of_grid(run), of_plain(plain);
    StateCursor cursor(of_plain.session().store());
    for (const Weight& weight : weights_of(of_grid))
      cursor.write(weight.name, 0, rounded(weight, values_of(of_grid.session(), weight)));
    cursor.flush();
    of_plain.session().refresh_derived();
    const auto got = anabatic::testing::training_state(of_grid.train().checkpoint),
               want = anabatic::testing::training_state(of_plain.train().checkpoint);
    EXPECT_EQ(losses_of(run), losses_of(plain));
    int num_moments = 0;
    for (const auto& [name, bytes] : want) {
      if (!name.starts_with("first_moment.")) continue;
      EXPECT_EQ(got.at(name), bytes) << name;
      ++num_moments;
    }
    EXPECT_GT(num_moments, 2 * 3);
  }
}

TEST(Quantization, HasEqualBitsHoweverItIsPlanned) {
  for (const auto& [format, precision] :
       {std::pair{"mxfp4", "bf16"}, std::pair{"int8_channel", "bf16"}, std::pair{"q4_0", "int8"}}) {
    const TemporaryDirectory folder;
    RunConfig base = quantized_run(folder.path(), format);
    base.train.precision = precision;
    const std::string want = trained_bytes(base);
    int number = 0;
    for (const PlanChange& change : plan_changes()) {
      RunConfig run = base;
      run.train.output = folder.path() / std::to_string(number++);
      change.apply(run);
      EXPECT_TRUE(trained_bytes(run) == want) << format << ": " << change.name;
    }
  }
}

TEST(Quantization, ResumesWithEqualBitsDuringAndAfterTheDelay) {
  for (const std::int64_t delay : {0, 2, 3}) {
    const TemporaryDirectory folder;
    RunConfig run = quantized_run(folder.path(), "q4_0");
    if (delay == 3) run.train.precision = "int8";
    run.quantization.quant_delay = delay;
    run.train.save_every = 2;
    run.train.keep_last = 0;
    const std::string want = trained_bytes(run);
    anabatic::testing::go_back_to(run.train.output, 2);
    EXPECT_TRUE(trained_bytes(run) == want) << delay;
  }
}

// Files hold the same states, so a run may go on with quantization, or without.
TEST(Quantization, BeginsFromAPlainCheckpoint) {
  const TemporaryDirectory folder;
  RunConfig run = quantized_run(folder.path(), "q8_0");
  const RunConfig::Quantization quantization = run.quantization;
  run.optimizer.schedule = "constant";
  run.quantization = {};
  Trainer(run).train();
  for (const bool is_on : {true, false}) {
    run.train.steps += 2;
    run.quantization = is_on ? quantization : RunConfig::Quantization{};
    const auto checkpoint = Trainer(run).train().checkpoint;
    EXPECT_EQ(find_trained_grid(checkpoint).has_value(), is_on);
  }
  EXPECT_EQ(losses_of(run).size(), 8u);
}

// Before the delay is over a run has the losses of a plain one, and then others.
TEST(Quantization, ReadsWeightsAsTheyAreUntilTheDelayIsOver) {
  const TemporaryDirectory folder;
  RunConfig run = quantized_run(folder.path(), "q4_0");
  run.train.steps = 5;
  run.train.precision = "int8";
  run.quantization.quant_delay = 3;
  Trainer(run).train();
  const std::vector<double> got = losses_of(run);
  run.quantization = {};
  run.train.output = folder.path() / "plain";
  Trainer(run).train();
  const std::vector<double> want = losses_of(run);
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(got[i], want[i]) << i;
  for (std::size_t i = 3; i < got.size(); ++i) EXPECT_NE(got[i], want[i]) << i;
}

TEST(Quantization, TakesMicroBatchesUpdatesInTheBackwardAndRanks) {
  const TemporaryDirectory folder;
  RunConfig run = quantized_run(folder.path(), "q8_0");
  run.train.steps = 2;
  run.train.gradient_accumulation_steps = 2;
  run.train.gradient_leaves = 2;
  run.quantization.quant_delay = 1;
  run.optimizer.update = "in_backward";
  run.data.validation = {anabatic::testing::write_tiny_tokens(folder.path(), "validation", 12, 8)};
  EXPECT_FALSE(trained_bytes(run).empty());
  run.optimizer.update = "after_backward";
  run.train.output = folder.path() / "one";
  const auto state = anabatic::testing::training_state(Trainer(run).train().checkpoint);
  run.train.gradient_accumulation_steps = 1;
  run.parallel.local_ranks = 2;
  run.train.output = folder.path() / "two";
  EXPECT_EQ(anabatic::testing::training_state(Trainer(run).train().checkpoint), state);
  run.parallel.expert = 2;
  run.train.output = folder.path() / "experts";
  EXPECT_FALSE(trained_bytes(run).empty());
}

// What files of an export hold of the trained weights is what products read after the last update.
void expect_exported(Trainer& trainer, const std::filesystem::path& exported) {
  const StoredModel written(exported);
  const model::StateReader read = written.reader();
  for (const Weight& weight : weights_of(trainer)) {
    std::vector<float> values(static_cast<std::size_t>(weight.type.num_elements()));
    read(text(weight.name), 0, values);
    EXPECT_GE(expect_read(trainer, weight, values), 1);
  }
  const std::optional<TrainedGrid> trained = find_trained_grid(trainer.result().checkpoint);
  ASSERT_TRUE(trained.has_value());
  EXPECT_TRUE(trained->has_begun);
  const Manifest manifest = read_manifest(exported);
  std::map<std::string, double> largest;  // of file tensors of a weight
  for (const ManifestTensor& tensor : manifest.written) {
    EXPECT_GT(tensor.bytes, 0) << tensor.name;
    EXPECT_EQ(tensor.largest_error.has_value(), !tensor.format.empty()) << tensor.name;
    if (!tensor.largest_error) continue;
    for (const ManifestPart& part : tensor.parts)
      largest[part.parameter] = std::max(largest[part.parameter], *tensor.largest_error);
  }
  for (const auto& [name, error] : trained->parameters) {
    ASSERT_TRUE(error.has_value()) << name;
    EXPECT_GT(error->largest_error, 0) << name;
    EXPECT_LE(error->largest_error, largest.at(name)) << name;
  }
}

TEST(Quantization, IsExportedInTheGridThatWasTrained) {
  for (const char* precision : {"bf16", "fp32"})
    for (const auto& [format, to] :
         {std::pair{"int8_channel", "compressed-tensors"},
          std::pair{"int4_group", "compressed-tensors"}, std::pair{"mxfp4", "compressed-tensors"},
          std::pair{"q8_0", "gguf"}, std::pair{"q4_0", "gguf"}}) {
      SCOPED_TRACE(std::string(precision) + " " + format);
      const TemporaryDirectory folder;
      RunConfig run = quantized_run(folder.path(), format);
      run.train.precision = precision;
      Trainer trainer(run);
      trainer.train();
      const bool is_gguf = std::string_view(to) == "gguf";
      const auto exported = folder.path() / (is_gguf ? "exported.gguf" : "exported");
      convert(trainer.result().checkpoint, exported,
              {.writes_gguf = is_gguf, .packs_weights = !is_gguf});
      expect_exported(trainer, exported);
      EXPECT_THAT(check_manifest(exported, trainer.result().checkpoint, {}), ::testing::IsEmpty());
    }
}

TEST(Quantization, RefusesPackedMatricesOfAnotherShape) {
  const TemporaryDirectory folder;
  const auto checkpoint = Trainer(quantized_run(folder.path(), "int4_group")).train().checkpoint;
  const auto exported = folder.path() / "exported";
  convert(checkpoint, exported, {.packs_weights = true, .compares_logits = false});
  const auto file = exported / "model.safetensors";
  std::string bytes = read_file(file, std::int64_t{1} << 30);
  const std::array<std::int64_t, 2> shape{96, 64};  // of gate and up
  const std::string_view stored(reinterpret_cast<const char*>(shape.data()), sizeof shape);
  const std::size_t at = bytes.find(stored);
  ASSERT_NE(at, std::string::npos);
  for (const std::int64_t columns : {std::int64_t{63}, std::int64_t{0}, std::int64_t{-64},
                                     std::numeric_limits<std::int64_t>::max()}) {
    std::memcpy(bytes.data() + at + sizeof columns, &columns, sizeof columns);
    write_file_atomically(file, bytes);
    EXPECT_THAT(message_of<InvalidArgument>([&] { StoredModel{exported}; }),
                HasSubstr("expected [96,64] in 4 or 8 bits with"))
        << columns;
  }
}

TEST(Quantization, IsExportedInMxfp4OfGptOss) {
  const TemporaryDirectory folder;
  Trainer trainer(quantized_run(folder.path(), "mxfp4", kSinks));
  trainer.train();
  const io::BlockType* const mxfp4 = io::find_block_type("MXFP4");
  convert(trainer.result().checkpoint, folder.path() / "hf", {.block_type = mxfp4});
  expect_exported(trainer, folder.path() / "hf");
  convert(trainer.result().checkpoint, folder.path() / "a.gguf", {.writes_gguf = true});
  expect_exported(trainer, folder.path() / "a.gguf");
  RunConfig run = quantized_run(folder.path(), "mxfp4", kSinks);
  run.quantization.units = {"experts.down"};
  run.train.output = folder.path() / "down";
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                convert(Trainer(run).train().checkpoint, folder.path() / "of_down",
                        {.block_type = mxfp4});
              }),
              AllOf(HasSubstr("expected quantization.units to be experts"),
                    HasSubstr("layers.0.experts.gate.weight")));
}

TEST(Quantization, RefusesToExportAnotherGrid) {
  const TemporaryDirectory folder;
  const auto checkpoint = Trainer(quantized_run(folder.path(), "q4_0")).train().checkpoint;
  const auto refusal = [&](const ConvertOptions& options, const char* name) {
    return message_of<InvalidArgument>([&] { convert(checkpoint, folder.path() / name, options); });
  };
  EXPECT_THAT(refusal({.packs_weights = true}, "packed"),
              AllOf(HasSubstr("--format: expected gguf for"), HasSubstr("the grid q4_0")));
  EXPECT_THAT(refusal({.writes_gguf = true, .block_type = io::find_block_type("Q8_0")}, "a.gguf"),
              HasSubstr("--dtype: expected q4_0 or a dtype of other tensors"));
  convert(checkpoint, folder.path() / "plain", {.compares_logits = false});
  EXPECT_FALSE(find_trained_grid(folder.path() / "plain").has_value());
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                convert(folder.path() / "plain", folder.path() / "packed", {.packs_weights = true});
              }),
              HasSubstr("expected a checkpoint of a run with quantization"));
}

// The fp32 value and what products read take two bytes an element more than in bf16.
TEST(Quantization, HasItsMemoryInTheAccount) {
  const TemporaryDirectory folder;
  RunConfig run = quantized_run(folder.path(), "mxfp4");
  const auto states_of = [](const RunConfig& of) {
    return anabatic::testing::plan_of(of).budgeted.memory;
  };
  const MemoryAccount with = states_of(run);
  run.quantization = {};
  const MemoryAccount without = states_of(run);
  const std::int64_t experts = std::int64_t{2} * 3 * 4 * 64 * 96;
  EXPECT_EQ(with.bytes("parameters") + with.bytes("packings") + with.bytes("optimizer state"),
            without.bytes("parameters") + without.bytes("packings") +
                without.bytes("optimizer state") +
                (anabatic::testing::has_optional_passes() ? 2 * experts : 0));
}

TEST(Quantization, IsRefusedByTheNamesOfKeys) {
  const auto problems = [](Overrides overrides) {
    overrides.insert({"quantization.enable", {"true"}});
    return message_of<InvalidArgument>([&] { load_run_config("", overrides); });
  };
  EXPECT_THAT(problems({{"quantization.bit_num", {"3"}}, {"quantization.format", {"q5_0"}}}),
              AllOf(HasSubstr("quantization.bit_num: expected one of [auto, 8, 4], got '3'"),
                    HasSubstr("q4_0, mxfp4], got 'q5_0'")));
  EXPECT_THAT(problems({{"quantization.group", {"48"}}, {"quantization.bit_num", {"4"}}}),
              HasSubstr("quantization.group: expected one of [auto, 32, 64, 128], got '48'"));
  EXPECT_THAT(problems({{"quantization.group", {"64"}}, {"quantization.format", {"q8_0"}}}),
              HasSubstr("quantization.group: expected auto with the format q8_0"));
  EXPECT_THAT(problems({{"quantization.bit_num", {"4"}}, {"quantization.format", {"q8_0"}}}),
              HasSubstr("quantization.bit_num: expected auto with quantization.format: q8_0"));
  EXPECT_THAT(
      problems({{"quantization.format", {"q8_0"}}, {"train.precision", {"fp16"}}}),
      HasSubstr("train.precision: expected bf16, fp32 or int8 with quantization, got fp16"));
  EXPECT_THAT(problems({{"quantization.bit_num", {"4"}}, {"quantization.per_channel", {"true"}}}),
              HasSubstr("quantization.per_channel: expected false with bit_num: 4"));
  EXPECT_THAT(problems({{"quantization.format", {"q8_0"}},
                        {"quantization.quant_delay", {"5"}},
                        {"train.steps", {"5"}}}),
              HasSubstr("quantization.quant_delay: expected less than train.steps"));
  EXPECT_THAT(
      problems({{"quantization.quant_delay", {"2"}}, {"precision.loss_scale", {"dynamic"}}}),
      HasSubstr("precision.loss_scale: expected auto or a number"));
  EXPECT_THAT(message_of<InvalidArgument>([] {
                load_run_config("", {{"quantization.format", {"q8_0"}}});
              }),
              HasSubstr("quantization.enable: expected true"));
}

TEST(Quantization, TakesTheWordsThatPeopleWrite) {
  const auto format_of = [](Overrides overrides) {
    overrides.insert({"quantization.enable", {"true"}});
    return to_string(*quantization_options(load_run_config("", overrides)).grid);
  };
  EXPECT_EQ(format_of({}), "int8_channel");
  EXPECT_EQ(format_of({{"quantization.bit_num", {"8"}}, {"quantization.per_channel", {"false"}}}),
            "q8_0");
  EXPECT_EQ(format_of({{"quantization.bit_num", {"4"}}, {"quantization.group", {"128"}}}),
            "int4_group_128");
}

TEST(Quantization, NamesTheUnitsThatThereAre) {
  const TemporaryDirectory folder;
  RunConfig run = quantized_run(folder.path(), "q8_0");
  run.quantization.units = {"expert"};
  EXPECT_THAT(
      message_of<InvalidArgument>([&] { Trainer(run).train(); }),
      AllOf(HasSubstr("quantization.units: expected a unit with products, got 'expert'; did you "
                      "mean 'experts'?"),
            HasSubstr("layers.N.experts.down")));
  run.quantization.units = {"layers.0.attention", "layers.1"};
  Trainer trainer(run);
  EXPECT_EQ(weights_of(trainer).size(), 4u + 4 + 3);  // no router
  EXPECT_THAT(trainer.session().grid_coverage(),
              HasSubstr("q8_0 for 11 weights of layers.0.attention, layers.1: "));
}

}  // namespace
}  // namespace anabatic::train
