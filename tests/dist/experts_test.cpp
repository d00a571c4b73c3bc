// SPDX-License-Identifier: Apache-2.0
// Ranks that share the experts of a model, as threads: what they compute is what one rank computes
// of the same tokens.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <mutex>

#include "base/philox.h"
#include "device/thread_team.h"
#include "device/topology.h"
#include "lower/compile.h"
#include "model/model.h"
#include "ops/table.h"
#include "runtime/executor.h"
#include "runtime/verify_schedule.h"
#include "support/ranks.h"
#include "support/tolerance.h"
#include "tensor/panels.h"
#include "train/derived_states.h"
#include "train/ranks/planned_exchanges.h"
#include "train/state_rows.h"
#include "unit/io/test_files.h"

namespace anabatic {
namespace {

using ::testing::Contains;

constexpr std::int64_t kMicroBatches = 2, kVocabulary = 32;

// Values of a name in row-major order.
using Tensors = std::map<std::string, std::vector<float>>;

std::vector<float> floats_of(const TensorView& view) {
  std::vector<float> values(static_cast<std::size_t>(view.type->num_elements()));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = view.as<float>()[element_offset(*view.type, static_cast<std::int64_t>(i))];
  return values;
}

struct Setting {
  std::string text;
  spec::Precision precision = spec::Precision::kFp32;
  bool is_trivial = false;  // planners; with poisoned arenas
  std::set<std::string, std::less<>> passes_off{};
};

// A graph, its weights, and the inputs of each micro-batch of each rank.
struct Case {
  ir::Graph graph;
  // Row-major values of a whole parameter.
  std::function<std::vector<float>(std::string_view name, const TensorType& whole)> parameter;
  std::function<void(std::int64_t sample, const runtime::NamedOperand& input, std::byte* data)>
      fill;
};

lower::Compiled compile(const Case& each, const Setting& setting, const spec::Mesh& mesh,
                        std::int32_t rank, bool training) {
  lower::CompileOptions options{.precision = setting.precision,
                                .training = training,
                                .micro_batches = kMicroBatches,
                                .with_update = false,
                                .disabled_passes = setting.passes_off,
                                .trivial_planners = setting.is_trivial,
                                .mesh = mesh,
                                .rank = rank};
  return lower::compile(each.graph, options, device::describe_cpu(1));
}

// The parameters of a rank's rows, and what is derived from them.
void initialise(const Case& each, const lower::Compiled& compiled, runtime::StateStore& store,
                device::ThreadTeam& team) {
  std::vector<ir::State> derived;
  for (const ir::State& state : compiled.graph.states) {
    if (state.kind() == ir::StateKind::kDerived) derived.push_back(state);
    if (state.kind() != ir::StateKind::kParameter) continue;
    const TensorType& held = *store.find(state.name).type;
    TensorType whole = tensor_type(DType::kFloat32, {});
    whole.shape = held.shape;
    if (!state.rows.is_whole()) whole.shape[0] *= state.rows.total / state.rows.count;
    const std::vector<float> values = each.parameter(text(state.name), whole);
    train::write_rows(
        train::find_rows(store, state.name), 0,
        std::span(values).subspan(static_cast<std::size_t>(state.rows.first * held.dim(-1)),
                                  static_cast<std::size_t>(held.num_elements())));
  }
  train::refresh_derived(derived, store, team, device::describe_cpu(1));
}

// Outputs of the last micro-batch, and sums of gradients.
Tensors run(const Case& each, const Setting& setting, const lower::Compiled& compiled,
            const runtime::RankContext& context, std::int64_t rank) {
  runtime::StateStore store;
  device::ThreadTeam team(1);
  runtime::Executor executor(compiled.program, store, team,
                             {.poison = setting.is_trivial, .rank = context});
  initialise(each, compiled, store, team);
  if (context.communicator != nullptr) context.communicator->begin_step(1, 1);
  Tensors results;
  for (const spec::StepEntry& entry : runtime::schedule_of(compiled.program, kMicroBatches)) {
    if (entry.action == spec::Action::kForward)
      for (const runtime::NamedOperand& input : compiled.program.inputs)
        each.fill(rank * kMicroBatches + entry.micro_batch, input,
                  executor.input(input.name).data());
    executor.run(entry);
  }
  for (const runtime::NamedOperand& output : compiled.program.layouts.front().outputs)
    if (output.operand.type.dtype == DType::kFloat32)
      results[output.name] = floats_of(executor.output(output.name));
  return results;
}

std::vector<Tensors> run_alone(const Case& each, const Setting& setting, std::int32_t num_ranks,
                               bool training = true) {
  const lower::Compiled compiled = compile(each, setting, {}, 0, training);
  std::vector<Tensors> results;
  for (std::int32_t rank = 0; rank < num_ranks; ++rank)
    results.push_back(run(each, setting, compiled, {}, rank));
  return results;
}

std::vector<Tensors> run_together(const Case& each, const Setting& setting, const spec::Mesh& mesh,
                                  bool training = true) {
  std::vector<Tensors> results(static_cast<std::size_t>(mesh.world()));
  const auto errors = testing::run_ranks(mesh.world(), {}, [&](comm::Communicator& communicator) {
    const std::int32_t rank = communicator.rank();
    const lower::Compiled compiled = compile(each, setting, mesh, rank, training);
    results[static_cast<std::size_t>(rank)] =
        run(each, setting, compiled, {.mesh = mesh, .communicator = &communicator}, rank);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  return results;
}

bool is_cut(std::string_view name) {
  return name.starts_with("gradients.") && name.find(".experts.") != std::string_view::npos;
}

// The sums over a group of the ranks' own gradients: the values that a member holds of them.
std::vector<double> sum_of(const std::vector<Tensors>& alone, const spec::Mesh& mesh,
                           std::int32_t rank, const std::string& name, std::size_t size) {
  const auto first =
      size * static_cast<std::size_t>(spec::coordinates_of(mesh, rank)[spec::Axis::kExpert]);
  std::vector<double> sum(size, 0.0);
  for (const std::int32_t member : spec::group_of(mesh, {spec::Axis::kExpert}, rank))
    for (std::size_t i = 0; i < size; ++i)
      sum[i] += double{alone[static_cast<std::size_t>(member)].at(name).at(first + i)};
  return sum;
}

// To the bit, but for gradients of experts: within `bound` of their norm.
void expect_same(const std::vector<Tensors>& together, const std::vector<Tensors>& alone,
                 const spec::Mesh& mesh, double bound) {
  int num_cut = 0;
  bool is_moved = false;
  for (std::int32_t rank = 0; rank < mesh.world(); ++rank) {
    const Tensors &got = together[static_cast<std::size_t>(rank)],
                  &want = alone[static_cast<std::size_t>(rank)];
    ASSERT_EQ(got.size(), want.size());
    for (const auto& [name, values] : got) {
      SCOPED_TRACE(fmt::format("rank {}: {}", rank, name));
      if (!is_cut(name)) {
        EXPECT_EQ(values, want.at(name));
        continue;
      }
      const std::vector<double> sum = sum_of(alone, mesh, rank, name, values.size());
      ++num_cut;
      double error = 0, norm = 0;
      for (std::size_t i = 0; i < sum.size(); ++i) {
        error += (values[i] - sum[i]) * (values[i] - sum[i]);
        norm += sum[i] * sum[i];
      }
      is_moved |= norm > 0;
      EXPECT_TRUE(std::sqrt(error) <= bound * std::sqrt(norm))
          << std::sqrt(error) << " of " << std::sqrt(norm);
    }
  }
  EXPECT_TRUE(num_cut > 0 && is_moved);
}

// --- Models ---

const char* const kMixtral =
    R"({"model_type": "mixtral", "hidden_size": 32, "intermediate_size": 24,
 "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "num_local_experts": 8,
 "num_experts_per_tok": 2, "max_position_embeddings": 64, "vocab_size": 32, "rms_norm_eps": 1e-05,
 "hidden_act": "silu", "rope_theta": 10000.0, "tie_word_embeddings": false})";
const char* const kWideMixtral =
    R"({"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 256,
 "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "num_local_experts": 8,
 "num_experts_per_tok": 2, "max_position_embeddings": 64, "vocab_size": 32, "rms_norm_eps": 1e-05,
 "hidden_act": "silu", "rope_theta": 10000.0, "tie_word_embeddings": false})";
const char* const kQwen3 =
    R"({"model_type": "qwen3_moe", "hidden_size": 32, "intermediate_size": 24,
 "moe_intermediate_size": 16, "head_dim": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
 "num_hidden_layers": 2, "num_experts": 16, "num_experts_per_tok": 4, "norm_topk_prob": true,
 "decoder_sparse_step": 1, "mlp_only_layers": [], "max_position_embeddings": 64, "vocab_size": 32,
 "rms_norm_eps": 1e-06, "hidden_act": "silu", "rope_theta": 10000.0, "tie_word_embeddings": true})";

// With an expert of every token.
const char* const kQwen2 =
    R"({"model_type": "qwen2_moe", "hidden_size": 32, "intermediate_size": 24,
 "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24, "num_attention_heads": 4,
 "num_key_value_heads": 2, "num_hidden_layers": 2, "num_experts": 8, "num_experts_per_tok": 2,
 "norm_topk_prob": false, "decoder_sparse_step": 1, "mlp_only_layers": [],
 "max_position_embeddings": 64, "vocab_size": 32, "rms_norm_eps": 1e-06, "hidden_act": "silu",
 "rope_theta": 10000.0, "tie_word_embeddings": false, "use_sliding_window": false})";

// 24 tokens a micro-batch, the last two of them padding. Routers of zeroes send every token to the
// first experts.
Case model_case(const char* config_json, bool has_routers) {
  constexpr std::int64_t kTokens = 24, kPadding = 2;
  const io::TempDirectory folder;
  std::ofstream(folder / "config.json") << config_json;
  const model::ModelConfig config = model::load_config(folder / "config.json");
  const auto parameter = [=](std::string_view name, const TensorType& whole) {
    std::vector<float> values(static_cast<std::size_t>(whole.num_elements()));
    const bool is_zero = !has_routers && name.find("router") != std::string_view::npos;
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = is_zero ? 0.0f : static_cast<float>(0.3 * random_normal(1, stream_of(name), i));
    return values;
  };
  const auto fill = [](std::int64_t sample, const runtime::NamedOperand& input, std::byte* data) {
    auto* ints = reinterpret_cast<std::int32_t*>(data);
    const auto draw = [&](std::int64_t t) {
      return static_cast<std::int32_t>(random_below(static_cast<std::uint64_t>(sample), 7,
                                                    static_cast<std::uint64_t>(t), kVocabulary));
    };
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const bool is_padding = t >= kTokens - kPadding;
      if (input.name == "tokens") ints[t] = draw(t);
      if (input.name == "labels") ints[t] = is_padding ? -100 : draw(t + 1);
      if (input.name == "positions" || input.name == "key_end")
        ints[t] = static_cast<std::int32_t>(t) + (input.name == "key_end");
      if (input.name == "key_begin") ints[t] = 0;
      if (input.name == "documents") ints[t] = is_padding ? -1 : 0;
    }
    if (input.name.starts_with("inverse_"))
      *reinterpret_cast<float*>(data) = 1.0f / static_cast<float>(8 * kTokens);
  };
  return {.graph = model::build_graph(
              config, {.num_tokens = kTokens, .with_logits = true, .balance_coef = 0.01}),
          .parameter = parameter,
          .fill = fill};
}

// --- A layer of integers ---

// The experts that a token chooses.
struct Choice {
  std::string text;
  std::function<std::int32_t(std::uint64_t sample, std::int64_t token, std::int64_t j)> expert;
};
constexpr std::int64_t kExperts = 8, kTopK = 2;

std::int32_t any_expert(std::uint64_t sample, std::int64_t token, std::int64_t j) {
  const std::uint64_t first = random_below(sample, 1, static_cast<std::uint64_t>(token), kExperts);
  return static_cast<std::int32_t>((first + static_cast<std::uint64_t>(j) * 3) % kExperts);
}

const std::vector<Choice> kChoices{
    {"any", any_expert},
    {"none_of_two",
     [](std::uint64_t sample, std::int64_t token, std::int64_t j) {
       return any_expert(sample, token, j) / 2 * 2 % 6 + static_cast<std::int32_t>(j);
     }},
    {"the_first_alone",
     [](std::uint64_t, std::int64_t, std::int64_t j) { return static_cast<std::int32_t>(j); }},
    {"the_last_alone", [](std::uint64_t, std::int64_t,
                          std::int64_t j) { return static_cast<std::int32_t>(kExperts - 1 - j); }},
    {"none_of_six_on_even_ranks", [](std::uint64_t sample, std::int64_t token, std::int64_t j) {
       const bool is_even = sample / kMicroBatches % 2 == 0;
       return is_even ? static_cast<std::int32_t>(j) : any_expert(sample, token, j);
     }}};

// A layer of experts, with biases, whose values and gradients are multiples of 1/2 that f32 holds,
// so that any order of a sum is exact. The objective is linear in what the layer gives.
Case integer_case(const Choice& choice) {
  constexpr std::int64_t kTokens = 16, kWidth = 8, kInner = 16;
  ir::Graph graph;
  ir::GraphBuilder b(graph, ops::find_op);
  const auto floats = [](std::vector<std::int64_t> shape) {
    TensorType type = tensor_type(DType::kFloat32, {});
    type.shape.assign(shape.begin(), shape.end());
    return type;
  };
  const auto ints = [](std::initializer_list<std::int64_t> shape) {
    return tensor_type(DType::kInt32, shape);
  };
  const auto tag = [&](const char* segment) {
    b.set_tag({.phase = ir::Phase::kForward, .layer = 0, .segment = intern(segment)});
  };
  const ir::ValueId x = b.batch_input("x", floats({kTokens, kWidth})),
                    weights = b.batch_input("weights", floats({kTokens, kTopK})),
                    experts = b.batch_input("experts", ints({kTokens, kTopK})),
                    chosen = b.batch_input("chosen", ints({kTokens, 2})),
                    documents = b.batch_input("documents", ints({kTokens})),
                    scale = b.step_input("scale", floats({})),
                    gate = b.state("layers.0.experts.gate", floats({kExperts, kInner, kWidth}),
                                   ir::StateRole::kParameter),
                    down = b.state("layers.0.experts.down", floats({kExperts, kWidth, kInner}),
                                   ir::StateRole::kParameter),
                    gate_bias = b.state("layers.0.experts.gate_bias", floats({kExperts, kInner}),
                                        ir::StateRole::kParameter),
                    output_bias = b.state("layers.0.output_bias", floats({kExperts, kWidth}),
                                          ir::StateRole::kParameter);
  tag("dispatch");
  const auto sorted = b.add("route_sort", {experts}, {{"num_experts", kExperts}});
  const ir::ValueId rows = b.add1("permute", {x, sorted[0]}, {{"top_k", kTopK}});
  tag("experts");
  const ir::ValueId product =
      b.add1("grouped_linear", {rows, gate, sorted[2], gate_bias}, {{"bias", true}});
  const ir::ValueId inner = b.add1("activation", {product}, {{"activation", "relu2"}});
  const ir::ValueId out = b.add1("grouped_linear", {inner, down, sorted[2]});
  tag("combine");
  const ir::ValueId sums = b.add1("unpermute", {out, weights, sorted[1]});
  const ir::ValueId y = b.add1("expert_bias", {sums, output_bias, weights, experts});
  b.output(y, "y");
  tag("loss");
  graph.objective = b.add1("sequence_balance_loss", {scale, y, chosen, documents});
  b.output(*graph.objective, "loss");
  const auto parameter = [](std::string_view name, const TensorType& whole) {
    std::vector<float> values(static_cast<std::size_t>(whole.num_elements()));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(random_below(1, stream_of(name), i, 3)) - 1;
    return values;
  };
  const auto fill = [=](std::int64_t of, const runtime::NamedOperand& input, std::byte* data) {
    const auto sample = static_cast<std::uint64_t>(of);
    const std::int64_t columns = input.operand.type.ndim() > 1 ? input.operand.type.dim(1) : 1;
    for (std::int64_t i = 0; i < input.operand.type.num_elements(); ++i) {
      const auto below = [&](std::uint64_t bound) {
        return static_cast<std::int32_t>(
            random_below(sample, stream_of(input.name), static_cast<std::uint64_t>(i), bound));
      };
      auto& value = reinterpret_cast<float*>(data)[i];
      auto& number = reinterpret_cast<std::int32_t*>(data)[i];
      if (input.name == "x") value = static_cast<float>(below(5)) - 2;
      if (input.name == "weights") value = 0.5f * static_cast<float>(1 + below(3));
      if (input.name == "scale") value = 64;
      if (input.name == "chosen") number = below(kWidth);
      if (input.name == "documents") number = 0;
      if (input.name == "experts") number = choice.expert(sample, i / columns, i % columns);
    }
  };
  return {.graph = std::move(graph), .parameter = parameter, .fill = fill};
}

const std::vector<spec::Mesh> kMeshes{{.data = 2, .expert = 2},
                                      {.data = 4, .expert = 2},
                                      {.data = 4, .expert = 4},
                                      {.data = 8, .expert = 8}};
const std::vector<Setting> kSettings{{"fp32"},
                                     {"bf16", spec::Precision::kBf16},
                                     {"bf16 in poisoned arenas", spec::Precision::kBf16, true},
                                     {"fp32 without gathers",
                                      spec::Precision::kFp32,
                                      false,
                                      {"fuse_moe_permute", "fuse_exchange_rows"}}};

class Experts : public ::testing::TestWithParam<std::size_t> {};

TEST_P(Experts, OfSeveralRanksComputeWhatOneRankDoes) {
  const Setting& setting = kSettings[GetParam()];
  for (const auto& [json, has_routers] :
       {std::pair(kMixtral, true), {kMixtral, false}, {kQwen3, true}, {kQwen2, true}}) {
    const Case each = model_case(json, has_routers);
    const std::vector<Tensors> alone = run_alone(each, setting, 4);
    const DType dtype =
        setting.precision == spec::Precision::kBf16 ? DType::kBFloat16 : DType::kFloat32;
    for (const spec::Mesh& mesh : kMeshes) {
      if (mesh.data > 4 || (!has_routers && mesh.data != 4)) continue;
      SCOPED_TRACE(spec::to_string(mesh));
      expect_same(run_together(each, setting, mesh), alone, mesh,
                  testing::parity_bounds(2, 32, dtype).gradient);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Experts, ::testing::Range<std::size_t>(0, kSettings.size()),
                         [](const auto& index) {
                           std::string text = kSettings[index.param].text;
                           std::ranges::replace(text, ' ', '_');
                           return text;
                         });

// The ops that run while the rows of an exchange move, for each bf16 exchange of that phase and
// segment.
std::vector<std::vector<std::string>> ops_under_way(const lower::Compiled& compiled,
                                                    ir::Phase phase, std::string_view segment) {
  std::vector<ir::NodeId> order;
  for (const auto& [action, nodes] : compiled.plan.orders)
    for (const plan::PlannedNode& node : nodes) order.push_back(node.node);
  std::vector<std::vector<std::string>> result;
  for (const plan::Exchange& exchange : compiled.plan.exchanges) {
    const ir::Node& node = compiled.graph.node(exchange.node);
    if (node.tag.phase != phase || text(node.tag.segment) != segment ||
        compiled.graph.value(node.outputs[0]).type.dtype != DType::kBFloat16)
      continue;
    std::vector<std::string>& ops = result.emplace_back();
    for (std::int32_t i = exchange.posted_at + 1; i < exchange.awaited_at; ++i)
      ops.emplace_back(compiled.graph.node(order[static_cast<std::size_t>(i)]).op->name);
  }
  return result;
}

// Shared experts compute while rows go to the others, and weight gradients while theirs go back.
TEST(ExpertsPlan, ComputesWhileRowsMove) {
  const lower::Compiled compiled =
      compile(model_case(kQwen2, true), kSettings[1], {.data = 4, .expert = 4}, 0, true);
  const auto forward = ops_under_way(compiled, ir::Phase::kForward, "dispatch"),
             backward = ops_under_way(compiled, ir::Phase::kBackwardInput, "dispatch");
  ASSERT_EQ(forward.size(), 2u);
  ASSERT_EQ(backward.size(), 2u);
  for (const std::vector<std::string>& ops : forward)
    EXPECT_THAT(ops, Contains("linear_activation_with_products"));
  for (const std::vector<std::string>& ops : backward)
    EXPECT_THAT(ops, Contains("grouped_linear_weight_gradient").Times(3));
}

// Rows go to experts and back, in the forward and in the backward, if every rank gets as many.
TEST(ExpertsPlan, SendsTheShareOfOtherRanks) {
  constexpr std::int64_t kTokens = 24, kWidth = 32, kLayers = 2;
  const spec::Mesh mesh{.data = 4, .expert = 4};
  const lower::Compiled compiled = compile(model_case(kMixtral, true), kSettings[1], mesh, 0, true);
  std::int64_t bytes = 0;
  for (const train::PlannedExchange& exchange :
       train::planned_exchanges(compiled, mesh, kMicroBatches))
    if (exchange.bytes == kTokens * kTopK * kWidth * 2)
      bytes += exchange.count * exchange.sent_bytes;
  EXPECT_EQ(bytes, kMicroBatches * kLayers * 4 * kTokens * kTopK * kWidth * 2 * 3 / 4);
}

class IntegerExperts : public ::testing::TestWithParam<std::size_t> {};

TEST_P(IntegerExperts, GiveTheSameBitsOnAnyMesh) {
  const Case each = integer_case(kChoices[GetParam()]);
  for (const Setting& setting :
       {Setting{"default"}, Setting{.text = "plain", .is_trivial = true}}) {
    const std::vector<Tensors> alone = run_alone(each, setting, 8);
    for (const spec::Mesh& mesh : kMeshes) {
      SCOPED_TRACE(setting.text + ": " + spec::to_string(mesh));
      expect_same(run_together(each, setting, mesh), alone, mesh, 0);
    }
  }
}

// Every token chooses the two experts of the first rank. Rows of x go there with their weights, the
// sums come back, and their gradients go there. A row of routes goes to every other rank.
TEST(IntegerExpertsOfOneRank, SendWhatIsCounted) {
  constexpr std::int64_t kRows = 16 * kTopK, kRowBytes = 8 * sizeof(float);
  const Case each = integer_case(kChoices[2]);
  const spec::Mesh mesh{.data = 4, .expert = 4};
  std::array<std::int64_t, 4> sent{};
  const auto errors = testing::run_ranks(4, {}, [&](comm::Communicator& communicator) {
    const std::int32_t rank = communicator.rank();
    const lower::Compiled compiled = compile(each, {}, mesh, rank, true);
    run(each, {}, compiled, {.mesh = mesh, .communicator = &communicator}, rank);
    sent.at(static_cast<std::size_t>(rank)) = communicator.stats().sent_bytes / kMicroBatches;
  });
  for (const std::string& error : errors) ASSERT_EQ(error, "");
  const std::int64_t routes = 3 * (kExperts + 1) * std::int64_t{sizeof(std::int32_t)},
                     weights = kRows * std::int64_t{sizeof(float)};
  EXPECT_EQ(sent[0], routes + 3 * kRows * kRowBytes);
  for (const std::size_t rank : {1, 2, 3})
    EXPECT_EQ(sent.at(rank), routes + weights + 2 * kRows * kRowBytes);
}

// --- Training ---

// What steps leave: norms, and parameters of a rank.
struct Trained {
  std::vector<double> norms;
  Tensors parameters;
};

constexpr std::int32_t kTrainingRanks = 4;

// One rank alone has the samples of all.
lower::Compiled compile_training(const Case& each, const spec::Mesh& mesh, std::int32_t rank,
                                 bool shards_optimizer, const plan::MemoryOptions& memory = {}) {
  lower::CompileOptions options{.optimizer = {.epsilon = 0.1, .clip_grad_norm = 0.5},
                                .micro_batches = kTrainingRanks * kMicroBatches / mesh.world(),
                                .memory = memory,
                                .mesh = mesh,
                                .rank = rank,
                                .shards_optimizer = shards_optimizer};
  return lower::compile(each.graph, options, device::describe_cpu(1));
}

Trained train(const Case& each, const spec::Mesh& mesh, bool shards_optimizer,
              comm::Communicator* communicator, const plan::MemoryOptions& memory = {}) {
  constexpr std::int64_t kSteps = 3;
  const std::int32_t rank = communicator == nullptr ? 0 : communicator->rank();
  const std::int64_t micro_batches = kTrainingRanks * kMicroBatches / mesh.world();
  const lower::Compiled compiled = compile_training(each, mesh, rank, shards_optimizer, memory);
  const auto is_part_of_experts = [](const ir::State& state) {
    return !state.rows.is_whole() && text(state.owner).find(".experts.") != std::string_view::npos;
  };
  EXPECT_EQ(std::ranges::any_of(compiled.graph.states, is_part_of_experts),
            shards_optimizer && mesh.expert_data() > 1);
  runtime::StateStore store;
  device::ThreadTeam team(1);
  runtime::Executor executor(compiled.program, store, team,
                             {.rank = {.mesh = mesh, .communicator = communicator}});
  initialise(each, compiled, store, team);
  Trained result;
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    if (communicator != nullptr) communicator->begin_step(1, step);
    for (const spec::StepEntry& entry : runtime::schedule_of(compiled.program, micro_batches)) {
      const std::int64_t first = step * kTrainingRanks * kMicroBatches + rank * micro_batches;
      if (entry.action == spec::Action::kForward)
        for (const runtime::NamedOperand& input : compiled.program.inputs) {
          std::byte* data = executor.input(input.name).data();
          each.fill(first + entry.micro_batch, input, data);
          if (input.name == "step") *reinterpret_cast<std::int32_t*>(data) = static_cast<int>(step);
          if (input.name == "learning_rate") *reinterpret_cast<float*>(data) = 0.05f;
        }
      executor.run(entry);
    }
    result.norms.push_back(*executor.output("grad_norm").as<float>());
  }
  for (const ir::State& state : compiled.graph.states) {
    if (state.role != ir::StateRole::kParameter) continue;
    std::vector<float>& values = result.parameters[std::string(text(state.name))];
    const train::StateRows rows = train::find_rows(store, state.name);
    values.resize(static_cast<std::size_t>(rows.state.type->num_elements()));
    train::read_rows(rows, 0, values);
  }
  return result;
}

// Within `bound` of the norm of `want` from `first` on.
void expect_near(const std::vector<float>& got, const std::vector<float>& want, std::size_t first,
                 double bound) {
  ASSERT_LE(first + got.size(), want.size());
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double value = want[first + i], difference = got[i] - value;
    error += difference * difference;
    norm += value * value;
  }
  EXPECT_TRUE(std::sqrt(error) <= bound * std::sqrt(norm))
      << std::sqrt(error) << " of " << std::sqrt(norm);
}

class TrainedExperts : public ::testing::TestWithParam<bool> {};

// Wide enough that experts' optimizer states are cut, where two ranks hold the same experts.
TEST_P(TrainedExperts, OfFourRanksAreThoseOfOne) {
  const Case each = model_case(kWideMixtral, true);
  const Trained alone = train(each, {}, false, nullptr);
  const double bound = testing::parity_bounds(2, 64, DType::kFloat32).gradient;
  for (const spec::Mesh& mesh : {spec::Mesh{.data = 4, .expert = 2}, {.data = 4, .expert = 4}}) {
    SCOPED_TRACE(spec::to_string(mesh));
    std::vector<Trained> together(4);
    const auto errors = testing::run_ranks(4, {}, [&](comm::Communicator& communicator) {
      together[static_cast<std::size_t>(communicator.rank())] =
          train(each, mesh, GetParam(), &communicator);
    });
    for (const std::string& error : errors) ASSERT_EQ(error, "");
    for (std::int32_t rank = 0; rank < 4; ++rank) {
      const Trained& got = together[static_cast<std::size_t>(rank)];
      EXPECT_EQ(got.norms, together[0].norms);
      for (std::size_t i = 0; i < got.norms.size(); ++i)
        EXPECT_LE(std::abs(got.norms[i] - alone.norms[i]), bound * alone.norms[i]);
      for (const auto& [name, values] : got.parameters) {
        SCOPED_TRACE(fmt::format("rank {}: {}", rank, name));
        const bool is_shared = name.find(".experts.") != std::string::npos;
        const std::size_t first =
            is_shared ? values.size() * static_cast<std::size_t>(
                                            spec::coordinates_of(mesh, rank)[spec::Axis::kExpert])
                      : 0;
        expect_near(values, alone.parameters.at(name), first, bound);
        if (!is_shared) {
          EXPECT_EQ(values, together[0].parameters.at(name));
        }
      }
    }
  }
}

std::vector<Trained> train_two(const Case& each, const plan::MemoryOptions& memory) {
  std::vector<Trained> result(2);
  const auto errors = testing::run_ranks(2, {}, [&](comm::Communicator& communicator) {
    result[static_cast<std::size_t>(communicator.rank())] =
        train(each, {.data = 2, .expert = 2}, false, &communicator, memory);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  return result;
}

// The first micro-batch keeps more than the others, so it has exchanges of its own.
TEST(ExpertsWithinABudget, HaveTheSameBits) {
  const Case each = model_case(kWideMixtral, true);
  const spec::Mesh mesh{.data = 2, .expert = 2};
  const std::int64_t whole_bytes = compile_training(each, mesh, 0, false).plan.peak_bytes();
  const plan::MemoryOptions memory{.budget_bytes = whole_bytes / 100 * 98};
  const lower::Compiled less = compile_training(each, mesh, 0, false, memory);
  EXPECT_FALSE(less.memory.decisions.recompute.empty());
  EXPECT_EQ(less.program.layouts.size(), 2u);
  const std::vector<Trained> want = train_two(each, {}), got = train_two(each, memory);
  for (const std::size_t rank : {0, 1}) {
    EXPECT_EQ(got[rank].norms, want[rank].norms);
    EXPECT_EQ(got[rank].parameters, want[rank].parameters);
  }
}

// What other ranks sent is kept or converted, and never asked for again.
TEST(ExpertsWithinABudget, MaySaveReceivedRowsInAnotherForm) {
  const Case each = model_case(kWideMixtral, true);
  spec::Decisions decisions;
  for (const int layer : {0, 1})
    decisions.saved_as[fmt::format("layers.{}.experts.input.received", layer)] =
        spec::SavedForm::kBFloat16;
  plan::MemoryOptions memory{.compression = {.allowed = spec::SavedForm::kBFloat16, .min_bytes = 1},
                             .replay = decisions};
  const std::vector<Trained> want = train_two(each, {}), got = train_two(each, memory);
  const double bound = testing::parity_bounds(2, 64, DType::kBFloat16).gradient;
  for (const std::size_t rank : {0, 1})
    for (std::size_t i = 0; i < want[rank].norms.size(); ++i)
      EXPECT_LE(std::abs(got[rank].norms[i] - want[rank].norms[i]), bound * want[rank].norms[i]);
  EXPECT_NE(got[0].norms, want[0].norms);
  decisions.saved_as.clear();
  decisions.recompute = {"layers.0.experts.input.received"};
  memory.replay = decisions;
  EXPECT_THROW(compile_training(each, {.data = 2, .expert = 2}, 0, false, memory), InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Optimizer, TrainedExperts, ::testing::Bool(), [](const auto& is_sharded) {
  return std::string(is_sharded.param ? "sharded" : "replicated");
});

INSTANTIATE_TEST_SUITE_P(Choices, IntegerExperts, ::testing::Range<std::size_t>(0, kChoices.size()),
                         [](const auto& index) { return kChoices[index.param].text; });

}  // namespace
}  // namespace anabatic
