// SPDX-License-Identifier: Apache-2.0
// The verbs of the binary one after the other, as a user goes from text to a trained model.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include "base/json.h"
#include "base/text.h"
#include "io/data/indexed_file.h"
#include "io/tokenizer/tokenizer.h"
#include "support/run_binary.h"
#include "support/scoped_variable.h"
#include "train/swap_tier.h"

namespace anabatic::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

std::string text_of(int lines) {
  std::string text;
  for (int i = 0; i < lines; ++i)
    text += fmt::format("In line {} the naïve café serves {} cups of tea — 茶, 🍵.\n", i, i * 7);
  return text;
}

// A folder with a tokenizer trained on a text, a config and a run config for it.
class Cli : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = write_tiny_config(folder_.path(), "\"vocab_size\": 300");
    std::ofstream(text_) << text_of(60);
    succeed({"tokenize", "--train", text_, "--vocab_size", "300", "--output", model_});
    std::ofstream(config_) << fmt::format(
        "model: {{path: {}, init: random}}\n"
        "data: {{train: [{}], sequence_length: 16}}\n"
        "train: {{steps: 3, micro_batch_size: 2, precision: fp32, output: {}}}\n",
        model_.string(), text_.string(), run_.string());
  }

  // Runs a verb that must succeed; returns standard output.
  static std::string succeed(const std::vector<std::string>& arguments) {
    const Outcome outcome = run_binary(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << arguments.at(0) << ": " << outcome.err;
    return outcome.out;
  }

  const TemporaryDirectory folder_;
  const fs::path text_ = folder_.path() / "text.txt", config_ = folder_.path() / "run.yaml",
                 run_ = folder_.path() / "run";
  fs::path model_;
};

TEST_F(Cli, TokenizesToIdsAndToFiles) {
  const std::string ids = succeed({"tokenize", "--model.path", model_, "--ids", text_});
  const io::Tokenizer tokenizer = io::Tokenizer::load(model_);
  std::istringstream lines(ids), texts(text_of(60));
  std::string line, text;
  int count = 0;
  for (; std::getline(lines, line) && std::getline(texts, text); ++count)
    EXPECT_EQ(parse_json(line).get<std::vector<std::int32_t>>(), tokenizer.encode(text, false));
  EXPECT_EQ(count, 60);

  const fs::path prefix = folder_.path() / "tokens";
  const std::string counts =
      succeed({"tokenize", "--model.path", model_, "--input", text_, text_, "--output", prefix});
  EXPECT_THAT(counts, HasSubstr("2 documents"));
  const io::IndexedFile file(prefix);
  EXPECT_EQ(file.num_documents(), 2);
  std::vector<std::int32_t> want = tokenizer.encode(text_of(60), false);
  want.push_back(0);  // <|endoftext|>
  EXPECT_EQ(file.num_tokens(), 2 * static_cast<std::int64_t>(want.size()));
}

TEST_F(Cli, TrainsEvaluatesAndGenerates) {
  const std::string log = succeed(
      {"train", "--train.steps", "4", config_, "--data.validation", text_, "--data.shuffle"});
  for (const char* part :
       {"step 4/4 | loss ", " | grad_norm ", " | lr ", " tokens/s", " | MFU ", " | load ",
        "validation | step 0", "validation | step 4", "memory: predicted peak ", ", measured peak ",
        "trained steps 1 to 4 in ", "validation loss ", "step-00000004, which", "metrics.jsonl"})
    EXPECT_THAT(log, HasSubstr(part));
  const fs::path checkpoint = run_ / "step-00000004";
  EXPECT_EQ(read_file(run_ / "latest"), "step-00000004\n");
  for (const char* file : {"config.json", "tokenizer.json", "tokenizer_config.json",
                           "model.safetensors", "run_config.yaml"})
    EXPECT_TRUE(fs::exists(checkpoint / file)) << file;

  // A second call has nothing to do, and says the same of the model.
  EXPECT_THAT(succeed({"train", config_, "--train.steps=4", "--data.validation", text_}),
              HasSubstr("resuming from"));
  std::istringstream validations(read_file(run_ / "validation.jsonl"));
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(validations, line);) lines.push_back(parse_json(line));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1]["step"], 4);

  EXPECT_THAT(log, HasSubstr("expert load over the last 4 steps, by layer"));
  // The run itself names its newest checkpoint, and fp32 weights are computed with in fp32.
  std::vector<std::string> evaluate{"evaluate", "--model.path",
                                    run_,       "--data.validation",
                                    text_,      "--data.sequence_length",
                                    "16",       "--train.micro_batch_size",
                                    "2",        "--json"};
  const Outcome evaluated = run_binary(evaluate);
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  EXPECT_THAT(evaluated.err, HasSubstr("step-00000004, the newest checkpoint of "));
  EXPECT_THAT(evaluated.err, HasSubstr("computing in fp32, for the weights of it are float32"));
  const auto result = parse_json(evaluated.out);
  EXPECT_EQ(result["loss"], lines[1]["loss"]);
  EXPECT_EQ(result["tokens"], lines[1]["tokens"]);
  EXPECT_EQ(result["perplexity"].get<double>(), std::exp(result["loss"].get<double>()));
  ASSERT_EQ(result["experts"].size(), 2u);
  for (std::size_t layer = 0; layer < 2; ++layer) {
    const auto& experts = result["experts"][layer];
    EXPECT_EQ(experts["layer"], layer);
    EXPECT_EQ(experts["max_over_mean"], lines[1]["expert_load"][layer]);
    EXPECT_EQ(experts["min_over_mean"], lines[1]["expert_load_min"][layer]);
    EXPECT_EQ(experts["below_10_percent"], lines[1]["experts_below_10_percent"][layer]);
  }
  evaluate.pop_back();
  EXPECT_THAT(succeed(evaluate), HasSubstr("expert load, by layer\n  layer  max/mean  min/mean"));

  const std::vector<std::string> generate{
      "generate", "--prompt", "In line", "--model.path", checkpoint, "--generate.max_new_tokens",
      "40"};
  const std::string continuation = succeed(generate);
  EXPECT_EQ(succeed(generate), continuation);
  EXPECT_FALSE(io::find_invalid_utf8(continuation).has_value());
  EXPECT_THAT(continuation, Not(HasSubstr("In line")));
}

TEST_F(Cli, AnswersInAChat) {
  succeed({"train", config_});
  const fs::path own = folder_.path() / "own.jinja", turns = folder_.path() / "turns",
                 messages = folder_.path() / "messages.json";
  std::ofstream(own) << "{% for m in messages %}{{ m.role }}: {{ m.content }}<|endoftext|>"
                        "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";
  std::ofstream(turns) << "In line\r\n \nserves\n";
  const std::vector<std::string> chat{"generate",
                                      "--chat",
                                      "--model.path",
                                      run_,
                                      "--data.chat_template",
                                      own,
                                      "--generate.max_new_tokens",
                                      "9"};
  const Outcome conversation = run_binary(chat, turns);
  EXPECT_EQ(conversation.exit_code, 0) << conversation.err;
  const auto answer_to = [&](const OrderedJson& list) {
    std::ofstream(messages) << dump_json(list);
    std::vector<std::string> once = chat;
    once.insert(once.end(), {"--messages", messages});
    return succeed(once);
  };
  OrderedJson list = OrderedJson::array({{{"role", "user"}, {"content", "In line"}}});
  const std::string first = answer_to(list);
  list.push_back({{"role", "assistant"}, {"content", first}});
  list.push_back({{"role", "user"}, {"content", "serves"}});
  EXPECT_EQ(conversation.out, first + "\n" + answer_to(list) + "\n");
  EXPECT_NE(first, "");
}

TEST_F(Cli, TrainsShowsMergesAndUsesAnAdapter) {
  succeed({"train", config_});
  const fs::path adapter = folder_.path() / "adapter", merged = folder_.path() / "merged";
  const auto train_to = [&](const fs::path& output, const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"train",
                                       "--model.path",
                                       run_,
                                       "--data.train",
                                       text_,
                                       "--data.sequence_length",
                                       "16",
                                       "--train.steps",
                                       "4",
                                       "--train.micro_batch_size",
                                       "2",
                                       "--train.output",
                                       output,
                                       "--lora.targets",
                                       "attention",
                                       "experts",
                                       "--lora.rank",
                                       "2",
                                       "--optimizer.learning_rate",
                                       "0.01"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    succeed(arguments);
  };
  train_to(adapter, {});
  const std::string info = succeed({"lora", "info", adapter});  // its config names the model
  EXPECT_THAT(info, HasSubstr("attention        8       8"));
  EXPECT_THAT(info, HasSubstr("experts     norm of the change "));
  const std::vector<std::string> loss{
      "evaluate", "--data.validation", text_, "--data.sequence_length",
      "16",       "--train.precision", "fp32"};
  const auto loss_of = [&](std::vector<std::string> more) {
    more.insert(more.begin(), loss.begin(), loss.end());
    return succeed(more);
  };
  EXPECT_NE(loss_of({"--model.path", run_, "--adapter", adapter}), loss_of({"--model.path", run_}));
  EXPECT_THAT(succeed({"lora", "merge", run_, adapter, merged, "--dtype", "f32"}),
              HasSubstr("next tokens agree"));
  EXPECT_THAT(succeed({"check", "manifest", merged, "--against", run_ / "step-00000003"}),
              HasSubstr("as its manifest says"));
  succeed({"generate", "--model.path", run_, "--adapter", adapter, "--prompt", "In line",
           "--generate.max_new_tokens", "3"});
  for (const auto& more : {std::vector<std::string>(),
                           {"--model.path", run_.string(), "--against", merged.string()}}) {
    std::vector<std::string> arguments{"check", "adapter", adapter};
    arguments.insert(arguments.end(), more.begin(), more.end());
    EXPECT_THAT(succeed(arguments), HasSubstr("experts     norm of B "));
  }
  EXPECT_THAT(run_binary({"check", "adapter", adapter, "--against", run_}).out,
              HasSubstr("is not the model with the adapter next to it"));
  const fs::path task = folder_.path() / "task.jsonl";
  std::ofstream(task) << R"({"text": "In line 3 the naïve café serves"})";
  const auto scores_of = [&](std::vector<std::string> more) {
    const std::vector<std::string> scores{"evaluate",          "--tasks", task,         "--json",
                                          "--train.precision", "fp32",    "--max_drop", "1000"};
    more.insert(more.begin(), scores.begin(), scores.end());
    return OrderedJson::parse(succeed(more));
  };
  const OrderedJson compared =
      scores_of({"--model.path", run_, "--adapter", adapter, "--compare", run_});
  const OrderedJson metric = compared["comparison"]["tasks"][0]["metrics"]["bits_per_byte"];
  EXPECT_EQ(metric["other"],
            scores_of({"--model.path", run_})["tasks"][0]["metrics"]["bits_per_byte"]["value"]);
  EXPECT_NE(metric["other"], metric["value"]);
  succeed({"lora", "convert", adapter, folder_.path() / "v4", "--format", "peft_per_expert"});
  EXPECT_EQ(loss_of({"--model.path", run_, "--adapter", folder_.path() / "v4"}),
            loss_of({"--model.path", run_, "--adapter", adapter}));

  const fs::path grid = folder_.path() / "grid";
  train_to(grid, {"--quantization.enable", "true", "--quantization.format", "int8_channel"});
  const char* const error =
      "grid        layers.0.experts.down.weight: int8_channel, largest error ";
  EXPECT_THAT(succeed({"convert", run_, folder_.path() / "base", "--format", "compressed-tensors",
                       "--grid_of", grid}),
              HasSubstr(error));
  EXPECT_THAT(succeed({"lora", "merge", run_, grid, folder_.path() / "packed", "--format",
                       "compressed-tensors"}),
              HasSubstr(error));
}

TEST_F(Cli, ChecksThatMicroBatchesDoNotMatter) {
  const std::string said = succeed({"check", "cuts", config_});
  for (const char* part : {"rows one by one", "1 x 8 ", "2 x 4 ", "8 x 1 ", "auxiliary losses"})
    EXPECT_THAT(said, HasSubstr(part));
  EXPECT_THAT(said, Not(HasSubstr("BEYOND THE BOUND")));
}

TEST_F(Cli, ComparesGradientsOfPrecisions) {
  const std::string said = succeed({"check", "precision", config_});
  for (const char* part :
       {"bf16", "int8", "another micro-batch", "experts.down", "loss (difference)"})
    EXPECT_THAT(said, HasSubstr(part));
}

TEST_F(Cli, WarnsOfSamplesBeyondTheModelsPositions) {
  const Outcome train = run_binary({"train", config_, "--data.sequence_length", "65"});
  EXPECT_EQ(train.exit_code, 0) << train.err;
  const std::string warning =
      "data.sequence_length 65 goes beyond the model's max_position_embeddings 64";
  EXPECT_THAT(train.err, HasSubstr(warning));
  EXPECT_THAT(run_binary({"evaluate", "--model.path", run_, "--data.validation", text_,
                          "--data.sequence_length", "65"})
                  .err,
              HasSubstr(warning));
  EXPECT_THAT(run_binary({"evaluate", "--model.path", run_, "--data.validation", text_,
                          "--data.sequence_length", "64"})
                  .err,
              Not(HasSubstr("goes beyond")));
}

TEST_F(Cli, TokenizesAsTheTokenizersOwnRulesSay) {
  std::string config = read_file(model_ / "tokenizer_config.json");
  config.replace(config.find('{'), 1, "{\"add_bos_token\": true,");
  std::ofstream(model_ / "tokenizer_config.json") << config;
  const fs::path line = folder_.path() / "line.txt", prefix = folder_.path() / "tokens";
  std::ofstream(line) << "In line";
  const auto ids = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"tokenize", "--model.path", model_, "--ids", line};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return parse_json(succeed(arguments)).get<std::vector<std::int32_t>>();
  };
  const auto plain = io::Tokenizer::load(model_).encode("In line", false);
  std::vector<std::int32_t> want = plain;
  want.insert(want.begin(), 0);  // <|endoftext|>
  EXPECT_EQ(ids({}), want);
  EXPECT_EQ(ids({"--data.add_bos", "true"}), want);
  EXPECT_EQ(ids({"--data.add_bos", "false"}), plain);
  succeed({"tokenize", "--model.path", model_, "--input", line, "--output", prefix});
  EXPECT_EQ(io::IndexedFile(prefix).num_tokens(), static_cast<std::int64_t>(want.size()) + 1);
}

TEST_F(Cli, WritesEveryArtifactAndExplainsDispatch) {
  // Whatever the suite runs under: a pass that is switched off leaves no dump.
  ::unsetenv("ANABATIC_TEST_CONFIG");
  const fs::path dump = folder_.path() / "dump";
  const Outcome outcome = run_binary({"train", config_, "--dump", dump, "--explain-dispatch",
                                      "--disable-pass", "common_subexpression"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("rejected "));
  std::set<std::string> files;  // without the numbers, which change with the pipeline
  for (const auto& entry : fs::directory_iterator(dump / "training")) {
    const std::string name = entry.path().filename();
    EXPECT_GT(entry.file_size(), 100u) << name;
    files.insert(entry.path().extension() == ".ir" ? name.substr(3) : name);
  }
  for (const char* file : {"input.ir", "precision.ir", "differentiate.ir",
                           "accumulate_gradients.ir", "apply_optimizer.ir", "fuse_head_loss.ir",
                           "fuse_norm_residual.ir", "dead_code.ir", "plan.txt", "program.txt"})
    EXPECT_EQ(files.count(file), 1u) << file;
  EXPECT_EQ(files.count("common_subexpression.ir"), 0u);
}

TEST_F(Cli, DescribesAModel) {
  const auto json = parse_json(succeed({"info", "--json", model_}));
  EXPECT_EQ(json["model_type"], "mixtral");
  EXPECT_GT(json["parameters"], json["active_parameters"]);
  EXPECT_EQ(json["fp32_bytes"], 4 * json["parameters"].get<std::int64_t>());
  EXPECT_EQ(json["layers"]["moe"], 2);
  EXPECT_EQ(json["layers"]["full_attention"], 2);
  EXPECT_EQ(json["weights"], nullptr);
  EXPECT_EQ(json["tokenizer"]["kind"], "BPE");
  EXPECT_EQ(json["tokenizer"]["ids"], 300);
  EXPECT_EQ(json["chat_template"], nullptr);
}

TEST_F(Cli, DescribesTheFilesOfAModelAndWhatItIgnores) {
  succeed({"train", config_});
  std::string name;
  std::ifstream(run_ / "latest") >> name;
  const fs::path checkpoint = run_ / name;
  std::ofstream(checkpoint / "chat_template.jinja") << "{{ messages }}";
  std::ofstream(checkpoint / "pytorch_model.bin") << "x";
  const auto json = parse_json(succeed({"info", "--json", checkpoint}));
  const auto bytes = 4 * json["parameters"].get<std::int64_t>();
  EXPECT_EQ(json["weights"]["bytes_by_dtype"], (nlohmann::json{{"F32", bytes}}));
  EXPECT_EQ(json["weights"]["format"], "safetensors");
  EXPECT_EQ(json["chat_template"]["bytes"], 14);
  ASSERT_EQ(json["ignored"].size(), 1u);
  EXPECT_EQ(json["ignored"][0]["name"], "pytorch_model.bin");
  const std::string text = succeed({"info", checkpoint});
  EXPECT_THAT(text, HasSubstr("2 of experts, 2 with full attention"));
  EXPECT_THAT(text, HasSubstr("template    chat_template.jinja, 14 bytes"));
  fs::resize_file(checkpoint / "model.safetensors", 100);
  EXPECT_NE(run_binary({"info", checkpoint}).exit_code, 0);
}

// From a run to a GGUF file, and from that file on.
TEST_F(Cli, DescribesAndChecksAGgufFile) {
  succeed({"train", config_});
  std::string name;
  std::ifstream(run_ / "latest") >> name;
  const fs::path checkpoint = run_ / name, file = folder_.path() / "a.gguf",
                 next = folder_.path() / "next";
  EXPECT_THAT(succeed({"check", "manifest", checkpoint, "--against", checkpoint}),
              HasSubstr("names, shapes and dtypes were compared, values were not"));
  succeed({"convert", checkpoint, file, "--format", "gguf"});
  const auto json = parse_json(succeed({"info", "--json", file}));
  EXPECT_EQ(json["weights"]["format"], "GGUF");
  EXPECT_EQ(json["weights"]["files"], 1);
  EXPECT_EQ(json["weights"]["bytes_by_dtype"]["F32"], 4 * json["parameters"].get<std::int64_t>());
  EXPECT_EQ(json["tokenizer"]["ids"], 300);
  EXPECT_EQ(json["model_type"], "mixtral");
  EXPECT_THAT(succeed({"info", file}), HasSubstr("files       1 of GGUF"));
  EXPECT_THAT(succeed({"check", "manifest", file, "--against", checkpoint}),
              HasSubstr("as its manifest says"));
  succeed({"train", config_, "--model.path", file, "--model.init", "pretrained", "--train.output",
           next});
  EXPECT_THAT(succeed({"check", "manifest", next}), HasSubstr("as its manifest says"));

  flip_bit(file, 100);
  for (const fs::path& manifest : {file, next}) {
    const Outcome outcome = run_binary({"check", "manifest", manifest});
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.out, HasSubstr("expected checksum")) << manifest;
  }
  flip_bit(file, static_cast<std::int64_t>(fs::file_size(file)));
  const Outcome info = run_binary({"info", file});
  EXPECT_NE(info.exit_code, 0);
  EXPECT_THAT(info.err, HasSubstr("a.gguf"));
}

TEST_F(Cli, SaysWhichFieldsOfAnotherModelStandInTheWay) {
  nlohmann::json config = parse_json(read_file(model_ / "config.json"));
  config["model_type"] = "other_moe";
  config["a_new_gate"] = 2;
  config["final_logit_softcapping"] = 30;
  std::ofstream(model_ / "config.json") << dump_json(config);
  const Outcome text = run_binary({"info", model_});
  EXPECT_EQ(text.exit_code, 2);
  EXPECT_THAT(text.out, HasSubstr("none reads the model_type other_moe"));
  EXPECT_THAT(text.out, HasSubstr("mixtral; these fields stand in the way"));
  EXPECT_THAT(text.out, HasSubstr("final_logit_softcapping: expected 0"));
  const Outcome outcome = run_binary({"info", "--json", model_});
  EXPECT_EQ(outcome.exit_code, 2);
  const auto json = parse_json(outcome.out);
  EXPECT_EQ(json["is_supported"], false);
  EXPECT_EQ(json["nearest_family"], "mixtral");
  EXPECT_EQ(json["unknown_fields"], nlohmann::json::array({"a_new_gate"}));
  EXPECT_EQ(json["problems"].size(), 1u);
}

TEST(CliWithoutModel, DescribesTheMachineAndItself) {
  const Outcome doctor = run_binary({"doctor", "--device.threads", "1"});
  EXPECT_EQ(doctor.exit_code, 0);
  for (const char* part : {"cpu ", "cores ", "1 threads", "memory ", "bandwidth ", "avx2 ", "mpi "})
    EXPECT_THAT(doctor.out, HasSubstr(part));
  EXPECT_EQ(run_binary({"--version"}).out.substr(0, 9), "anabatic ");
  const Outcome help = run_binary({"train", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("--optimizer.min_learning_rate"));
}

TEST_F(Cli, ChecksAChatTemplate) {
  const fs::path file = folder_.path() / "chat.jinja";
  std::ofstream(file) << "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
  const std::vector<std::string> arguments{"check",       "template", model_,      "--template",
                                           file.string(), "--python", "/no/python"};
  const std::string said = succeed(arguments);
  EXPECT_THAT(said, HasSubstr("/no/python has no transformers to compare with"));
  EXPECT_THAT(said, HasSubstr("<user>Hi<assistant>Hello!"));
  std::ofstream(file) << "{{ messages|nonsense }}";
  EXPECT_THAT(run_binary(arguments).err, HasSubstr("unknown filter 'nonsense'"));
  EXPECT_THAT(run_binary({"check", "template", model_}).err,
              HasSubstr("expected a chat_template.jinja"));
}

// Stands in for transformers: each turn ends with a line break.
constexpr const char* kRenderer = R"python(
def render_jinja_template(conversations, add_generation_prompt, **_):
    text = "".join(f"<{m['role']}>{m['content']}\n" for m in conversations[0])
    return [text + ("<assistant>\n" if add_generation_prompt else "")], []
)python";

TEST_F(Cli, ATemplateThatLosesItsLastLineBreakDiffers) {
  const fs::path module = folder_.path() / "transformers" / "utils", file = folder_.path() / "chat";
  fs::create_directories(module);
  std::ofstream(module / "chat_template_utils.py") << kRenderer;
  for (const fs::path& folder : {module, module.parent_path()})
    std::ofstream(folder / "__init__.py") << "";
  const ScopedVariable path("PYTHONPATH", folder_.path().string());
  const std::string turns =
      "{% for m in messages %}<{{ m.role }}>{{ m.content + '\n' }}{% endfor %}";
  const std::vector<std::string> arguments{"check", "template", model_, "--template",
                                           file.string()};
  std::ofstream(file) << turns << "{% if add_generation_prompt %}{{ '<assistant>\n' }}{% endif %}";
  EXPECT_THAT(succeed(arguments), HasSubstr("10 renderings compared with jinja2, 0 differ"));
  std::ofstream(file) << turns << "{% if add_generation_prompt %}<assistant>\n{% endif %}";
  EXPECT_EQ(run_binary(arguments).exit_code, 0);
  std::ofstream(file) << turns << "{% if add_generation_prompt %}<assistant>{% endif %}\n";
  const Outcome differs = run_binary(arguments);
  EXPECT_EQ(differs.exit_code, 1);
  EXPECT_THAT(differs.out, HasSubstr("10 renderings compared with jinja2, 5 differ"));
}

// As every process that mpirun or srun starts.
TEST(CliWithoutModel, TrainRefusesToBeOneOfMany) {
  for (const auto& [size, rank] : {std::pair{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                   {"PMI_SIZE", "PMI_RANK"},
                                   {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}}) {
    const ScopedVariable own_rank(rank, "1");
    const ScopedVariable many(size, "3");
    const Outcome outcome = run_binary({"train"});
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("[train] expected one process, got 3 of a launcher (" +
                                       std::string(size) + " is set)"));
    const ScopedVariable one(size, "1"), first(rank, "0");
    EXPECT_THAT(run_binary({"train"}).err, Not(HasSubstr("of a launcher")));
  }
}

// A directory that a run will make, and a cache that nothing can be kept in.
TEST_F(Cli, DoctorCallsADiskUsableThatIs) {
  train::RunConfig run;
  run.train.output = folder_.path() / "not" / "there";
  const bool is_usable = train::find_swap_place(run).refusal.empty();
  const ScopedVariable cache("XDG_CACHE_HOME", "/dev/null");
  const std::string said =
      succeed({"doctor", "--device.threads", "1", "--train.output", run.train.output});
  EXPECT_EQ(said.find("disk        off") == std::string::npos, is_usable) << said;
  EXPECT_FALSE(fs::exists(folder_.path() / "not"));
}

}  // namespace
}  // namespace anabatic::testing
