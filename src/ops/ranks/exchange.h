// SPDX-License-Identifier: Apache-2.0
// Exchanges between ranks. Attribute `group`: the axes of the mesh (spec/mesh.h) along which the
// ranks of a group differ. Kernels of these ops are for a group of one; between several ranks
// comm::Communicator does it, and no kernel is called.
#pragma once
#include "ir/op_schema.h"
#include "spec/mesh.h"

namespace anabatic::ops {

// All are in place. Sums are in the order of comm/sum.h.
//
//   all_reduce       everything is the sum over the group
//   reduce_scatter   the own part (spec/shards.h) is the sum; what the other parts hold is
//   undefined all_gather       each part is that of the rank that owns it
extern const ir::OpSchema kAllGather;
extern const ir::OpSchema kAllReduce;
extern const ir::OpSchema kReduceScatter;

// The value of the attribute for these axes of one grid, such as "data", and its inverse.
std::string group_attribute(spec::Axes axes);
spec::Axes group_of(const spec::Attributes& attributes);

class Check;
// For infer functions: throws InvalidArgument unless the attribute names axes of one grid.
void check_group(const Check& check);

bool is_exchange(const ir::Node& node);

}  // namespace anabatic::ops
