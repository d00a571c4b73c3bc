// SPDX-License-Identifier: Apache-2.0
// Block-sparse attention: runs have equal bits however they are planned and resumed, lists of all
// blocks change nothing, and what reads a model that was trained with a pattern uses it.
#include "train/attention/key_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "anabatic/error.h"
#include "base/log.h"
#include "base/text.h"
#include "io/npy.h"
#include "support/error_message.h"
#include "support/plan_changes.h"
#include "support/tiny_run.h"
#include "support/trained_run.h"
#include "train/convert/convert.h"
#include "train/evaluate.h"
#include "train/generate.h"
#include "train/objective/run_model.h"
#include "train/open_dataset.h"
#include "train/run_plan.h"
#include "train/trainer.h"
#include "train/training_step.h"

namespace anabatic::train {
namespace {

using anabatic::testing::checkpoint_bytes;
using anabatic::testing::kTinyLatent;
using anabatic::testing::kTinySinks;
using anabatic::testing::losses_of;
using anabatic::testing::message_of;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::trained_bytes;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Samples of 64 tokens, which hold several documents; blocks of 4.
RunConfig sparse_run(const std::filesystem::path& folder, const std::string& extra = "") {
  RunConfig run = anabatic::testing::tiny_run(folder, extra);
  run.data.sequence_length = 64;
  run.train.steps = 4;
  run.attention.blocks.size = 4;
  run.attention.blocks.local = 2;
  run.attention.blocks.global = 1;
  run.attention.blocks.random = 1;
  run.attention.blocks.seed = 3;
  return run;
}

void write_mask(const std::filesystem::path& file, std::vector<std::int64_t> shape,
                std::vector<std::uint8_t> values) {
  write_file_atomically(file, io::to_npy({std::move(shape), std::move(values)}));
}

// [groups, blocks, blocks], by listed(group, row, key).
template <class Listed>
void write_mask(const std::filesystem::path& file, std::int64_t groups, std::int64_t blocks,
                Listed&& listed) {
  std::vector<std::uint8_t> values;
  for (std::int64_t g = 0; g < groups; ++g)
    for (std::int64_t i = 0; i < blocks; ++i)
      for (std::int64_t j = 0; j < blocks; ++j)
        values.push_back(static_cast<std::uint8_t>(listed(g, i, j)));
  write_mask(file, {groups, blocks, blocks}, std::move(values));
}

// In batches with several documents a sample, lists and key ranges together say of every pair of
// rows what the rule says of places in one document.
TEST(KeyBlocks, OfPackedDocumentsAreThoseOfEachAlone) {
  for (const char* packing : {"isolated", "concatenated", "best_fit"}) {
    const TemporaryDirectory folder;
    RunConfig run = sparse_run(folder.path());
    run.data.packing = packing;
    run.attention.blocks = {.size = 4, .local = 2, .global = 1, .stride = 5};
    const model::ModelConfig config = load_run_model(run);
    const io::Dataset dataset = open_dataset(run.data.train, run, config);
    io::Loader loader(dataset, {.micro_batch_size = 2, .accumulation_steps = 1});
    const spec::BlockLists lists = model::key_block_lists(*config.key_blocks, 64);
    int num_begins = 0;
    for (std::int64_t step = 0; step < 2; ++step) {
      const io::MicroBatch& batch = loader.load_step(step).micro_batches[0];
      for (std::size_t t = 0; t < batch.tokens.size(); ++t) {
        num_begins += batch.key_begin[t] % 4 != 0 && batch.positions[t] == 0 ? 1 : 0;
        const std::int64_t place = batch.positions[t];
        const auto list = lists.of(0, (batch.key_end[t] - 1 - batch.key_begin[t]) / 4);
        for (std::size_t s = 0; s < batch.tokens.size(); ++s) {
          const auto key = static_cast<std::int64_t>(s), row = static_cast<std::int64_t>(t);
          const bool is_in_range = batch.key_begin[t] <= key && key < batch.key_end[t];
          const bool reads =
              is_in_range && std::ranges::count(list, (key - batch.key_begin[t]) / 4) > 0;
          // The same document: as many rows back as places.
          const std::int64_t key_place = place - (row - key);
          const std::int64_t i = place / 4, j = key_place / 4;
          const bool wants = key <= row && key_place >= 0 && key_place == batch.positions[s] &&
                             (i - j < 2 || j < 1 || (j + 1) % 5 == 0);
          ASSERT_EQ(reads, wants) << packing << " row " << t << " key " << s;
        }
      }
    }
    if (std::string_view(packing) != "concatenated") {
      EXPECT_GT(num_begins, 3) << "no document begins within a block of rows";
    }
  }
}

// Grouped queries, windows with sinks, heads of unequal widths.
TEST(KeyBlocks, OfEverythingGiveTheBitsOfAttentionToAllKeys) {
  for (const std::string& extra : {std::string(), kTinySinks, kTinyLatent})
    for (const char* precision : {"fp32", "bf16"}) {
      const TemporaryDirectory folder;
      RunConfig run = sparse_run(folder.path(), extra);
      run.train.precision = precision;
      run.attention = {};
      const std::string dense = trained_bytes(run);
      const std::vector<double> losses = losses_of(run);
      run.train.output += "-all";
      run.attention.blocks.size = 4;
      run.attention.blocks.stride = 1;
      EXPECT_EQ(trained_bytes(run), dense) << extra << precision;
      EXPECT_EQ(losses_of(run), losses);
      run.train.output += "-some";
      run.attention = sparse_run(folder.path()).attention;
      trained_bytes(run);
      EXPECT_NE(losses_of(run), losses) << "the pattern left nothing out";
    }
}

TEST(KeyBlocks, GiveEqualBitsForAnyPlan) {
  const TemporaryDirectory folder;
  RunConfig run = sparse_run(folder.path());
  run.train.precision = "bf16";
  run.train.gradient_accumulation_steps = 2;
  run.train.steps = 2;
  const std::string want = trained_bytes(run);
  int number = 0;
  for (const anabatic::testing::PlanChange& change : anabatic::testing::plan_changes()) {
    RunConfig changed = run;
    changed.train.output += std::to_string(number++);
    change.apply(changed);
    EXPECT_EQ(trained_bytes(changed), want) << change.name;
  }
}

TEST(KeyBlocks, GiveEqualBitsOnAnyNumberOfRanks) {
  const TemporaryDirectory folder;
  RunConfig run = sparse_run(folder.path());
  run.train.gradient_accumulation_steps = 2;
  run.train.gradient_leaves = 2;
  const std::string want = trained_bytes(run);
  run.train.gradient_accumulation_steps = 1;
  run.parallel.local_ranks = 2;
  run.train.output += "-ranks";
  EXPECT_EQ(trained_bytes(run), want);
}

// A plan prices attention by the share of pairs that are left, and its model FLOPs likewise.
TEST(KeyBlocks, ArePricedByTheirShareOfThePairs) {
  const TemporaryDirectory folder;
  RunConfig run = sparse_run(folder.path());
  run.data.sequence_length = 256;
  run.attention.blocks = {.size = 16, .local = 2};
  const auto flops_of = [&] {
    const model::ModelConfig config = load_run_model(run);
    const ir::Graph graph = forward_graph(run, config, training_request(run, config).build);
    std::int64_t flops = 0;
    for (const ir::Node& node : graph.nodes) {
      if (node.op->name != "attention") continue;
      std::vector<TensorType> inputs, outputs;
      for (const ir::ValueId value : node.inputs) inputs.push_back(graph.value(value).type);
      for (const ir::ValueId value : node.outputs) outputs.push_back(graph.value(value).type);
      flops += node.op->cost(inputs, outputs, node.attributes).flops;
    }
    return static_cast<double>(flops);
  };
  const double sparse = flops_of();
  run.attention = {};
  const spec::BlockLists lists = spec::make_block_lists({.size = 16, .local = 2}, 256);
  EXPECT_EQ(std::llround(1000 * sparse / flops_of()), std::llround(1000 * lists.density(256, 0)));
}

TEST(KeyBlocks, GoOnAfterAResume) {
  const TemporaryDirectory folder;
  RunConfig run = sparse_run(folder.path());
  write_mask(folder.path() / "mask.npy", 4, 16,
             [](auto g, auto i, auto j) { return i == j || (j < i && (i + j * 3 + g) % 3 == 0); });
  run.attention = {};
  run.attention.blocks.size = 4;
  run.attention.blocks.file = (folder.path() / "mask.npy").string();
  run.train.save_every = 2;
  const std::string whole = trained_bytes(run);
  anabatic::testing::go_back_to(run.train.output, 2);
  EXPECT_EQ(trained_bytes(run), whole);

  anabatic::testing::go_back_to(run.train.output, 2);
  RunConfig other = run;
  other.attention.blocks.size = 8;
  EXPECT_THAT(message_of([&] { Trainer(other).train(); }),
              HasSubstr("attention.blocks.size: the checkpoint has 4, this run 8"));
  write_mask(folder.path() / "mask.npy", 1, 16, [](auto, auto i, auto j) { return i == j; });
  EXPECT_THAT(message_of([&] { Trainer(run).train(); }), HasSubstr("attention.blocks.file: "));
}

TEST(KeyBlocks, OfAFileAreThoseOfTheRuleThatItHolds) {
  const TemporaryDirectory folder;
  RunConfig run = sparse_run(folder.path());
  run.attention.blocks = {.size = 4, .local = 2, .global = 1};
  const std::string by_rule = trained_bytes(run);
  // The last block has what no row can see, too.
  write_mask(folder.path() / "mask.npy", 4, 20,
             [](auto, auto i, auto j) { return i == 0 || i == j || i == j + 1 || j == 0; });
  run.attention.blocks = {.size = 4, .file = (folder.path() / "mask.npy").string()};
  run.train.output += "-file";
  EXPECT_EQ(trained_bytes(run), by_rule);
}

// Evaluation after the run, and decoding, read the pattern from the directory of the model.
TEST(KeyBlocks, AreThoseOfTheModelWhereverItIsRead) {
  const TemporaryDirectory folder;
  for (const bool by_file : {false, true}) {
    RunConfig run = sparse_run(folder.path());
    run.train.output += by_file ? "-file" : "-rule";
    if (by_file) {
      write_mask(folder.path() / "mask.npy", 4, 16,
                 [](auto g, auto i, auto j) { return i == j || (i + j + g) % 2 == 0; });
      run.attention.blocks = {.size = 4, .file = (folder.path() / "mask.npy").string()};
    }
    run.data.validation = run.data.train;
    Trainer trainer(run);
    const auto result = trainer.train();
    const double loss =
        anabatic::testing::json_lines(std::filesystem::path(run.train.output) / "validation.jsonl")
            .back()["loss"];

    RunConfig evaluation = run;
    evaluation.model.path = result.checkpoint.string();
    evaluation.model.init = "pretrained";
    evaluation.attention = {};
    EXPECT_EQ(evaluate(evaluation).loss, loss) << by_file;
    evaluation.attention.blocks.size = RunConfig::Attention::Blocks::kOff;
    EXPECT_NE(evaluate(evaluation).loss, loss) << by_file;

    // Logits of the last token, one by one and as a chunk.
    evaluation.attention = {};
    ModelSession session(evaluation, false);
    ASSERT_TRUE(session.config().key_blocks);
    std::vector<std::int32_t> tokens(60);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<std::int32_t>(i * 31 % 97);
    const auto logits_of = [&](ModelSession& of, std::size_t step) {
      Decoder decoder(of, 64);
      if (!of.has_parameters()) of.load_parameters();
      of.refresh_derived();
      std::vector<float> logits;
      for (std::size_t i = 0; i < tokens.size(); i += step) {
        const auto part =
            decoder.append(std::span(tokens).subspan(i, std::min(step, tokens.size() - i)));
        logits.assign(part.begin(), part.end());
      }
      return logits;
    };
    const std::vector<float> at_once = logits_of(session, 60);
    EXPECT_EQ(logits_of(session, 1), at_once);
    evaluation.attention.blocks.size = RunConfig::Attention::Blocks::kOff;
    ModelSession dense(evaluation, false);
    EXPECT_NE(logits_of(dense, 60), at_once);
  }
}

TEST(KeyBlocks, CountInModelFlopsAsTheyAreRead) {
  const TemporaryDirectory folder;
  RunConfig run = sparse_run(folder.path());
  run.attention.blocks = {.size = 4, .local = 1};
  model::ModelConfig config = load_run_model(run);
  io::MicroBatch batch;  // documents of 6 and 3 tokens
  for (std::int32_t t = 0; t < 9; ++t) {
    batch.key_begin.push_back(t < 6 ? 0 : 6);
    batch.key_end.push_back(t + 1);
  }
  EXPECT_EQ(unmasked_pairs(config, batch, 0), (1 + 2 + 3 + 4 + 1 + 2) + (1 + 2 + 3));
  EXPECT_EQ(unmasked_pairs(config, batch, 2), (1 + 2 + 2 + 2 + 1 + 2) + (1 + 2 + 2));
  config.key_blocks = nullptr;
  EXPECT_EQ(unmasked_pairs(config, batch, 0), 21 + 6);
}

std::string refusal(const RunConfig::Attention::Blocks& blocks) {
  RunConfig run;
  run.attention.blocks = blocks;
  run.data.sequence_length = 64;
  std::string text;
  for (const std::string& problem : problems_of(run)) text += problem + "\n";
  return text;
}

TEST(KeyBlocks, OfABadConfigAreRefusedByKey) {
  EXPECT_EQ(refusal({}), "");
  EXPECT_EQ(refusal({.size = 16, .local = 1}), "");
  EXPECT_THAT(refusal({.size = 16}),
              HasSubstr("attention.blocks.local: expected at least 1, or one of global, stride, "
                        "random and file, with attention.blocks.size: 16, got 0"));
  EXPECT_THAT(refusal({.local = 2, .stride = 4}),
              HasSubstr("attention.blocks.size: expected keys of a block, such as 64, with "
                        "attention.blocks.local, attention.blocks.stride, got auto"));
  EXPECT_THAT(refusal({.size = -1, .random = 2}), HasSubstr("attention.blocks.random, got off"));
  EXPECT_THAT(
      refusal({.size = 16, .local = 1, .seed = 4}),
      HasSubstr("attention.blocks.seed: expected 0 without attention.blocks.random, got 4"));
  const auto of = [](const char* key, const char* value) {
    return message_of<InvalidArgument>([&] { load_run_config({}, {{key, {value}}}); });
  };
  EXPECT_THAT(of("attention.blocks.size", "0"),
              HasSubstr("attention.blocks.size: expected an integer 1 to 1073741824, got 0"));
  EXPECT_THAT(of("attention.blocks.local", "-1"), HasSubstr("attention.blocks.local: expected"));
  EXPECT_THAT(of("attention.blocks.locl", "1"), HasSubstr("attention.blocks.local"));
}

TEST(KeyBlocks, OfABadFileAreRefusedByWhatItHas) {
  const TemporaryDirectory folder;
  const std::string file = (folder.path() / "mask.npy").string();
  const auto diagonal = [](auto, auto i, auto j) { return i == j; };
  const auto of_file = [&](std::int64_t local = 0) {
    return refusal({.size = 16, .local = local, .file = file});
  };
  EXPECT_THAT(of_file(), AllOf(HasSubstr("attention.blocks.file: "), HasSubstr(file)));
  write_mask(file, 1, 4, diagonal);
  EXPECT_EQ(of_file(), "");
  EXPECT_THAT(of_file(2), HasSubstr("attention.blocks.file: expected none with "
                                    "attention.blocks.local, got "));
  write_mask(file, 2, 4, [](auto g, auto i, auto j) { return i == j && !(g == 1 && i == 2); });
  EXPECT_THAT(of_file(), HasSubstr("expected each block to have itself, got False at [1, 2, 2]"));
  write_mask(file, {4, 4}, std::vector<std::uint8_t>(16, 1));
  EXPECT_THAT(of_file(), HasSubstr("expected shape [heads or 1, blocks, blocks], got [4, 4]"));
  write_mask(file, {1, 4, 5}, std::vector<std::uint8_t>(20, 1));
  EXPECT_THAT(of_file(), HasSubstr("got [1, 4, 5]"));
  // Heads are those of the model.
  write_mask(file, 3, 16, diagonal);
  RunConfig run = sparse_run(folder.path());
  run.attention.blocks = {.size = 4, .file = file};
  EXPECT_THAT(message_of<InvalidArgument>([&] { load_run_model(run); }),
              HasSubstr("expected 1 or 4, as many as the model has heads"));
}

TEST(KeyBlocks, OfAModelStayWithWhatItIsConvertedTo) {
  const TemporaryDirectory folder;
  const RunConfig run = sparse_run(folder.path());
  const auto checkpoint = Trainer(run).train().checkpoint;
  convert(checkpoint, folder.path() / "copy", {.compares_logits = false});
  const auto kept = find_key_blocks(folder.path() / "copy");
  ASSERT_TRUE(kept);
  EXPECT_EQ(key_blocks_identity(*kept), "size 4, local 2, global 1, random 1, seed 3");
  std::string warnings;
  const LogScope log([&](Severity, const std::string& text) { warnings += text + "\n"; });
  convert(checkpoint, folder.path() / "model.gguf",
          {.writes_gguf = true, .compares_logits = false});
  EXPECT_THAT(warnings, HasSubstr("attention.blocks, for which a GGUF file has no key"));
}

// A longer evaluation than the mask has blocks for is refused before it begins.
TEST(KeyBlocks, OfAMaskEndWithItsBlocks) {
  const TemporaryDirectory folder;
  RunConfig run = sparse_run(folder.path());
  write_mask(folder.path() / "mask.npy", 1, 16, [](auto, auto i, auto j) { return i == j; });
  run.attention.blocks = {.size = 4, .file = (folder.path() / "mask.npy").string()};
  const model::ModelConfig config = load_run_model(run);
  EXPECT_EQ(message_of([&] { check_sample_length(run, config); }), "");
  run.data.sequence_length = 68;
  EXPECT_THAT(message_of<InvalidArgument>([&] { check_sample_length(run, config); }),
              HasSubstr("attention.blocks.file: expected at least 17 blocks for "
                        "data.sequence_length: 68 in blocks of 4, got 16"));
  EXPECT_THAT(message_of<InvalidArgument>(
                  [&] { forward_graph(run, config, training_request(run, config).build); }),
              HasSubstr("expected documents of at most 64 tokens"));
}

// An adapter that was trained to read all keys says so, for the model under it has a pattern.
TEST(KeyBlocks, OfAnAdapterAreItsOwn) {
  const TemporaryDirectory folder;
  RunConfig run = sparse_run(folder.path());
  run.model.path = Trainer(run).train().checkpoint.string();
  run.model.init = "pretrained";
  run.train.output += "-adapter";
  run.lora.targets = {"all"};
  run.lora.rank = 2;
  const auto pattern_of = [&](RunConfig::Attention attention) {
    run.attention = std::move(attention);
    RunConfig reader = run;
    reader.model.adapter = Trainer(run).train().checkpoint.string();
    reader.lora = {};
    reader.attention = {};
    const auto blocks = load_run_model(reader).key_blocks;
    run.train.output += "-";
    return blocks ? blocks->to_string() : "all keys";
  };
  EXPECT_EQ(pattern_of({}), "local 2, global 1, random 1");
  EXPECT_EQ(pattern_of({.blocks = {.size = 4, .local = 3}}), "local 3");
  EXPECT_EQ(pattern_of({.blocks = {.size = RunConfig::Attention::Blocks::kOff}}), "all keys");
}

TEST(KeyBlocks, AreRecordedWhole) {
  const TemporaryDirectory folder;
  EXPECT_FALSE(find_key_blocks(folder.path()));
  const spec::BlockPattern rule{
      .size = 64, .local = 8, .global = 1, .stride = 16, .random = 2, .seed = 7};
  write_key_blocks(folder.path(), rule);
  const auto read = find_key_blocks(folder.path());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->to_string(), "local 8, global 1, stride 16, random 2");
  EXPECT_EQ(spec::make_block_lists(*read, 4096).ids, spec::make_block_lists(rule, 4096).ids);
  std::ofstream(folder.path() / kKeyBlocksFile) << R"({"size": -1})";
  EXPECT_THAT(message_of<InvalidArgument>([&] { find_key_blocks(folder.path()); }),
              HasSubstr("size: expected"));
}

}  // namespace
}  // namespace anabatic::train
