// SPDX-License-Identifier: Apache-2.0
// The engine of layers: its cache, threads, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <thread>

#include "anabatic/error.h"
#include "layer/layer_builder.h"
#include "layer/layer_fixture.h"
#include "support/comparator.h"

namespace anabatic::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

constexpr LayerDtype kF32 = LayerDtype::kFloat32, kBf16 = LayerDtype::kBFloat16,
                     kI32 = LayerDtype::kInt32, kI64 = LayerDtype::kInt64;
constexpr std::uint64_t kSeed = 3;

LayerSignature norm_of(std::int64_t rows, std::int64_t width = 64) {
  return {"rms_norm",
          {},
          {tensor("x", kF32, {rows, width}), tensor("weight", kF32, {width})},
          {"x", "weight"}};
}

Tensors run(LayerEngine& engine, const LayerSignature& signature) {
  const LayerCall call = engine.layer(signature);
  return run_layer(call, signature, make_inputs(signature, kSeed), make_seeds(call, kSeed));
}

void expect_equal(const Tensors& got, const Tensors& want, const std::string& what) {
  for (const auto& [name, tensor] : got)
    EXPECT_EQ(compare_bits(tensor, want.at(name), {.zeros_expected = true}).report, "")
        << name << " " << what;
}

TEST(LayerEngine, KeepsAProgramForASignature) {
  LayerEngine engine;
  engine.layer(norm_of(8));
  const std::int64_t bytes = engine.program_bytes();
  engine.layer(norm_of(8));
  EXPECT_EQ(engine.num_programs(), 1);
  engine.layer(norm_of(9));
  LayerSignature other = norm_of(8);
  other.gradients = {"x"};
  engine.layer(other);
  other.attributes["epsilon"] = "1e-5";
  engine.layer(other);
  other.inputs[1].dtype = kBf16;
  engine.layer(other);
  engine.set_threads(2);
  engine.layer(norm_of(8));
  EXPECT_EQ(engine.num_programs(), 6);
  EXPECT_GT(engine.program_bytes(), bytes);
}

TEST(LayerEngine, DropsWhatWasUsedLongestAgo) {
  std::int64_t bytes = 0;
  {
    LayerEngine engine;
    engine.layer(norm_of(1));
    bytes = engine.program_bytes();
  }
  LayerEngine engine({.cache_bytes = 3 * bytes + bytes / 2});
  const LayerCall first = engine.layer(norm_of(1));
  for (const std::int64_t rows : {2, 3}) engine.layer(norm_of(rows));
  engine.layer(norm_of(1));
  engine.layer(norm_of(4));  // 2 goes
  EXPECT_EQ(engine.num_programs(), 3);
  for (const std::int64_t rows : {5, 6, 7}) engine.layer(norm_of(rows));
  EXPECT_EQ(engine.num_programs(), 3);
  EXPECT_LE(engine.program_bytes(), 3 * bytes + bytes / 2);
  // What is held still runs.
  const LayerSignature signature = norm_of(1);
  run_layer(first, signature, make_inputs(signature, kSeed), make_seeds(first, kSeed));
}

TEST(LayerEngine, CallsOutliveIt) {
  const LayerSignature signature = norm_of(5);
  std::vector<LayerCall> kept;
  {
    LayerEngine engine;
    kept.push_back(engine.layer(signature));
  }
  run_layer(kept[0], signature, make_inputs(signature, kSeed), make_seeds(kept[0], kSeed));
}

// A large program moves the frame of a small one.
TEST(LayerEngine, SharesAnArenaThatGrows) {
  LayerEngine engine;
  const LayerSignature small = layer_case("moe_experts_f32").signature;
  LayerSignature large = small;
  for (std::size_t i : {0, 3, 4}) large.inputs[i].shape[0] = 4000;
  const LayerCall first = engine.layer(small);
  const ValuesByName inputs = make_inputs(small, kSeed), seeds = make_seeds(first, kSeed);
  const Tensors want = run_layer(first, small, inputs, seeds);
  const std::int64_t bytes = engine.arena_bytes();
  const Tensors of_large = run(engine, large);
  EXPECT_GT(engine.arena_bytes(), 10 * bytes);
  expect_equal(run_layer(first, small, inputs, seeds), want, "after the frame has moved");
  expect_equal(run(engine, large), of_large, "once more");
}

void on_one_thread(void (*body)(void*), void* context, int) { body(context); }
void on_all_threads(void (*body)(void*), void* context, int threads) {
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(body, context);
  body(context);
  for (std::thread& thread : others) thread.join();
}

TEST(LayerEngine, RunsOnThreadsOfAHost) {
  for (const char* name : {"moe_experts_bf16", "attention_f32", "linear_cross_entropy_f32"}) {
    const LayerSignature& signature = layer_case(name).signature;
    LayerEngine own({.threads = 3});
    const Tensors want = run(own, signature);
    for (const LayerHostRun host : {on_one_thread, on_all_threads}) {
      LayerEngine engine({.threads = 3, .host = host});
      expect_equal(run(engine, signature), want, name);
    }
  }
}

TEST(LayerEngine, CountsWhatKernelsTake) {
  LayerEngine engine;
  run(engine, norm_of(8));
  EXPECT_TRUE(engine.take_profile().empty());
  run(engine, norm_of(8)), run(engine, norm_of(8));
  std::map<std::string, std::int64_t> calls;
  for (const LayerKernelTime& time : engine.take_profile()) {
    EXPECT_EQ(time.layer, "rms_norm");
    EXPECT_THAT(time.kernel, ::testing::StartsWith("cpu:rms_norm"));
    EXPECT_GT(time.nanoseconds, 0);
    calls[time.call.substr(time.call.find("rms_norm"))] += time.calls;
  }
  EXPECT_THAT(calls, ::testing::ElementsAre(
                         ::testing::Pair("rms_norm forward", 2),
                         ::testing::Pair("rms_norm_input_gradient backward_input", 2),
                         ::testing::Pair("rms_norm_weight_gradient backward_weight", 2)));
  EXPECT_TRUE(engine.take_profile().empty());
}

TEST(LayerEngine, ServesSeveralThreadsOfTheCaller) {
  LayerEngine engine({.threads = 2});
  const char* const names[] = {"moe_experts_f32", "mlp_bf16", "attention_f32"};
  std::vector<Tensors> wants;
  for (const char* name : names) wants.push_back(run(engine, layer_case(name).signature));
  std::vector<std::thread> callers;
  for (std::size_t i = 0; i < 3; ++i)
    callers.emplace_back([&, i] {
      for (int repeat = 0; repeat < 10; ++repeat)
        expect_equal(run(engine, layer_case(names[i]).signature), wants[i], names[i]);
    });
  for (std::thread& caller : callers) caller.join();
}

// One layer's buffers by hand.
struct Buffers {
  Buffers(const LayerCall& the_call, const LayerSignature& signature) : call(the_call) {
    const ValuesByName values = make_inputs(signature, kSeed);
    for (const LayerTensor& input : signature.inputs) {
      if (input.dtype == kI64) {
        const std::vector<double>& data = values.at(input.name).data;
        wide.emplace_back(data.begin(), data.end());
        inputs.push_back(wide.back().data());
        gradients.push_back(nullptr);
        continue;
      }
      inputs.push_back(keep(HostTensor(values.at(input.name))));
      const bool is_wanted =
          std::ranges::find(signature.gradients, input.name) != signature.gradients.end();
      gradients.push_back(is_wanted ? add(input) : nullptr);
    }
    for (const LayerTensor& output : call.outputs()) {
      outputs.push_back(add(output));
      HostTensor seed(layer::to_type(output));
      for (std::int64_t i = 0; i < seed.size(); ++i) seed.set(i, 0.25);
      seeds.push_back(keep(std::move(seed)));
    }
    for (const SavedTensor& one : call.saved()) {
      saved.push_back(one.output >= 0 ? outputs[static_cast<std::size_t>(one.output)] : add(one));
      saved_data.push_back(saved.back());
    }
  }
  void* add(const LayerTensor& like) { return keep(HostTensor(layer::to_type(like))); }
  void* keep(HostTensor one) {
    tensors.push_back(std::move(one));
    return tensors.back().bytes().data();
  }
  // The bytes of a tensor that was added.
  HostTensor copy_of(const void* data) const {
    for (const HostTensor& one : tensors)
      if (one.bytes().data() == data) return one.clone();
    throw std::logic_error("no tensor there");
  }
  void forward() const { call.forward(inputs, outputs, saved); }
  void backward() const { call.backward(inputs, saved_data, seeds, gradients); }

  LayerCall call;
  std::vector<HostTensor> tensors;
  std::vector<std::vector<std::int64_t>> wide;
  std::vector<const void*> inputs, saved_data, seeds;
  std::vector<void*> outputs, saved, gradients;
};

TEST(LayerCall, MakesTheGradientsThatAreAskedFor) {
  LayerEngine engine({.poison = true});
  for (const char* name : {"moe_experts_f32", "moe_experts_bf16", "mlp_f32",
                           "linear_cross_entropy_f32", "attention_f32", "add_rms_norm_f32"}) {
    const LayerSignature& signature = layer_case(name).signature;
    const LayerCall call = engine.layer(signature);
    Buffers all(call, signature);
    all.forward();
    all.backward();
    for (std::size_t i = 0; i < all.gradients.size(); ++i) {
      if (all.gradients[i] == nullptr) continue;
      Buffers one(call, signature);
      for (std::size_t j = 0; j < one.gradients.size(); ++j)
        if (j != i) one.gradients[j] = nullptr;
      one.forward();
      one.backward();
      EXPECT_EQ(compare_bits(one.copy_of(one.gradients[i]), all.copy_of(all.gradients[i])).report,
                "")
          << name << " " << signature.inputs[i].name;
    }
  }
}

// A signature that names fewer gradients saves less, and costs no product for the others.
TEST(LayerCall, SavesWhatItsGradientsNeed) {
  LayerEngine engine;
  LayerSignature signature = layer_case("moe_experts_f32").signature;
  const auto saved_bytes = [&] {
    std::int64_t bytes = 0;
    for (const SavedTensor& one : engine.layer(signature).saved())
      if (one.output < 0) bytes += num_bytes(one);
    return bytes;
  };
  const std::int64_t rows = 23 * 2, width = 20;
  EXPECT_EQ(saved_bytes(), 2 * rows * width * 4 + (2 * rows + 7) * 4);
  signature.gradients = {"x"};
  EXPECT_THAT(engine.layer(signature).text(), Not(HasSubstr("weight_gradient")));
  signature.gradients = {};
  EXPECT_EQ(saved_bytes(), 0);
  EXPECT_THAT(engine.layer(signature).text(), Not(HasSubstr("with_products")));
}

TEST(LayerCall, SavesTheGradientsOfALoss) {
  LayerEngine engine;
  const LayerSignature& signature = layer_case("linear_cross_entropy_bf16").signature;
  const LayerCall call = engine.layer(signature);
  Buffers buffers(call, signature);
  alignas(64) float one = 1;
  buffers.seeds[0] = &one;
  buffers.forward();
  buffers.backward();
  int num_gradients = 0;
  for (std::size_t i = 0; i < call.saved().size(); ++i) {
    const int input = call.saved()[i].gradient;
    if (input < 0) continue;
    ++num_gradients;
    EXPECT_EQ(compare_bits(buffers.copy_of(buffers.saved[i]),
                           buffers.copy_of(buffers.gradients[static_cast<std::size_t>(input)]))
                  .report,
              "");
  }
  EXPECT_EQ(num_gradients, 2);
  EXPECT_THAT(engine.layer(layer_case("moe_experts_f32").signature).saved(),
              ::testing::Each(::testing::Field(&SavedTensor::gradient, -1)));
}

TEST(LayerCall, TakesFusionsAndRowsOfFusedWeights) {
  LayerEngine engine;
  const std::string text = engine.layer(layer_case("moe_experts_bf16").signature).text();
  for (const char* wanted :
       {"grouped_linear_activation_with_products", "grouped_linear_many_input_gradient",
        "with_activation=true", "first_row=20", "gathered=\"dy\"", "layout=\"panels_transposed\""})
    EXPECT_THAT(text, HasSubstr(wanted));
  for (const char* unwanted : {" permute forward", "unpermute", "linear_activation forward"})
    EXPECT_THAT(text, Not(HasSubstr(unwanted)));
}

TEST(LayerCall, TakesFusionsOfStacksByColumns) {
  LayerEngine engine;
  const std::string text = engine.layer(layer_case("moe_experts_bf16_by_columns").signature).text();
  for (const char* wanted :
       {"grouped_linear_activation_with_products", "grouped_linear_many_input_gradient",
        "with_activation=true", "column_step=2 first_column=1", "gathered=\"x\""})
    EXPECT_THAT(text, HasSubstr(wanted));
}

TEST(LayerCall, TakesFusionsAcrossTheLayersOfARegion) {
  LayerEngine engine;
  const std::string text = engine.layer(layer_case("decoder_bf16").signature).text();
  for (const char* wanted :
       {"linear_many forward", "linear_many_input_gradient", "rope_pair", "add_rms_norm",
        "linear_activation_with_products", "with_activation=true"})
    EXPECT_THAT(text, HasSubstr(wanted));
}

std::int64_t num_calls(const LayerCall& call) {
  const std::string text = call.text();
  return std::count(text.begin(), text.end(), '|');
}

// Packings that the caller has made give the bits of those that each call makes.
TEST(LayerCall, TakesPackingsOfTheCaller) {
  int num_packed = 0;
  for (const LayerCase& one : layer_cases()) {
    LayerEngine engine({.threads = 2, .poison = true});
    LayerSignature signature = one.signature;
    const LayerCall plain = engine.layer(signature);
    const ValuesByName inputs = make_inputs(signature, kSeed), seeds = make_seeds(plain, kSeed);
    const Tensors want = run_layer(plain, signature, inputs, seeds);
    for (const LayerTensor& input : signature.inputs)
      if (input.shape.size() >= 2) signature.packed.push_back(input.name);
    const LayerCall call = engine.layer(signature);
    expect_equal(run_layer(call, signature, inputs, seeds), want, one.name);
    if (call.packings().empty()) continue;
    ++num_packed;
    EXPECT_THAT(call.text(), Not(HasSubstr(" pack "))) << one.name;
    EXPECT_LT(num_calls(call), num_calls(plain)) << one.name;
  }
  EXPECT_GT(num_packed, 20);
}

// Layers of any number of rows, with gradients and without, share the packings of a weight.
TEST(LayerCall, NamesPackingsByTheirForm) {
  LayerEngine engine;
  const auto forms = [&](std::int64_t rows, const std::vector<std::string>& gradients) {
    std::vector<std::string> result;
    LayerSignature signature = layer_case("moe_experts_bf16").signature;
    for (const std::size_t i : {0, 3, 4}) signature.inputs[i].shape[0] = rows;
    signature.gradients = gradients;
    signature.packed = {"gate_up", "down"};
    for (const LayerPacking& packing : engine.layer(signature).packings()) {
      EXPECT_GT(packing.bytes, 0);
      EXPECT_TRUE(packing.in_forward != packing.in_backward);
      result.push_back(signature.inputs[packing.input].name + " " + packing.form);
    }
    std::ranges::sort(result);
    return result;
  };
  const std::vector<std::string> all = forms(23, {"x", "gate_up", "down", "weights"});
  EXPECT_EQ(all.size(), 6U);  // gate, up and down, for the forward and for the backward
  EXPECT_EQ(std::set<std::string>(all.begin(), all.end()).size(), 6U);
  EXPECT_EQ(forms(40, {"x", "gate_up", "down", "weights"}), all);
  const std::vector<std::string> forward = forms(23, {});
  EXPECT_EQ(forward.size(), 3U);
  EXPECT_TRUE(std::ranges::includes(all, forward));
}

TEST(LayerCall, RefusesPackingsThatAreNotThere) {
  LayerEngine engine;
  LayerSignature signature = layer_case("linear_bf16").signature;
  signature.packed = {"weigt"};
  EXPECT_THAT([&] { engine.layer(signature); },
              ThrowsMessage<InvalidArgument>(HasSubstr("[linear] expected packings of operands, "
                                                       "got 'weigt'; did you mean 'weight'?")));
  signature.packed = {"weight"};
  const LayerCall call = engine.layer(signature);
  const Buffers buffers(call, signature);
  EXPECT_THAT([&] { call.forward(buffers.inputs, buffers.outputs, buffers.saved); },
              ThrowsMessage<InvalidArgument>(HasSubstr("[linear] expected 2 packings, got 0")));
  const std::vector<const void*> none(2);
  EXPECT_THAT([&] { call.forward(buffers.inputs, buffers.outputs, buffers.saved, none); },
              ThrowsMessage<InvalidArgument>(HasSubstr("of weight, got none")));
  EXPECT_THAT([&] { call.pack(2, buffers.inputs[1], buffers.outputs[0]); },
              ThrowsMessage<InvalidArgument>(HasSubstr("expected a packing below 2, got 2")));
}

TEST(LayerCall, MakesNoGradientOfAFrozenHead) {
  LayerEngine engine;
  LayerSignature signature = layer_case("linear_cross_entropy_bf16").signature;
  signature.gradients = {"x"};
  const LayerCall call = engine.layer(signature);
  EXPECT_THAT(call.text(), HasSubstr("head_loss_with_input_gradient"));
  ASSERT_EQ(call.saved().size(), 1U);
  EXPECT_EQ(num_bytes(call.saved()[0]), num_bytes(signature.inputs[0]));
}

TEST(LayerCall, NullGradientsOfOutputsAreZero) {
  LayerEngine engine;
  const LayerSignature& signature = layer_case("add_rms_norm_f32").signature;
  const LayerCall call = engine.layer(signature);
  Buffers zero(call, signature), null(call, signature);
  std::memset(const_cast<void*>(zero.seeds[0]), 0, 7 * 40 * 4);
  null.seeds[0] = nullptr;
  for (const Buffers* one : {&zero, &null}) {
    one->forward();
    one->backward();
  }
  for (std::size_t i = 0; i < zero.gradients.size(); ++i)
    EXPECT_EQ(compare_bits(null.copy_of(null.gradients[i]), zero.copy_of(zero.gradients[i])).report,
              "");
}

TEST(LayerCall, TakesInputsAnywhereAndWideIntegers) {
  LayerEngine engine;
  LayerSignature signature = layer_case("moe_experts_f32").signature;
  Buffers want(engine.layer(signature), signature);
  signature.inputs[3].dtype = kI64;
  Buffers got(engine.layer(signature), signature);
  std::vector<std::vector<std::byte>> apart;
  for (const std::size_t i : {0, 1, 4}) {
    const auto bytes = static_cast<std::size_t>(num_bytes(signature.inputs[i]));
    apart.emplace_back(bytes + 128);
    auto* at = apart.back().data();
    at += 68 - reinterpret_cast<std::uintptr_t>(at) % 64;
    std::memcpy(at, got.inputs[i], bytes);
    got.inputs[i] = at;
  }
  for (const Buffers* one : {&want, &got}) {
    one->forward();
    one->backward();
  }
  for (std::size_t i = 0; i < want.gradients.size(); ++i) {
    if (want.gradients[i] == nullptr) continue;
    EXPECT_EQ(compare_bits(got.copy_of(got.gradients[i]), want.copy_of(want.gradients[i])).report,
              "");
  }
}

// The rows of a batch may be none: outputs are empty, and gradients of weights are zeroes.
TEST(LayerCall, WorksWithoutRows) {
  LayerEngine engine({.poison = true});
  for (const LayerCase& one : layer_cases()) {
    LayerSignature signature = one.signature;
    for (LayerTensor& input : signature.inputs) {
      const bool is_weight =
          (signature.layer == "gated_mlp" && input.name != "x") ||
          (signature.layer == "region" && input.shape[0] != one.signature.inputs[0].shape[0]);
      const bool is_of_rows = !is_weight && input.name != "weight" && input.name != "gate_up" &&
                              input.name != "down" && input.name != "sinks" &&
                              input.name != "offsets" && input.name != "scale" &&
                              !input.name.ends_with("_bias");
      if (is_of_rows) input.shape[0] = 0;
    }
    const Tensors got = run(engine, signature);
    for (const auto& [name, tensor] : got)
      for (const double value : tensor.values().data)
        ASSERT_EQ(value, 0) << one.name << " " << name;
  }
}

TEST(LayerCall, ExpertsWithoutRowsHaveZeroGradients) {
  LayerEngine engine({.poison = true});
  for (const char* name : {"moe_experts_f32", "moe_experts_bf16"}) {
    const Tensors got = run(engine, layer_case(name).signature);
    const Values gradient = got.at("gradients.gate_up").values();
    for (std::size_t i = 5 * 40 * 32; i < gradient.data.size(); ++i)
      ASSERT_EQ(gradient.data[i], 0) << name;
  }
}

auto refuses(const LayerSignature& signature, const std::string& message) {
  LayerEngine engine;
  EXPECT_THAT([&] { engine.layer(signature); }, ThrowsMessage<InvalidArgument>(HasSubstr(message)));
}

TEST(LayerEngine, NamesWhatDoesNotFitInARegion) {
  const LayerSignature good = layer_case("region_of_experts_f32").signature;
  const auto refuses_nodes = [&](const std::string& nodes, const std::string& message) {
    LayerSignature bad = good;
    bad.attributes["nodes"] = nodes;
    bad.attributes["outputs"] = R"(["%0"])";
    refuses(bad, message);
  };
  refuses_nodes("[", "expected attribute 'nodes' to be a list in JSON, got '['");
  refuses_nodes(R"([{"layer": "casts", "operands": [["x", "x"]]}])",
                "unknown layer 'casts'; did you mean 'cast'?");
  refuses_nodes(R"([{"layer": "cast", "operands": [["x", "%0"]]}])",
                "nodes[0].operands[0][1]: expected an operand, or the result of an earlier node");
  refuses_nodes(R"([{"layer": "cast", "operands": [["x"]]}])",
                "expected a name and what it stands for");
  refuses_nodes(R"([{"layer": "cast", "operands": [["x", "x"]], "result": "fp16"}])",
                "nodes[0].result: expected bf16 or fp32");
  refuses_nodes(R"([{"layer": "rms_norm", "operands": [["x", "x"], ["weight", "down"]]}])",
                "expected weight of 1 dimensions");
  const std::string cast = R"({"layer": "cast", "operands": [["x", "x"]]})";
  refuses_nodes(
      "[" + cast + R"(, {"layer": "linear", "operands": [["x", "x"], ["weight", "%0"]]}])",
      "[linear] expected weight to be an operand of the region, got a value in it");
  LayerSignature bad = good;
  bad.attributes["outputs"] = R"(["%2", "%2"])";
  refuses(bad, "outputs[1]: expected the result of a node that is no output yet");
  bad = layer_case("decoder_f32").signature;
  std::string& nodes = bad.attributes["nodes"];
  nodes.replace(nodes.find(R"("k"])"), 3, R"("q")");
  refuses(bad, "expected q to be the weight of one layer of the region, got two");
}

TEST(LayerEngine, NamesWhatDoesNotFit) {
  const LayerSignature good = layer_case("moe_experts_f32").signature;
  LayerSignature bad = good;
  bad.layer = "moe_expert";
  refuses(bad, "unknown layer 'moe_expert'; did you mean 'moe_experts'?");
  bad = good;
  bad.attributes["activating"] = "swiglu";
  refuses(bad,
          "[moe_experts] unknown attribute 'activating' = 'swiglu'; did you mean "
          "'activation'?");
  bad = good;
  bad.attributes["activation"] = "swish";
  refuses(bad, "swish");
  bad = good;
  bad.attributes["products"] = "fp16";
  refuses(bad, "expected attribute 'products' to be bf16 or fp32, got 'fp16'");
  bad = good;
  bad.inputs.erase(bad.inputs.begin() + 1);
  refuses(bad, "expected operand 'gate_up', got 'down'");
  bad = good;
  bad.inputs.pop_back();
  bad.gradients.clear();
  refuses(bad, "expected operand 'weights', got none");
  bad = good;
  bad.inputs.push_back(tensor("bias", kF32, {3}));
  refuses(bad, "unknown operand 'bias'");
  bad = good;
  bad.inputs[0].shape[1] = 33;
  refuses(bad,
          "expected 33 in dimension 2 of gate_up, as in dimension 1 of x f32[23,33], got "
          "f32[6,40,32]");
  bad = good;
  bad.inputs[1].shape[1] = 41;
  refuses(bad, "expected an even number of rows in gate_up, gate and then up, got 41");
  bad = good;
  bad.inputs[2].shape[2] = 21;
  refuses(bad, "expected down with 20 columns for gate_up with 40 rows, got 21");
  bad = good;
  bad.inputs[3] = tensor("index", kF32, {23, 2});
  refuses(bad, "expected index in i32 or i64, got f32[23,2]");
  bad = good;
  bad.inputs[0].dtype = kI32;
  refuses(bad, "expected x in f32 or bf16, got i32[23,32]");
  bad = good;
  bad.inputs[0].shape = {23, 4, 8};
  refuses(bad, "expected x of 2 dimensions, got f32[23,4,8]");
  bad = good;
  bad.inputs[0].shape = {-1, 32};
  refuses(bad, "expected sizes of at least 0 in x, got -1");
  bad = good;
  for (const std::size_t i : {3, 4}) bad.inputs[i].shape[1] = 7;
  refuses(bad, "expected 1 to 6 experts a token in index, got 7");
  bad = layer_case("moe_experts_biases_f32").signature;
  bad.inputs[5].shape[1] = 19;
  refuses(bad, "expected 20 in dimension 1 of gate_bias, as in dimension 2 of down");
  bad = layer_case("moe_experts_biases_f32").signature;
  bad.inputs.erase(bad.inputs.begin() + 6);
  std::erase(bad.gradients, "up_bias");
  refuses(bad, "expected gate_bias and up_bias together, got one");
  bad = good;
  bad.gradients = {"index"};
  refuses(bad, "expected gradients of operands that have one, got 'index'");
  bad = good;
  bad.gradients = {"gate"};
  refuses(bad, "expected gradients of operands, got 'gate'");
  LayerSignature head = layer_case("linear_cross_entropy_f32").signature;
  head.gradients = {"scale"};
  refuses(head, "expected gradients of operands that have one, got 'scale'");
  LayerSignature norm = norm_of(3);
  norm.attributes["epsilon"] = "small";
  refuses(norm, "expected a number as attribute 'epsilon', got 'small'");
  LayerEngine engine;
  EXPECT_THAT([&] { engine.set_threads(0); },
              ThrowsMessage<InvalidArgument>(HasSubstr("at least 1 thread, got 0")));
}

TEST(LayerCall, NamesOperandsThatDoNotFit) {
  LayerEngine engine;
  const LayerSignature& signature = layer_case("moe_experts_f32").signature;
  const auto refuses = [&](auto&& change, const std::string& message) {
    Buffers buffers(engine.layer(signature), signature);
    change(buffers);
    EXPECT_THAT([&] { buffers.forward(); }, ThrowsMessage<InvalidArgument>(HasSubstr(message)));
  };
  const auto set_index = [](Buffers& buffers, std::int32_t value) {
    auto* index = static_cast<std::int32_t*>(const_cast<void*>(buffers.inputs[3]));
    index[5] = value;
  };
  refuses([&](Buffers& b) { set_index(b, 6); },
          "[moe_experts] expected index in [0, 5], got 6 at element 5");
  refuses([&](Buffers& b) { set_index(b, -1); }, "expected index in [0, 5], got -1 at element 5");
  refuses([](Buffers& b) { b.inputs[1] = nullptr; }, "expected input 'gate_up' f32[6,40,32]");
  refuses([](Buffers& b) { b.outputs[0] = static_cast<std::byte*>(b.outputs[0]) + 4; },
          "expected output 'y' f32[23,32] at a multiple of 64 bytes");
  refuses([](Buffers& b) { b.outputs[0] = const_cast<void*>(b.inputs[0]); },
          "expected output 'y' in bytes of its own, got some of 'x'");
  refuses([](Buffers& b) { b.inputs.pop_back(); }, "expected 5 inputs, got 4");
  refuses([](Buffers& b) { b.saved.pop_back(); }, "saved tensors");
  LayerSignature some = signature;
  some.gradients = {"x"};
  Buffers buffers(engine.layer(some), some);
  buffers.forward();
  buffers.gradients[1] = buffers.add(some.inputs[1]);
  EXPECT_THAT([&] { buffers.backward(); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("expected gradients that the signature names, got 'gate_up'")));
}

TEST(LayerCall, ChecksLabelsAndOffsets) {
  LayerEngine engine;
  const LayerSignature& head = layer_case("linear_cross_entropy_f32").signature;
  Buffers labels(engine.layer(head), head);
  static_cast<std::int32_t*>(const_cast<void*>(labels.inputs[2]))[1] = 50;
  EXPECT_THAT([&] { labels.forward(); },
              ThrowsMessage<InvalidArgument>(HasSubstr("expected labels in [0, 49], got 50")));
  const LayerSignature& groups = layer_case("grouped_linear_f32").signature;
  const auto refuses = [&](std::size_t at, std::int32_t value, const std::string& message) {
    Buffers buffers(engine.layer(groups), groups);
    static_cast<std::int32_t*>(const_cast<void*>(buffers.inputs[2]))[at] = value;
    EXPECT_THAT([&] { buffers.forward(); }, ThrowsMessage<InvalidArgument>(HasSubstr(message)));
  };
  refuses(0, 1, "expected offsets from 0 to 20, got 1 to 20");
  refuses(3, 2, "expected offsets never to fall, got 2 after 5 at element 3");
  refuses(4, 19, "expected offsets from 0 to 20, got 0 to 19");
  const LayerSignature& attention = layer_case("attention_f32").signature;
  Buffers keys(engine.layer(attention), attention);
  static_cast<std::int32_t*>(const_cast<void*>(keys.inputs[3]))[9] = 5;
  EXPECT_THAT([&] { keys.forward(); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("expected key_begin never to fall, got 5 after 6 at element 9")));
}

}  // namespace
}  // namespace anabatic::testing
