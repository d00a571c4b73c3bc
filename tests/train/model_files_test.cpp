// SPDX-License-Identifier: Apache-2.0
// A checkpoint agrees with itself and with how its model was trained: dtype, BOS, EOS, tied head.
#include "train/checkpoint/model_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <set>

#include "anabatic/error.h"
#include "base/json.h"
#include "base/text.h"
#include "io/safetensors.h"
#include "support/letter_tokenizer.h"
#include "support/tiny_run.h"
#include "train/checkpoint/checkpoint_search.h"
#include "train/evaluate.h"
#include "train/generate.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;
using anabatic::testing::kBosProcessor;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::tiny_run;
using anabatic::testing::write_letter_tokenizer;
using ::testing::HasSubstr;

nlohmann::json json_of(const fs::path& file) { return parse_json(read_file(file)); }

// Every tensor of a checkpoint's weights.
std::set<std::string> dtypes_of(const fs::path& directory) {
  std::set<std::string> names;
  const io::SafetensorsDirectory files = io::SafetensorsDirectory::open(directory);
  for (const auto& [name, entry] : files.entries()) names.insert(entry.dtype_name);
  return names;
}

fs::path trained(RunConfig run) {
  run.train.steps = 1;
  return Trainer(run).train().checkpoint;
}

TEST(ModelFiles, NameTheDtypeThatTheWeightsAreSavedIn) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    const TemporaryDirectory folder;
    RunConfig run = tiny_run(folder.path(), fmt::format("\"{}\": \"bfloat16\"", key));
    const fs::path source = trained(run);
    EXPECT_EQ(dtypes_of(source), std::set<std::string>{"BF16"});
    EXPECT_EQ(json_of(source / "config.json")[key], "bfloat16");
    run.train.save_dtype = "fp32";
    run.train.output = folder.path() / "wide";
    const fs::path wide = trained(run);
    EXPECT_EQ(dtypes_of(wide), std::set<std::string>{"F32"});
    nlohmann::json want = json_of(source / "config.json");
    want[key] = "float32";
    EXPECT_EQ(json_of(wide / "config.json"), want);
  }
}

TEST(ModelFiles, NameTheDtypeOfTheSourceWhateverItsConfigSays) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path(), "\"torch_dtype\": \"float16\"");
  const fs::path source = trained(run);
  ASSERT_EQ(dtypes_of(source), std::set<std::string>{"F16"});
  nlohmann::json config = json_of(source / "config.json");
  config["torch_dtype"] = config["dtype"] = "float32";
  std::ofstream(source / "config.json") << dump_json(config, 2);
  run.model = {.path = source, .init = "pretrained"};
  run.train.output = folder.path() / "second";
  const fs::path second = trained(run);
  EXPECT_EQ(dtypes_of(second), std::set<std::string>{"F16"});
  config["torch_dtype"] = config["dtype"] = "float16";
  EXPECT_EQ(json_of(second / "config.json"), config);
}

TEST(ModelSession, TakesThePrecisionThatRoundsNoWeight) {
  for (const auto& [dtype, precision] :
       {std::pair{"bfloat16", "bf16"}, std::pair{"float16", "fp32"},
        std::pair{"float32", "fp32"}}) {
    const TemporaryDirectory folder;
    RunConfig run = tiny_run(folder.path(), fmt::format("\"dtype\": \"{}\"", dtype));
    run.model = {.path = trained(run), .init = "pretrained"};
    run.train.precision = "auto";
    EXPECT_EQ(ModelSession(run, false).run().train.precision, precision) << dtype;
    run.train.precision = "bf16";
    EXPECT_EQ(ModelSession(run, false).run().train.precision, "bf16");
  }
}

TEST(ModelPath, OfARunIsItsNewestCheckpoint) {
  const TemporaryDirectory folder;
  const RunConfig run = tiny_run(folder.path());
  const std::string checkpoint = trained(run);
  EXPECT_EQ(model_path_of(run.train.output), checkpoint);
  EXPECT_EQ(model_path_of(checkpoint), checkpoint);
  EXPECT_EQ(load_run_config("", {{"model.path", {run.train.output}}}).model.path, checkpoint);
  for (const std::string& other : {folder.path().string(), checkpoint + "/config.json",
                                   folder.path().string() + "/nothing", std::string()})
    EXPECT_EQ(model_path_of(other), other);
}

TEST(ModelFiles, GiveALoneHeadTheNameOfTheTiedEmbedding) {
  const TemporaryDirectory folder;
  const RunConfig run = tiny_run(folder.path(), "\"tie_word_embeddings\": true");
  const fs::path source = trained(run);
  const auto files = io::SafetensorsDirectory::open(source);
  EXPECT_EQ(files.find("lm_head.weight"), nullptr);
  EXPECT_NE(files.find("model.embed_tokens.weight"), nullptr);
}

const std::array kSentences{"the cat sat on the mat.", "a dog ran over the hill.",
                            "many waters cannot quench love."};

// A small model and a run that learns three sentences by heart.
struct Sentences {
  explicit Sentences(const std::string& tokenizer_config, const std::string& ids,
                     const std::string& post_processor = "null")
      : run(tiny_run(folder.path(),
                     "\"hidden_size\": 32, \"intermediate_size\": 32, \"num_local_experts\": 2, "
                     "\"max_position_embeddings\": 128" +
                         ids)) {
    write_letter_tokenizer(run.model.path, tokenizer_config, post_processor);
    const fs::path text = folder.path() / "sentences.jsonl";
    std::ofstream file(text);
    for (const char* sentence : kSentences) file << "{\"text\": \"" << sentence << "\"}\n";
    run.data.train = {text};
    run.data.validation = {text};
    run.data.sequence_length = 96;  // all of them in one row, none cut
    run.train.steps = 150;
    run.train.micro_batch_size = 1;
    run.device.threads = 1;
    run.generate.temperature = 0;
    run.generate.max_new_tokens = 40;
  }

  void learn() {
    run.model = {.path = Trainer(run).train().checkpoint, .init = "pretrained"};
    checkpoint = run.model.path;
  }
  std::string continued(const std::string& prompt) const {
    std::string text;
    generate_text(run, prompt, [&](const std::string& piece) { text += piece; });
    return text;
  }

  const TemporaryDirectory folder;
  RunConfig run;
  fs::path checkpoint;
};

void write(const fs::path& file, const std::string& text) { std::ofstream(file) << text; }

TEST(ModelFiles, AgreeOnTheEosThatTrainingAppends) {
  Sentences sentences(R"({"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>",
                          "model_max_length": 1000000000000000019884624838656})",
                      ", \"eos_token_id\": 28, \"bos_token_id\": 28");
  const fs::path model = sentences.run.model.path;
  write(model / "generation_config.json", R"({"bos_token_id": 28, "eos_token_id": 28})");
  sentences.learn();
  for (const std::string sentence : kSentences)
    EXPECT_EQ(sentences.continued(sentence.substr(0, 6)), sentence.substr(6));
  for (const char* file : {"config.json", "generation_config.json"})
    EXPECT_EQ(json_of(sentences.checkpoint / file)["eos_token_id"], 29) << file;
  EXPECT_EQ(json_of(sentences.checkpoint / "generation_config.json")["bos_token_id"], 28);
  // What agrees already is not touched.
  EXPECT_EQ(read_file(sentences.checkpoint / "tokenizer_config.json"),
            read_file(model / "tokenizer_config.json"));
  EXPECT_EQ(read_file(sentences.checkpoint / "tokenizer.json"),
            read_file(model / "tokenizer.json"));
}

TEST(ModelFiles, KeepAListOfStopsThatHoldsEos) {
  Sentences sentences(R"({"eos_token": "<|im_end|>"})", ", \"eos_token_id\": 29");
  const fs::path model = sentences.run.model.path;
  write(model / "generation_config.json", R"({"eos_token_id": [28, 29]})");
  const fs::path checkpoint = trained(sentences.run);
  EXPECT_EQ(json_of(checkpoint / "config.json")["eos_token_id"], 29);
  EXPECT_EQ(read_file(checkpoint / "generation_config.json"),
            read_file(model / "generation_config.json"));
}

TEST(ModelFiles, NameAnEosWhereAFileNamesNone) {
  Sentences sentences(R"({"eos_token": null})", ", \"eos_token_id\": null");
  const fs::path model = sentences.run.model.path;
  write(model / "generation_config.json", R"({"eos_token_id": [29, 28]})");
  write(model / "special_tokens_map.json",
        R"({"bos_token": {"content": "<s>", "lstrip": false}, "pad_token": "<s>"})");
  const fs::path checkpoint = trained(sentences.run);
  EXPECT_EQ(json_of(checkpoint / "config.json")["eos_token_id"], (nlohmann::json{29, 28}));
  EXPECT_EQ(json_of(checkpoint / "tokenizer_config.json")["eos_token"], "<|im_end|>");
  EXPECT_EQ(read_file(checkpoint / "special_tokens_map.json"),
            read_file(model / "special_tokens_map.json"));
}

TEST(ModelFiles, ChangeATokenInTheFormThatTheFileHas) {
  Sentences sentences(R"({"eos_token": "<|im_end|>", "added_tokens_decoder": {}})",
                      ", \"eos_token_id\": 29");
  const fs::path model = sentences.run.model.path;
  write(model / "special_tokens_map.json",
        R"({"eos_token": {"content": "<|endoftext|>", "lstrip": true}})");
  const fs::path checkpoint = trained(sentences.run);
  EXPECT_EQ(json_of(checkpoint / "special_tokens_map.json"),
            parse_json(R"({"eos_token": {"content": "<|im_end|>", "lstrip": true}})"));
}

TEST(ModelFiles, RefuseAnEosOutsideTheVocabularyBeforeTheFirstStep) {
  Sentences sentences(R"({"eos_token": "<|im_end|>"})", ", \"eos_token_id\": 97");
  try {
    Trainer trainer(sentences.run);
    FAIL() << "expected an error";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("config.json: eos_token_id: expected an id below "
                                        "vocab_size 97, or a list of them, got 97"));
  }
}

TEST(SpecialTokens, EveryVerbBeginsADocumentAsTheTokenizerDoes) {
  Sentences sentences(R"({"bos_token": "<s>", "eos_token": "<|im_end|>"})",
                      ", \"bos_token_id\": 30, \"eos_token_id\": 29", kBosProcessor);
  const fs::path typed = sentences.folder.path() / "typed.jsonl";
  std::ofstream(typed) << "{\"text\": \"<s>the cat sat on the mat.\"}\n"
                          "{\"text\": \"<s>a dog ran over the hill.\"}\n"
                          "{\"text\": \"<s>many waters cannot quench love.\"}\n";
  sentences.learn();
  const double loss = evaluate(sentences.run).loss;
  EXPECT_LT(loss, 0.5);
  RunConfig run = sentences.run;
  run.data.validation = {typed};
  EXPECT_EQ(evaluate(run).loss, loss);
  run.data.add_bos = io::AddToken::kNever;
  EXPECT_EQ(evaluate(run).loss, loss);
  run.data.validation = sentences.run.data.validation;
  EXPECT_GT(evaluate(run).loss, 2 * loss);
  for (const std::string sentence : kSentences) {
    EXPECT_EQ(sentences.continued(sentence.substr(0, 6)), sentence.substr(6));
    EXPECT_EQ(sentences.continued("<s>" + sentence.substr(0, 6)), sentence.substr(6));
  }
}

TEST(ModelFiles, HandBosOnToTheTokenizerThatLacksIt) {
  Sentences sentences(R"({"bos_token": "<s>", "eos_token": "<|im_end|>", "add_bos_token": true})",
                      ", \"bos_token_id\": 30, \"eos_token_id\": 29", "{\"type\": \"ByteLevel\"}");
  const fs::path checkpoint = trained(sentences.run);
  const io::Tokenizer tokenizer = io::Tokenizer::load(checkpoint);
  EXPECT_EQ(tokenizer.encode("a", true), (std::vector<std::int32_t>{30, 0}));
  nlohmann::json got = json_of(checkpoint / "tokenizer.json");
  const nlohmann::json want = json_of(fs::path(sentences.run.model.path) / "tokenizer.json");
  EXPECT_EQ(got["post_processor"]["processors"][0], want["post_processor"]);
  got["post_processor"] = want["post_processor"];
  EXPECT_EQ(got, want);
}

}  // namespace
}  // namespace anabatic::train
