// SPDX-License-Identifier: Apache-2.0
// The closed forms of docs/internals/memory.md against the accounting, to the byte.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/rounding.h"
#include "device/topology.h"
#include "lower/compile.h"
#include "model/model.h"
#include "plan/account.h"
#include "support/tiny_run.h"

namespace anabatic::testing {
namespace {

using spec::SavedForm;

struct Shape {
  const char* family;
  std::int64_t tokens, layers, hidden, heads, kv_heads, head_dim, inner;
  std::int64_t experts = 0, top_k = 0;
};

void PrintTo(const Shape& s, std::ostream* out) {
  *out << fmt::format("{} T {} L {} h {} a {} g {} d {} f {} E {} k {}", s.family, s.tokens,
                      s.layers, s.hidden, s.heads, s.kv_heads, s.head_dim, s.inner, s.experts,
                      s.top_k);
}

bool is_qwen(const Shape& s) { return std::string_view(s.family) == "qwen3_moe"; }

model::ModelConfig config_of(const Shape& s) {
  const TemporaryDirectory folder;
  const auto file = folder.path() / "config.json";
  std::string text = fmt::format(
      R"("model_type": "{}", "vocab_size": 50, "hidden_size": {}, "num_hidden_layers": {},
         "num_attention_heads": {}, "num_key_value_heads": {}, "head_dim": {},
         "intermediate_size": {}, "max_position_embeddings": 128, "hidden_act": "silu",
         "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": false,
         "bos_token_id": 1, "eos_token_id": 2)",
      s.family, s.hidden, s.layers, s.heads, s.kv_heads, s.head_dim, s.inner);
  if (s.experts > 0)
    text += fmt::format(R"(, "{}": {}, "num_experts_per_tok": {}, "router_aux_loss_coef": 0.01)",
                        is_qwen(s) ? "num_experts" : "num_local_experts", s.experts, s.top_k);
  if (is_qwen(s)) text += fmt::format(R"(, "moe_intermediate_size": {})", s.inner);
  std::ofstream(file) << "{" + text + "}";
  return model::load_config(file);
}

// A norm in front of dense products leaves statistics of a row. Experts gather the rows themselves.
constexpr std::int64_t kStatistics = 4;
// The norm at a layer's begin counts in the layer below; the last layer's next norm is the head's.
std::int64_t first_norms(const Shape& s, std::int64_t, std::int64_t layer) {
  return kStatistics * ((layer == 0) + (layer < s.layers - 1));
}
std::int64_t second_norm(const Shape& s, std::int64_t b) {
  return s.experts == 0 ? kStatistics : b * s.hidden;
}

// Bytes a token that layer `layer` saves, with activations of `b` bytes: see
// docs/internals/memory.md.
std::int64_t bytes_a_token(const Shape& s, std::int64_t b, std::int64_t layer) {
  const std::int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  std::int64_t bytes = 2 * b * s.hidden + second_norm(s, b);  // two sums
  bytes += first_norms(s, b, layer);
  bytes += 2 * b * (q + kv) + 4 * s.heads;  // q, k, v, output; log-sum-exp
  if (is_qwen(s)) bytes += b * (q + kv);    // q and k before their norms
  if (s.experts == 0) return bytes + 3 * b * s.inner;
  return bytes + s.top_k * (3 * b * s.inner + 16) + 4 * s.experts;
}

// Whatever the number of tokens: offsets of the experts' rows, and their counts.
std::int64_t bytes_a_layer(const Shape& s) {
  return s.experts == 0 ? 0 : 4 * (s.experts + 1) + 4 * s.experts;
}

class ClosedForms : public ::testing::TestWithParam<Shape> {};

TEST_P(ClosedForms, EqualTheAccountToTheByte) {
  const Shape& s = GetParam();
  const model::ModelConfig config = config_of(s);
  for (const auto precision : {lower::Precision::kBf16, lower::Precision::kFp32}) {
    lower::CompileOptions options;
    options.precision = precision;
    const lower::Compiled compiled =
        lower::compile(model::build_graph(config, {.num_tokens = s.tokens, .balance_coef = 0.01}),
                       options, device::describe_cpu(2));
    const auto saved = make_account(compiled.graph, compiled.plan).saved_by_layer;
    const std::int64_t b = precision == lower::Precision::kBf16 ? 2 : 4;
    for (std::int64_t layer = 0; layer < s.layers; ++layer)
      EXPECT_EQ(saved.at(static_cast<std::int32_t>(layer)),
                s.tokens * bytes_a_token(s, b, layer) + bytes_a_layer(s))
          << "layer " << layer << ", " << b << " bytes";
    // The embedding's rows, their gradient from the head, and the rotations' table in f32.
    EXPECT_EQ(saved.at(-1), s.tokens * (2 * b * s.hidden + 4 * s.head_dim));
  }
}

struct Drop {
  std::vector<std::string> hints;  // of memory.recompute
  // Bytes a token that a layer no longer saves.
  std::int64_t (*bytes)(const Shape& s, std::int64_t b, std::int64_t layer);
};

std::int64_t inner_rows(const Shape& s) { return s.experts == 0 ? s.inner : s.top_k * s.inner; }

std::vector<Drop> drops(const Shape& shape) {
  const std::string inner = shape.experts == 0 ? "mlp" : "experts";
  return {
      {{"attention_norm"}, first_norms},
      {{"mlp_norm"}, [](const Shape& s, auto b, auto) { return second_norm(s, b); }},
      {{inner + ".activation"}, [](const Shape& s, auto b, auto) { return b * inner_rows(s); }},
      {{inner + ".up"}, [](const Shape& s, auto b, auto) { return b * inner_rows(s); }},
      {{inner + ".gate", inner + ".up", inner + ".activation"},
       [](const Shape& s, auto b, auto) { return 3 * b * inner_rows(s); }},
      // With norms of heads one node norms and rotates queries and keys.
      {{"attention.q_rope"},
       [](const Shape& s, auto b, auto) {
         return b * (s.heads + (is_qwen(s) ? s.kv_heads : 0)) * s.head_dim;
       }},
      {{"attention.k_rope", "attention.v"},
       [](const Shape& s, auto b, auto) {
         return b * (2 * s.kv_heads + (is_qwen(s) ? s.heads : 0)) * s.head_dim;
       }},
      {{"attention.q_rope", "attention.k_rope", "attention.v"},
       [](const Shape& s, auto b, auto) { return b * (s.heads + 2 * s.kv_heads) * s.head_dim; }},
      {{"attention.attention:0"},
       [](const Shape& s, auto b, auto) { return s.heads * (b * s.head_dim + 4); }},
      {{"attention_norm", "mlp_norm", inner + ".activation"},
       [](const Shape& s, auto b, auto layer) {
         return first_norms(s, b, layer) + second_norm(s, b) + b * inner_rows(s);
       }}};
}

TEST_P(ClosedForms, EqualTheAccountUnderEachRecomputeChoice) {
  const Shape& s = GetParam();
  const model::ModelConfig config = config_of(s);
  for (const auto precision : {lower::Precision::kBf16, lower::Precision::kFp32})
    for (const Drop& drop : drops(s)) {
      lower::CompileOptions options;
      options.precision = precision;
      options.memory.recompute = drop.hints;
      const lower::Compiled compiled =
          lower::compile(model::build_graph(config, {.num_tokens = s.tokens, .balance_coef = 0.01}),
                         options, device::describe_cpu(2));
      const auto saved = make_account(compiled.graph, compiled.plan).saved_by_layer;
      const std::int64_t b = precision == lower::Precision::kBf16 ? 2 : 4;
      for (std::int64_t layer = 0; layer < s.layers; ++layer)
        EXPECT_EQ(
            saved.at(static_cast<std::int32_t>(layer)),
            s.tokens * (bytes_a_token(s, b, layer) - drop.bytes(s, b, layer)) + bytes_a_layer(s))
            << drop.hints[0] << ", layer " << layer << ", " << b << " bytes";
    }
}

// The bytes that a matrix no longer takes.
std::int64_t compressed(SavedForm form, std::int64_t b, std::int64_t rows, std::int64_t width) {
  if (form == SavedForm::kBFloat16) return rows * width * (b - 2);
  return rows * width * b - round_up(rows * width, kScalesAlignment) -
         2 * rows * ceil_div(width, std::int64_t{128});
}

TEST_P(ClosedForms, EqualTheAccountUnderCompression) {
  const Shape& s = GetParam();
  const model::ModelConfig config = config_of(s);
  for (const auto& [b, form] : {std::pair{2, SavedForm::kInt8}, std::pair{4, SavedForm::kInt8},
                                std::pair{4, SavedForm::kBFloat16}}) {
    const std::string inner = s.experts == 0 ? "mlp" : "experts";
    lower::CompileOptions options;
    options.precision = b == 2 ? lower::Precision::kBf16 : lower::Precision::kFp32;
    options.memory.compression = {.allowed = form, .min_bytes = 0};
    options.memory.compress = {inner + ".gate", inner + ".up", inner + ".activation",
                               "attention.attention:0"};
    const lower::Compiled compiled =
        lower::compile(model::build_graph(config, {.num_tokens = s.tokens, .balance_coef = 0.01}),
                       options, device::describe_cpu(2));
    const auto saved = make_account(compiled.graph, compiled.plan).saved_by_layer;
    const std::int64_t less =
        3 * compressed(form, b, s.tokens * (s.experts == 0 ? 1 : s.top_k), s.inner) +
        compressed(form, b, s.tokens, s.heads * s.head_dim);
    for (std::int64_t layer = 0; layer < s.layers; ++layer)
      EXPECT_EQ(saved.at(static_cast<std::int32_t>(layer)),
                s.tokens * bytes_a_token(s, b, layer) - less + bytes_a_layer(s))
          << "layer " << layer << ", " << b << " bytes";
  }
}

// Where products cost more than passing over memory.
TEST(SavedForm, IsTakenWhereItIsCheaperThanProducts) {
  const model::ModelConfig config = config_of({"llama", 256, 4, 256, 4, 4, 64, 768});
  const auto compiled = [&](std::int64_t budget, SavedForm allowed) {
    lower::CompileOptions options;
    options.precision = lower::Precision::kBf16;
    options.pack_transposed = false;  // otherwise the cheapest way to free bytes
    options.memory.budget_bytes = budget;
    options.memory.compression.allowed = allowed;
    return lower::compile(model::build_graph(config, {.num_tokens = 256}), options,
                          device::describe_cpu(2));
  };
  const lower::Compiled whole = compiled(0, SavedForm::kInt8);
  EXPECT_TRUE(whole.memory.choices.empty());
  const std::int64_t budget = whole.plan.peak_bytes() - whole.plan.frame_bytes * 2 / 3;
  const lower::Compiled exact = compiled(budget, SavedForm::kWhole),
                        close = compiled(budget, SavedForm::kInt8);
  EXPECT_LE(close.plan.peak_bytes(), budget);
  EXPECT_TRUE(exact.memory.decisions.saved_as.empty());
  EXPECT_FALSE(close.memory.decisions.saved_as.empty());
  EXPECT_LT(close.memory.added_seconds, exact.memory.added_seconds);
  EXPECT_NE(to_string(close.memory).find(" as int8"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Families, ClosedForms,
                         ::testing::Values(Shape{"llama", 24, 3, 32, 4, 4, 8, 48},
                                           Shape{"llama", 37, 4, 40, 4, 2, 10, 56},
                                           Shape{"llama", 64, 5, 48, 6, 1, 8, 96},
                                           Shape{"mixtral", 24, 3, 32, 4, 2, 8, 48, 4, 2},
                                           Shape{"mixtral", 33, 4, 64, 8, 8, 8, 40, 8, 3},
                                           Shape{"mixtral", 64, 6, 48, 4, 1, 12, 24, 3, 1},
                                           Shape{"qwen3_moe", 24, 3, 32, 4, 2, 16, 24, 8, 2},
                                           Shape{"qwen3_moe", 41, 4, 48, 6, 3, 8, 16, 16, 4},
                                           Shape{"qwen3_moe", 64, 5, 64, 8, 2, 8, 32, 12, 5}));

}  // namespace
}  // namespace anabatic::testing
