// SPDX-License-Identifier: Apache-2.0
// Ops that move whole rows.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "kernels/cpu/scalar_rows.h"

namespace anabatic::kernels::cpu {
namespace {

std::int64_t row_bytes(const TensorView& view) {
  return columns(view) * size_bytes(view.type->dtype);
}

void copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

template <class T>
void fill_with(const Arguments& args, T value) {
  T* y = args.outputs[0].as<T>();
  args.team->for_range(
      size(args.outputs[0]), kElementGrain,
      [=](std::int64_t begin, std::int64_t end) { std::fill(y + begin, y + end, value); });
}

}  // namespace

void cache_write(const Arguments& args) {
  const TensorView &cache = args.inputs[0], &added = args.inputs[1], &out = args.outputs[0];
  const std::int64_t first = args.inputs[2].as<const std::int32_t>()[0], bytes = row_bytes(cache);
  ANABATIC_REQUIRE(0 <= first && first + rows(added) <= rows(cache),
                   "[cache_write] expected rows within [0, {}), got [{}, {})", rows(cache), first,
                   first + rows(added));
  if (out.data != cache.data) copy_bytes(out.data, cache.data, cache.type->num_bytes());
  args.team->for_range(rows(added), row_grain(columns(cache)),
                       [&](std::int64_t begin, std::int64_t end) {
                         copy_bytes(out.data + (first + begin) * bytes, added.data + begin * bytes,
                                    (end - begin) * bytes);
                       });
}

void embedding(const Arguments& args) {
  const TensorView &table = args.inputs[0], &indices = args.inputs[1];
  const std::int64_t bytes = row_bytes(table);
  args.team->for_range(
      rows(indices), row_grain(columns(table)), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t) {
          const std::int64_t row = indices.as<const std::int32_t>()[t];
          require_index("embedding", row, rows(table));
          copy_bytes(args.outputs[0].data + t * bytes, table.data + row * bytes, bytes);
        }
      });
}

void fill(const Arguments& args) {
  const auto found = args.attributes->find("value");
  ANABATIC_REQUIRE(found != args.attributes->end(), "[fill] expected 'value' (a number), got none");
  const std::int64_t* integer = std::get_if<std::int64_t>(&found->second);
  const double value = integer != nullptr ? static_cast<double>(*integer)
                                          : spec::get_double(*args.attributes, "value");
  switch (args.outputs[0].type->dtype) {
    case DType::kFloat64:
      return fill_with(args, value);
    case DType::kInt32:
      return fill_with(args, static_cast<std::int32_t>(value));
    case DType::kBFloat16:
      return fill_with(args, to_bfloat16(static_cast<float>(value)));
    default:
      return fill_with(args, static_cast<float>(value));
  }
}

void permute(const Arguments& args) {
  const TensorView &x = args.inputs[0], &row_map = args.inputs[1];
  const std::int64_t bytes = row_bytes(x), top_k = spec::get_int(*args.attributes, "top_k");
  args.team->for_range(
      rows(row_map), row_grain(columns(x)), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t p = begin; p < end; ++p)
          copy_bytes(args.outputs[0].data + p * bytes,
                     x.data + row_map.as<const std::int32_t>()[p] / top_k * bytes, bytes);
      });
}

}  // namespace anabatic::kernels::cpu
