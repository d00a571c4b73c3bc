// SPDX-License-Identifier: Apache-2.0
// Ops that move whole rows.
#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

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

// Past the caches, where the machine can: both addresses and `bytes` are multiples of 64.
void stream_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) {
#if defined(__SSE2__)
  for (std::int64_t i = 0; i < bytes; i += 16)
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_load_si128(reinterpret_cast<const __m128i*>(from + i)));
#else
  copy_bytes(to, from, bytes);
#endif
}
void end_stream() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// y[i] = x[source(i)] for rows of x, which lie anywhere. Rows ahead are fetched: at 4 of them a
// gather from memory comes close to a copy, at none it stays at half of it.
template <class Source>
void gather_rows(const Arguments& args, const TensorView& x, Source&& source) {
  constexpr std::int64_t kAhead = 4;
  const TensorView& y = args.outputs[0];
  const std::int64_t bytes = row_bytes(x), num_rows = rows(y);
  const auto is_aligned = [](const std::byte* p) {
    return reinterpret_cast<std::uintptr_t>(p) % 64 == 0;
  };
  const bool streams =
      args.prepared != nullptr && bytes % 64 == 0 && is_aligned(x.data) && is_aligned(y.data);
  args.launch.team->for_range(num_rows, row_grain(columns(x)),
                              [&](std::int64_t begin, std::int64_t end) {
                                for (std::int64_t i = begin; i < end; ++i) {
                                  const std::byte* from = x.data + source(i) * bytes;
                                  if (!streams) {
                                    copy_bytes(y.data + i * bytes, from, bytes);
                                    continue;
                                  }
                                  if (i + kAhead < end) {
                                    const std::byte* ahead = x.data + source(i + kAhead) * bytes;
                                    for (std::int64_t at = 0; at < bytes; at += 64)
                                      __builtin_prefetch(ahead + at);
                                  }
                                  stream_bytes(y.data + i * bytes, from, bytes);
                                }
                                if (streams) end_stream();
                              });
}

template <class T>
void fill_with(const Arguments& args, T value) {
  T* y = args.outputs[0].as<T>();
  args.launch.team->for_range(
      size(args.outputs[0]), kElementGrain,
      [=](std::int64_t begin, std::int64_t end) { std::fill(y + begin, y + end, value); });
}

}  // namespace

void cache_write(const Arguments& args) {
  const TensorView &cache = args.inputs[0], &added = args.inputs[1], &out = args.outputs[0];
  const std::int32_t* places = args.inputs[2].as<const std::int32_t>();
  const std::int64_t bytes = row_bytes(cache);
  for (std::int64_t t = 0; t < rows(added); ++t)
    ANABATIC_REQUIRE(places[t] < rows(cache), "[cache_write] expected places below {}, got {}",
                     rows(cache), places[t]);
  if (out.data != cache.data) copy_bytes(out.data, cache.data, cache.type->num_bytes());
  args.launch.team->for_range(
      rows(added), row_grain(columns(cache)), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t)
          if (places[t] >= 0)
            copy_bytes(out.data + places[t] * bytes, added.data + t * bytes, bytes);
      });
}

void embedding(const Arguments& args) {
  const TensorView& table = args.inputs[0];
  const std::int32_t* indices = args.inputs[1].as<const std::int32_t>();
  for (std::int64_t t = 0; t < rows(args.inputs[1]); ++t)
    require_index("embedding", indices[t], rows(table));
  gather_rows(args, table, [=](std::int64_t t) { return std::int64_t{indices[t]}; });
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
  const std::int32_t* row_map = args.inputs[1].as<const std::int32_t>();
  const std::int64_t top_k = spec::get_int(*args.attributes, "top_k");
  gather_rows(args, args.inputs[0], [=](std::int64_t p) { return row_map[p] / top_k; });
}

void exchange_alone(const Arguments& args) {
  if (args.outputs[0].data != args.inputs[0].data) reload(args);
}

void reload(const Arguments& args) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  // With what panels have beyond their sides.
  args.launch.team->for_range(x.type->num_bytes(), kElementGrain,
                              [&](std::int64_t begin, std::int64_t end) {
                                copy_bytes(y.data + begin, x.data + begin, end - begin);
                              });
}

}  // namespace anabatic::kernels::cpu
