// SPDX-License-Identifier: Apache-2.0
// Data files as users name them, through the binary: what each is taken for, and what is refused.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <zlib.h>

#include <fstream>

#include "base/json.h"
#include "base/text.h"
#include "io/data/indexed_file.h"
#include "support/run_binary.h"

namespace anabatic::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kText =
    "The quick brown fox jumps over the lazy dog, the cat, the hen and the other dogs.";
const std::string kLines = fmt::format("{{\"text\": \"{}\"}}\n{{\"text\": \"the fox\"}}\n", kText);

class Data : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = write_tiny_config(folder_.path(), "\"vocab_size\": 280");
    succeed({"tokenize", "--train", write("fox.txt", kText), "--vocab_size", "280", "--output",
             model_});
  }

  fs::path write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_.path() / name, std::ios::binary) << content;
    return folder_.path() / name;
  }

  fs::path write_gzip(const std::string& name, const std::string& content) const {
    const fs::path path = folder_.path() / name;
    const gzFile file = gzopen(path.c_str(), "wb");
    gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
    gzclose(file);
    return path;
  }

  static Outcome succeed(const std::vector<std::string>& arguments) {
    const Outcome outcome = run_binary(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << arguments.at(0) << ": " << outcome.err;
    return outcome;
  }

  Outcome tokenize(const fs::path& input, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments{"tokenize", "--model.path",        model_, "--input", input,
                                       "--output", folder_.path() / "out"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_binary(arguments);
  }

  const TemporaryDirectory folder_;
  fs::path model_;
};

TEST_F(Data, TokenizeReadsEveryFormat) {
  const std::string array =
      fmt::format("[\n  {{\"text\": \"{}\"}},\n  {{\"text\": \"the fox\"}}\n]\n", kText);
  for (const fs::path& file :
       {write("A.JSONL", kLines), write("a.jsonl.bak", kLines), write("lines", kLines),
        write("a.json", array), write("array", array), write_gzip("A.Jsonl.GZ", kLines)}) {
    const Outcome outcome = tokenize(file);
    EXPECT_EQ(outcome.exit_code, 0) << file << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("2 documents")) << file;
    EXPECT_THAT(outcome.err, HasSubstr(fmt::format("data: {}: JSON", file.string())));
  }
  const Outcome text = tokenize(write("A.JSONL", kLines), {"--data.format", "text"});
  EXPECT_THAT(text.out, HasSubstr("1 documents"));
}

TEST_F(Data, TokenizeRefusesWhatItCannotRead) {
  fs::remove(folder_.path() / "out.bin");
  EXPECT_THAT(tokenize(write("a.jsonl", kLines + "no JSON\n")).err, HasSubstr("a.jsonl:3: "));
  EXPECT_THAT(tokenize(write("chat", "{\"messages\": [], \"id\": 1}\n")).err,
              HasSubstr("chat:1: expected the field \"text\", which is missing; the object has "
                        "\"id\", \"messages\""));
  EXPECT_THAT(tokenize(write("image", std::string("\x89PNG\0", 5))).err,
              HasSubstr("expected UTF-8 text"));
  EXPECT_THAT(
      tokenize(write("cut.jsonl.gz", read_file(write_gzip("a.gz", kLines)).substr(0, 50))).err,
      HasSubstr("end of the file at byte 50"));
  for (const char* name : {"a.jsonl", "chat", "image", "cut.jsonl.gz"})
    EXPECT_NE(tokenize(folder_.path() / name).exit_code, 0) << name;
  EXPECT_FALSE(fs::exists(folder_.path() / "out.bin"));
}

TEST_F(Data, TokenizerIsTrainedOnTheDocumentsOfJson) {
  const fs::path want = model_ / "tokenizer.json";
  for (const fs::path& file : {write("A.JSONL", fmt::format("{{\"text\": \"{}\"}}\n", kText)),
                               write("a.json", fmt::format("[{{\"text\": \"{}\"}}]", kText)),
                               write("plain", kText), write_gzip("a.txt.gz", kText)}) {
    const fs::path output = folder_.path() / "other";
    succeed({"tokenize", "--train", file, "--vocab_size", "280", "--output", output});
    EXPECT_EQ(read_file(output / "tokenizer.json"), read_file(want)) << file;
  }
  const Outcome outcome =
      run_binary({"tokenize", "--train", write("chat.jsonl", "{\"messages\": []}\n"),
                  "--vocab_size", "280", "--output", folder_.path() / "none"});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("chat.jsonl:1: expected the field \"text\""));
}

TEST_F(Data, TrainSaysWhatItTook) {
  const Outcome outcome = succeed({"train",
                                   "--model.path",
                                   model_,
                                   "--model.init",
                                   "random",
                                   "--data.train",
                                   write("A.JSONL", kLines),
                                   write_gzip("more", kLines),
                                   "--data.validation",
                                   write("held", kText),
                                   "--data.sequence_length",
                                   "16",
                                   "--train.steps",
                                   "1",
                                   "--train.micro_batch_size",
                                   "1",
                                   "--train.precision",
                                   "fp32",
                                   "--train.output",
                                   folder_.path() / "run"});
  EXPECT_THAT(outcome.err, HasSubstr("A.JSONL: JSON lines, 2 documents"));
  EXPECT_THAT(outcome.err, HasSubstr("more: JSON lines, by content, gzip, 2 documents"));
  EXPECT_THAT(outcome.err, HasSubstr("held: text, by content, 1 documents"));
}

// "N documents, M tokens" of a text as evaluate read it.
std::string counts_of(const Outcome& outcome, const fs::path& file) {
  const std::size_t begin = outcome.err.find(file.string() + ": text, ");
  EXPECT_NE(begin, std::string::npos) << outcome.err;
  const std::string rest = outcome.err.substr(begin + file.string().size());
  return rest.substr(0, rest.find('\n'));
}

TEST_F(Data, OtherContentOfEqualSizeAndTimeIsTokenisedAnew) {
  const fs::path file = write("held.txt", "the lazy dog, the other dogs, the cat");
  const auto time = fs::last_write_time(file);
  const auto evaluate = [&](const std::string& cache) {
    return counts_of(succeed({"evaluate", "--model.path", model_, "--model.init", "random",
                              "--data.validation", file, "--data.sequence_length", "16",
                              "--train.micro_batch_size", "1", "--data.cache", cache}),
                     file);
  };
  const std::string cache = folder_.path() / "cache";
  const std::string first = evaluate(cache);
  EXPECT_EQ(evaluate(cache), first);
  write("held.txt", "QXZJ WVKY 0123456789 ABCDEFG HIJKLMNO");
  fs::last_write_time(file, time);
  const std::string fresh = evaluate("none");
  EXPECT_NE(fresh, first);
  EXPECT_EQ(evaluate(cache), fresh);
}

// Pairs of small documents below 97, as the tiny model has.
class TokenData : public ::testing::Test {
 protected:
  fs::path write_pair(const std::string& name, const std::vector<std::vector<int>>& documents) {
    const fs::path prefix = folder_.path() / name;
    io::IndexedFileWriter writer(prefix, io::TokenType::kInt32, false);
    for (const std::vector<int>& document : documents) {
      writer.append(document);
      writer.end_document();
    }
    writer.finish();
    return prefix;
  }

  std::vector<std::string> train(const std::vector<std::string>& files,
                                 const std::vector<std::string>& more) const {
    std::vector<std::string> arguments{"train",  "--model.path",
                                       model_,   "--model.init",
                                       "random", "--data.sequence_length",
                                       "8",      "--train.micro_batch_size",
                                       "1",      "--train.precision",
                                       "fp32",   "--train.output",
                                       run_,     "--data.train"};
    arguments.insert(arguments.end(), files.begin(), files.end());
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  const TemporaryDirectory folder_;
  const fs::path model_ = write_tiny_config(folder_.path()), run_ = folder_.path() / "run";
};

TEST_F(TokenData, AnIdBeyondTheVocabularyIsRefusedBeforeTheFirstStep) {
  const fs::path good = write_pair("good", std::vector(60, std::vector{1, 2, 3, 4, 5, 6, 7, 8}));
  std::vector documents(60, std::vector{1, 2, 3, 4, 5, 6, 7, 8});
  documents[51][3] = 97;
  const fs::path bad = write_pair("bad", documents);
  const std::string message =
      "bad, document 51, token 3: expected an id in [0, 97) (the model's "
      "vocabulary), got 97";
  const Outcome in_training =
      run_binary(train({good, bad}, {"--train.steps", "100", "--data.shuffle", "false"}));
  EXPECT_EQ(in_training.exit_code, 2);
  EXPECT_THAT(in_training.err, HasSubstr(message));
  const Outcome in_validation =
      run_binary(train({good}, {"--train.steps", "100", "--data.validation", bad}));
  EXPECT_EQ(in_validation.exit_code, 2);
  EXPECT_THAT(in_validation.err, HasSubstr(message));
  EXPECT_TRUE(!fs::exists(run_) || fs::is_empty(run_));
}

TEST_F(TokenData, ManyFilesNeedFewDescriptors) {
  constexpr int kFiles = 1500;
  std::vector<std::string> files;
  for (int i = 0; i < kFiles; ++i)
    files.push_back(write_pair("part" + std::to_string(i), {{i % 97, 2, 3, 4, 5, 6, 7, 8}}));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 256;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const Outcome outcome =
      run_binary(train(files, {"--train.steps", "3", "--train.gradient_accumulation_steps", "40"}));
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("data: 1500 files: .bin/.idx, 1500 documents, 12000 tokens"));
}

TEST_F(Data, OfRowsAreShownWithWhatIsTrained) {
  const fs::path rows = write_gzip("rows.jsonl.gz",
                                   "{\"prompt\": \"the \", \"completion\": \"fox\"}\n"
                                   "{\"prompt\": \"the \", \"completion\": \"hen\"}\n");
  const auto data = [&](const std::string& action, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments{"data", action, rows, "--model.path", model_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_binary(arguments);
  };
  const Outcome shown = data("show", {"--rows", "1"});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr(rows.string() + ":1: {\"prompt\", \"completion\"}, "));
  EXPECT_THAT(shown.out, Not(HasSubstr(":2:")));
  std::string trained;
  for (const char letter : shown.out.substr(shown.out.find('\n')))
    if (letter != '[' && letter != ']') trained += letter;
  EXPECT_THAT(trained, HasSubstr("the fox"));

  std::string text;
  const nlohmann::json first = parse_json(data("show", {"--rows", "1", "--json"}).out);
  for (const auto& token : first["tokens"])
    if (token["weight"] == 1.0) text += token["text"].get<std::string>();
  EXPECT_TRUE(text.starts_with("fox")) << text;

  const Outcome checked = data("check");
  EXPECT_EQ(checked.exit_code, 0) << checked.out << checked.err;
  EXPECT_THAT(checked.out, HasSubstr("2 rows\n"));
  EXPECT_THAT(checked.out, HasSubstr("0 bad rows"));
  write("bad.jsonl",
        "{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": 1}\n{\"text\": \"c\"}\n");
  const Outcome bad =
      run_binary({"data", "check", folder_.path() / "bad.jsonl", "--model.path", model_.string()});
  EXPECT_EQ(bad.exit_code, 1) << bad.out;
  EXPECT_THAT(bad.out, HasSubstr("2 bad rows:\n"));
  EXPECT_THAT(bad.out, HasSubstr("bad.jsonl:3: expected a row of"));
  EXPECT_EQ(run_binary({"data", "shew", rows, "--model.path", model_.string()}).exit_code, 2);
}

TEST_F(Data, AMissingTemplateIsToldOnce) {
  const std::string row =
      R"({"messages": [{"role": "user", "content": "the"}, {"role": "assistant", "content": "fox"}]})"
      "\n";
  const fs::path rows = write("chat.jsonl", row + row + row);
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"data", "check", rows, "--model.path", model_},
        {"train", "--model.path", model_, "--model.init", "random", "--data.train", rows,
         "--train.objective", "sft", "--data.cache", "none", "--train.output",
         folder_.path() / "run"}}) {
    const Outcome outcome = run_binary(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    const std::string what = "rows of messages: [chat template] ";
    const std::size_t first = outcome.err.find(what);
    ASSERT_NE(first, std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.err.find("chat_template.jinja", outcome.err.find("chat_template.jinja") + 1),
              std::string::npos)
        << outcome.err;
  }
}

TEST_F(Data, RolesThatATemplateDoesNotTakeAreNamed) {
  const auto rows_of = [](const char* role) {
    return fmt::format(
        R"({{"messages": [{{"role": "{}", "content": "hen"}}, {{"role": "assistant", "content": "fox"}}]}})"
        "\n",
        role);
  };
  const fs::path rows = write("roles.jsonl", rows_of("user") + rows_of("usr"));
  const auto check = [&](const std::string& of_others) {
    return run_binary(
        {"data", "check", rows, "--model.path", model_, "--data.require_stop_token", "false",
         "--template",
         write("template.jinja",
               "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}{{ m.content }}"
               "{% else %}" +
                   of_others + "{% endif %}{% endfor %}")});
  };
  const Outcome refused = check("{{ raise_exception('no such turn') }}");
  EXPECT_EQ(refused.exit_code, 1) << refused.err;
  EXPECT_THAT(refused.out, HasSubstr("1 bad rows:\n"));
  EXPECT_THAT(refused.out, HasSubstr("roles.jsonl:2: "));
  EXPECT_THAT(refused.out, HasSubstr("no such turn; the messages are of usr, assistant"));
  const Outcome left_out = check("");
  EXPECT_THAT(left_out.out, HasSubstr("1 messages that the template leaves out:\n"));
  EXPECT_THAT(left_out.out, HasSubstr("roles.jsonl:2: messages[0], role usr\n"));
}

TEST_F(Data, RowsAreCheckedAndShownAsARunCutsThem) {
  const fs::path rows = write("rows.jsonl", R"({"prompt": "abc", "completion": "defgh"})"
                                            "\n"
                                            R"({"prompt": "abcdefg", "completion": "h"})"
                                            "\n");
  const auto data = [&](const std::string& action, const std::string& truncation) {
    return run_binary({"data", action, rows, "--model.path", model_, "--data.require_stop_token",
                       "false", "--data.max_length", "6", "--data.truncation", truncation});
  };
  const Outcome start = data("check", "keep_start");
  EXPECT_THAT(start.out, HasSubstr("2 rows\n"));
  EXPECT_THAT(start.out, HasSubstr("tokens of a row            6         6         6         6"));
  EXPECT_THAT(start.out, HasSubstr("1 rows without a trained token"));
  EXPECT_THAT(start.out, HasSubstr("2 rows that are too long (data.truncation: keep_start)"));
  EXPECT_THAT(data("check", "keep_end").out, HasSubstr("0 rows without a trained token"));
  EXPECT_THAT(data("check", "drop").out, HasSubstr("0 rows\n"));
  EXPECT_EQ(data("check", "error").exit_code, 1);
  EXPECT_THAT(data("show", "keep_end").out, HasSubstr("tokens, of which 6 are kept"));
}

}  // namespace
}  // namespace anabatic::testing
