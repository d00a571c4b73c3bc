// SPDX-License-Identifier: Apache-2.0
// What `profile` and `bench` print: parts that sum to the step, JSON, a trace.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "support/run_binary.h"

namespace anabatic::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

std::string gunzip(const fs::path& file) {
  const gzFile stream = gzopen(file.c_str(), "rb");
  EXPECT_NE(stream, nullptr) << file;
  if (stream == nullptr) return "";
  std::string text;
  std::vector<char> piece(1 << 16);
  for (int count; (count = gzread(stream, piece.data(), static_cast<unsigned>(piece.size()))) > 0;)
    text.append(piece.data(), static_cast<std::size_t>(count));
  EXPECT_EQ(gzeof(stream), 1) << "cut short";
  EXPECT_EQ(gzclose(stream), Z_OK);
  return text;
}

std::string succeed(const std::vector<std::string>& arguments) {
  const Outcome outcome = run_binary(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return outcome.out;
}

// With the run's own planners: trivial ones choose nothing.
std::string succeed_choosing(std::vector<std::string> arguments) {
  arguments.emplace_back("--compiler.trivial_planners=false");
  return succeed(arguments);
}

std::vector<std::string> profile_arguments(const fs::path& model) {
  return {"profile", "--model.path",
          model,     "--model.init",
          "random",  "--data.sequence_length",
          "16",      "--train.micro_batch_size",
          "2",       "--train.gradient_accumulation_steps",
          "2",       "--train.precision",
          "fp32",    "--device.threads",
          "2",       "--steps",
          "3",       "--warmup",
          "1"};
}

double sum_of(const json& rows, const char* key) {
  double sum = 0;
  for (const json& row : rows) sum += row[key].get<double>();
  return sum;
}

const json& row_named(const json& rows, std::string_view name) {
  for (const json& row : rows)
    if (row["name"] == name) return row;
  ADD_FAILURE() << "no row " << name;
  return rows.at(0);
}

void expect_sums_to_step(const json& profile) {
  const double step = profile["step_seconds"], outside = profile["outside_seconds"];
  EXPECT_GT(outside, 0);
  EXPECT_LT(outside, step);
  for (const char* list : {"by_op", "by_segment", "by_phase", "calls"}) {
    // Rounding of a few hundred additions.
    EXPECT_LT(std::abs(sum_of(profile[list], "seconds") + outside - step), 1e-9 * step) << list;
    EXPECT_EQ(sum_of(profile[list], "flops"), sum_of(profile["calls"], "flops")) << list;
    for (const json& row : profile[list]) {
      EXPECT_GE(row["imbalance"], 0.0) << row;
      EXPECT_LE(row["imbalance"], 0.5 + 1e-9) << row;  // one of two threads works alone
      EXPECT_GE(row["roof_share"], 0.0) << row;
    }
  }
}

TEST(Profile, SumsToTheStepAndTracesEveryCall) {
  const TemporaryDirectory folder;
  const fs::path trace = folder.path() / "trace.json.gz";
  std::vector<std::string> arguments = profile_arguments(write_tiny_config(folder.path()));
  arguments.insert(arguments.end(), {"--json", "--trace", trace});
  const json profile = json::parse(succeed(arguments));
  expect_sums_to_step(profile);
  EXPECT_EQ(profile["threads"], 2);
  EXPECT_EQ(profile["steps"], 3);
  EXPECT_EQ(profile["tokens"], 64);
  EXPECT_EQ(profile["random_tokens"], true);
  EXPECT_GT(profile["mfu"], 0.0);
  for (const char* segment : {"attention", "router", "experts", "optimizer"})
    EXPECT_GT(row_named(profile["by_segment"], segment)["seconds"], 0.0);

  const json events = json::parse(gunzip(trace))["traceEvents"];
  std::size_t num_calls = 0, num_steps = 0;
  double end = 0;
  for (const json& event : events) {
    if (event["ph"] != "X") continue;
    if (event["cat"] == "step") {
      ++num_steps;
      continue;
    }
    ++num_calls;
    EXPECT_FALSE(event["name"].get<std::string>().empty());
    EXPECT_GE(event["ts"].get<double>(), 0.0);
    EXPECT_GE(event["ts"].get<double>() + 1e-3, end) << "calls overlap";  // 1 ns
    end = event["ts"].get<double>() + event["dur"].get<double>();
  }
  EXPECT_EQ(num_steps, 3u);
  EXPECT_EQ(num_calls, std::lround(3 * sum_of(profile["calls"], "calls")));
}

TEST(Profile, HasARowForEachExchangeOfSeveralRanks) {
  const TemporaryDirectory folder;
  std::vector<std::string> arguments = profile_arguments(write_tiny_config(folder.path()));
  arguments.insert(arguments.end(), {"--parallel.local_ranks", "2"});
  EXPECT_THAT(run_binary(arguments).err, HasSubstr("data.train: expected files, for 2 ranks"));
  arguments.insert(arguments.end(), {"--data.train", write_tiny_tokens(folder.path(), "a", 20, 1)});
  EXPECT_THAT(succeed(arguments), HasSubstr("exchange, at the first of 2 ranks"));
  arguments.emplace_back("--json");
  const json profile = json::parse(succeed(arguments));
  expect_sums_to_step(profile);
  EXPECT_EQ(profile["ranks"], 2);
  EXPECT_EQ(profile["tokens"], 128);
  ASSERT_FALSE(profile["exchanges"].empty());
  for (const json& row : profile["exchanges"]) {
    EXPECT_EQ(row["count"], 1);
    EXPECT_GE(row["sent_bytes"], 0);
  }
  EXPECT_GT(sum_of(profile["exchanges"], "busy_seconds"), 0);
  EXPECT_GT(sum_of(profile["exchanges"], "exposed_seconds"), 0);
  EXPECT_LT(sum_of(profile["exchanges"], "exposed_seconds"), profile["outside_seconds"]);
}

TEST(Profile, CountsTheCallsOfAFirstMicroBatchApart) {
  const TemporaryDirectory folder;
  const fs::path model =
      write_tiny_config(folder.path(), "\"hidden_size\": 64, \"intermediate_size\": 512");
  const std::string file = folder.path() / "plan.json";
  const auto plan = [&](std::int64_t budget) {
    return json::parse(
        succeed_choosing({"plan", model, "--data.sequence_length", "64", "--train.micro_batch_size",
                          "4", "--train.gradient_accumulation_steps", "3", "--train.precision",
                          "fp32", "--device.threads", "2", "--device.calibrate", "false",
                          "--memory.budget", std::to_string(budget), "--save", file, "--json"}));
  };
  const json whole = plan(std::int64_t{1} << 40);
  EXPECT_TRUE(whole["first_micro_batch"].is_null());
  json lean;
  for (int share = 20; share <= 50 && (lean.is_null() || lean["first_micro_batch"].is_null());
       share += 5)
    lean = plan(whole["peak_bytes"].get<std::int64_t>() -
                whole["arena"]["bytes"].get<std::int64_t>() * share / 100);
  ASSERT_FALSE(lean["first_micro_batch"].is_null());

  const json profile =
      json::parse(succeed_choosing({"profile", "--model.path",
                                    model,     "--model.init",
                                    "random",  "--data.sequence_length",
                                    "64",      "--train.micro_batch_size",
                                    "4",       "--train.gradient_accumulation_steps",
                                    "3",       "--train.precision",
                                    "fp32",    "--device.threads",
                                    "2",       "--memory.plan",
                                    file,      "--steps",
                                    "1",       "--warmup",
                                    "0",       "--json"}));
  expect_sums_to_step(profile);
  double first = 0, others = 0;
  for (const json& row : profile["calls"]) {
    const auto name = row["name"].get<std::string>();
    if (name.find("router forward") == std::string::npos) continue;
    (name.ends_with("first micro-batch") ? first : others) += row["calls"].get<double>();
  }
  EXPECT_GT(first, 0);
  EXPECT_EQ(others, 2 * first);
}

TEST(Plan, CountsDataThatAreThere) {
  const TemporaryDirectory folder;
  const fs::path model = write_tiny_config(folder.path());
  const std::string tokens = write_tiny_tokens(folder.path(), "tokens", 4000, 7);
  const auto data_rows = [&](const std::string& files) {
    return succeed({"plan", model, "--data.sequence_length", "16", "--data.train", files})
               .find("data and tokenizer") != std::string::npos;
  };
  EXPECT_TRUE(data_rows(tokens));
  EXPECT_FALSE(data_rows(tokens + "_elsewhere"));
  write_file_atomically(folder.path() / "text.txt", "not tokenized by a plan");
  EXPECT_FALSE(data_rows(folder.path() / "text.txt"));
}

TEST(Profile, RunsASavedPlanOfABudget) {
  const TemporaryDirectory folder;
  const fs::path model =
      write_tiny_config(folder.path(), "\"hidden_size\": 64, \"intermediate_size\": 512");
  const std::vector<std::string> keys{"--data.sequence_length",
                                      "256",
                                      "--train.micro_batch_size",
                                      "8",
                                      "--train.precision",
                                      "fp32",
                                      "--device.threads",
                                      "2",
                                      "--device.calibrate",
                                      "false",
                                      "--json"};
  std::vector<std::string> plan{"plan", model},
      profiled{"profile", "--model.path", model, "--model.init", "random", "--steps",
               "1",       "--warmup",     "0"};
  plan.insert(plan.end(), keys.begin(), keys.end());
  profiled.insert(profiled.end(), keys.begin(), keys.end());
  const auto recomputed = [&] {
    const json profile = json::parse(succeed_choosing(profiled));
    int num_calls = 0;
    for (const json& row : profile["by_phase"])
      if (row["name"] == "recompute") num_calls += row["calls"].get<int>();
    return num_calls;
  };
  EXPECT_EQ(recomputed(), 0);
  // Budgets for the plan, whose process holds less than one that profiles, until a call recomputes
  // something: what a machine's caches let slices of the head and gradients that recompute their
  // input save comes first. They leave more room than what processes differ by.
  const json whole = json::parse(succeed_choosing(plan));
  const std::string file = folder.path() / "plan.json";
  profiled.insert(profiled.end(), {"--memory.plan", file});
  int num_calls = 0;
  for (int share = 20; share <= 40 && num_calls == 0; share += 5) {
    std::vector<std::string> arguments = plan;
    arguments.insert(arguments.end(),
                     {"--save", file, "--memory.budget",
                      std::to_string(whole["peak_bytes"].get<std::int64_t>() -
                                     whole["arena"]["bytes"].get<std::int64_t>() * share / 100)});
    succeed_choosing(arguments);
    num_calls = recomputed();
  }
  EXPECT_GT(num_calls, 0);
}

// FLOPs of attention from the model's sizes: 4 heads of 4 in 2 layers; 2 micro-batches of 2 samples
// of 16 tokens, which see 136 pairs each.
TEST(Profile, CountsUnmaskedPairsOnly) {
  const TemporaryDirectory folder;
  std::vector<std::string> arguments = profile_arguments(write_tiny_config(folder.path()));
  arguments.emplace_back("--json");
  const json profile = json::parse(succeed(arguments));
  double flops = 0;
  for (const json& row : profile["by_op"])
    if (row["name"].get<std::string>().starts_with("attention"))
      flops += row["flops"].get<double>();
  EXPECT_EQ(std::lround(flops), 7 * (4 + 4) * 4 * 2 * (4 * 136));
}

TEST(Profile, PrintsATableOnARunsOwnData) {
  const TemporaryDirectory folder;
  std::vector<std::string> arguments = profile_arguments(write_tiny_config(folder.path()));
  arguments.insert(arguments.end(),
                   {"--data.train", write_tiny_tokens(folder.path(), "train", 60, 7)});
  const std::string table = succeed(arguments);
  for (const char* part : {"mixtral in fp32, 2 threads", "MFU", "peak  fp32 ", "imbalance",
                           "grouped_linear", "outside kernels", "experts", "backward_weight"})
    EXPECT_THAT(table, HasSubstr(part));
  EXPECT_EQ(table.find("(random)"), std::string::npos);
}

TEST(Bench, PrintsASharePerPartForEveryKind) {
  const TemporaryDirectory folder;
  const std::string model = write_tiny_config(folder.path());
  const std::vector<std::vector<std::string>> cases{
      {"gemm", "--rows", "9", "--in", "24", "--out", "40"},
      {"moe", "--tokens", "33", "--hidden", "24", "--intermediate", "40", "--zipf", "1.2"},
      {"attention", "--sequence", "17", "--head_dim", "16"},
      {"norm", "--op", "swiglu", "--rows", "13", "--width", "48"},
      {"loss", "--tokens", "19", "--hidden", "24", "--vocabulary", "101"},
      {"optimizer", "--matrices", "2", "--out", "24", "--in", "40"},
      {"step", "--model.path", model, "--batch", "2", "--sequence", "16"}};
  for (std::vector<std::string> arguments : cases) {
    arguments.insert(arguments.begin(), "bench");
    arguments.insert(arguments.end(), {"--rounds", "2", "--device.threads", "2"});
    const std::string table = succeed(arguments);
    EXPECT_THAT(table, HasSubstr("equal to the reference within its bound on ")) << arguments[1];
    arguments.emplace_back("--json");
    const json result = json::parse(succeed(arguments));
    EXPECT_EQ(result["kind"], arguments[1]);
    EXPECT_EQ(result["precision"], "bf16");
    EXPECT_GT(result["peak_flops_per_second"], 0.0);
    EXPECT_GT(result["copy_bytes_per_second"], 0.0);
    EXPECT_LE(result["check"]["relative_error"], result["check"]["bound"]);
    const json& total = result["parts"][0];
    EXPECT_EQ(total["name"], "total");
    EXPECT_GT(total["seconds"], 0.0);
    EXPECT_EQ(total["peak_share"].is_null(), total["flops"] == 0.0) << result;
    EXPECT_EQ(total["copy_share"].is_null(), total["bytes"] == 0.0) << result;
  }
}

TEST(Bench, TellsWhatQuantizingTakesOfAProduct) {
  const std::vector<std::string> arguments{
      "bench", "quantize", "--train.precision", "int8", "--rows",           "32", "--in", "64",
      "--out", "96",       "--rounds",          "1",    "--device.threads", "1"};
  const std::string table = succeed(arguments);
  for (const char* text :
       {"x_rows ", " x forward_64\n", "packing_transposed ", " x products_off\n"})
    EXPECT_THAT(table, HasSubstr(text));
  std::vector<std::string> with_json = arguments;
  with_json.emplace_back("--json");
  const json parts = json::parse(succeed(with_json))["parts"];
  EXPECT_EQ(row_named(parts, "dy_columns")["of"], "weight_gradient_64");
  EXPECT_GT(row_named(parts, "dy_columns")["ratio"], 0.0);
  EXPECT_GT(row_named(parts, "packing")["copy_share"], 0.0);
  EXPECT_FALSE(row_named(parts, "packing").contains("of"));
}

TEST(Bench, MeasuresExchangesOfThreads) {
  const std::vector<std::string> arguments{"bench", "exchange", "--ranks",  "3",
                                           "--mib", "1",        "--rounds", "1"};
  EXPECT_THAT(succeed(arguments), HasSubstr("exchanges of 3 ranks, threads; medians of 1 rounds"));
  std::vector<std::string> with_json = arguments;
  with_json.emplace_back("--json");
  const json result = json::parse(succeed(with_json));
  EXPECT_EQ(result["is_checked"], true);
  ASSERT_EQ(result["rows"].size(), 4u);  // kinds of exchanges
  for (const json& row : result["rows"]) {
    EXPECT_EQ(row["bytes"], 1 << 20);
    EXPECT_GT(row["seconds"], 0.0);
    EXPECT_TRUE(row["ratio"].is_null());
  }
  EXPECT_EQ(run_binary({"bench", "exchange", "--ranks", "1"}).exit_code, 2);
  EXPECT_EQ(run_binary({"bench", "exchange", "--rows", "4"}).exit_code, 2);
}

TEST(Bench, CountsAThreadsOwnTimeWhenAsked) {
  const json result = json::parse(succeed({"bench", "gemm", "--rows", "4", "--cpu_time",
                                           "--device.threads", "1", "--rounds", "2", "--json"}));
  EXPECT_EQ(result["clock"], "cpu");
  EXPECT_GT(result["parts"][0]["seconds"], 0.0);
  const Outcome outcome =
      run_binary({"bench", "gemm", "--cpu_time", "--device.threads", "2", "--no_check"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--cpu_time: expected --device.threads 1, got 2"));
}

TEST(Bench, ServesRoundsUntilItsInputEnds) {
  const json header =
      json::parse(succeed({"bench", "gemm", "--rows", "4", "--serve", "--no_check"}));
  EXPECT_EQ(header["kind"], "gemm");
  EXPECT_EQ(header["parts"].size(), 4u);
  EXPECT_TRUE(header["check"].is_null());
}

}  // namespace
}  // namespace anabatic::testing
