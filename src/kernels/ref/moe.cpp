// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/ref/access.h"
#include "kernels/ref/rows.h"

namespace anabatic::kernels::ref {

void route_sort(const Arguments& args) {
  const TensorView &experts = args.inputs[0], &row_map = args.outputs[0], &slots = args.outputs[1],
                   &offsets = args.outputs[2];
  const std::int64_t num_experts = spec::get_int(*args.attributes, "num_experts");
  std::int64_t p = 0;
  for (std::int64_t e = 0; e < num_experts; ++e) {
    store_index(offsets, e, p);
    for (std::int64_t i = 0; i < size(experts); ++i) {
      if (load_index(experts, i) != e) continue;
      store_index(row_map, p, i);
      store_index(slots, i, p);
      ++p;
    }
  }
  store_index(offsets, num_experts, p);
  ANABATIC_REQUIRE(p == size(experts), "[route_sort] expected experts in [0, {})", num_experts);
}

void dispatch_map(const Arguments& args) {
  const TensorView &routes = args.inputs[0], &row_map = args.outputs[0], &slots = args.outputs[1],
                   &offsets = args.outputs[2];
  const std::int64_t members = rows(routes), num_experts = columns(routes) - 1,
                     local = num_experts / members, me = spec::get_int(*args.attributes, "member");
  const auto rows_before = [&](std::int64_t member, std::int64_t expert) {
    return load_index(routes, member * (num_experts + 1) + expert);
  };
  std::int64_t needed = 0;
  for (std::int64_t to = 0; to < members; ++to) {
    std::int64_t total = 0;
    for (std::int64_t m = 0; m < members; ++m)
      total += rows_before(m, (to + 1) * local) - rows_before(m, to * local);
    needed = std::max(needed, total);
  }
  store_index(args.outputs[5], 0, needed);
  const bool fits = needed <= rows(row_map);
  // The first row that a member sends to another.
  const auto begin_of = [&](std::int64_t from, std::int64_t to) {
    return fits ? rows_before(from, to * local) : rows_before(from, num_experts) * to / members;
  };
  // How many rows it sends to this member before those of an own expert.
  const auto received_before = [&](std::int64_t from, std::int64_t expert) {
    const std::int64_t all = begin_of(from, me + 1) - begin_of(from, me);
    return fits ? rows_before(from, me * local + expert) - rows_before(from, me * local)
                : (expert == 0 ? 0 : all);
  };
  std::int64_t p = 0;
  for (std::int64_t e = 0; e < local; ++e) {
    store_index(offsets, e, p);
    std::int64_t received = 0;  // from the members before
    for (std::int64_t m = 0; m < members; ++m) {
      for (std::int64_t i = received_before(m, e); i < received_before(m, e + 1); ++i, ++p) {
        ANABATIC_REQUIRE(p < rows(row_map), "[dispatch_map] expected at most {} rows",
                         rows(row_map));
        store_index(row_map, p, received + i);
        store_index(slots, received + i, p);
      }
      received += received_before(m, local);
    }
  }
  store_index(offsets, local, p);
  for (; p < rows(row_map); ++p) {
    store_index(row_map, p, p);
    store_index(slots, p, p);
  }
  for (std::int64_t m = 0; m < members; ++m) {
    store_index(args.outputs[3], m, begin_of(me, m + 1) - begin_of(me, m));
    store_index(args.outputs[4], m, received_before(m, local));
  }
}

void exchange_rows(const Arguments& args) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  const TensorView* row_map = args.inputs.size() > 3 ? &args.inputs[3] : nullptr;
  const std::int64_t width = columns(x), num_rows = load_index(args.inputs[2], 0);
  ANABATIC_REQUIRE(
      rows(args.inputs[1]) == 1 && load_index(args.inputs[1], 0) == num_rows && num_rows <= rows(y),
      "[exchange_rows] expected a group of one, and at most {} rows", rows(y));
  for (std::int64_t p = 0; p < rows(y); ++p) {
    const std::int64_t from =
        row_map == nullptr || p >= num_rows
            ? p
            : load_index(*row_map, p) / spec::get_int(*args.attributes, "top_k");
    for (std::int64_t i = 0; i < width; ++i)
      store(y, p * width + i, p < num_rows ? load(x, from * width + i) : 0.0);
  }
}

void permute(const Arguments& args) {
  const TensorView &x = args.inputs[0], &row_map = args.inputs[1];
  const std::int64_t width = columns(x);
  const std::int64_t top_k = spec::get_int(*args.attributes, "top_k");
  for (std::int64_t p = 0; p < rows(row_map); ++p)
    for (std::int64_t h = 0; h < width; ++h)
      store(args.outputs[0], p * width + h, load(x, load_index(row_map, p) / top_k * width + h));
}

void permute_gradient(const Arguments& args) {
  const TensorView &dy = args.inputs[0], &slots = args.inputs[1];
  const std::int64_t width = columns(dy);
  const std::int64_t top_k = spec::get_int(*args.attributes, "top_k");
  for (std::int64_t t = 0; t < rows(args.outputs[0]); ++t)
    for (std::int64_t h = 0; h < width; ++h) {
      double sum = 0;
      for (std::int64_t j = 0; j < top_k; ++j)
        sum += load(dy, load_index(slots, t * top_k + j) * width + h);
      store(args.outputs[0], t * width + h, sum);
    }
}

void unpermute(const Arguments& args) {
  const TensorView &y = args.inputs[0], &weights = args.inputs[1], &slots = args.inputs[2];
  const std::int64_t width = columns(y), top_k = columns(weights);
  for (std::int64_t t = 0; t < rows(weights); ++t)
    for (std::int64_t h = 0; h < width; ++h) {
      double sum = 0;
      for (std::int64_t j = 0; j < top_k; ++j)
        sum += load(weights, t * top_k + j) * load(y, load_index(slots, t * top_k + j) * width + h);
      store(args.outputs[0], t * width + h, sum);
    }
}

void unpermute_gradient(const Arguments& args) {
  const TensorView &dout = args.inputs[0], &y = args.inputs[1], &weights = args.inputs[2],
                   &slots = args.inputs[3];
  const std::int64_t width = columns(y), top_k = columns(weights);
  for (std::int64_t i = 0; i < size(weights); ++i) {
    const std::int64_t from = i / top_k * width, to = load_index(slots, i) * width;
    double sum = 0;
    for (std::int64_t h = 0; h < width; ++h) {
      sum += load(dout, from + h) * load(y, to + h);
      store(args.outputs[0], to + h, load(weights, i) * load(dout, from + h));
    }
    store(args.outputs[1], i, sum);
  }
}

}  // namespace anabatic::kernels::ref
