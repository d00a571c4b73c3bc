// SPDX-License-Identifier: Apache-2.0
// Benchmarks measure what they say, and their comparison with ref finds planted faults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "anabatic/error.h"
#include "base/log.h"
#include "bench/calibrate.h"
#include "bench/cases.h"
#include "bench/check.h"
#include "bench/graph_case.h"
#include "kernels/ref/int8_products.h"
#include "support/test_config.h"

namespace anabatic::bench {
namespace {

using ir::Phase;
using ::testing::HasSubstr;

train::RunConfig run_config(const char* precision) {
  train::RunConfig run;
  run.train.precision = precision;
  run.device.threads = 2;
  testing::apply_test_config(run);
  return run;
}

std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

struct KindRow {
  const char* kind;
  Settings::Texts settings;
};

const KindRow kTiny[] = {
    {"gemm", {{"rows", "9"}, {"in", "24"}, {"out", "40"}}},
    {"moe", {{"tokens", "33"}, {"hidden", "24"}, {"intermediate", "40"}, {"experts", "5"}}},
    {"moe",
     {{"tokens", "33"}, {"hidden", "24"}, {"experts", "8"}, {"top_k", "3"}, {"zipf", "1.2"}}},
    {"attention", {{"batch", "2"}, {"sequence", "17"}, {"heads", "2"}, {"head_dim", "16"}}},
    {"attention",
     {{"sequence", "50"},
      {"documents", "7"},
      {"heads", "4"},
      {"kv_heads", "2"},
      {"head_dim", "24"},
      {"v_head_dim", "16"},
      {"window", "5"},
      {"sinks", "1"}}},
    {"norm", {{"rows", "13"}, {"width", "48"}}},
    {"norm", {{"op", "residual"}, {"rows", "13"}, {"width", "48"}}},
    {"norm", {{"op", "rope"}, {"rows", "13"}, {"width", "48"}, {"head_dim", "16"}}},
    {"norm", {{"op", "swiglu"}, {"rows", "13"}, {"width", "48"}}},
    {"norm", {{"op", "gather"}, {"rows", "13"}, {"width", "48"}, {"top_k", "3"}}},
    {"norm", {{"op", "norm_linear"}, {"rows", "13"}, {"width", "48"}, {"out", "40"}}},
    // More tokens than ref is asked for: the check runs on the first ones.
    {"norm", {{"op", "gather"}, {"rows", "700"}, {"width", "8"}}},
    {"norm", {{"rows", "700"}, {"width", "8"}}},
    {"gemm", {{"rows", "700"}, {"in", "8"}, {"out", "8"}}},
    {"gemm", {{"rows", "19"}, {"in", "140"}, {"out", "24"}, {"outliers", "0.5"}}},
    {"moe", {{"tokens", "700"}, {"hidden", "8"}, {"intermediate", "8"}, {"experts", "4"}}},
    {"attention", {{"sequence", "700"}, {"documents", "90"}, {"heads", "1"}, {"head_dim", "8"}}},
    {"loss", {{"tokens", "700"}, {"hidden", "8"}, {"vocabulary", "16"}}},
    {"loss", {{"tokens", "19"}, {"hidden", "24"}, {"vocabulary", "101"}, {"ignored", "0.5"}}},
    {"optimizer", {{"matrices", "3"}, {"out", "24"}, {"in", "40"}}}};

TEST(Bench, EveryKindAgreesWithRefAndTimesItsParts) {
  for (const char* precision : {"fp32", "bf16"})
    for (const KindRow& row : kTiny) {
      Settings settings(row.settings);
      const auto benchmark = make_benchmark(row.kind, run_config(precision), settings, false);
      const Check check = benchmark->check();
      EXPECT_LE(check.error, check.bound) << row.kind << " " << precision;
      EXPECT_FALSE(check.tensor.empty());
      std::vector<double> seconds(benchmark->parts().size(), 0.0);
      benchmark->run(seconds);
      ASSERT_EQ(benchmark->parts()[0].name, "total");
      double pieces = 0;
      for (std::size_t i = 0; i < seconds.size(); ++i) {
        EXPECT_GT(seconds[i], 0.0) << row.kind << " " << benchmark->parts()[i].name;
        const bool is_twin = benchmark->parts()[i].name.starts_with("without_pass.");
        if (i > 0 && !is_twin) pieces += seconds[i];
      }
      if (seconds.size() > 1) {  // rounding of a few dozen additions
        EXPECT_LE(std::abs(pieces - seconds[0]), 1e-9 * seconds[0]);
      }
    }
}

TEST(Bench, MeasuresTheProductsOfItsPrecision) {
  for (const char* precision : {"fp32", "bf16", "int8"}) {
    train::RunConfig run = run_config(precision);
    run.compiler.explain_dispatch = true;
    std::string text;
    const LogScope messages([&](Severity, const std::string& line) { text += line + "\n"; });
    for (const char* outliers : {"0", "0.5"}) {
      Settings settings({{"rows", "40"}, {"in", "164"}, {"out", "96"}, {"outliers", outliers}});
      const Check check = make_benchmark("gemm", run, settings, false)->check();
      EXPECT_LE(check.error, check.bound) << precision << " " << outliers;
    }
    Settings of_loss({{"tokens", "40"}, {"hidden", "64"}, {"vocabulary", "96"}});
    const Check of_head = make_benchmark("loss", run, of_loss, false)->check();
    EXPECT_LE(of_head.error, of_head.bound) << precision;
    for (const char* op :
         {"linear", "linear_input_gradient", "linear_weight_gradient", "head_loss_with_gradient"}) {
      const bool in_int8 = text.find(fmt::format("cpu:{}_int8", op)) != std::string::npos;
      EXPECT_EQ(in_int8, precision == std::string_view("int8")) << op << " in " << precision;
    }
  }
}

train::RunConfig int8_config(std::int64_t fallback) {
  train::RunConfig run = run_config("int8");
  run.precision.int8.fallback = fallback;
  return run;
}

// Check compares all int8 values and packings with their definition, bit for bit.
TEST(Bench, QuantizesAsProductsDo) {
  for (const std::int64_t fallback : {64, 128})
    for (const Settings::Texts& sizes :
         {Settings::Texts{{"rows", "40"}, {"in", "64"}, {"out", "96"}},
          Settings::Texts{{"rows", "130"}, {"in", "200"}, {"out", "33"}}}) {
      Settings settings(sizes);
      const auto benchmark = make_benchmark("quantize", int8_config(fallback), settings, false);
      const Check check = benchmark->check();
      EXPECT_LE(check.error, check.bound);
      const std::vector<Part>& parts = benchmark->parts();
      std::vector<double> seconds(parts.size(), 0.0);
      benchmark->run(seconds);
      double operands = 0;
      for (std::size_t i = 0; i < parts.size(); ++i) {
        EXPECT_GT(seconds[i], 0.0) << parts[i].name;
        if (i > 0 && i <= 4) operands += seconds[i];
      }
      EXPECT_LE(std::abs(operands - seconds[0]), 1e-9 * seconds[0]);  // rounding of additions
      // Off, what the run has, 16 and 0.
      EXPECT_EQ(parts.size(), 9u + 4u * (fallback == 128 ? 3 : 4));
      EXPECT_EQ(parts[1].name, "x_rows");
      EXPECT_EQ(parts[1].of, fallback == 128 ? "forward_off" : "forward_64");
      EXPECT_EQ(parts.back().name, "weight_gradient_0");
      EXPECT_EQ(parts.back().of, "weight_gradient_off");
    }
  Settings settings(Settings::Texts{});
  EXPECT_THAT(
      message_of([&] { (void)make_benchmark("quantize", run_config("bf16"), settings, false); }),
      HasSubstr("quantize: expected --train.precision int8, got bf16"));
  Settings narrow(Settings::Texts{{"in", "31"}});
  EXPECT_THAT(message_of([&] { (void)make_benchmark("quantize", int8_config(64), narrow, false); }),
              HasSubstr("--in: expected an integer in [32, "));
}

// 0.4 % of the blocks at 64, a tenth at 16, all at 0, along rows and along columns.
TEST(Bench, BlocksFallBackInTheSharesThatItNames) {
  constexpr std::int64_t kRows = 1024, kColumns = 512;
  std::vector<float> x(kRows * kColumns), turned(x.size());
  for (std::int64_t i = 0; i < kRows * kColumns; ++i) {
    const auto at = static_cast<std::size_t>(i);
    x[at] = with_outliers(deviate("x", i), i, kColumns);
    turned[static_cast<std::size_t>(i % kColumns * kRows + i / kColumns)] = x[at];
  }
  for (const bool by_rows : {true, false}) {
    const auto share = [&](int fallback) {
      const auto coded = by_rows ? kernels::ref::code_lines(x, kRows, kColumns, fallback)
                                 : kernels::ref::code_lines(turned, kColumns, kRows, fallback);
      return static_cast<double>(std::ranges::count(coded.falls_back, true)) /
             static_cast<double>(coded.falls_back.size());
    };
    EXPECT_GT(share(64), 0.001) << by_rows;
    EXPECT_LT(share(64), 0.015) << by_rows;
    EXPECT_GT(share(16), 0.07) << by_rows;
    EXPECT_LT(share(16), 0.13) << by_rows;
    EXPECT_EQ(share(0), 1.0) << by_rows;
    EXPECT_EQ(share(128), 0.0) << by_rows;
  }
}

TEST(Bench, RatiosAreMediansOfTheRoundsOwn) {
  const std::vector<Part> parts{{"a", 0, 0, "b"}, {"b", 0, 0}};
  const std::vector<Round> rounds{{1, 1, {1, 2}}, {1, 1, {3, 3}}, {1, 1, {8, 2}}};
  const std::vector<PartResult> results = summarize(parts, rounds);
  EXPECT_EQ(results[0].ratio, 1);
  EXPECT_EQ(results[1].ratio, 0);
}

TEST(Bench, AddsToGradientsWhenAsked) {
  Settings settings({{"rows", "9"}, {"in", "24"}, {"out", "40"}});
  const auto benchmark = make_benchmark("gemm", run_config("bf16"), settings, true);
  std::vector<double> seconds(benchmark->parts().size(), 0.0);
  for (int i = 0; i < 3; ++i) benchmark->run(seconds);
  EXPECT_GT(seconds[0], 0.0);
}

// y = x · weightᵀ with one element of the reference's weight (or row of x) changed by `fault`.
MakeCase faulty_case(std::string_view parameter, float fault) {
  return [=](std::int64_t first) {
    const bool is_reference = first > 0;
    CaseBuilder builder("faulty", is_reference ? first : 12);
    const ir::ValueId x = builder.rows("x", 24);
    const ir::ValueId weight = builder.parameter("weight", {40, 24});
    const ir::ValueId y = builder.timed("mlp").add1("linear", {x, weight});
    GraphCase made = builder.finish(y, {{{"total", 1, 0}, {Phase::kForward}}});
    if (is_reference)
      made.value = [=, value = made.value](std::string_view name, std::int64_t i) {
        return value(name, i) + (name == parameter && i == 7 ? fault : 0.0f);
      };
    return made;
  };
}

TEST(Bench, ChecksFindAPlantedFault) {
  for (const char* precision : {"fp32", "bf16"}) {
    const auto message = [&](std::string_view parameter, float fault) {
      const auto benchmark =
          make_graph_benchmark(run_config(precision), faulty_case(parameter, fault), false);
      return message_of([&] { (void)benchmark->check(); });
    };
    EXPECT_EQ(message("weight", 0), "");
    EXPECT_THAT(message("weight", 3), HasSubstr("differs from the reference on 12 tokens"));
    EXPECT_THAT(message("x", 3), HasSubstr("differs from the reference"));
    EXPECT_THAT(message("weight", std::numeric_limits<float>::quiet_NaN()),
                HasSubstr("differs from the reference"));
  }
}

TEST(Bench, ComparisonFindsWhatIsFarLongerOrNotANumber) {
  const std::vector<float> want{1, -2, 3}, nothing(3, 0.0f);
  const auto message = [&](const std::vector<float>& got, const std::vector<float>& wanted) {
    return message_of([&] { Comparison(0.01, 5).add("tensor", got, wanted); });
  };
  EXPECT_EQ(message({1, -2, 3}, want), "");
  EXPECT_EQ(message({1, -2, 3.03f}, want), "");
  EXPECT_EQ(message({1, -2, 3, 0}, want), "");
  EXPECT_EQ(message(nothing, nothing), "");
  for (const std::vector<float>& wrong : {std::vector<float>{1, 2, 3},
                                          {1, -2, 3.1f},
                                          {-2, 1, 3},
                                          {0, 0, 0},
                                          {1, -2, 3, 0.1f},
                                          {1, -2, std::numeric_limits<float>::quiet_NaN()},
                                          {1, -2, std::numeric_limits<float>::infinity()}})
    EXPECT_THAT(message(wrong, want), HasSubstr("tensor differs from the reference on 5 tokens"));
  EXPECT_NE(message({0, 0, 1e-30f}, nothing), "");
}

TEST(Bench, RefusesSizesThatItDoesNotKnow) {
  const auto message = [](std::string_view kind, Settings::Texts texts) {
    return message_of([&] {
      Settings settings(std::move(texts));
      (void)make_benchmark(kind, run_config("fp32"), settings, false);
    });
  };
  EXPECT_THAT(message("gem", {}), HasSubstr("did you mean gemm?"));
  EXPECT_THAT(message("gemm", {{"rows", "0"}}), HasSubstr("--rows: expected an integer in [1, "));
  EXPECT_THAT(message("gemm", {{"rows", "4x"}}), HasSubstr("expected an integer, got '4x'"));
  EXPECT_THAT(message("gemm", {{"outliers", "2"}}), HasSubstr("--outliers: expected a number in"));
  EXPECT_THAT(message("gemm", {{"zipf", "1"}}), HasSubstr("gemm has no setting --zipf"));
  EXPECT_THAT(message("moe", {{"top_k", "9"}}), HasSubstr("--top_k <= --experts <= --hidden"));
  EXPECT_THAT(message("loss", {{"ignored", "1"}}), HasSubstr("--ignored: expected a number in"));
  EXPECT_THAT(message("norm", {{"op", "softmax"}}), HasSubstr("--op: expected one of rms_norm"));
  EXPECT_THAT(message("attention", {{"kv_heads", "3"}}), HasSubstr("multiple of --kv_heads"));
  EXPECT_THAT(message("step", {}), HasSubstr("--model.path"));
}

TEST(Bench, MediansComeFromEachRoundsOwnProbes) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  const std::vector<Part> parts{{"total", 100, 0}};
  const std::vector<Round> rounds{{100, 10, {1}}, {50, 10, {2}}, {200, 10, {4}}};
  const std::vector<PartResult> results = summarize(parts, rounds);
  EXPECT_EQ(results[0].seconds, 2);
  EXPECT_EQ(results[0].peak_share, 1);  // of 1, 1 and 1/8
  EXPECT_EQ(results[0].copy_share, 0);
}

TEST(Bench, RoutesToDifferentExpertsByPopularity) {
  constexpr std::int64_t kExperts = 16, kTopK = 3, kTokens = 2000;
  for (const double zipf : {0.0, 1.2}) {
    std::vector<int> rows(kExperts, 0);
    for (std::int64_t token = 0; token < kTokens; ++token) {
      const std::vector<std::int64_t> chosen = choose_experts(kExperts, kTopK, zipf, token);
      ASSERT_EQ(std::set<std::int64_t>(chosen.begin(), chosen.end()).size(), 3u);
      for (const std::int64_t expert : chosen) ++rows.at(static_cast<std::size_t>(expert));
    }
    const double mean = static_cast<double>(kTokens * kTopK) / kExperts;
    if (zipf == 0) {
      for (const int count : rows) EXPECT_LT(std::abs(count - mean), 0.2 * mean);
    } else {
      EXPECT_GT(rows.front(), 3 * mean);
      EXPECT_LT(rows.back(), 0.6 * mean);
    }
  }
}

TEST(Calibration, DrawsALineThroughTwoSizes) {
  // 1 ms a call in addition to half of the roof.
  const auto line = price_of(
      {.calls = 2, .seconds = 2 * 0.005, .roof_seconds = 2 * 0.002, .weight_bytes = 2 * 4096},
      {.calls = 1, .seconds = 0.017, .roof_seconds = 0.008, .weight_bytes = 4096});
  ASSERT_TRUE(line);
  EXPECT_EQ(line->weight_bytes, 4096);
  EXPECT_EQ(std::lround(1e6 * line->share_of_roof), 500000);
  EXPECT_EQ(std::lround(1e9 * line->fixed_seconds), 1000000);
  // Calls of one size, as an update's: one share.
  const auto same = price_of({.calls = 1, .seconds = 0.004, .roof_seconds = 0.002},
                             {.calls = 1, .seconds = 0.006, .roof_seconds = 0.002});
  ASSERT_TRUE(same);
  EXPECT_EQ(std::lround(1e6 * same->share_of_roof), 400000);
  EXPECT_EQ(same->fixed_seconds, 0);
  // Updates of other weights.
  const auto others =
      price_of({.calls = 1, .seconds = 0.004, .roof_seconds = 0.002, .weight_bytes = 4096},
               {.calls = 1, .seconds = 0.011, .roof_seconds = 0.008, .weight_bytes = 16384});
  ASSERT_TRUE(others);
  EXPECT_EQ(std::lround(1e3 * others->share_of_roof), 667);
  EXPECT_EQ(others->fixed_seconds, 0);
  // Slower than its roof grows: the larger size's share, nothing fixed.
  const auto steep = price_of({.calls = 1, .seconds = 0.004, .roof_seconds = 0.002},
                              {.calls = 1, .seconds = 0.020, .roof_seconds = 0.008});
  ASSERT_TRUE(steep);
  EXPECT_EQ(std::lround(1e6 * steep->share_of_roof), 400000);
  EXPECT_EQ(steep->fixed_seconds, 0);
  // Noise that would be drawn out to a multiple of what was reached.
  const auto noise = price_of({.calls = 1, .seconds = 0.0199, .roof_seconds = 0.002},
                              {.calls = 1, .seconds = 0.020, .roof_seconds = 0.008});
  ASSERT_TRUE(noise);
  EXPECT_EQ(std::lround(1e6 * noise->share_of_roof), 600000);
  EXPECT_GT(noise->fixed_seconds, 0);
  EXPECT_FALSE(price_of({}, {.calls = 1, .seconds = 1e-6, .roof_seconds = 1e-6}));
  EXPECT_FALSE(price_of({}, {}));
}

}  // namespace
}  // namespace anabatic::bench
