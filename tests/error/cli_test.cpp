// SPDX-License-Identifier: Apache-2.0
// What the binary says and returns when the command line, a config or a file is wrong: on standard
// error, with nothing on standard output.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "io/safetensors_writer.h"
#include "support/file_size_limit.h"
#include "support/run_binary.h"

namespace anabatic::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kUsage = 2;

// The message of a run that fails with this exit code.
std::string failure(const std::vector<std::string>& arguments, int exit_code) {
  const Outcome outcome = run_binary(arguments);
  EXPECT_EQ(outcome.exit_code, exit_code) << arguments.at(0) << ": " << outcome.err;
  EXPECT_EQ(outcome.out, "") << arguments.at(0);
  return outcome.err;
}

TEST(CliErrors, NameTheNearestVerbFlagAndKey) {
  EXPECT_THAT(failure({"evaluat"}, kUsage), HasSubstr("got 'evaluat'; did you mean evaluate?"));
  EXPECT_THAT(failure({"generate", "--promt", "x"}, kUsage), HasSubstr("did you mean --prompt?"));
  EXPECT_THAT(failure({"info", "--jsn", "DIR"}, kUsage), HasSubstr("did you mean --json?"));
  EXPECT_THAT(failure({"generate", "--model.pth", "x"}, kUsage),
              HasSubstr("model.pth: unknown key; did you mean model.path?"));
  EXPECT_THAT(failure({"generate", "--prompt", "a", "b"}, kUsage),
              HasSubstr("unexpected argument 'b'"));
  EXPECT_THAT(failure({"info"}, kUsage), HasSubstr("MODEL_DIR is required"));
}

TEST(CliErrors, LeaveWithThreeWhereABudgetCannotBeKept) {
  const TemporaryDirectory folder;
  train::RunConfig run = tiny_run(folder.path());
  std::ofstream(folder.path() / "run.yaml") << train::to_yaml(run);
  const Outcome outcome = run_binary({"train", folder.path() / "run.yaml", "--memory.budget", "3MB",
                                      "--device.calibrate", "false"});
  EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("error: [memory] memory.budget: this run needs "),
                                 HasSubstr("MB, got 3MB\n  ")));
  EXPECT_FALSE(fs::exists(folder.path() / "run/metrics.jsonl"));
  EXPECT_THAT(failure({"train", folder.path() / "run.yaml", "--memory.budget", "3 apples"}, kUsage),
              HasSubstr("memory.budget: expected bytes such as 6GiB"));
}

TEST(CliErrors, NameTheSwapDirectoryThatCannotHoldTheMoments) {
  const TemporaryDirectory folder;
  train::RunConfig run = tiny_run(folder.path());
  run.memory.optimizer_state = "disk";
  const fs::path yaml = folder.path() / "run.yaml", file = folder.path() / "file";
  std::ofstream(yaml) << to_yaml(run);
  std::ofstream(file) << "x";
  EXPECT_THAT(failure({"train", yaml, "--memory.swap_directory", file / "below"}, 1),
              AllOf(HasSubstr("[swap] expected to make a file in"), HasSubstr("file/below"),
                    HasSubstr("memory.swap_directory")));
  const FileSizeLimit limit(16 << 10);
  EXPECT_THAT(
      failure({"train", yaml}, 1),
      AllOf(HasSubstr("[swap] "), HasSubstr("expected room for"), HasSubstr("File too large")));
}

TEST(CliErrors, ListEveryConfigProblemAtOnce) {
  const TemporaryDirectory folder;
  const fs::path yaml = folder.path() / "run.yaml";
  std::ofstream(yaml) << "data: {sequence_lenght: 5}\ntrain: {precision: fp8}\n";
  EXPECT_THAT(failure({"train", yaml, "--train.stepz", "5", "--optimizer.betas", "0.9",
                       "--data.shuffle=perhaps", "--train.seed", "-1"},
                      kUsage),
              AllOf(HasSubstr("[config] "),
                    HasSubstr("data.sequence_lenght: unknown key; did you mean "
                              "data.sequence_length?"),
                    HasSubstr("train.precision: expected one of [auto, adaptive, bf16, fp16, fp32, "
                              "int8, mixed], got 'fp8'"),
                    HasSubstr("train.stepz: unknown key; did you mean train.steps?"),
                    HasSubstr("data.shuffle: expected true or false, got 'perhaps'"),
                    HasSubstr("optimizer.betas: expected two numbers, got 1"),
                    HasSubstr("train.seed: expected an integer >= 0, got -1")));
  EXPECT_THAT(failure({"train", "/nonexistent/run.yaml"}, kUsage),
              HasSubstr("/nonexistent/run.yaml"));
  EXPECT_THAT(failure({"train"}, kUsage),
              AllOf(HasSubstr("model.path: expected"), HasSubstr("data.train: expected"),
                    HasSubstr("train.output: expected")));
}

TEST(CliErrors, NameTheFileThatIsMissingOrOfNoUse) {
  const TemporaryDirectory folder;
  const fs::path model = write_tiny_config(folder.path());
  const fs::path tokens = write_tiny_tokens(folder.path(), "train", 20, 1);
  const std::string output = folder.path() / "run";
  const std::vector<std::string> train{"train", "--model.path", model, "--train.output", output};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), train.begin(), train.end());
    return more;
  };
  EXPECT_THAT(failure({"info", "/nonexistent"}, 1), HasSubstr("/nonexistent"));
  EXPECT_THAT(failure(with({"--data.train", folder.path() / "a.txt", folder.path() / "b"}), 1),
              AllOf(HasSubstr("a.txt: expected a text or JSON file"),
                    HasSubstr("b: expected a text or JSON file")));
  EXPECT_FALSE(fs::exists(output));
  EXPECT_THAT(
      failure(with({"--data.train", tokens}), 1),
      AllOf(HasSubstr(model), HasSubstr("model.safetensors"), HasSubstr("model.init: random")));
  std::ofstream(folder.path() / "text.txt") << "some text";
  EXPECT_THAT(failure(with({"--data.train", folder.path() / "text.txt"}), 1),
              HasSubstr("tokenizer.json"));
  std::ofstream(folder.path() / "file") << "";
  EXPECT_THAT(failure({"train", "--model.path", model, "--data.train", tokens, "--train.output",
                       folder.path() / "file"},
                      1),
              HasSubstr("train.output: cannot make the directory"));
  write_tiny_tokens(folder.path(), "none", 0, 1);
  EXPECT_THAT(
      failure(with({"--data.train", folder.path() / "none", "--model.init", "random"}), kUsage),
      HasSubstr("expected at least one sample"));
  EXPECT_THAT(failure({"evaluate", "--model.path", model, "--data.validation", tokens}, 1),
              HasSubstr("model.safetensors"));
  EXPECT_THAT(failure({"tokenize", "--model.path", model}, kUsage),
              HasSubstr("expected one of --input, --ids and --train"));
}

TEST(CliErrors, NameThePlacesOfBadTasks) {
  const TemporaryDirectory folder;
  const fs::path model = write_tiny_config(folder.path());
  const std::string tasks = folder.path() / "t.jsonl";
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> all{"evaluate", "--model.path", model};
    all.insert(all.end(), more.begin(), more.end());
    return failure(all, kUsage);
  };
  EXPECT_THAT(with({"--compare", "other"}), HasSubstr("--compare: expected --tasks with it"));
  std::ofstream(tasks) << R"({"context": "a", "choices": ["b"], "answer": 1})"
                       << "\n{";
  EXPECT_THAT(with({"--tasks", tasks}),
              AllOf(HasSubstr("2 problems"), HasSubstr("t.jsonl:1: expected answer as an index"),
                    HasSubstr("t.jsonl:2: expected a JSON object")));
  std::ofstream(tasks) << R"({"text": "a"})";
  EXPECT_THAT(with({"--tasks", tasks, tasks}), HasSubstr("found 't' twice"));
  EXPECT_THAT(with({"--tasks", tasks, "--max_drop", "x"}),
              HasSubstr("--max_drop: expected a number"));
  EXPECT_THAT(with({"--tasks", tasks, "--batch_tokens", "0"}),
              HasSubstr("--batch_tokens: expected 1"));
}

TEST(CliErrors, SayWhatProfileAndBenchLack) {
  const TemporaryDirectory folder;
  const fs::path model = write_tiny_config(folder.path());
  EXPECT_THAT(failure({"profile"}, kUsage), HasSubstr("model.path: expected a value"));
  EXPECT_THAT(failure({"profile", "--model.path", model, "--steps", "0"}, kUsage),
              HasSubstr("expected at least one measured step"));
  EXPECT_THAT(failure({"profile", "--model.path", model, "--warmup", "x"}, kUsage),
              HasSubstr("--warmup: expected an integer >= 0, got 'x'"));
  EXPECT_THAT(failure({"profile", "--model.path", model, "--model.init", "random", "--steps", "1",
                       "--data.sequence_length", "8", "--trace", folder.path() / "no" / "trace"},
                      1),
              HasSubstr("no/trace: cannot be written"));
  EXPECT_THAT(failure({"bench"}, kUsage), HasSubstr("KIND is required"));
  EXPECT_THAT(failure({"bench", "gem"}, kUsage), HasSubstr("did you mean gemm?"));
  EXPECT_THAT(failure({"bench", "gemm", "--row", "3"}, kUsage), HasSubstr("did you mean --rows?"));
  EXPECT_THAT(failure({"bench", "gemm", "--zipf", "1"}, kUsage),
              HasSubstr("gemm has no setting --zipf"));
  EXPECT_THAT(failure({"bench", "gemm", "--rounds", "0"}, kUsage), HasSubstr("--rounds"));
}

TEST(CliErrors, SayWhatAChatLacks) {
  const TemporaryDirectory folder;
  const std::string model = write_tiny_config(folder.path());
  EXPECT_THAT(
      failure({"generate", "--model.path", model}, kUsage),
      HasSubstr(
          "expected --prompt TEXT, which is continued, or --chat or --messages, got neither"));
  EXPECT_THAT(failure({"generate", "--chat", "--prompt", "a"}, kUsage), HasSubstr("got both"));
  EXPECT_THAT(failure({"generate", "--prompt", "a", "--messages", "m.json"}, kUsage),
              HasSubstr("--messages, got both"));
  EXPECT_THAT(failure({"generate", "--chat", "--data.now", "soon"}, kUsage),
              HasSubstr("data.now: expected a date such as 2026-05-01"));
  EXPECT_THAT(failure({"generate", "--chat"}, kUsage), HasSubstr("expected model.path, got none"));
  EXPECT_THAT(
      failure({"generate", "--model.path", model, "--messages", folder.path() / "none.json"}, 1),
      HasSubstr("none.json"));
}

TEST(CliErrors, SayWhatLoraLacks) {
  const TemporaryDirectory folder;
  const fs::path model = write_tiny_config(folder.path());
  EXPECT_THAT(failure({"lora", "unmerge", "a"}, kUsage),
              HasSubstr("expected info, convert or merge, got 'unmerge'"));
  EXPECT_THAT(failure({"lora", "merge", "a", "b"}, kUsage),
              HasSubstr("expected anabatic lora merge BASE ADAPTER OUTPUT"));
  EXPECT_THAT(
      failure({"lora", "merge", "a", "b", "c", "--format", "peft"}, kUsage),
      HasSubstr("[lora] --format: expected hf, gguf, mxfp4 or compressed-tensors, got 'peft'"));
  EXPECT_THAT(failure({"lora", "info", model, "--model.path", model}, kUsage),
              HasSubstr("expected a directory with adapter_config.json, found none"));
  EXPECT_THAT(failure({"plan", model, "--model.init", "random", "--lora.targets", "mlp"}, kUsage),
              HasSubstr("'mlp' meets no weight of this mixtral"));
  EXPECT_THAT(failure({"generate", "--model.path", model, "--adapter", folder.path() / "none",
                       "--prompt", "a"},
                      kUsage),
              HasSubstr("expected a directory with adapter_config.json, found none"));
}

TEST(CliErrors, SayWhatPlanLacks) {
  const TemporaryDirectory folder;
  EXPECT_THAT(failure({"plan"}, kUsage), HasSubstr("[plan] expected MODEL_DIR"));
  EXPECT_THAT(failure({"plan", folder.path() / "config.json"}, 1), HasSubstr("config.json"));
  std::ofstream(folder.path() / "config.json") << "{\"model_type\": \"mamba\"}";
  EXPECT_THAT(failure({"plan", folder.path()}, 1), HasSubstr("mamba"));
  EXPECT_THAT(failure({"plan", folder.path(), "--train.micro_batch_size", "0"}, kUsage),
              HasSubstr("train.micro_batch_size: expected an integer >= 1, got 0"));
  const fs::path model = write_tiny_config(folder.path());
  EXPECT_THAT(failure({"plan", model, "--timeline", folder.path() / "none" / "a.svg"}, 1),
              HasSubstr("a.svg"));
  EXPECT_THAT(failure({"plan", model, "--timelin", "a.svg"}, kUsage),
              HasSubstr("did you mean --timeline?"));
}

TEST(CliErrors, RefuseToDisableRequiredAndUnknownPasses) {
  const TemporaryDirectory folder;
  const std::vector<std::string> train{"train",
                                       "--model.path",
                                       write_tiny_config(folder.path()),
                                       "--model.init",
                                       "random",
                                       "--data.train",
                                       write_tiny_tokens(folder.path(), "train", 20, 1),
                                       "--train.output",
                                       folder.path() / "run"};
  for (const auto& [pass, message] :
       {std::pair{"differentiate", "got 'differentiate', which is required"},
        std::pair{"dead_cod", "nearest: 'dead_code'"}}) {
    std::vector<std::string> arguments = train;
    arguments.insert(arguments.end(), {"--disable-pass", pass});
    EXPECT_THAT(failure(arguments, kUsage), HasSubstr(message));
  }
}

using Ids = std::vector<std::int64_t>;

void write_tokens(const fs::path& file, const std::vector<io::TensorInfo>& infos, const Ids& ids) {
  io::SafetensorsWriter writer = io::SafetensorsWriter::single_file(file, infos);
  for (const io::TensorInfo& info : infos) {
    std::int64_t count = 1;
    for (const std::int64_t size : info.shape) count *= size;
    const std::size_t bytes = static_cast<std::size_t>(count * size_bytes(info.dtype));
    writer.write(info.name, std::as_bytes(std::span(ids)).first(bytes));
  }
  writer.finish();
}

TEST(CliErrors, SayWhatIsWrongWithTheTokensOfGradients) {
  const TemporaryDirectory folder;
  const fs::path model = write_tiny_config(folder.path()), file = folder.path() / "in.safetensors";
  const auto message = [&](const std::vector<io::TensorInfo>& infos, const Ids& ids) {
    write_tokens(file, infos, ids);
    return failure({"gradients", "--tokens", file, "--output", folder.path() / "out", model},
                   kUsage);
  };
  const Ids fine{1, 2, 3, 4, 5, 6, 7, 8};
  const DType i64 = DType::kInt64;
  EXPECT_THAT(message({{"input_id", i64, {2, 3}}}, fine),
              AllOf(HasSubstr("in.safetensors"), HasSubstr("input_ids: expected an int64 tensor"),
                    HasSubstr("labels: expected an int64 tensor")));
  EXPECT_THAT(message({{"input_ids", DType::kInt32, {2, 3}}, {"labels", i64, {6}}}, fine),
              AllOf(HasSubstr("input_ids: expected int64 [B,S], found I32"),
                    HasSubstr("labels: expected int64 [B,S], found I64 with 1 dimension")));
  EXPECT_THAT(message({{"input_ids", i64, {2, 3}}, {"labels", i64, {3, 2}}}, fine),
              HasSubstr("labels: expected the shape of input_ids"));
  EXPECT_THAT(message({{"input_ids", i64, {1, 3}}, {"labels", i64, {1, 3}}}, {1, 97, 2}),
              HasSubstr("input_ids[1]: expected an id below 97, got 97"));
  EXPECT_THAT(message({{"input_ids", i64, {1, 3}}, {"labels", i64, {1, 3}}}, {1, -100, 2}),
              HasSubstr("input_ids[1]: expected an id"));
  EXPECT_THAT(message({{"input_ids", i64, {0, 3}}, {"labels", i64, {0, 3}}}, {}),
              HasSubstr("at least one token"));
  const io::TensorInfo ids{"input_ids", i64, {1, 3}}, labels{"labels", i64, {1, 3}};
  EXPECT_THAT(message({ids, labels, {"token_type_ids", i64, {1, 3}}}, fine),
              HasSubstr("token_type_ids: expected only input_ids, labels, attention_mask and"));
  EXPECT_THAT(message({ids, labels, {"attention_mask", i64, {1, 1, 3, 3}}}, Ids(9, 1)),
              HasSubstr("attention_mask: expected int64 or bool [B,S], found I64 with 4"));
  EXPECT_THAT(message({ids, labels, {"attention_mask", DType::kFloat32, {1, 3}}}, fine),
              HasSubstr("attention_mask: expected int64 or bool [B,S], found F32"));
  EXPECT_THAT(message({ids, labels, {"attention_mask", i64, {3, 1}}}, fine),
              HasSubstr("attention_mask: expected the shape of input_ids, [1,3], got [3,1]"));
  EXPECT_THAT(message({ids, labels, {"attention_mask", i64, {1, 3}}}, fine),
              HasSubstr("attention_mask[1]: expected 0 or 1, got 2"));
  EXPECT_THAT(message({ids, labels, {"attention_mask", i64, {1, 3}}}, {0, 1, 1}),
              HasSubstr("labels[0]: expected -100 where attention_mask is 0, got 0"));
  EXPECT_THAT(message({ids, labels, {"position_ids", i64, {2, 3}}}, Ids(6, 1)),
              HasSubstr("position_ids: expected the shape of input_ids, [1,3], got [2,3]"));
  EXPECT_THAT(message({ids, labels, {"position_ids", DType::kInt32, {1, 3}}}, fine),
              HasSubstr("position_ids: expected int64 [B,S], found I32"));
  EXPECT_THAT(failure({"gradients", model, "--tokens", file, "--output", folder.path() / "out",
                       "--precision", "fp8"},
                      kUsage),
              HasSubstr("train.precision: expected one of [auto, adaptive, bf16, fp16, fp32, int8, "
                        "mixed], got 'fp8'"));
}

}  // namespace
}  // namespace anabatic::testing
