// SPDX-License-Identifier: Apache-2.0
// Text on its way into training: chunks of one document, EOS, and the cache of ids.
#include "train/tokenize.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <map>

#include "anabatic/error.h"
#include "base/text.h"
#include "io/data/chunks.h"
#include "io/data/loader.h"
#include "support/scoped_variable.h"
#include "support/tiny_run.h"
#include "train/open_dataset.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;
using anabatic::testing::ScopedVariable;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::tiny_run;
using ::testing::HasSubstr;

// Llama's kind of tokenizer: U+2581 in front of a text and for spaces, bytes where it knows no
// character.
std::string metaspace_tokenizer() {
  std::string vocabulary = R"({"<unk>": 0, "</s>": 1, "▁": 2, "a": 3, "b": 4, "▁a": 5, "ab": 6)";
  int id = 7;
  for (int byte = 0; byte < 256; ++byte)
    vocabulary += fmt::format(", \"<0x{:02X}>\": {}", byte, id++);
  return R"({"version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null,
    "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first",
                      "split": false},
    "decoder": null,
    "model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>", "vocab": )" +
         vocabulary + R"(}, "merges": [["▁", "a"], ["a", "b"]]}})";
}

TEST(TokenizeCallback, MarksTheStartOfADocumentButNotOfItsLaterChunks) {
  const io::Tokenizer tokenizer = io::Tokenizer::parse(metaspace_tokenizer());
  const io::Tokenize tokenize = tokenize_callback(tokenizer);
  std::vector<std::int32_t> ids;
  tokenize("b a\n", true, ids);
  tokenize("ab", false, ids);
  EXPECT_EQ(ids, tokenizer.encode("b a\nab", false));
  EXPECT_NE(tokenizer.encode("ab", false), (std::vector<std::int32_t>{6}));
}

TEST(OpenDataset, CutsALongDocumentWithoutATrace) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path(), "\"vocab_size\": 300, \"eos_token_id\": 1");
  std::ofstream(fs::path(run.model.path) / "tokenizer.json") << metaspace_tokenizer();
  std::string text;  // three chunks
  while (static_cast<std::int64_t>(text.size()) < 2 * io::kChunkBytes + 1000)
    text += "ab a b aab\nab ba\n";
  std::ofstream(folder.path() / "long.txt") << text;
  run.data.train = {folder.path() / "long.txt"};
  const io::Dataset dataset = open_dataset(run.data.train, run, model::load_config(run.model.path));
  const io::Tokenizer tokenizer = io::Tokenizer::load(run.model.path);
  std::vector<std::int32_t> want = tokenizer.encode(text, false);
  want.push_back(1);  // of config.json: tokenizer_config.json is not there
  ASSERT_EQ(dataset.num_tokens(), static_cast<std::int64_t>(want.size()));
  EXPECT_EQ(dataset.num_documents(), 1);
  io::MicroBatch batch;
  io::SampleScratch scratch;
  std::vector<std::int32_t> got;
  for (std::int64_t sample = 0; sample < dataset.num_samples(); ++sample) {
    io::fill_micro_batch(dataset, std::array{sample}, batch, scratch);
    got.insert(got.end(), batch.tokens.begin(), batch.tokens.end());
  }
  got.resize(want.size());
  EXPECT_TRUE(got == want);
}

TEST(OpenDataset, TokenisesTextAndJsonLinesOnce) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path(), "\"vocab_size\": 300, \"eos_token_id\": 1");
  const fs::path tokenizer = fs::path(run.model.path) / "tokenizer.json";
  std::ofstream(tokenizer) << metaspace_tokenizer();
  std::ofstream(folder.path() / "a.jsonl") << "{\"text\": \"a b\"}\n\n{\"text\": \"\"}\n";
  std::ofstream(folder.path() / "b.txt") << "ab";
  run.data.train = {folder.path() / "a.jsonl", folder.path() / "b.txt", run.data.train[0]};
  run.data.cache = folder.path() / "cache";
  const model::ModelConfig config = model::load_config(run.model.path);
  const auto cached = [&] {
    std::map<std::string, fs::file_time_type> files;
    for (const auto& entry : fs::recursive_directory_iterator(run.data.cache))
      if (entry.path().filename() == "tokens.bin") files[entry.path()] = entry.last_write_time();
    return files;
  };
  EXPECT_EQ(open_dataset(run.data.train, run, config).num_documents(), 2 + 1 + 60);
  const auto first = cached();
  EXPECT_EQ(first.size(), 2u);
  open_dataset(run.data.train, run, config);
  EXPECT_EQ(cached(), first);
  run.data.append_eos = io::AddToken::kNever;  // other ids, other files
  open_dataset(run.data.train, run, config);
  EXPECT_EQ(cached().size(), 4u);
  std::ofstream(tokenizer, std::ios::app) << "\n";  // another tokenizer
  open_dataset(run.data.train, run, config);
  EXPECT_EQ(cached().size(), 6u);
}

TEST(OpenDataset, KeepsNoTokensWithoutACache) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path(), "\"vocab_size\": 300, \"eos_token_id\": 1");
  std::ofstream(fs::path(run.model.path) / "tokenizer.json") << metaspace_tokenizer();
  std::ofstream(folder.path() / "b.txt") << "ab";
  run.data.train = {folder.path() / "b.txt"};
  const ScopedVariable temporary("TMPDIR", folder.path());
  const ScopedVariable cache("XDG_CACHE_HOME", folder.path() / "xdg");
  const auto num_files = [&] {
    return std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator());
  };
  const auto before = num_files();
  run.data.cache = "none";
  {
    const io::Dataset dataset =
        open_dataset(run.data.train, run, model::load_config(run.model.path));
    EXPECT_EQ(dataset.num_tokens(), 3);
    EXPECT_EQ(num_files(), before + 1);
  }
  EXPECT_EQ(num_files(), before);
  EXPECT_FALSE(fs::exists("none"));
  run.data.cache = "";
  open_dataset(run.data.train, run, model::load_config(run.model.path));
  EXPECT_TRUE(fs::is_directory(folder.path() / "xdg" / "anabatic" / "tokens"));
}

TEST(OpenDataset, BeginsDocumentsWithBosWhereTheTokenizerDoes) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path(), "\"vocab_size\": 300, \"eos_token_id\": 1");
  std::string tokenizer = metaspace_tokenizer();
  const std::string none = "\"post_processor\": null";
  tokenizer.replace(tokenizer.find(none), none.size(),
                    R"("post_processor": {"type": "TemplateProcessing", "single": [
      {"SpecialToken": {"id": "<unk>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [], "special_tokens": {"<unk>": {"id": "<unk>", "ids": [0], "tokens": ["<unk>"]}}})");
  std::ofstream(fs::path(run.model.path) / "tokenizer.json") << tokenizer;
  std::ofstream(folder.path() / "a.jsonl") << "{\"text\": \"ab\"}\n{\"text\": \"a b\"}\n";
  run.data.train = {folder.path() / "a.jsonl"};
  const auto tokens_of = [&](io::AddToken bos, const char* packing) {
    run.data.add_bos = bos;
    run.data.packing = packing;
    run.data.sequence_length = 4;
    const io::Dataset dataset =
        open_dataset(run.data.train, run, model::load_config(run.model.path));
    io::MicroBatch batch;
    io::SampleScratch scratch;
    std::vector<std::int32_t> got;
    for (std::int64_t sample = 0; sample < dataset.num_samples(); ++sample) {
      io::fill_micro_batch(dataset, std::array{sample}, batch, scratch);
      got.insert(got.end(), batch.tokens.begin(), batch.tokens.end());
    }
    return got;
  };
  const auto text = io::Tokenizer::parse(metaspace_tokenizer());
  std::vector<std::int32_t> want;
  for (const char* document : {"ab", "a b"}) {
    want.push_back(0);
    text.encode_append(document, false, want);
    want.push_back(1);
  }
  for (const char* packing : {"isolated", "concatenated"}) {
    std::vector<std::int32_t> got = tokens_of(io::AddToken::kAuto, packing);
    got.resize(8);  // two samples; both packings have these
    EXPECT_EQ(got, std::vector<std::int32_t>(want.begin(), want.begin() + 8)) << packing;
  }
  EXPECT_EQ(tokens_of(io::AddToken::kNever, "isolated").front(), want[1]);
}

}  // namespace
}  // namespace anabatic::train
