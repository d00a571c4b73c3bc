// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/norm/norm_rows.h"
#include "kernels/cpu/vector_rows.h"
#include "spec/product_prologue.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

// Those of a row, as the norm itself takes them.
template <class T>
void put_statistics(const T* x, std::int64_t width, double epsilon, spec::Norm norm, float* to) {
  if (norm == spec::Norm::kRms) {
    *to = reciprocal_rms(x, width, epsilon);
    return;
  }
  const Moments of_row = moments(x, width, epsilon);
  to[0] = of_row.rstd;
  to[1] = of_row.mean;
}

}  // namespace

void norm_statistics(const Arguments& args) {
  const std::int64_t width = columns(args.inputs[0]);
  const double epsilon = spec::get_double(*args.attributes, "epsilon");
  const spec::Norm norm = spec::norm_of(*args.attributes);
  with_any_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    args.launch.team->for_range(
        rows(args.inputs[0]), row_grain(width), [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t row = begin; row < end; ++row)
            put_statistics(args.inputs[0].as<const T>() + row * width, width, epsilon, norm,
                           args.outputs[0].as<float>() + row * spec::num_statistics(norm));
        });
  });
}

void add_norm_statistics(const Arguments& args) {
  const std::int64_t width = columns(args.inputs[0]);
  const double epsilon = spec::get_double(*args.attributes, "epsilon");
  const spec::Norm norm = spec::norm_of(*args.attributes);
  with_any_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    for_sums<T>(args, args.inputs[1], rows(args.inputs[0]), width,
                [&](std::int64_t row, const T* sum, auto) {
                  put_statistics(sum, width, epsilon, norm,
                                 args.outputs[1].as<float>() + row * spec::num_statistics(norm));
                });
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
