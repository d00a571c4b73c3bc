// SPDX-License-Identifier: Apache-2.0
// Helpers of gradient and cost functions: tags of weight gradients, and counts that saturate.
#pragma once
#include <initializer_list>

#include "ir/op_schema.h"

namespace anabatic::ops {

// Gradients of the outputs as gradient functions get them; nullopt if there is none.
using OutputGradients = std::span<const std::optional<ir::ValueId>>;

// During its lifetime, new nodes get phase kBackwardWeight; layer and segment stay.
class WeightPhase {
 public:
  explicit WeightPhase(ir::GraphBuilder& builder) : builder_(builder), saved_(builder.tag()) {
    ir::Tag tag = saved_;
    tag.phase = ir::Phase::kBackwardWeight;
    builder_.set_tag(tag);
  }
  ~WeightPhase() { builder_.set_tag(saved_); }
  WeightPhase(const WeightPhase&) = delete;
  WeightPhase& operator=(const WeightPhase&) = delete;

 private:
  ir::GraphBuilder& builder_;
  ir::Tag saved_;
};

// The value itself, or a cast (to nearest even) if its dtype differs.
ir::ValueId cast_to(ir::GraphBuilder& builder, ir::ValueId value, DType dtype);

// `value` must have no gradient: InvalidArgument naming op and output otherwise.
void require_no_gradient(const ir::Node& node, OutputGradients of_outputs, int output,
                         std::string_view name);

// The product, at most 2^62.
std::int64_t product(std::initializer_list<std::int64_t> factors);

// Reads every input and writes every output once.
ir::Cost streaming_cost(ir::Types inputs, ir::Types outputs, std::int64_t flops);
// As above with `flops_per_element` of the first output.
ir::Cost elementwise_cost(ir::Types inputs, ir::Types outputs, std::int64_t flops_per_element);

// Cost functions of schemas: of an op that only moves what it reads, ...
ir::Cost copy_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&);
// ... of one that picks rows of input 0 by the indices of input 1 and reads those alone, ...
ir::Cost gather_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&);
// ... and of one with so many flops for each element of its first output.
template <std::int64_t kFlops>
ir::Cost cost_an_element(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return elementwise_cost(inputs, outputs, kFlops);
}

// The number of experts in the stack of weights that is input 1. One where it is that of an int8
// product: a call does not pack such weights.
std::int64_t most_slices_of_experts(ir::Types inputs, const spec::Attributes& attributes);

}  // namespace anabatic::ops
