// SPDX-License-Identifier: Apache-2.0
#include "train/ranks/draw_parameters.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "model/initialize.h"
#include "train/ranks/step_sums.h"
#include "train/state_tiers.h"

namespace anabatic::train {
namespace {

// Elements that are drawn and exchanged at a time, of all ranks.
constexpr std::int64_t kWindowElements = std::int64_t{1} << 18;

// Some elements, of all parameters' one after the other.
struct Range {
  std::int64_t begin, end;
};

struct Drawn {
  const ir::State* state;
  TensorType type;  // of the whole, also where ranks share its experts
  Range range;
};

std::vector<Drawn> list(std::span<const ir::State> parameters, const runtime::StateStore& store) {
  std::vector<Drawn> result;
  std::int64_t begin = 0;
  for (const ir::State& state : parameters) {
    TensorType type = *store.find(state.name).type;
    const std::int64_t count = num_elements(store, state.name);
    if (count != type.num_elements()) type.shape[0] *= count / type.num_elements();
    result.push_back({&state, std::move(type), {begin, begin + count}});
    begin += count;
  }
  return result;
}

// Calls body(parameter, first element, place) for the parts of parameters within the range.
void for_parts(const std::vector<Drawn>& all, Range range,
               const std::function<void(const Drawn&, std::int64_t, Range)>& body) {
  auto parameter = std::ranges::upper_bound(all, range.begin, {},
                                            [](const Drawn& drawn) { return drawn.range.end; });
  for (; parameter != all.end() && parameter->range.begin < range.end; ++parameter) {
    const Range part{std::max(range.begin, parameter->range.begin),
                     std::min(range.end, parameter->range.end)};
    if (part.begin < part.end) body(*parameter, part.begin - parameter->range.begin, part);
  }
}

}  // namespace

void draw_parameters(std::span<const ir::State> parameters, const runtime::StateStore& store,
                     const runtime::RankContext& rank, std::uint64_t seed,
                     const std::function<void(Name state, std::int64_t first,
                                              std::span<const float> values)>& write) {
  const std::vector<Drawn> all = list(parameters, store);
  const std::int64_t total = all.empty() ? 0 : all.back().range.end;
  std::vector<float> window(static_cast<std::size_t>(std::min(total, kWindowElements)));
  StepSums sums(rank, 1);
  const std::int64_t num_ranks = sums.num_ranks();
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(num_ranks));  // of each rank's part
  for (std::int64_t first = 0; first < total; first += kWindowElements) {
    const std::int64_t count = std::min(kWindowElements, total - first);
    const auto begin_of = [&](std::int64_t of_rank) { return count * of_rank / num_ranks; };
    const auto values_of = [&](Range range) {
      return std::span(window).subspan(static_cast<std::size_t>(range.begin - first),
                                       static_cast<std::size_t>(range.end - range.begin));
    };
    for_parts(all, {first + begin_of(sums.rank()), first + begin_of(sums.rank() + 1)},
              [&](const Drawn& drawn, std::int64_t element, Range range) {
                model::initialize(*drawn.state, drawn.type, element, values_of(range), seed);
              });
    for (std::int64_t i = 0; i < num_ranks; ++i)
      bytes[static_cast<std::size_t>(i)] =
          (begin_of(i + 1) - begin_of(i)) * static_cast<std::int64_t>(sizeof(float));
    sums.share(std::as_writable_bytes(std::span(window)), bytes);
    for_parts(all, {first, first + count},
              [&](const Drawn& drawn, std::int64_t element, Range range) {
                write(drawn.state->name, element, values_of(range));
              });
  }
}

}  // namespace anabatic::train
