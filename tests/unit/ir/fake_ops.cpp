// SPDX-License-Identifier: Apache-2.0
#include "unit/ir/fake_ops.h"

#include <array>

#include "base/error.h"

namespace anabatic::ir {
namespace {

using Results = std::vector<TensorType>;

Results infer_add(Types inputs, const spec::Attributes&) {
  ANABATIC_REQUIRE(inputs[0] == inputs[1], "[add] expected equal types, got {} and {}",
                   to_string(inputs[0]), to_string(inputs[1]));
  return {inputs[0]};
}

Results infer_make(Types, const spec::Attributes& attributes) {
  return {parse_tensor_type(spec::get_string(attributes, "type"))};
}

Results infer_like_first(Types inputs, const spec::Attributes&) { return {inputs[0]}; }

Results infer_split(Types inputs, const spec::Attributes&) { return {inputs[0], inputs[0]}; }

Results infer_sum(Types, const spec::Attributes&) { return {tensor_type(DType::kFloat32, {})}; }

OpSchema schema(std::string_view name, int min_inputs, int max_inputs, decltype(OpSchema::infer) f,
                int num_outputs = 1) {
  OpSchema result;
  result.name = name;
  result.min_inputs = min_inputs;
  result.max_inputs = max_inputs;
  result.num_outputs = num_outputs;
  result.signature = "(as the table of fake ops says)";
  result.infer = f;
  return result;
}

}  // namespace

const OpSchema* find_fake_op(std::string_view name) {
  static const std::array<OpSchema, 6> kTable = [] {
    std::array<OpSchema, 6> table{schema("add", 2, 2, infer_add),
                                  schema("make", 0, 0, infer_make),
                                  schema("overwrite", 1, 2, infer_like_first),
                                  schema("grouped", 2, 2, infer_like_first),
                                  schema("split", 1, 1, infer_split, 2),
                                  schema("sum", 1, -1, infer_sum)};
    table[2].must_alias = always<0>;
    return table;
  }();
  for (const OpSchema& row : kTable)
    if (row.name == name) return &row;
  return nullptr;
}

}  // namespace anabatic::ir
