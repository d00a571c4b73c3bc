// SPDX-License-Identifier: Apache-2.0
#include "cli/plugin_facts.h"

#include <fmt/ranges.h>

#include <filesystem>
#include <vector>

#include "cli/standard_output.h"
#include "plugin/plugin.h"
#include "plugin/plugin_attributes.h"

namespace anabatic::cli {
namespace {

constexpr const char* kKindNames[] = {"activation", "weight", "index", "constant"};

std::vector<std::string> dtypes_of(const plugin::OperandSpec& operand) {
  std::vector<std::string> dtypes;
  for (const DType dtype : plugin::kPluginDTypes)
    if (operand.takes(dtype)) dtypes.emplace_back(to_string(dtype));
  return dtypes;
}

OrderedJson operands_json(const std::vector<plugin::OperandSpec>& operands) {
  OrderedJson list = OrderedJson::array();
  for (const plugin::OperandSpec& operand : operands) {
    OrderedJson json{{"name", operand.name},
                     {"kind", kKindNames[operand.kind]},
                     {"shape", operand.shape},
                     {"dtypes", dtypes_of(operand)}};
    if (!operand.below.empty()) json["below"] = operand.below;
    list.push_back(std::move(json));
  }
  return list;
}

void print_operands(const char* role, const std::vector<plugin::OperandSpec>& operands) {
  for (const plugin::OperandSpec& operand : operands)
    print_output("    {} {}: {} in {}\n", role, operand.name, kKindNames[operand.kind],
                 fmt::join(dtypes_of(operand), ", "));
}

}  // namespace

bool is_plugin(const std::string& path) {
  return path.ends_with(".so") && !std::filesystem::is_directory(path);
}

OrderedJson plugin_json(const std::string& path) {
  const plugin::Plugin& found = plugin::load_plugin(path);
  OrderedJson json{
      {"plugin", found.path()}, {"ops", OrderedJson::array()}, {"kernels", OrderedJson::array()}};
  for (const plugin::PluginOp& op : found.ops())
    json["ops"].push_back({{"name", op.name()},
                           {"summary", op.summary()},
                           {"signature", op.signature()},
                           {"inputs", operands_json(op.inputs())},
                           {"outputs", operands_json(op.outputs())},
                           {"attributes", OrderedJson::parse(plugin::to_json(op.defaults()))},
                           {"has_gradient", op.has_gradient()}});
  for (const plugin::PluginKernel& kernel : found.kernels())
    json["kernels"].push_back({{"op", kernel.op()}, {"name", kernel.name()}});
  return json;
}

void print_plugin(const std::string& path) {
  const plugin::Plugin& found = plugin::load_plugin(path);
  print_output("plugin {}\n", found.path());
  for (const plugin::PluginOp& op : found.ops()) {
    print_output("  op {} {}{}\n", op.name(), op.signature(),
                 op.has_gradient() ? "" : ", without a gradient");
    if (!op.summary().empty()) print_output("    {}\n", op.summary());
    print_operands("input", op.inputs());
    print_operands("output", op.outputs());
    for (const auto& [key, value] : op.defaults())
      print_output("    attribute {} = {}\n", key, spec::to_string(value));
  }
  for (const plugin::PluginKernel& kernel : found.kernels())
    print_output("  kernel {} of op {}\n", kernel.name(), kernel.op());
}

}  // namespace anabatic::cli
