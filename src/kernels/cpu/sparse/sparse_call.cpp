// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/sparse/sparse_call.h"

#include "base/error.h"

namespace anabatic::kernels::cpu {
namespace {

using Int = std::int64_t;
using spec::SparseLayout;

SparseLayout layout_of(const spec::Attributes& attributes, const TensorType& index, Int lines,
                       Int depth) {
  const auto pattern = spec::sparsity_pattern_from_string(spec::get_string(attributes, "pattern"));
  return spec::sparse_layout_by_index(*pattern, lines, depth, index.dim(-1));
}

void require_index_of(const std::int32_t* offsets, const SparseLayout& layout) {
  const std::int32_t* steps = offsets + layout.panels() + 1;
  ANABATIC_REQUIRE(
      offsets[0] == 0 && offsets[layout.panels()] == layout.kept,
      "[sparse_linear] expected the offsets of panels to go from 0 to {}, got {} to {}",
      layout.kept, offsets[0], offsets[layout.panels()]);
  for (Int panel = 0; panel < layout.panels(); ++panel)
    ANABATIC_REQUIRE(offsets[panel] <= offsets[panel + 1],
                     "[sparse_linear] expected ascending offsets of panels, got {} before {}",
                     offsets[panel], offsets[panel + 1]);
  const auto most = static_cast<std::uint32_t>(layout.steps());
  std::uint32_t largest = 0;  // a negative one is very large
  for (Int n = 0; n < layout.kept; ++n) {
    const auto step = static_cast<std::uint32_t>(steps[n]);
    largest = step > largest ? step : largest;
  }
  ANABATIC_REQUIRE(layout.kept == 0 || largest < most,
                   "[sparse_linear] expected blocks below {} along the depth, got {}",
                   layout.steps(), static_cast<std::int32_t>(largest));
  if (layout.side == 1) return;
  for (Int panel = 0; panel < layout.panels(); ++panel)
    for (std::int32_t n = offsets[panel] + 1; n < offsets[panel + 1]; ++n)
      ANABATIC_REQUIRE(steps[n - 1] < steps[n],
                       "[sparse_linear] expected ascending blocks in panel {}, got {} before {}",
                       panel, steps[n - 1], steps[n]);
}

}  // namespace

SparseLayout sparse_layout_of(const spec::Problem& problem) {
  const bool of_gradient = text(problem.op).ends_with("weight_gradient");
  return layout_of(*problem.attributes, problem.inputs[kSparseIndexInput],
                   of_gradient ? problem.inputs[1].dim(1) : problem.outputs[0].dim(1),
                   problem.inputs[0].dim(1));
}

// A tile of rows for each thread.
std::int64_t sparse_csr_workspace_bytes(const spec::Problem& problem) {
  return problem.device->num_threads * sparse_layout_of(problem).depth * 2 * kMostCsrLanes * 4;
}

SparseGroups::SparseGroups(const Arguments& args, Int lines, Int depth)
    : index(args.inputs[kSparseIndexInput].data),
      offsets(args.inputs[kSparseIndexInput].type->ndim() == 2
                  ? args.inputs[kSparseOffsetsOrBias].as<const std::int32_t>()
                  : nullptr),
      layout(layout_of(*args.attributes, *args.inputs[kSparseIndexInput].type, lines, depth)),
      count(offsets != nullptr ? args.inputs[kSparseIndexInput].type->dim(0) : 1),
      rows(args.inputs[0].type->dim(0)) {
  for (Int group = 0; group < count; ++group) {
    if (!layout.is_two_of_four) require_index_of(offsets_of_panels(group), layout);
    ANABATIC_REQUIRE(
        0 <= begin(group) && 0 <= num_rows(group) && begin(group) + num_rows(group) <= rows,
        "[grouped_sparse_linear] expected ascending offsets within {} rows, got [{}, {})", rows,
        begin(group), begin(group) + num_rows(group));
  }
}

}  // namespace anabatic::kernels::cpu
