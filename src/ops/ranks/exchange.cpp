// SPDX-License-Identifier: Apache-2.0
#include "ops/ranks/exchange.h"

#include <optional>

#include "base/error.h"
#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

// Every set of axes that has this text: none or one.
std::optional<spec::Axes> axes_named(std::string_view name) {
  for (const spec::Axis first : spec::kAxes) {
    if (group_attribute({first}) == name) return spec::Axes{first};
    for (const spec::Axis second : spec::kAxes)
      if (first != second && group_attribute({first, second}) == name)
        return spec::Axes{first, second};
  }
  return std::nullopt;
}

std::vector<TensorType> infer_all_reduce(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("all_reduce", inputs, attributes, {"group"});
  const Operand x = check.floating(0, "x");
  if (!axes_named(check.string("group")))
    check.fail("expected group to name axes of the mesh, got '" + check.string("group") + "'");
  return {*x.type};
}

// The gradient of a sum that every rank has is the sum of their gradients.
ir::Gradients gradient_all_reduce(ir::GraphBuilder& builder, const ir::Node& node,
                                  OutputGradients of_outputs) {
  if (!of_outputs[0]) return {std::nullopt};
  return {builder.add1("all_reduce", {*of_outputs[0]}, node.attributes)};
}

ir::Cost cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return elementwise_cost(inputs, outputs, 1);
}

}  // namespace

const ir::OpSchema kAllReduce{.name = "all_reduce",
                              .min_inputs = 1,
                              .max_inputs = 1,
                              .signature = "(x float) -> as x",
                              .infer = infer_all_reduce,
                              .gradient = gradient_all_reduce,
                              .cost = cost,
                              .must_alias = ir::always<0>};

std::string group_attribute(spec::Axes axes) { return to_string(axes); }

spec::Axes group_of(const spec::Attributes& attributes) {
  const std::string& name = spec::get_string(attributes, "group");
  const std::optional<spec::Axes> axes = axes_named(name);
  ANABATIC_CHECK(axes.has_value(), "[exchange] '{}' names no axes", name);
  return *axes;
}

bool is_exchange(const ir::Node& node) { return node.op == &kAllReduce; }

}  // namespace anabatic::ops
