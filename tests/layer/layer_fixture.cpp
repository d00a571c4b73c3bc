// SPDX-License-Identifier: Apache-2.0
#include "layer/layer_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/philox.h"
#include "layer/layer_builder.h"
#include "layer/layer_table.h"
#include "ops/table.h"
#include "passes/differentiate.h"
#include "support/random_data.h"
#include "support/reference.h"

namespace anabatic::testing {
namespace {

constexpr LayerDtype kF32 = LayerDtype::kFloat32, kBf16 = LayerDtype::kBFloat16,
                     kI32 = LayerDtype::kInt32;

using Environment = std::map<ir::ValueId, Values>;

Values in_double(Values values) {
  if (is_float(values.type.dtype)) values.type.dtype = DType::kFloat64;
  if (values.type.dtype == DType::kInt64) values.type.dtype = DType::kInt32;
  return values;
}

// Where element i of a part of `type` is in the whole weight.
std::size_t place_in_whole(const layer::WeightPart& part, const TensorType& type, std::size_t i) {
  if (part.is_whole()) return i;
  const std::int64_t width = type.dim(-1), at = static_cast<std::int64_t>(i),
                     matrix = at / (part.rows * width), row = at / width % part.rows,
                     column = at % width;
  // The part of columns is a transpose: its width is the height of the whole.
  const std::int64_t place = part.is_of_columns()
                                 ? (matrix * width + column) * part.rows * part.column_step +
                                       part.first_column + row * part.column_step
                                 : (matrix * part.of_rows + part.first_row + row) * width + column;
  return static_cast<std::size_t>(place);
}

Values part_of(const Values& whole, const layer::WeightPart& part, const TensorType& type) {
  Values result{type, std::vector<double>(static_cast<std::size_t>(type.num_elements()))};
  for (std::size_t i = 0; i < result.data.size(); ++i)
    result.data[i] = whole.data[place_in_whole(part, type, i)];
  return result;
}

void evaluate(const ir::Graph& graph, Environment& environment) {
  for (const ir::Node& node : graph.nodes) {
    OpCall call{.op = node.op->name, .attributes = node.attributes, .inputs = {}, .outputs = {}};
    for (const ir::ValueId id : node.inputs) call.inputs.push_back(environment.at(id));
    for (const ir::ValueId id : node.outputs) call.outputs.push_back(graph.value(id).type);
    const std::vector<HostTensor> outputs = run_reference(call);
    for (std::size_t o = 0; o < outputs.size(); ++o)
      environment[node.outputs[o]] = outputs[o].values();
  }
}

layer::LayerGraph graph_in_double(const LayerSignature& signature) {
  layer::LayerBuilder builder(signature, true);
  layer::checked_row(signature).build(builder);
  return builder.finish();
}

Environment environment_of(const layer::LayerGraph& layer, const LayerSignature& signature,
                           const ValuesByName& inputs) {
  Environment environment;
  for (const ir::ValueId id : layer.graph.batch) {
    const auto found = inputs.find(std::string(text(layer.graph.value(id).name)));
    if (found != inputs.end()) environment[id] = in_double(found->second);
  }
  for (const layer::WeightPart& part : layer.parts) {
    const ir::State& state = *layer.graph.find_state(part.state);
    environment[state.before] = part_of(inputs.at(signature.inputs[part.input].name), part,
                                        layer.graph.value(state.before).type);
  }
  return environment;
}

// Puts the gradients of parts into the whole.
void add_part(ValuesByName& results, const layer::LayerGraph& layer,
              const LayerSignature& signature, const layer::WeightPart& part,
              const Environment& environment) {
  const auto found = layer.graph.find_output(passes::contribution_name(text(part.state), 0));
  if (!found) return;
  const LayerTensor& input = signature.inputs[part.input];
  Values& whole = results["gradients." + input.name];
  whole.type = layer::to_type(input);
  whole.data.resize(static_cast<std::size_t>(whole.type.num_elements()));
  const Values& gradient = environment.at(*found);
  for (std::size_t i = 0; i < gradient.data.size(); ++i)
    whole.data[place_in_whole(part, gradient.type, i)] = gradient.data[i];
}

// The layers of a decoder: attention and a dense MLP, with the second norm as an output too.
constexpr const char* kDecoderNodes = R"([
  {"layer": "rms_norm", "operands": [["x", "x"], ["weight", "norm"]]},
  {"layer": "linear", "operands": [["x", "%0"], ["weight", "q"]], "segment": "attention"},
  {"layer": "linear", "operands": [["x", "%0"], ["weight", "k"]], "segment": "attention"},
  {"layer": "linear", "operands": [["x", "%0"], ["weight", "v"]], "segment": "attention"},
  {"layer": "rms_norm", "operands": [["x", "%1"], ["weight", "q_norm"]],
   "attributes": {"heads": "4"}, "segment": "attention"},
  {"layer": "rms_norm", "operands": [["x", "%2"], ["weight", "k_norm"]],
   "attributes": {"heads": "2"}, "segment": "attention"},
  {"layer": "rope", "operands": [["x", "%4"], ["table", "table"]],
   "attributes": {"head_dim": "8"}, "segment": "attention"},
  {"layer": "rope", "operands": [["x", "%5"], ["table", "table"]],
   "attributes": {"head_dim": "8"}, "segment": "attention"},
  {"layer": "attention",
   "operands": [["q", "%6"], ["k", "%7"], ["v", "%3"], ["key_begin", "key_begin"],
                ["key_end", "key_end"]],
   "attributes": {"num_heads": "4", "num_kv_heads": "2"}},
  {"layer": "linear", "operands": [["x", "%8"], ["weight", "o"]]},
  {"layer": "add", "operands": [["a", "%9"], ["b", "x"]]},
  {"layer": "rms_norm", "operands": [["x", "%10"], ["weight", "second_norm"]]},
  {"layer": "gated_mlp",
   "operands": [["x", "%11"], ["gate", "gate"], ["up", "up"], ["down", "down"]]},
  {"layer": "add", "operands": [["a", "%10"], ["b", "%12"]]}])";

LayerSignature decoder(LayerDtype x, LayerDtype w, std::map<std::string, std::string> attributes) {
  attributes.insert({{"nodes", kDecoderNodes}, {"outputs", R"(["%13", "%11"])"}});
  LayerSignature signature{
      "region",
      std::move(attributes),
      {tensor("x", x, {12, 24}), tensor("norm", w, {24}), tensor("q", w, {32, 24}),
       tensor("k", w, {16, 24}), tensor("v", w, {16, 24}), tensor("q_norm", w, {8}),
       tensor("k_norm", w, {8}), tensor("table", kF32, {12, 8}), tensor("key_begin", kI32, {12}),
       tensor("key_end", kI32, {12}), tensor("o", w, {24, 32}), tensor("second_norm", w, {24}),
       tensor("gate", w, {40, 24}), tensor("up", w, {40, 24}), tensor("down", w, {24, 40})}};
  for (const LayerTensor& input : signature.inputs)
    if (input.dtype != kI32 && input.name != "table") signature.gradients.push_back(input.name);
  return signature;
}

// Experts that are added to their own input, in bf16 where products are.
LayerSignature experts_and_sum(LayerDtype x, LayerDtype w,
                               std::map<std::string, std::string> attributes,
                               const std::string& result) {
  const std::string nodes = R"([
    {"layer": "cast", "operands": [["x", "x"]], "attributes": {"output": "RESULT"}},
    {"layer": "moe_experts",
     "operands": [["x", "x"], ["gate_up", "gate_up"], ["down", "down"], ["index", "index"],
                  ["weights", "weights"]], "result": "RESULT"},
    {"layer": "add", "operands": [["a", "%0"], ["b", "%1"]]}])";
  std::string text = nodes;
  for (std::size_t at; (at = text.find("RESULT")) != std::string::npos;)
    text.replace(at, std::string_view("RESULT").size(), result);
  attributes.insert({{"nodes", text}, {"outputs", R"(["%2"])"}});
  return {
      "region",
      std::move(attributes),
      {tensor("x", x, {23, 32}), tensor("gate_up", w, {6, 40, 32}), tensor("down", w, {6, 32, 20}),
       tensor("index", kI32, {23, 2}), tensor("weights", kF32, {23, 2})},
      {"x", "gate_up", "down", "weights"}};
}

LayerCase make_case(const std::string& name, LayerSignature signature, std::int64_t width) {
  LayerCase result{name, std::move(signature), width};
  const auto products = result.signature.attributes.find("products");
  for (const LayerTensor& input : result.signature.inputs)
    result.rounds_to_bf16 |= input.dtype == kBf16;
  result.rounds_to_bf16 |=
      products != result.signature.attributes.end() && products->second == "bf16";
  return result;
}

// x and weights in these dtypes; `products` is empty for layers without products.
std::vector<LayerCase> cases_of(const std::string& suffix, LayerDtype x, LayerDtype w,
                                const std::string& products) {
  std::map<std::string, std::string> with_products;
  if (!products.empty()) with_products["products"] = products;
  auto heads = with_products;
  heads.insert({{"num_heads", "4"}, {"num_kv_heads", "2"}, {"window", "5"}});
  auto gelu = with_products;
  gelu["activation"] = "geglu";
  std::vector<LayerCase> cases;
  const auto add = [&](const std::string& name, LayerSignature signature, std::int64_t width) {
    cases.push_back(make_case(name + "_" + suffix, std::move(signature), width));
  };
  add("rms_norm",
      {"rms_norm",
       {{"epsilon", "1e-5"}},
       {tensor("x", x, {9, 33}), tensor("weight", w, {33})},
       {"x", "weight"}},
      33);
  add("add_rms_norm",
      {"add_rms_norm",
       {},
       {tensor("x", x, {7, 40}), tensor("weight", w, {40}), tensor("residual", x, {7, 40})},
       {"x", "weight", "residual"}},
      40);
  add("swiglu",
      {"swiglu", {}, {tensor("gate", x, {11, 21}), tensor("up", x, {11, 21})}, {"gate", "up"}}, 21);
  add("mlp",
      {"mlp",
       with_products,
       {tensor("x", x, {19, 24}), tensor("gate_up", w, {70, 24}), tensor("down", w, {24, 35})},
       {"x", "gate_up", "down"}},
      70);
  add("gated_mlp",
      {"gated_mlp",
       with_products,
       {tensor("x", x, {19, 24}), tensor("gate", w, {35, 24}), tensor("up", w, {35, 24}),
        tensor("down", w, {24, 35})},
       {"x", "gate", "up", "down"}},
      70);
  add("linear",
      {"linear",
       with_products,
       {tensor("x", x, {19, 24}), tensor("weight", w, {35, 24})},
       {"x", "weight"}},
      35);
  add("mlp_geglu",
      {"mlp",
       gelu,
       {tensor("x", x, {19, 24}), tensor("gate_up", w, {64, 24}), tensor("down", w, {24, 32})},
       {"x", "gate_up", "down"}},
      70);
  add("moe_experts",
      {"moe_experts",
       with_products,
       {tensor("x", x, {23, 32}), tensor("gate_up", w, {6, 40, 32}), tensor("down", w, {6, 32, 20}),
        tensor("index", kI32, {23, 2}), tensor("weights", kF32, {23, 2})},
       {"x", "gate_up", "down", "weights"}},
      64);
  add("linear_cross_entropy",
      {"linear_cross_entropy",
       with_products,
       {tensor("x", x, {17, 24}), tensor("weight", w, {50, 24}), tensor("labels", kI32, {17}),
        tensor("scale", kF32, {})},
       {"x", "weight"}},
      64);
  add("grouped_linear",
      {"grouped_linear",
       with_products,
       {tensor("x", x, {20, 24}), tensor("weight", w, {4, 18, 24}), tensor("offsets", kI32, {5})},
       {"x", "weight"}},
      32);
  add("attention",
      {"attention",
       heads,
       {tensor("q", x, {12, 64}), tensor("k", x, {12, 32}), tensor("v", x, {12, 24}),
        tensor("key_begin", kI32, {12}), tensor("key_end", kI32, {12}), tensor("sinks", w, {4})},
       {"q", "k", "v", "sinks"}},
      64);
  add("rope",
      {"rope",
       {{"head_dim", "16"}},
       {tensor("x", x, {9, 48}), tensor("table", kF32, {9, 16})},
       {"x"}},
      16);
  const bool is_bf16 = x == kBf16 || products == "bf16";
  add("decoder", decoder(x, w, with_products), 64);
  add("region_of_experts", experts_and_sum(x, w, with_products, is_bf16 ? "bf16" : "fp32"), 64);
  return cases;
}

LayerCase stored_by_columns(LayerCase experts) {
  experts.name += "_by_columns";
  experts.signature.attributes["stacks"] = "columns";
  for (const std::size_t stack : {1, 2}) {
    std::vector<std::int64_t>& shape = experts.signature.inputs[stack].shape;
    std::swap(shape[1], shape[2]);
  }
  return experts;
}

LayerCase experts_case(LayerDtype x, LayerDtype w) {
  const std::vector<LayerCase> cases = cases_of("", x, w, "");
  return *std::ranges::find(cases, "moe_experts",
                            [](const LayerCase& one) { return one.signature.layer; });
}

}  // namespace

LayerTensor tensor(std::string name, LayerDtype dtype, std::vector<std::int64_t> shape) {
  return {std::move(name), dtype, std::move(shape)};
}

ValuesByName make_inputs(const LayerSignature& signature, std::uint64_t seed) {
  ValuesByName inputs;
  std::uint64_t stream = 0;
  for (const LayerTensor& input : signature.inputs) {
    const TensorType type = layer::to_type(input);
    const auto count = static_cast<std::size_t>(type.num_elements());
    ++stream;
    if (is_float(type.dtype)) {
      Values values = random_values(type, Regime::kBounded, seed, stream);
      if (input.shape.size() > 1 && input.name != "x" && input.name != "table")
        for (double& value : values.data)
          value /= std::sqrt(static_cast<double>(std::max<std::int64_t>(1, input.shape.back())));
      // What a buffer of this dtype holds.
      inputs[input.name] = HostTensor(values).values();
      continue;
    }
    Values values{type, std::vector<double>(count)};
    for (std::size_t i = 0; i < count; ++i) {
      const auto row = static_cast<double>(i);
      if (input.name == "index") {  // distinct experts of a token; the last one gets no row
        const std::int64_t top_k = input.shape[1], experts = signature.inputs[1].shape[0];
        const auto token = static_cast<std::int64_t>(i) / top_k,
                   slot = static_cast<std::int64_t>(i) % top_k;
        const std::int64_t used = std::max(top_k, experts - 1);
        values.data[i] = static_cast<double>((token * 7 + slot) % used);
      } else if (input.name == "labels") {
        const auto classes = static_cast<std::uint64_t>(signature.inputs[1].shape[0]);
        values.data[i] = i % 5 == 3 ? -100
                                    : static_cast<double>(random_below(
                                          seed, stream, i, static_cast<std::uint32_t>(classes)));
      } else if (input.name == "offsets") {  // the second group is empty
        const auto rows = static_cast<double>(signature.inputs[0].shape[0]);
        const double last = static_cast<double>(count) - 1;
        values.data[i] = i == 2 ? values.data[1] : std::floor(rows * row / last);
      } else if (input.name == "key_begin") {
        values.data[i] = i < count / 2 ? 0 : static_cast<double>(count / 2);
      } else if (input.name == "key_end") {
        values.data[i] = row + 1;
      }
    }
    inputs[input.name] = std::move(values);
  }
  return inputs;
}

ValuesByName make_seeds(const LayerCall& call, std::uint64_t seed) {
  ValuesByName seeds;
  std::uint64_t stream = 100;
  for (const LayerTensor& output : call.outputs())
    seeds[output.name] =
        HostTensor(random_values(layer::to_type(output), Regime::kBounded, seed, ++stream))
            .values();
  return seeds;
}

Tensors run_layer(const LayerCall& call, const LayerSignature& signature,
                  const ValuesByName& inputs, const ValuesByName& seeds) {
  Tensors results;
  std::vector<HostTensor> in, saved, given, packed;
  std::vector<const void*> in_data, saved_data, given_data, packed_data;
  std::vector<void*> out_data, saved_to, gradients;
  for (const LayerTensor& input : signature.inputs) {
    in.emplace_back(inputs.at(input.name));
    in_data.push_back(in.back().bytes().data());
  }
  const auto make = [](const LayerTensor& like) {
    HostTensor made(layer::to_type(like));
    made.bytes().poison();
    return made;
  };
  for (const LayerTensor& output : call.outputs())
    out_data.push_back(results.emplace(output.name, make(output)).first->second.bytes().data());
  for (const SavedTensor& one : call.saved()) {
    if (one.output >= 0) {
      saved_to.push_back(nullptr);
      saved_data.push_back(out_data[static_cast<std::size_t>(one.output)]);
      continue;
    }
    saved.push_back(make(one));
    saved_to.push_back(saved.back().bytes().data());
    saved_data.push_back(saved_to.back());
  }
  for (std::size_t i = 0; i < call.packings().size(); ++i) {
    const LayerPacking& packing = call.packings()[i];
    packed.push_back(make(tensor("packing", LayerDtype::kBFloat16, {packing.bytes / 2})));
    void* to = packed.back().bytes().data();
    call.pack(i, in_data[packing.input], to);
    packed_data.push_back(to);
  }
  for (const LayerPacking& packing : call.packings()) in_data[packing.input] = nullptr;
  call.forward(in_data, out_data, saved_to, packed_data);
  for (const LayerTensor& output : call.outputs()) {
    given.emplace_back(seeds.at(output.name));
    given_data.push_back(given.back().bytes().data());
  }
  for (const LayerTensor& input : signature.inputs) {
    const bool is_wanted =
        std::ranges::find(signature.gradients, input.name) != signature.gradients.end();
    gradients.push_back(
        is_wanted
            ? results.emplace("gradients." + input.name, make(input)).first->second.bytes().data()
            : nullptr);
  }
  call.backward(in_data, saved_data, given_data, gradients, packed_data);
  for (const auto* list : {&in, &saved, &given, &packed})
    for (const HostTensor& one : *list) EXPECT_TRUE(one.bytes().guards_intact());
  for (const auto& [name, one] : results) EXPECT_TRUE(one.bytes().guards_intact()) << name;
  for (std::size_t i = 0; i < in.size(); ++i)
    EXPECT_TRUE(in[i].same_bits(HostTensor(inputs.at(signature.inputs[i].name))))
        << signature.inputs[i].name << " has changed";
  return results;
}

ValuesByName forward_in_double(const LayerSignature& signature, const ValuesByName& inputs) {
  const layer::LayerGraph layer = graph_in_double(signature);
  Environment environment = environment_of(layer, signature, inputs);
  evaluate(layer.graph, environment);
  ValuesByName results;
  for (const std::string& output : layer.outputs)
    results[output] = environment.at(*layer.graph.find_output(output));
  return results;
}

ValuesByName run_in_double(const LayerSignature& signature, const ValuesByName& inputs,
                           const ValuesByName& seeds) {
  layer::LayerGraph layer = graph_in_double(signature);
  const passes::GradientRequest request{.outputs = layer.outputs, .inputs = layer.wanted_inputs};
  const passes::PassContext context{.options = {.gradients = &request}, .find_op = ops::find_op};
  layer.graph.objective.reset();
  passes::kDifferentiate.run(layer.graph, context);
  Environment environment = environment_of(layer, signature, inputs);
  for (const ir::ValueId id : layer.graph.batch)
    for (const auto& [name, seed] : seeds)
      if (text(layer.graph.value(id).name) == passes::seed_name(name))
        environment[id] = in_double(seed);
  evaluate(layer.graph, environment);
  ValuesByName results;
  for (const std::string& output : layer.outputs)
    results[output] = environment.at(*layer.graph.find_output(output));
  for (const std::string& input : layer.wanted_inputs)
    results["gradients." + input] =
        environment.at(*layer.graph.find_output(passes::input_gradient_name(input)));
  for (const layer::WeightPart& part : layer.parts)
    add_part(results, layer, signature, part, environment);
  return results;
}

std::vector<LayerCase> layer_cases() {
  std::vector<LayerCase> cases;
  const auto add = [&](std::vector<LayerCase> more) {
    for (LayerCase& one : more) {
      // Layers without products come once for their dtypes.
      const bool is_known = std::ranges::any_of(cases, [&](const LayerCase& known) {
        return known.signature.layer == one.signature.layer &&
               known.signature.attributes == one.signature.attributes &&
               known.signature.inputs[0].dtype == one.signature.inputs[0].dtype &&
               known.signature.inputs.back().dtype == one.signature.inputs.back().dtype &&
               known.signature.inputs[1].dtype == one.signature.inputs[1].dtype;
      });
      if (!is_known) cases.push_back(std::move(one));
    }
  };
  add(cases_of("f32", kF32, kF32, ""));
  add(cases_of("bf16", kBf16, kBf16, ""));
  add(cases_of("bf16_products", kF32, kF32, "bf16"));
  add(cases_of("bf16_x", kBf16, kF32, ""));
  add(cases_of("bf16_operands_fp32_products", kBf16, kBf16, "fp32"));
  for (const bool is_bf16 : {false, true}) {  // as gpt_oss has them
    LayerCase biases = experts_case(is_bf16 ? kBf16 : kF32, is_bf16 ? kBf16 : kF32);
    biases.name = is_bf16 ? "moe_experts_biases_bf16" : "moe_experts_biases_f32";
    biases.signature.attributes = {
        {"activation", "swiglu_clamped"}, {"alpha", "1.702"}, {"limit", "0.5"}};
    const LayerDtype dtype = biases.signature.inputs[1].dtype;
    for (const char* bias : {"gate_bias", "up_bias", "down_bias"}) {
      const bool is_of_down = std::string_view(bias) == "down_bias";
      biases.signature.inputs.push_back(tensor(bias, dtype, {6, is_of_down ? 32 : 20}));
      biases.signature.gradients.emplace_back(bias);
    }
    cases.push_back(std::move(biases));
  }
  LayerCase weights = experts_case(kBf16, kBf16);
  weights.name = "moe_experts_bf16_weights";
  weights.signature.inputs[4].dtype = kBf16;
  cases.push_back(std::move(weights));
  // Every token to every expert; no token at all.
  for (const bool is_empty : {false, true}) {
    const std::int64_t tokens = is_empty ? 0 : 5;
    cases.push_back(
        make_case(is_empty ? "moe_experts_without_tokens" : "moe_experts_all_of_them",
                  {"moe_experts",
                   {},
                   {tensor("x", kF32, {tokens, 16}), tensor("gate_up", kF32, {3, 24, 16}),
                    tensor("down", kF32, {3, 16, 12}), tensor("index", kI32, {tokens, 3}),
                    tensor("weights", kF32, {tokens, 3})},
                   {"x", "gate_up", "down", "weights"}},
                  32));
  }
  // Stacks as gpt_oss has them.
  std::vector<LayerCase> by_columns;
  for (const LayerCase& one : cases)
    if (one.signature.layer == "moe_experts") by_columns.push_back(stored_by_columns(one));
  std::ranges::move(by_columns, std::back_inserter(cases));
  return cases;
}

const LayerCase& layer_case(const std::string& name) {
  static const std::vector<LayerCase> cases = layer_cases();
  const auto found = std::ranges::find(cases, name, &LayerCase::name);
  ANABATIC_REQUIRE(found != cases.end(), "no case '{}'", name);
  return *found;
}

}  // namespace anabatic::testing
