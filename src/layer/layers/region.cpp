// SPDX-License-Identifier: Apache-2.0
// Several layers as one: their values stay inside, and the passes see all of them together.
//
//   nodes:    [{"layer": "rms_norm", "operands": [["x", "x0"], ["weight", "w0"]],
//               "attributes": {"epsilon": "1e-6"}, "result": "bf16"},
//              {"layer": "linear", "operands": [["x", "%0"], ["weight", "w1"]]}]
//   outputs:  ["%1"]
//
// An operand of a node is one of the region's, or the result of an earlier node. `result` is the
// dtype of the node's result where that is not what the layer says, `segment` that of its nodes.
// Outputs of the region are y0, y1, ...
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/json_node.h"
#include "layer/layer_builder.h"
#include "layer/layer_table.h"
#include "layer/layers/layers.h"

namespace anabatic::layer {
namespace {

Json parse_list(const LayerBuilder& b, const char* attribute) {
  Json list = try_parse_json(b.word(attribute, ""));
  if (!list.is_array() || list.empty())
    b.fail(fmt::format("expected attribute '{}' to be a list in JSON, got '{}'", attribute,
                       b.word(attribute, "")));
  return list;
}

LayerDtype dtype_of(const JsonNode& node) {
  const std::string name = node.as_string();
  if (name != "bf16" && name != "fp32") node.refuse("bf16 or fp32");
  return name == "bf16" ? LayerDtype::kBFloat16 : LayerDtype::kFloat32;
}

class RegionBuilder {
 public:
  explicit RegionBuilder(LayerBuilder& b) : b_(b) {}

  void build() {
    const Json nodes = parse_list(b_, "nodes"), outputs = parse_list(b_, "outputs");
    for (const JsonNode& node : JsonNode(nodes, "[region]", "nodes").items()) add(node);
    int number = 0;
    std::set<std::string> seen;
    for (const JsonNode& output : JsonNode(outputs, "[region]", "outputs").items()) {
      const PartResult* result = result_of(output);
      if (result == nullptr || !seen.insert(output.as_string()).second)
        output.refuse("the result of a node that is no output yet");
      b_.output(result->value, fmt::format("y{}", number++), result->dtype);
    }
  }

 private:
  void add(const JsonNode& node) {
    LayerPart part{.signature = {.layer = node.at("layer").as_string()}};
    for (const JsonNode& pair : node.at("operands").items()) {
      if (pair.items().size() != 2) pair.refuse("a name and what it stands for");
      add_operand(part, pair.item(0).as_string(), pair.item(1));
    }
    if (const auto attributes = node.find("attributes"))
      for (const auto& [key, value] : attributes->members())
        part.signature.attributes[key] = value.as_string();
    if (const auto result = node.find("result")) part.result = dtype_of(*result);
    if (const auto segment = node.find("segment")) part.segment = segment->as_string();
    const LayerRow& row = checked_row(part.signature);
    if (row.takes_any_operands) node.at("layer").refuse("a layer that is no region");
    results_.push_back(b_.build_part(row, part));
  }

  void add_operand(LayerPart& part, const std::string& name, const JsonNode& source) {
    LayerTensor tensor;
    if (const PartResult* result = result_of(source)) {
      tensor = {name, result->dtype, b_.type(result->value).shape};
      part.operands.push_back({.value = result->value});
    } else {
      const auto& inputs = b_.signature().inputs;
      const auto found = std::ranges::find(inputs, source.as_string(), &LayerTensor::name);
      if (found == inputs.end()) source.refuse("an operand, or the result of an earlier node");
      tensor = *found;
      tensor.name = name;
      part.operands.push_back({.input = static_cast<std::size_t>(found - inputs.begin())});
    }
    part.signature.inputs.push_back(std::move(tensor));
  }

  // Of "%3"; null where it is none.
  const PartResult* result_of(const JsonNode& source) const {
    const std::string name = source.as_string();
    std::size_t number = 0;
    const char* const end = name.data() + name.size();
    if (!name.starts_with('%') || std::from_chars(name.data() + 1, end, number).ptr != end ||
        number >= results_.size())
      return nullptr;
    return &results_[number];
  }

  LayerBuilder& b_;
  std::vector<PartResult> results_;  // by node
};

}  // namespace

void region(LayerBuilder& b) { RegionBuilder(b).build(); }

}  // namespace anabatic::layer
