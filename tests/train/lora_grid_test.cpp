// SPDX-License-Identifier: Apache-2.0
// Adapters over weights on a grid: these are rounded once, as they are loaded, runs have the bits
// of a base that was converted before, and files hold what products read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "anabatic/error.h"
#include "base/log.h"
#include "model/weights.h"
#include "support/error_message.h"
#include "support/plan_changes.h"
#include "support/planned_run.h"
#include "support/random_data.h"
#include "support/test_config.h"
#include "support/tiny_run.h"
#include "support/trained_run.h"
#include "tensor/grid_elements.h"
#include "train/convert/convert.h"
#include "train/convert/stored_model.h"
#include "train/evaluate.h"
#include "train/lora/grid_rows.h"
#include "train/lora/run_adapter.h"
#include "train/state_tiers.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;
using anabatic::testing::checkpoint_bytes;
using anabatic::testing::losses_of;
using anabatic::testing::message_of;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::trained_bytes;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kWide = R"("hidden_size": 64, "intermediate_size": 96)";
const std::string kWideSinks = anabatic::testing::kTinySinks +
                               R"(, "hidden_size": 96, "intermediate_size": 64,
                                  "num_attention_heads": 4, "num_key_value_heads": 2)";

struct Format {
  const char* name;
  bool is_gguf;
};
constexpr Format kForms[] = {{"int8_channel", false},
                             {"int4_group", false},
                             {"mxfp4", false},
                             {"q8_0", true},
                             {"q4_0", true}};

// A model that was trained a little, as the weights under an adapter.
fs::path trained_base(const fs::path& folder, const std::string& extra = kWide) {
  RunConfig run = anabatic::testing::tiny_run(folder, extra);
  run.train.steps = 2;
  run.train.output = folder / "base";
  return Trainer(run).train().checkpoint;
}

RunConfig run_on(const fs::path& base, const fs::path& folder) {
  RunConfig run = anabatic::testing::tiny_run(folder);
  run.model.path = base;
  run.model.init = "pretrained";
  run.train.precision = "bf16";
  run.train.steps = 4;
  run.data.sequence_length = 32;
  run.data.validation = {anabatic::testing::write_tiny_tokens(folder, "validation", 12, 8)};
  run.lora.targets = {"attention", "experts"};
  run.lora.rank = 4;
  run.optimizer.learning_rate = 1e-2;
  run.train.balance_coef = 0.01;  // GGUF files have none
  return run;
}

RunConfig with_grid(RunConfig run, const std::string& format) {
  run.quantization.enable = true;
  run.quantization.format = format;
  run.quantization.units = {"experts", "attention"};
  return run;
}

// Values of the grid, by the encoder of an element.
std::vector<float> on_grid(const WeightGrid& grid, std::vector<float> values, std::size_t columns) {
  const std::size_t group = grid.group > 0 ? static_cast<std::size_t>(grid.group) : columns;
  with_grid_elements(grid.format, [&]<class Encoder>(Encoder) {
    for (std::size_t first = 0; first < values.size(); first += group) {
      const auto part = std::span(values).subspan(first, group);
      const GridScale scale = Encoder::scale_of(
          *std::ranges::max_element(part, {}, [](float value) { return std::abs(value); }));
      for (float& value : part)
        value = Encoder::value_of(Encoder::element_of(value, scale.rule), scale.scale);
    }
  });
  return values;
}

ConvertOptions options_for(const Format& format) {
  return {
      .writes_gguf = format.is_gguf, .packs_weights = !format.is_gguf, .compares_logits = false};
}
fs::path place_for(const fs::path& folder, const char* name, const Format& format) {
  return folder / (std::string(name) + (format.is_gguf ? ".gguf" : ""));
}

std::vector<float> read_all(const StoredModel& model, std::string_view name, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  model.reader()(name, 0, values);
  return values;
}

// The largest error of each parameter that the files of a conversion hold in a grid.
std::map<std::string, double> largest_errors(const Manifest& manifest) {
  std::map<std::string, double> errors;
  for (const ManifestTensor& tensor : manifest.written)
    for (const ManifestPart& part : tensor.parts)
      if (tensor.largest_error)
        errors[part.parameter] = std::max(errors[part.parameter], *tensor.largest_error);
  return errors;
}

TEST(LoraGrid, RoundsRowsInParts) {
  constexpr std::int64_t kElements = std::int64_t{5} * 96;
  const Name weight = intern("w"), other = intern("other");
  const testing::Values x = testing::random_values(tensor_type(DType::kFloat32, {5, 96}),
                                                   testing::Regime::kBounded, 3, 1);
  const std::vector<float> values(x.data.begin(), x.data.end());
  for (const GridFormat format : kGridFormats) {
    const WeightGrid grid = weight_grid(format);
    const std::vector<float> wanted = on_grid(grid, values, 96);
    ASSERT_NE(values, wanted);
    double largest = 0;
    for (std::size_t i = 0; i < values.size(); ++i)
      largest = std::max(largest, std::abs(double{wanted[i]} - double{values[i]}));
    for (const std::int64_t step :
         {kElements, std::int64_t{96}, std::int64_t{7}, std::int64_t{131}}) {
      std::map<Name, std::vector<float>> got{{weight, std::vector<float>(values.size())},
                                             {other, std::vector<float>(values.size())}};
      GridRows rows([&](Name state, std::int64_t first, std::span<const float> part) {
        std::ranges::copy(part, got[state].begin() + first);
      });
      rows.add(weight, grid, kElements, 96);
      for (std::int64_t first = 0; first < kElements; first += step)
        for (const Name state : {weight, other})
          rows.write(state, first,
                     std::span(values).subspan(
                         static_cast<std::size_t>(first),
                         static_cast<std::size_t>(std::min(step, kElements - first))));
      EXPECT_EQ(got[weight], wanted) << to_string(grid) << " " << step;
      EXPECT_EQ(got[other], values);
      EXPECT_EQ(rows.errors().at(weight).largest_error, largest);
    }
    GridRows rows([](Name, std::int64_t, std::span<const float>) {});
    rows.add(weight, grid, kElements, 96);
    const std::vector<float> bad(96, std::numeric_limits<float>::quiet_NaN());
    EXPECT_THAT(message_of<InvalidArgument>([&] { rows.write(weight, 96, bad); }),
                AllOf(HasSubstr("w: expected finite weights for the grid"), HasSubstr("in row 1")));
  }
}

// The parameter holds the grid, and the step has no op more than over other weights.
TEST(LoraGrid, RoundsWeightsOnceAsTheyAreLoaded) {
  for (const char* precision : {"bf16", "fp32"}) {
    const TemporaryDirectory folder, other;
    const fs::path base = trained_base(folder.path());
    RunConfig plain = run_on(base, other.path());
    plain.train.precision = precision;
    RunConfig run = with_grid(plain, "q4_0");
    run.train.output = other.path() / "grid";
    Trainer trainer(run), of_plain(plain);
    const StoredModel stored(base);
    StateCursor cursor(trainer.session().store()), cursor_of_plain(of_plain.session().store());
    int num_rounded = 0;
    for (const ir::State& state : trainer.compiled().graph.states) {
      if (state.kind() != ir::StateKind::kParameter) continue;
      const TensorType& type = *trainer.session().store().find(state.name).type;
      std::vector<float> got(static_cast<std::size_t>(type.num_elements())), want(got.size());
      cursor.read(state.name, 0, got);
      if (state.grid) {
        EXPECT_FALSE(state.is_trainable) << text(state.name);
        want = on_grid(*state.grid, read_all(stored, text(state.name), type.num_elements()),
                       static_cast<std::size_t>(type.dim(-1)));
        if (type.dtype == DType::kBFloat16)
          for (float& value : want) value = to_float(to_bfloat16_half_away(value));
        ++num_rounded;
      } else {
        cursor_of_plain.read(state.name, 0, want);
      }
      EXPECT_EQ(got, want) << text(state.name);
    }
    EXPECT_EQ(num_rounded, 2 * (4 + 3));  // no A and no B
    EXPECT_EQ(trainer.compiled().graph.nodes.size(), of_plain.compiled().graph.nodes.size());
    for (const ir::Node& node : trainer.compiled().graph.nodes)
      EXPECT_NE(node.op->name, "fake_quantize");
    EXPECT_THAT(trainer.session().grid_coverage(),
                AllOf(HasSubstr("q4_0 for 14 weights"), HasSubstr("rounded once")));
    const MemoryAccount with = anabatic::testing::plan_of(run).budgeted.memory,
                        without = anabatic::testing::plan_of(plain).budgeted.memory;
    for (const char* row : {"parameters", "packings", "optimizer state"})
      EXPECT_EQ(with.bytes(row), without.bytes(row)) << row;
  }
}

// The files of the base in the adapter's grid are what products read.
TEST(LoraGrid, TrainsWithTheBitsOfABaseThatWasConvertedBefore) {
  const TemporaryDirectory folder;
  const fs::path base = trained_base(folder.path());
  for (const char* precision : {"bf16", "fp32", "int8"})
    for (const Format& format : kForms) {
      const bool is_bf16 = std::string_view(precision) == "bf16";
      if (!is_bf16 && std::string_view(format.name) != "int4_group") continue;
      SCOPED_TRACE(std::string(precision) + " " + format.name);
      const TemporaryDirectory own;
      RunConfig run = with_grid(run_on(base, own.path()), format.name);
      run.train.precision = precision;
      const TrainResult result = Trainer(run).train();

      const fs::path converted = place_for(own.path(), "converted", format);
      ConvertOptions options = options_for(format);
      options.grid_of = result.checkpoint;
      const std::map<std::string, double> errors =
          largest_errors(convert(base, converted, options));
      const auto trained = find_trained_grid(result.checkpoint);
      ASSERT_TRUE(trained.has_value());
      EXPECT_EQ(trained->parameters.size(), 2u * (4 + 3));
      for (const auto& [name, error] : trained->parameters)
        EXPECT_EQ(error->largest_error, errors.at(name)) << name;

      RunConfig over = run_on(converted, own.path());
      over.train.precision = precision;
      over.train.output = own.path() / "over";
      const TrainResult of_converted = Trainer(over).train();
      EXPECT_EQ(losses_of(run), losses_of(over));
      EXPECT_EQ(result.after->loss, of_converted.after->loss);
      EXPECT_TRUE(checkpoint_bytes(result.checkpoint) == checkpoint_bytes(of_converted.checkpoint));
      over.lora = {};
      over.model.adapter = result.checkpoint;
      EXPECT_THAT(base_to_string(over), HasSubstr(std::string("; it was trained on them in ") +
                                                  to_string(trained->grid)));
      if (is_bf16) continue;
      // Without the grid losses are others.
      over = run_on(base, own.path());
      over.train.precision = precision;
      over.train.output = own.path() / "plain";
      Trainer(over).train();
      EXPECT_NE(losses_of(run), losses_of(over));
    }
}

TEST(LoraGrid, HasEqualBitsHoweverItIsPlannedAndResumed) {
  const TemporaryDirectory folder;
  const fs::path base = trained_base(folder.path());
  RunConfig run = with_grid(run_on(base, folder.path()), "int8_channel");
  run.train.save_every = 2;
  run.train.keep_last = 0;
  run.optimizer.schedule = "constant";
  const std::string want = trained_bytes(run);
  int number = 0;
  for (const anabatic::testing::PlanChange& change : anabatic::testing::plan_changes()) {
    RunConfig changed = run;
    changed.train.output = folder.path() / std::to_string(number++);
    change.apply(changed);
    if (changed.memory.parameters == "disk") continue;  // refused with lora
    EXPECT_TRUE(trained_bytes(changed) == want) << change.name;
  }
  anabatic::testing::go_back_to(run.train.output, 2);
  EXPECT_TRUE(trained_bytes(run) == want);
  run.train.steps += 2;
  RunConfig changed = run;
  changed.quantization.format = "q8_0";
  EXPECT_THAT(message_of([&] { Trainer(changed).train(); }),
              HasSubstr("quantization.format: the checkpoint has int8_channel, this run q8_0"));
  changed.quantization.format = "auto";  // the same grid
  EXPECT_FALSE(trained_bytes(changed).empty());
}

TEST(LoraGrid, TakesRanks) {
  const TemporaryDirectory folder;
  const fs::path base = trained_base(folder.path());
  RunConfig run = with_grid(run_on(base, folder.path()), "q4_0");
  run.data.validation.clear();
  run.train.gradient_accumulation_steps = 2;
  run.train.gradient_leaves = 2;
  const auto state = anabatic::testing::training_state(Trainer(run).train().checkpoint);
  run.train.gradient_accumulation_steps = 1;
  run.parallel.local_ranks = 2;
  run.train.output = folder.path() / "two";
  EXPECT_EQ(anabatic::testing::training_state(Trainer(run).train().checkpoint), state);
  run.parallel.expert = 2;
  run.train.output = folder.path() / "experts";
  EXPECT_FALSE(trained_bytes(run).empty());
}

// The sum w + s B A has a grid of its own.
TEST(LoraGrid, IsMergedIntoANewGrid) {
  const TemporaryDirectory folder;
  const fs::path base = trained_base(folder.path());
  for (const Format& format : kForms) {
    SCOPED_TRACE(format.name);
    const TemporaryDirectory own;
    const RunConfig run = with_grid(run_on(base, own.path()), format.name);
    Trainer trainer(run);
    const fs::path adapter = trainer.train().checkpoint;
    convert(base, own.path() / "plain", {.compares_logits = false, .adapter = adapter});
    const StoredModel plain(own.path() / "plain");
    ConvertOptions options = options_for(format);
    options.adapter = adapter;
    const fs::path merged = place_for(own.path(), "merged", format);
    const std::map<std::string, double> errors = largest_errors(convert(base, merged, options));
    const StoredModel stored(merged), of_base(base);
    int count = 0;
    for (const ir::State& state : trainer.compiled().graph.states) {
      if (state.kind() != ir::StateKind::kParameter || !state.grid) continue;
      const TensorType& type = *trainer.session().store().find(state.name).type;
      const std::vector<float> sum = read_all(plain, text(state.name), type.num_elements());
      EXPECT_NE(sum, read_all(of_base, text(state.name), type.num_elements()));
      const std::vector<float> wanted =
          on_grid(*state.grid, sum, static_cast<std::size_t>(type.dim(-1)));
      EXPECT_EQ(read_all(stored, text(state.name), type.num_elements()), wanted)
          << text(state.name);
      double largest = 0;
      for (std::size_t i = 0; i < sum.size(); ++i)
        largest = std::max(largest, std::abs(double{sum[i]} - double{wanted[i]}));
      EXPECT_EQ(errors.at(std::string(text(state.name))), largest) << text(state.name);
      ++count;
    }
    EXPECT_EQ(count, 2 * (4 + 3));
    EXPECT_THAT(check_manifest(merged, base, {}), ::testing::IsEmpty());
  }
}

// A grid that is the form in which weights are held changes nothing.
TEST(LoraGrid, OfMxfp4IsABaseInMxfp4) {
  const TemporaryDirectory folder, own;
  const fs::path base = trained_base(folder.path(), kWideSinks);
  RunConfig run = run_on(base, own.path());
  run.lora.base = "mxfp4";
  const std::string want = trained_bytes(run);
  const auto bytes_of = [&](const fs::path& model, bool has_grid, const char* name) {
    RunConfig other = run;
    other.model.path = model;
    if (has_grid) other = with_grid(other, "mxfp4");
    other.quantization.units = {"experts"};
    other.train.output = own.path() / name;
    return trained_bytes(other);
  };
  EXPECT_TRUE(bytes_of(base, true, "grid") == want);
  RunConfig of_grid = run;
  of_grid.train.output = own.path() / "grid";
  const std::string name = "step-00000004";
  ASSERT_TRUE(find_trained_grid(own.path() / "grid" / name).has_value());
  convert(base, own.path() / "exported",
          {.block_type = io::find_block_type("MXFP4"),
           .compares_logits = false,
           .grid_of = own.path() / "grid" / name});
  EXPECT_TRUE(bytes_of(own.path() / "exported", false, "copied") == want);
  EXPECT_TRUE(bytes_of(own.path() / "exported", true, "again") == want);
}

TEST(LoraGrid, IsRefusedByTheNamesOfKeys) {
  const auto problems = [](Overrides overrides) {
    overrides.insert({"quantization.enable", {"true"}});
    overrides.insert({"lora.targets", {"all"}});
    return message_of<InvalidArgument>([&] { load_run_config("", overrides); });
  };
  EXPECT_THAT(problems({{"quantization.format", {"q8_0"}}, {"quantization.quant_delay", {"2"}}}),
              HasSubstr("quantization.quant_delay: expected 0 with lora: the weights under an "
                        "adapter are rounded once, as they are loaded, with quantization, got 2"));
  for (const auto& [base, format] : {std::pair{"int8", "int8_channel"}, std::pair{"mxfp4", "q4_0"}})
    EXPECT_THAT(problems({{"quantization.format", {format}},
                          {"train.precision", {"bf16"}},
                          {"lora.base", {base}}}),
                HasSubstr(std::string("lora.base: expected auto, or mxfp4 where "
                                      "quantization.format is mxfp4 too, with quantization, got ") +
                          base));
  const TemporaryDirectory folder;
  RunConfig run = with_grid(run_on(trained_base(folder.path()), folder.path()), "q4_0");
  for (const char* unit : {"lora_A", "expert"}) {
    run.quantization.units = {unit};
    EXPECT_THAT(message_of<InvalidArgument>([&] { Trainer(run).train(); }),
                AllOf(HasSubstr("quantization.units: expected a unit with products, got"),
                      HasSubstr("layers.N.experts.down"), ::testing::Not(HasSubstr(".lora_"))));
  }
}

TEST(LoraGrid, RefusesToConvertWhatHasNoSuchGrid) {
  const TemporaryDirectory folder;
  const fs::path base = trained_base(folder.path());
  RunConfig run = run_on(base, folder.path());
  const fs::path plain = Trainer(run).train().checkpoint;
  run = with_grid(run, "q4_0");
  run.train.output = folder.path() / "grid";
  const fs::path adapter = Trainer(run).train().checkpoint;
  const auto refusal = [&](const fs::path& source, const ConvertOptions& options) {
    return message_of([&] { convert(source, folder.path() / "refused.gguf", options); });
  };
  EXPECT_THAT(refusal(base, {.writes_gguf = true, .grid_of = plain}),
              HasSubstr("--grid_of: expected an adapter that was trained with quantization"));
  EXPECT_THAT(refusal(base, {.grid_of = adapter}),
              HasSubstr("--grid_of: expected --format gguf, compressed-tensors or mxfp4"));
  EXPECT_THAT(refusal(base, {.packs_weights = true, .grid_of = adapter}),
              AllOf(HasSubstr("--format: expected gguf for"), HasSubstr("the grid q4_0")));
  EXPECT_THAT(refusal(base, {.packs_weights = true, .adapter = plain}),
              HasSubstr("expected a checkpoint of a run with quantization, got " + plain.string()));
  EXPECT_THAT(refusal(adapter, {.writes_gguf = true}),
              AllOf(HasSubstr("expected a model, got an adapter"), HasSubstr("--grid_of")));
  const TemporaryDirectory other;
  const fs::path shallow =
      trained_base(other.path(), std::string(kWide) + R"(, "num_hidden_layers": 1)");
  EXPECT_THAT(refusal(shallow, {.writes_gguf = true, .grid_of = adapter}), HasSubstr("layers.1"));
}

// A run tells that it goes on over other weights than those of the adapter.
TEST(LoraGrid, WarnsOfAnotherGridUnderAnAdapter) {
  const TemporaryDirectory folder;
  RunConfig run = with_grid(run_on(trained_base(folder.path()), folder.path()), "q4_0");
  const fs::path adapter = Trainer(run).train().checkpoint;
  struct Messages : RunListener {
    void on_message(Severity, const std::string& text) override { all += text + "\n"; }
    std::string all;
  };
  run.lora = {};
  run.lora.from = adapter;
  for (const char* format : {"q4_0", "q8_0"}) {
    run.quantization.format = format;
    run.train.output = folder.path() / format;
    Messages messages;
    std::vector<std::string> warnings;
    const LogScope scope([&](Severity, const std::string& line) { warnings.push_back(line); });
    const Trainer trainer(run, messages);
    EXPECT_THAT(messages.all, ::testing::ContainsRegex(std::string("quantization ") + format +
                                                       ": loss [0-9.]+ on "));
    const auto count = std::ranges::count_if(warnings, [](const std::string& line) {
      return line.find("trained on weights in the grid q4_0, and goes on on weights in q8_0") !=
             std::string::npos;
    });
    EXPECT_EQ(count, std::string_view(format) == "q8_0" ? 1 : 0);
  }
}

}  // namespace
}  // namespace anabatic::train
