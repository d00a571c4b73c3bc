// SPDX-License-Identifier: Apache-2.0
// `anabatic plan` on public models, from their config.json alone.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/vfs.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "base/json.h"
#include "base/text.h"
#include "support/run_binary.h"
#include "support/sanitized.h"
#include "support/scoped_variable.h"

namespace anabatic::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr const char* kLongProducts = "minutes of products";

constexpr const char* kMixtral8x7B = R"({"model_type": "mixtral", "vocab_size": 32000,
  "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8,
  "num_experts_per_tok": 2, "max_position_embeddings": 32768, "hidden_act": "silu",
  "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02,
  "output_router_logits": false, "tie_word_embeddings": false, "sliding_window": null,
  "initializer_range": 0.02, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"})";

constexpr const char* kQwen3Moe30B = R"({"model_type": "qwen3_moe", "vocab_size": 151936,
  "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
  "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
  "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true, "decoder_sparse_step": 1,
  "mlp_only_layers": [], "max_position_embeddings": 40960, "hidden_act": "silu",
  "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "attention_bias": false,
  "router_aux_loss_coef": 0.001, "output_router_logits": false, "tie_word_embeddings": false,
  "sliding_window": null, "use_sliding_window": false, "max_window_layers": 48,
  "initializer_range": 0.02, "bos_token_id": 151643, "eos_token_id": 151645})";

constexpr std::int64_t kProcessesDifferBytes = 5 << 20;  // at most, apart from their plans

constexpr long kMemoryFileSystem = 0x01021994;  // TMPFS_MAGIC

bool has_disk_speed(const fs::path& cache) {
  std::error_code absent;
  for (const fs::directory_entry& entry : fs::directory_iterator(cache / "anabatic", absent))
    if (entry.path().filename().string().starts_with("disk-")) return true;
  return false;
}

std::int64_t peak(const nlohmann::json& json) { return json["peak_bytes"].get<std::int64_t>(); }

class PlanVerb : public ::testing::Test {
 protected:
  // The closed forms are of what the optional passes leave.
  void SetUp() override { ::unsetenv("ANABATIC_TEST_CONFIG"); }

  fs::path write(const char* config) const {
    const fs::path file = folder_.path() / "config.json";
    std::ofstream(file) << config;
    return file;
  }
  static nlohmann::json plan(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "plan");
    arguments.emplace_back("--json");
    const Outcome outcome = run_binary(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return parse_json(outcome.out);
  }

  const TemporaryDirectory folder_;
};

std::int64_t sum_of(const nlohmann::json& bytes) {
  std::int64_t sum = 0;
  for (const auto& [key, value] : bytes.items()) sum += value.get<std::int64_t>();
  return sum;
}

std::int64_t row(const nlohmann::json& json, const std::string& name) {
  std::int64_t sum = 0;
  for (const auto& entry : json["table"])
    if (entry["name"] == name) sum += entry["bytes"].get<std::int64_t>();
  return sum;
}

void expect_whole(const nlohmann::json& json) {
  std::int64_t sum = 0;
  std::set<std::string> names;
  for (const auto& entry : json["table"]) {
    EXPECT_EQ(entry.size(), 3u);
    EXPECT_GT(entry["bytes"].get<std::int64_t>(), 0);
    sum += entry["bytes"].get<std::int64_t>();
    names.insert(entry["name"]);
  }
  EXPECT_EQ(sum, json["peak_bytes"]);
  EXPECT_EQ(sum_of(json["bytes_by_layer"]), json["planned_bytes"]);
  EXPECT_EQ(sum_of(json["bytes_by_segment"]), json["planned_bytes"]);
  for (const char* name : {"parameters", "packings", "optimizer state", "gradients", "inputs",
                           "batches", "staging", "code and libraries"})
    EXPECT_TRUE(names.contains(name)) << name;
  for (const auto& [layer, bytes] : json["saved_bytes_by_layer"].items()) EXPECT_GT(bytes, 0);
  EXPECT_GE(json["arena"]["ratio"], 1.0);
  EXPECT_GT(json["step"]["seconds"], 0.0);
  EXPECT_GE(json["step"]["kernel_flops"].get<double>(),
            0.9 * json["step"]["model_flops"].get<double>());
  EXPECT_FALSE(json["peak"]["op"].get<std::string>().empty());
}

TEST_F(PlanVerb, PlansMixtral8x7B) {
  const nlohmann::json json = plan(
      {write(kMixtral8x7B), "--data.sequence_length", "2048", "--train.micro_batch_size", "1"});
  EXPECT_EQ(json["parameters"], 46'702'792'704);
  EXPECT_EQ(json["active_parameters"], 12'879'925'248);
  expect_whole(json);
  // Panels of the routers' eight rows are padded to sixteen.
  const std::int64_t padding = std::int64_t{32} * 8 * 4096;
  EXPECT_EQ(row(json, "parameters"), 4 * (json["parameters"].get<std::int64_t>() + padding));
  EXPECT_EQ(row(json, "optimizer state"), 2 * row(json, "parameters"));
  // Closed form of docs/internals/memory.md for an inner layer.
  const std::int64_t token =
      2 * (4 * 4096 + 2 * (32 + 8) * 128 + 3 * 2 * 14336) + 4 * 32 + 16 * 2 + 4 * 8;
  EXPECT_EQ(json["saved_bytes_by_layer"]["layers.7"], 2048 * token + 4 * 9 + 4 * 8);
}

TEST_F(PlanVerb, PlansQwen3Moe30BInLittleTimeAndMemory) {
  const nlohmann::json json = plan({write(kQwen3Moe30B), "--data.sequence_length", "2048"});
  EXPECT_EQ(json["parameters"], 30'532'122'624);
  expect_whole(json);
  EXPECT_EQ(json["bytes_by_layer"].size(), 49u);
  if (kIsSanitized) return;  // it holds memory of its own
  // Of the largest child so far, in KiB.
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  EXPECT_LT(usage.ru_maxrss, 1 << 20);
}

TEST_F(PlanVerb, PlacesArenasOfTheYardsticksWithinTwoPercentOfWhatIsAlive) {
  if (kIsSanitized) GTEST_SKIP() << "plans of whole models, searched for long";
  for (const char* model : {"dense", "moe_coarse", "moe_fine"}) {
    std::vector<std::string> arguments{
        std::string(ANABATIC_SOURCE_DIR "/bench/yardsticks/") + model,
        "--device.calibrate",
        "false",
        "--optimizer.update",
        "in_backward",
        "--memory.optimizer_state",
        "resident"};
    const nlohmann::json whole = plan(arguments);
    EXPECT_LE(whole["arena"]["ratio"], 1.02) << model;
    const std::int64_t cut = whole["arena"]["bytes"].get<std::int64_t>() / 2;
    arguments.insert(arguments.end(), {"--memory.budget", std::to_string(peak(whole) - cut)});
    const nlohmann::json lean = plan(arguments);
    EXPECT_LE(lean["peak_bytes"], peak(whole) - cut) << model;
    EXPECT_LE(lean["arena"]["ratio"], 1.02) << model;
  }
}

TEST_F(PlanVerb, DrawsTheStepAsAnXmlPicture) {
  const fs::path model = write_tiny_config(folder_.path());
  const fs::path picture = folder_.path() / "step.svg";
  const nlohmann::json json = plan({model, "--timeline", picture, "--train.precision", "fp32"});
  expect_whole(json);
  const std::string svg = read_file(picture);
  for (const char* part : {"<svg xmlns=", "saved activations", "forward", "backward", "update",
                           "bytes in use", "</svg>"})
    EXPECT_THAT(svg, HasSubstr(part));
  EXPECT_EQ(svg.find("<script"), std::string::npos);
  // Elements close in the order in which they open, and attributes are quoted.
  std::vector<std::string> open;
  for (auto at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    const auto end = svg.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = svg.substr(at + 1, end - at - 1);
    ASSERT_EQ(tag.find('<'), std::string::npos) << tag;
    ASSERT_EQ(std::count(tag.begin(), tag.end(), '"') % 2, 0) << tag;
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag.front() == '/') {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ("/" + open.back(), tag);
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
  }
  EXPECT_TRUE(open.empty());
}

TEST_F(PlanVerb, CountsValidationAndFollowsTheKeysOfTrain) {
  const fs::path model = write_tiny_config(folder_.path());
  const nlohmann::json small = plan({model, "--train.precision", "fp32"}),
                       large = plan({model, "--train.precision", "fp32", "--train.micro_batch_size",
                                     "8", "--data.validation", "x"});
  EXPECT_EQ(large["run"]["micro_batch_size"], 8);
  EXPECT_EQ(large["step"]["tokens"], 2 * small["step"]["tokens"].get<std::int64_t>());
  EXPECT_GT(row(large, "saved activations"), row(small, "saved activations"));
  EXPECT_EQ(row(small, "validation"), 0);
  EXPECT_GT(row(large, "validation"), 0);
  // A run config names its model itself.
  const fs::path config = folder_.path() / "run.yaml";
  std::ofstream(config) << fmt::format(
      "model: {{path: {}, init: random}}\ntrain: {{precision: fp32, micro_batch_size: 8}}\n"
      "data: {{validation: [x]}}\n",
      model.string());
  const nlohmann::json again = plan({config});
  EXPECT_EQ(again["planned_bytes"], large["planned_bytes"]);
  EXPECT_EQ(again["bytes_by_layer"], large["bytes_by_layer"]);
  EXPECT_EQ(row(again, "validation"), row(large, "validation"));
}

TEST_F(PlanVerb, ListsWhatTheRanksOfARunExchange) {
  const fs::path model = write_tiny_config(folder_.path());
  const auto plan_with = [&](std::vector<std::string> keys) {
    keys.insert(keys.begin(), {model, "--data.sequence_length", "64"});
    return plan(keys);
  };
  const nlohmann::json one = plan_with({}), world = plan_with({"--parallel.world", "8"}),
                       local = plan_with({"--parallel.local_ranks", "2"});
  EXPECT_TRUE(one["ranks"]["exchanges"].empty());
  EXPECT_EQ(world["ranks"]["mesh"]["data"], 8);
  EXPECT_EQ(world["step"]["tokens"], 8 * one["step"]["tokens"].get<std::int64_t>());
  std::int64_t sent = 0;
  for (const auto& exchange : world["ranks"]["exchanges"]) {
    EXPECT_EQ(exchange["ranks"], 8) << exchange;
    EXPECT_EQ(exchange["count"], 1);
    sent += exchange["sent_bytes"].get<std::int64_t>();
  }
  EXPECT_EQ(world["ranks"]["sent_bytes"], sent);
  // Seven eighths of each gradient leave a rank as parts, and as much as sums or parameters.
  const double gradients = 4.0 * one["parameters"].get<double>();
  EXPECT_GT(static_cast<double>(sent), 7.0 / 8 * gradients);
  // Ranks of one process take its memory together; those of a world have a process each.
  EXPECT_EQ(row(local, "other ranks"), peak(local) - row(local, "code and libraries") -
                                           row(local, "staging") - row(local, "other ranks"));
  EXPECT_EQ(row(world, "other ranks"), 0);

  const Outcome table = run_binary({"plan", model, "--parallel.world", "8"});
  EXPECT_THAT(table.out, HasSubstr("data 8 · pipeline 1, expert 1; each has a process"));
  EXPECT_THAT(table.out, HasSubstr("exchanges    of a step: "));
  EXPECT_THAT(table.out, HasSubstr("gradients.layers.*."));
  const Outcome refused =
      run_binary({"plan", model, "--parallel.world", "6", "--parallel.data", "4"});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("4 wanted, 6 there; nearest setting: parallel.data 6"));
}

TEST_F(PlanVerb, FindsSettingsThatFit) {
  const fs::path model = write_tiny_config(folder_.path(), "\"max_position_embeddings\": 512");
  const nlohmann::json settings =
      plan({model, "--settings", "--data.sequence_length", "64"})["settings"];
  for (const char* key : {"largest_micro_batch", "longest_sequence", "fastest"}) {
    EXPECT_GT(settings[key]["micro_batch_size"], 0) << key;
    EXPECT_GT(settings[key]["tokens_per_second"], 0.0) << key;
  }
  EXPECT_EQ(settings["longest_sequence"]["sequence_length"], 512);

  // A setting that does not fit is not saved. With sanitizers the process grows by what it tries.
  if (kIsSanitized) return;
  const std::string file = folder_.path() / "plan.json";
  const std::int64_t budget = peak(plan({model, "--data.sequence_length", "64"})) + (128 << 20);
  const Outcome refused =
      run_binary({"plan", model, "--settings", "--data.sequence_length", "64",
                  "--train.micro_batch_size", "4096", "--memory.budget", std::to_string(budget),
                  "--device.calibrate", "false", "--save", file});
  EXPECT_EQ(refused.exit_code, 0) << refused.err;
  EXPECT_THAT(refused.out, HasSubstr("largest micro-batch"));
  EXPECT_THAT(refused.err, HasSubstr("--save " + file + ": not written"));
  EXPECT_FALSE(fs::exists(file));
}

TEST_F(PlanVerb, SavesComparesAndReplaysAPlan) {
  const fs::path model =
      write_tiny_config(folder_.path(), "\"hidden_size\": 64, \"intermediate_size\": 512");
  const std::string file = folder_.path() / "plan.json", other = folder_.path() / "other.json";
  const std::vector<std::string> keys{"--data.sequence_length", "512", "--device.calibrate",
                                      "false"};
  const auto planned = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments{"plan", model};
    arguments.insert(arguments.end(), keys.begin(), keys.end());
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_binary(arguments);
  };
  const Outcome whole = planned({"--json", "--save", other, "--train.micro_batch_size", "8"});
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  // Down to a budget that recomputes values of layers: how far slices of the head go depends on the
  // machine's caches. What the process itself takes differs by some MiB from one to the next; the
  // arena is far larger, and half of it could go.
  const nlohmann::json whole_plan = parse_json(whole.out);
  ASSERT_GT(whole_plan["arena"]["bytes"], kProcessesDifferBytes * 10);
  Outcome saved;
  for (int share = 25; share <= 40; share += 5) {
    const std::int64_t cut = whole_plan["arena"]["bytes"].get<std::int64_t>() * share / 100;
    saved = planned({"--json", "--save", file, "--train.micro_batch_size", "8", "--memory.budget",
                     std::to_string(peak(whole_plan) - cut)});
    ASSERT_EQ(saved.exit_code, 0) << saved.err;
    const nlohmann::json choices = parse_json(saved.out)["recompute"];
    if (std::any_of(choices.begin(), choices.end(), [](const nlohmann::json& choice) {
          return choice["name"].get<std::string>().starts_with("layers.");
        }))
      break;
  }
  const Outcome again = planned({"--json", "--plan", file, "--train.micro_batch_size", "8"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  for (const char* key : {"recompute", "planned_bytes", "arena", "step", "bytes_by_layer"})
    EXPECT_EQ(parse_json(again.out)[key], parse_json(saved.out)[key]) << key;
  EXPECT_FALSE(parse_json(again.out)["recompute"].empty());
  const Outcome compared = run_binary({"plan", "--diff", other, file});
  EXPECT_EQ(compared.exit_code, 0) << compared.err;
  EXPECT_THAT(compared.out, HasSubstr("  + layers."));
  EXPECT_THAT(planned({"--diff", other, "--plan", file, "--train.micro_batch_size", "8"}).out,
              HasSubstr("  + layers."));
  // A comparison writes its picture too; a plan that fails leaves the old one.
  const std::string picture = folder_.path() / "step.svg";
  planned(
      {"--diff", other, "--plan", file, "--train.micro_batch_size", "8", "--timeline", picture});
  const std::string drawn = read_file(picture);
  EXPECT_THAT(drawn, HasSubstr("</svg>"));
  EXPECT_EQ(planned({"--memory.budget", "1KiB", "--timeline", picture}).exit_code, 3);
  EXPECT_EQ(read_file(picture), drawn);
  EXPECT_THAT(planned({"--diff", other, "--json"}).err, HasSubstr("expected no --json"));
  const Outcome refused = planned({"--plan", file, "--train.micro_batch_size", "4"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("train.micro_batch_size: expected 4, found 8"));
  EXPECT_THAT(run_binary({"plan", "--diff", file, other, file}).err,
              HasSubstr("expected one or two files, got 3"));
}

TEST_F(PlanVerb, CalibratesByItselfAheadOfTheFirstBudgetUnlessToldNotTo) {
  if (kIsSanitized) GTEST_SKIP() << kLongProducts;
  const fs::path model = write_tiny_config(folder_.path());
  const ScopedVariable cache("XDG_CACHE_HOME", folder_.path() / "cache");
  const auto planned = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments{"plan", model, "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_binary(arguments);
  };
  const Outcome free = planned({}),
                told = planned({"--memory.budget", "1GiB", "--device.calibrate", "false"});
  EXPECT_FALSE(has_disk_speed(folder_.path() / "cache"));
  const Outcome first = planned({"--memory.budget", "1GiB"}),
                second = planned({"--memory.budget", "1GiB"});
  EXPECT_EQ(free.err, "");
  EXPECT_EQ(told.err, "");
  // The disk below the directory of scratch files, unless that is in memory.
  struct statfs system {};
  ASSERT_EQ(::statfs(fs::temp_directory_path().c_str(), &system), 0);
  EXPECT_EQ(has_disk_speed(folder_.path() / "cache"), system.f_type != kMemoryFileSystem);
  // A machine that is busy, or on which it would take long, says so instead.
  EXPECT_THAT(first.err, AnyOf(HasSubstr("calibrated this machine in"),
                               HasSubstr("this machine is busy, or takes more than")));
  const bool is_calibrated = first.err.find("calibrated this machine in") != std::string::npos;
  EXPECT_EQ(parse_json(first.out)["step"]["prices"] == "calibrated on this machine", is_calibrated);
  if (is_calibrated) {
    EXPECT_EQ(parse_json(second.out)["step"]["prices"], "calibrated on this machine");
    EXPECT_EQ(second.err, "");
  }
}

TEST_F(PlanVerb, CalibratesOnceAndGoesByItThen) {
  if (kIsSanitized) GTEST_SKIP() << kLongProducts;
  const fs::path model = write_tiny_config(folder_.path());
  const ScopedVariable cache("XDG_CACHE_HOME", folder_.path() / "cache");
  const std::string before = plan({model})["step"]["prices"];
  const Outcome calibrated = run_binary({"plan", "--calibrate", "--device.threads", "1"});
  EXPECT_EQ(calibrated.exit_code, 0) << calibrated.err;
  const nlohmann::json after = plan({model, "--device.threads", "1"}),
                       two_threads = plan({model, "--device.threads", "2"});
  EXPECT_THAT(before, HasSubstr("this machine is not calibrated"));
  EXPECT_EQ(after["step"]["prices"], "calibrated on this machine");
  EXPECT_GT(after["step"]["seconds"], 0.0);
  EXPECT_THAT(two_threads["step"]["prices"].get<std::string>(), HasSubstr("not calibrated"));
}

}  // namespace
}  // namespace anabatic::testing
