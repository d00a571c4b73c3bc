// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

// 1 / sqrt(mean square + epsilon) of x[width].
template <class T>
float reciprocal_rms(const T* x, std::int64_t width, double epsilon) {
  const double sum = sum_lanes(sum_over_lanes(width, [&](std::int64_t i, int n, Floats before) {
    const Floats value = load(x + i, n);
    return madd(value, value, before);
  }));
  return static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(width) + epsilon));
}

// Sums rows by fixed blocks, then the blocks in ascending order. add_row(row, partial) adds one
// row to partial[width]. Workspace: column_partials_workspace_bytes.
template <class AddRow>
void sum_by_blocks(const Arguments& args, std::int64_t num_rows, std::int64_t width,
                   AddRow&& add_row) {
  float* partials = reinterpret_cast<float*>(args.workspace);
  float* out = args.outputs[0].as<float>();
  const std::int64_t num_blocks = ceil_div(num_rows, kRowBlock);
  args.team->for_tasks(num_blocks, [&](std::int64_t block) {
    float* partial = partials + block * width;
    std::fill(partial, partial + width, 0.0f);
    const std::int64_t end = std::min(num_rows, (block + 1) * kRowBlock);
    for (std::int64_t row = block * kRowBlock; row < end; ++row) add_row(row, partial);
  });
  const bool add = adds(args, 0);
  args.team->for_range(width, 4 * kLanes, [&](std::int64_t begin, std::int64_t end) {
    for_lanes(begin, end, [&](std::int64_t i, int n) {
      Floats sum{};
      for (std::int64_t block = 0; block < num_blocks; ++block)
        sum += load(partials + block * width + i, n);
      store(out + i, add ? load(out + i, n) + sum : sum, n);
    });
  });
}

}  // namespace

void rms_norm(const Arguments& args) {
  const std::int64_t width = size(args.inputs[1]);
  const double epsilon = spec::get_double(*args.attributes, "epsilon");
  const float* weight = args.inputs[1].as<const float>();
  if (width == 0) return;
  with_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    const auto run = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* x = args.inputs[0].as<const T>() + row * width;
        T* y = args.outputs[0].as<T>() + row * width;
        const float rstd = reciprocal_rms(x, width, epsilon);
        for_lanes(0, width, [&](std::int64_t i, int n) {
          store(y + i, load(weight + i, n) * round_to<T>(load(x + i, n) * rstd), n);
        });
      }
    };
    args.team->for_range(size(args.inputs[0]) / width, row_grain(width), run);
  });
}

// dx = rstd · (w·dy − x̂ · mean(w·dy·x̂)) with x̂ = x·rstd; rounding counts as the identity.
void rms_norm_input_gradient(const Arguments& args) {
  const std::int64_t width = size(args.inputs[1]);
  const double epsilon = spec::get_double(*args.attributes, "epsilon");
  const float* weight = args.inputs[1].as<const float>();
  if (width == 0) return;
  with_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    const auto run = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* x = args.inputs[0].as<const T>() + row * width;
        const T* dy = args.inputs[2].as<const T>() + row * width;
        T* dx = args.outputs[0].as<T>() + row * width;
        const float rstd = reciprocal_rms(x, width, epsilon);
        const Floats sums = sum_over_lanes(width, [&](std::int64_t i, int n, Floats before) {
          return madd(load(weight + i, n) * load(dy + i, n), load(x + i, n) * rstd, before);
        });
        const float mean = sum_lanes(sums) / static_cast<float>(width);
        for_lanes(0, width, [&](std::int64_t i, int n) {
          const Floats normalised = load(x + i, n) * rstd;
          store(dx + i, rstd * (load(weight + i, n) * load(dy + i, n) - normalised * mean), n);
        });
      }
    };
    args.team->for_range(size(args.inputs[0]) / width, row_grain(width), run);
  });
}

void rms_norm_weight_gradient(const Arguments& args) {
  const std::int64_t width = size(args.outputs[0]);
  const double epsilon = spec::get_double(*args.attributes, "epsilon");
  if (width == 0) return;
  with_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    sum_by_blocks(args, size(args.inputs[0]) / width, width, [&](std::int64_t row, float* partial) {
      const T* x = args.inputs[0].as<const T>() + row * width;
      const T* dy = args.inputs[1].as<const T>() + row * width;
      const float rstd = reciprocal_rms(x, width, epsilon);
      for_lanes(0, width, [&](std::int64_t i, int n) {
        const Floats normalised = round_to<T>(load(x + i, n) * rstd);
        store(partial + i, madd(load(dy + i, n), normalised, load(partial + i, n)), n);
      });
    });
  });
}

void sum_rows(const Arguments& args) {
  const std::int64_t width = size(args.outputs[0]);
  with_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    sum_by_blocks(args, rows(args.inputs[0]), width, [&](std::int64_t row, float* partial) {
      const T* dy = args.inputs[0].as<const T>() + row * width;
      for_lanes(0, width, [&](std::int64_t i, int n) {
        store(partial + i, load(partial + i, n) + load(dy + i, n), n);
      });
    });
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
