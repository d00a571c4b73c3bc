// SPDX-License-Identifier: Apache-2.0
// Runs that train an adapter over weights in int8 or MXFP4.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <fstream>

#include "anabatic/error.h"
#include "io/block_types.h"
#include "kernels/ref/access.h"
#include "support/error_message.h"
#include "support/random_data.h"
#include "support/reference.h"
#include "support/tiny_run.h"
#include "train/evaluate.h"
#include "train/lora/quantized_rows.h"
#include "train/lora/run_adapter.h"
#include "train/state_rows.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;
using anabatic::testing::checkpoint_bytes;
using anabatic::testing::TemporaryDirectory;
using ::testing::HasSubstr;

// Rows of a whole block and a shorter one.
RunConfig int8_run(const fs::path& folder) {
  RunConfig run = anabatic::testing::tiny_run(
      folder, "\"hidden_size\": 144, \"intermediate_size\": 200, \"head_dim\": 36");
  run.train.precision = "bf16";
  run.lora.targets = {"attention", "experts"};
  run.lora.rank = 4;
  run.lora.base = "int8";
  return run;
}

// Experts of gpt_oss, with rows of two and of three blocks.
RunConfig mxfp4_run(const fs::path& folder, const std::string& extra = "") {
  RunConfig run = anabatic::testing::tiny_run(
      folder, anabatic::testing::kTinySinks +
                  R"(, "hidden_size": 96, "intermediate_size": 64, "num_attention_heads": 4,
                     "num_key_value_heads": 2)" +
                  extra);
  run.train.precision = "bf16";
  run.lora.targets = {"attention", "experts"};
  run.lora.rank = 4;
  run.lora.base = "mxfp4";
  return run;
}

struct Messages : RunListener {
  void on_message(Severity, const std::string& text) override { all += text + "\n"; }
  std::string all;
};

std::vector<Name> quantized_states(const runtime::StateStore& store) {
  std::vector<Name> names;
  for (const Name name : store.names())
    if (store.find(name).type->is_quantized()) names.push_back(name);
  return names;
}

std::vector<float> dequantized(const TensorView& state) {
  std::vector<float> values(static_cast<std::size_t>(state.type->num_elements()));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(kernels::ref::load_weight(state, static_cast<std::int64_t>(i)));
  return values;
}

std::string failure(const RunConfig& run) {
  return testing::message_of([&] { Trainer(run).train(); });
}

TEST(LoraBase, QuantizesRowsInPartsAsTheOpDoes) {
  const TensorType type = quantized(tensor_type(DType::kBFloat16, {5, 300}), int8_format(128));
  for (const std::int64_t step : {300, 7, 128, 1500, 431}) {
    const testing::Values x = testing::random_values(tensor_type(DType::kFloat32, {5, 300}),
                                                     testing::Regime::kBounded, 3, 1);
    const std::vector<testing::HostTensor> wanted =
        testing::run_reference({.op = "quantize",
                                .attributes = {{"block", std::int64_t{128}}},
                                .inputs = {x},
                                .outputs = {type}});
    std::vector<float> values(x.data.begin(), x.data.end());
    std::vector<std::byte> bytes(static_cast<std::size_t>(type.num_bytes()));
    const TensorView state{bytes.data(), &type};
    QuantizedRows rows;
    for (std::int64_t first = 0; first < 1500; first += step)
      rows.write(state, first,
                 std::span(values).subspan(static_cast<std::size_t>(first),
                                           static_cast<std::size_t>(std::min(step, 1500 - first))));
    rows.require_complete();
    EXPECT_EQ(dequantized(state), dequantized(wanted[0].view())) << step;
  }
}

// The same products in the same order: only the places of dequantised weights differ.
void expect_bits_of_dequantized(RunConfig quantized, RunConfig plain, std::size_t num_states) {
  plain.lora.base = "auto";
  for (RunConfig* run : {&quantized, &plain})
    run->compiler.disable_passes.insert(run->compiler.disable_passes.end(),
                                        {"fuse_qkv", "fuse_gate_up"});
  Trainer of_quantized(quantized), of_plain(plain);
  const std::vector<Name> names = quantized_states(of_quantized.session().store());
  EXPECT_EQ(names.size(), num_states);
  StateCursor cursor(of_plain.session().store());
  for (const Name name : names)
    cursor.write(name, 0, dequantized(of_quantized.session().store().find(name)));
  cursor.flush();
  of_plain.session().refresh_derived();
  EXPECT_TRUE(checkpoint_bytes(of_quantized.train().checkpoint) ==
              checkpoint_bytes(of_plain.train().checkpoint));
}

TEST(LoraBase, TrainsWithTheBitsOfDequantizedWeights) {
  const TemporaryDirectory folder, other;
  expect_bits_of_dequantized(int8_run(folder.path()), int8_run(other.path()), 2 * (4 + 3));
}

TEST(LoraBase, InMxfp4TrainsWithTheBitsOfDequantizedExperts) {
  for (const std::int64_t threads : {1, 2})
    for (const bool recomputes : {false, true}) {
      const TemporaryDirectory folder, other;
      RunConfig run = mxfp4_run(folder.path()), plain = mxfp4_run(other.path());
      for (RunConfig* one : {&run, &plain}) {
        one->device.threads = threads;
        if (recomputes) one->memory.recompute = {"experts"};
      }
      expect_bits_of_dequantized(run, plain, 2 * 3);
    }
}

// Elements that the encoder would not choose: a zero with a sign, and scales above need.
TEST(LoraBase, CopiesBlocksOfMxfp4) {
  const TensorType type = quantized(tensor_type(DType::kBFloat16, {2, 64}), mxfp4_format());
  std::vector<std::byte> bytes(static_cast<std::size_t>(type.num_bytes())), pairs(32), scales(2);
  const TensorView state{bytes.data(), &type};
  for (const int scale : {0, 1, 63, 64, 127, 200, 252}) {
    for (std::size_t i = 0; i < pairs.size(); ++i) pairs[i] = static_cast<std::byte>(i * 37 + 8);
    std::ranges::fill(scales, static_cast<std::byte>(scale));
    std::vector<float> wanted(64);
    io::dequantise_mxfp4_pairs(pairs, scales, wanted);
    copy_mxfp4(state, 64, pairs, scales);
    const std::vector<float> got = dequantized(state);
    for (std::size_t i = 0; i < wanted.size(); ++i)
      EXPECT_EQ(std::bit_cast<std::uint32_t>(got[64 + i]), std::bit_cast<std::uint32_t>(wanted[i]))
          << scale << " " << i;
  }
}

TEST(LoraBase, LearnsResumesAndLeavesTheWeightsAlone) {
  const TemporaryDirectory folder, other;
  RunConfig run = int8_run(folder.path()), broken = int8_run(other.path());
  run.train.steps = broken.train.steps = 12;
  run.device.threads = 1;
  run.data.validation = {anabatic::testing::write_tiny_tokens(folder.path(), "validation", 12, 8)};
  Trainer trainer(run);
  std::vector<std::vector<float>> before;
  for (const Name name : quantized_states(trainer.session().store()))
    before.push_back(dequantized(trainer.session().store().find(name)));
  const TrainResult result = trainer.train();
  std::size_t i = 0;
  for (const Name name : quantized_states(trainer.session().store()))
    EXPECT_EQ(dequantized(trainer.session().store().find(name)), before[i++]) << text(name);
  EXPECT_LT(result.after->loss, result.before->loss);
  RunConfig use = run;
  use.model.adapter = result.checkpoint;
  EXPECT_THAT(base_to_string(use), HasSubstr(" in bf16; it was trained on them in int8"));

  broken.data.validation = run.data.validation;
  broken.train.save_every = 3;
  broken.train.keep_last = 0;
  Trainer(broken).train();
  anabatic::testing::go_back_to(broken.train.output, 3);
  EXPECT_TRUE(checkpoint_bytes(Trainer(broken).train().checkpoint) ==
              checkpoint_bytes(result.checkpoint));
  broken.lora.base = "auto";
  broken.train.steps += 2;
  EXPECT_THAT(failure(broken), HasSubstr("lora.base: the checkpoint has int8, this run auto"));
}

TEST(LoraBase, SaysAtTheStartWhatIsLost) {
  const TemporaryDirectory folder;
  const RunConfig run = int8_run(folder.path());
  Messages messages;
  const Trainer trainer(run, messages);
  EXPECT_THAT(messages.all,
              ::testing::ContainsRegex("lora.base int8: loss [0-9.]+ on 64 rows, [0-9.]+ with the "
                                       "weights in bf16 \\([-+]0\\.0"));
}

TEST(LoraBase, IsRefusedWhereItMeansNothing) {
  const TemporaryDirectory folder;
  RunConfig run = int8_run(folder.path());
  run.train.precision = "fp32";
  EXPECT_THAT(problems_of(run),
              ::testing::ElementsAre(HasSubstr(
                  "lora.base: expected auto where train.precision is fp32 with lora, got int8")));
  run.lora.targets = {};
  EXPECT_THAT(problems_of(run),
              ::testing::ElementsAre(
                  HasSubstr("lora.rank: got 4, but neither lora.targets nor lora.from: no adapter "
                            "would be trained"),
                  HasSubstr("lora.base: got int8, but neither lora.targets")));
  const TemporaryDirectory narrow;
  EXPECT_THAT(failure(mxfp4_run(narrow.path(), R"(, "intermediate_size": 48)")),
              HasSubstr("lora.base: mxfp4 has rows of a multiple of 32 elements, got 48 in "
                        "layers.0.experts.down.weight"));
}

}  // namespace
}  // namespace anabatic::train
