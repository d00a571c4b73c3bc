// SPDX-License-Identifier: Apache-2.0
#include "passes/precision/product_formats.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "ir/op_schema.h"
#include "passes/precision/product_units.h"
#include "tensor/panels.h"

namespace anabatic::passes {
namespace {

using spec::Precision;

// Where no packing is kept, a weight is what a node makes of its parameter.
ir::ValueId source_of(const ir::Graph& graph, ir::ValueId value) {
  for (;;) {
    const ir::NodeId producer = graph.value(value).producer;
    if (producer == ir::kNoNode) return value;
    const ir::Node& node = graph.node(producer);
    if (node.op->name != "pack" && node.op->name != "fake_quantize" && node.op->name != "reload")
      return value;
    value = node.inputs[0];
  }
}

// The parameter that a value is, or is derived from; null where it is none.
const ir::State* parameter_of(const ir::Graph& graph, ir::ValueId value) {
  value = source_of(graph, value);
  for (const ir::State& state : graph.states) {
    if (state.before != value) continue;
    const bool is_weight =
        state.kind() == ir::StateKind::kParameter || state.role == ir::StateRole::kCopy ||
        state.role == ir::StateRole::kPacking || state.role == ir::StateRole::kPackingTransposed;
    if (!is_weight) return nullptr;
    const ir::State* owner = state.owner != Name{} ? graph.find_state(state.owner) : &state;
    return owner != nullptr && owner->kind() == ir::StateKind::kParameter ? owner : nullptr;
  }
  return nullptr;
}

Precision precision_of(const ir::Node& product, const TensorType& weight) {
  if (is_int8_panels(weight) || product.attributes.contains("fallback")) return Precision::kInt8;
  switch (weight.value_dtype()) {
    case DType::kFloat32:
      return Precision::kFp32;
    case DType::kFloat16:
      return Precision::kFp16;
    default:
      return Precision::kBf16;
  }
}

// What all operands have where no unit differs.
Precision usual(Precision policy) {
  return policy == Precision::kMixed ? Precision::kBf16 : policy;
}

std::string reason_of(const ir::Graph& graph, const ProductPlace& place, const ir::State& parameter,
                      Precision precision, Precision policy, const spec::ProductOptions& options) {
  if (precision == usual(policy)) return {};
  if (const Unit* keep = unit_of(place, options.keep); keep != nullptr && keep->second == precision)
    return fmt::format("precision.keep has {}", keep->first);
  if (policy == Precision::kInt8) {
    if (std::string reason = int8_refusal_of_weight(graph, parameter); !reason.empty())
      return reason;
    if (std::string reason = int8_refusal_of_units(place, options); !reason.empty()) return reason;
  }
  return "its result is f32";
}

// A format for each precision of a weight whose products were raised; false for another weight.
bool add_raised(const std::string& unit, bool is_head, const spec::ProductOptions& options,
                std::vector<ProductFormat>& formats) {
  using enum spec::ProductRole;
  std::map<Precision, std::vector<std::string_view>> roles;
  for (const spec::ProductRole role : {kForward, kInputGradient, kWeightGradient})
    roles[raised_precision(unit, is_head ? kForward : role, options).value_or(Precision::kInt8)]
        .push_back(to_string(role));
  const bool is_raised = roles.size() > 1 || !roles.contains(Precision::kInt8);
  for (const auto& [precision, of_precision] : roles)
    if (is_raised)
      formats.push_back(
          {unit, precision,
           fmt::format(
               "{}{}", fmt::join(of_precision, ", "),
               precision == Precision::kInt8 ? std::string() : fmt::format(": its {}", kRaised))});
  return is_raised;
}

std::string_view word(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      return "fp32";
    case Precision::kInt8:
      return "int8";
    case Precision::kFp16:
      return "fp16";
    case Precision::kBf16:
    case Precision::kMixed:
      break;
  }
  return "bf16";
}

// "layers.12.mlp.up" in its parts around the number; without one the whole is in front.
struct LayerName {
  std::string before, number, after;
};
LayerName parts_of(const std::string& name) {
  const auto is_digit = [](unsigned char c) { return std::isdigit(c) != 0; };
  for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    const auto begin = name.begin() + static_cast<std::ptrdiff_t>(dot) + 1;
    const auto end = std::find_if_not(begin, name.end(), is_digit);
    if (end != begin && (end == name.end() || *end == '.'))
      return {{name.begin(), begin}, {begin, end}, {end, name.end()}};
  }
  return {name, {}, {}};
}

}  // namespace

std::vector<ProductFormat> product_formats(const ir::Graph& graph, Precision policy,
                                           const spec::ProductOptions& options) {
  std::vector<ProductFormat> formats;
  std::set<Name> seen;
  for (const ir::Node& node : graph.nodes) {
    const spec::ProductForm* form = ir::product_form(node);
    const bool is_head = node.op->name.starts_with("head_loss");
    if (!is_head && (form == nullptr || form->role != spec::ProductRole::kForward)) continue;
    for (const ir::ValueId input : node.inputs) {
      const ir::State* parameter = parameter_of(graph, input);
      if (parameter == nullptr || graph.value(input).type.ndim() < 2) continue;
      if (!seen.insert(parameter->name).second) continue;
      const ProductPlace place{unit_name(parameter->name), text(node.tag.segment)};
      if (add_raised(place.name, is_head, options, formats)) continue;
      const Precision precision = precision_of(node, graph.value(input).type);
      formats.push_back(
          {place.name, precision, reason_of(graph, place, *parameter, precision, policy, options)});
    }
  }
  return formats;
}

std::string to_string(const std::vector<ProductFormat>& formats) {
  std::map<std::pair<std::string, std::string>, std::set<std::string>> layers;  // by name around N
  for (const ProductFormat& format : formats) {
    const LayerName name = parts_of(format.unit);
    layers[{name.before, name.after}].insert(name.number);
  }
  std::string out;
  for (const Precision precision :
       {Precision::kInt8, Precision::kFp16, Precision::kBf16, Precision::kFp32}) {
    // In the order of their first layers.
    std::vector<std::pair<LayerName, std::string>> groups;  // without numbers, and the reason
    std::vector<std::vector<std::string>> numbers;
    bool has_adapter = false;
    for (const ProductFormat& format : formats) {
      if (format.precision != precision) continue;
      if (format.reason == kOfAdapter) {
        has_adapter = true;
        continue;
      }
      const LayerName name = parts_of(format.unit);
      const auto found = std::ranges::find_if(groups, [&](const auto& group) {
        return group.first.before == name.before && group.first.after == name.after &&
               group.second == format.reason;
      });
      const auto place = static_cast<std::size_t>(found - groups.begin());
      if (found == groups.end()) {
        groups.emplace_back(name, format.reason);
        numbers.emplace_back();
      }
      numbers[place].push_back(name.number);
    }
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const auto& [name, reason] = groups[i];
      const bool is_all = numbers[i].size() == layers[{name.before, name.after}].size();
      const std::string number = name.number.empty() ? ""
                                 : is_all            ? "N"
                                 : numbers[i].size() == 1
                                     ? numbers[i][0]
                                     : fmt::format("{{{}}}", fmt::join(numbers[i], ","));
      texts.push_back(fmt::format("{}{}{}{}", name.before, number, name.after,
                                  reason.empty() ? "" : fmt::format(" ({})", reason)));
    }
    if (has_adapter) texts.emplace_back("those of the adapter");
    if (!texts.empty())
      out += fmt::format("{}products in {}: {}", out.empty() ? "" : "\n", word(precision),
                         fmt::join(texts, ", "));
  }
  return out;
}

}  // namespace anabatic::passes
