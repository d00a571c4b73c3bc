// SPDX-License-Identifier: Apache-2.0
#include "ops/ranks/exchange.h"

#include <optional>

#include "base/error.h"
#include "ops/build.h"
#include "ops/check.h"
#include "ops/ranks/exchange_rows.h"

namespace anabatic::ops {
namespace {

constexpr std::string_view kAllGatherName = "all_gather", kAllReduceName = "all_reduce",
                           kReduceScatterName = "reduce_scatter";

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

template <const std::string_view& kName>
std::vector<TensorType> infer_sum(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check(kName, inputs, attributes, {"group"});
  const Operand x = check.floating(0, "x");
  check_group(check);
  return {*x.type};
}

std::vector<TensorType> infer_all_gather(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check(kAllGatherName, inputs, attributes, {"group"});
  if (inputs[0].dtype != DType::kInt32) check.floating(0, "x");
  check_group(check);
  return {inputs[0]};
}

// The gradient of a sum that every rank has is the sum of their gradients. Of parts that each rank
// has alone it is the part of that sum; and the other way round.
template <const std::string_view& kDual>
ir::Gradients exchange_gradient(ir::GraphBuilder& builder, const ir::Node& node,
                                OutputGradients of_outputs) {
  if (!of_outputs[0]) return {std::nullopt};
  return {builder.add1(kDual, {*of_outputs[0]}, node.attributes)};
}

}  // namespace

const ir::OpSchema kAllGather{.name = kAllGatherName,
                              .min_inputs = 1,
                              .max_inputs = 1,
                              .signature = "(x float or i32) -> as x",
                              .infer = infer_all_gather,
                              .gradient = exchange_gradient<kReduceScatterName>,
                              .cost = cost_an_element<1>,
                              .must_alias = ir::always<0>};

const ir::OpSchema kAllReduce{.name = kAllReduceName,
                              .min_inputs = 1,
                              .max_inputs = 1,
                              .signature = "(x float) -> as x",
                              .infer = infer_sum<kAllReduceName>,
                              .gradient = exchange_gradient<kAllReduceName>,
                              .cost = cost_an_element<1>,
                              .must_alias = ir::always<0>};

const ir::OpSchema kReduceScatter{.name = kReduceScatterName,
                                  .min_inputs = 1,
                                  .max_inputs = 1,
                                  .signature = "(x float) -> as x",
                                  .infer = infer_sum<kReduceScatterName>,
                                  .gradient = exchange_gradient<kAllGatherName>,
                                  .cost = cost_an_element<1>,
                                  .must_alias = ir::always<0>};

void check_group(const Check& check) {
  if (!axes_named(check.string("group")))
    check.fail("expected group to name axes of the mesh, got '" + check.string("group") + "'");
}

std::string group_attribute(spec::Axes axes) { return to_string(axes); }

spec::Axes group_of(const spec::Attributes& attributes) {
  const std::string& name = spec::get_string(attributes, "group");
  const std::optional<spec::Axes> axes = axes_named(name);
  ANABATIC_CHECK(axes.has_value(), "[exchange] '{}' names no axes", name);
  return *axes;
}

bool is_exchange(const ir::Node& node) {
  return node.op == &kAllGather || node.op == &kAllReduce || node.op == &kExchangeRows ||
         node.op == &kReduceScatter;
}

}  // namespace anabatic::ops
