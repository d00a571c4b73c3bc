// SPDX-License-Identifier: Apache-2.0
#include "train/sparsity/sparse_weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/rounding.h"
#include "train/model_session.h"
#include "train/sparsity/choose_mask.h"
#include "train/state_rows.h"
#include "train/state_tiers.h"

namespace anabatic::train {
namespace {

std::span<std::uint8_t> bytes_of(const TensorView& mask) {
  return {mask.as<std::uint8_t>(), static_cast<std::size_t>(mask.type->num_elements())};
}

void choose(ModelSession& session, const MaskedUnits& units, const MaskedWeight& weight,
            double density) {
  const runtime::StateStore& store = session.store();
  const std::span<std::uint8_t> mask = bytes_of(store.find(weight.mask));
  const MaskForm form{units.entry.pattern, units.entry.is_transposable};
  const std::int64_t kept = spec::kept_blocks(form.pattern, weight.rows, weight.columns, density);
  const auto elements = static_cast<std::size_t>(weight.rows * weight.columns),
             blocks = mask.size() / static_cast<std::size_t>(weight.matrices);
  const auto choose_one = [&](std::int64_t matrix, auto&& read) {
    std::vector<float> values(elements);
    read(matrix * weight.rows * weight.columns, std::span<float>(values));
    choose_mask(form, values, weight.rows, weight.columns, kept,
                mask.subspan(static_cast<std::size_t>(matrix) * blocks, blocks));
  };
  if (is_in_memory_whole(store, weight.parameter)) {
    const StateRows rows = find_rows(store, weight.parameter);
    session.team().for_tasks(weight.matrices, [&](std::int64_t matrix) {
      choose_one(matrix, [&](std::int64_t first, std::span<float> values) {
        read_rows(rows, first, values);
      });
    });
    return;
  }
  StateCursor cursor(session.store());
  for (std::int64_t matrix = 0; matrix < weight.matrices; ++matrix)
    choose_one(matrix, [&](std::int64_t first, std::span<float> values) {
      cursor.read(weight.parameter, first, values);
    });
}

// Calls body(first, values) for each matrix of a weight in which absent elements are not all 0: its
// first element, and its values with these made 0.
template <class Body>
void for_unclear(ModelSession& session, const MaskedUnits& units, const MaskedWeight& weight,
                 StateCursor& cursor, Body&& body) {
  const std::span<const std::uint8_t> mask = bytes_of(session.store().find(weight.mask));
  const std::int64_t side = spec::mask_block(units.entry.pattern),
                     lines = ceil_div(weight.rows, side), across = ceil_div(weight.columns, side);
  std::vector<float> values(static_cast<std::size_t>(weight.rows * weight.columns));
  for (std::int64_t matrix = 0; matrix < weight.matrices; ++matrix) {
    const std::int64_t first = matrix * weight.rows * weight.columns;
    cursor.read(weight.parameter, first, values);
    bool has_others = false;
    for (std::int64_t row = 0; row < weight.rows; ++row)
      for (std::int64_t column = 0; column < weight.columns; ++column) {
        const std::int64_t block = (matrix * lines + row / side) * across + column / side;
        float& value = values[static_cast<std::size_t>(row * weight.columns + column)];
        if (mask[static_cast<std::size_t>(block)] != 0 || value == 0) continue;
        has_others = true;
        value = 0;
      }
    if (has_others) body(first, values);
  }
}

}  // namespace

std::string MaskedUnits::name() const { return fmt::format("{}", fmt::join(entry.units, ", ")); }

std::int64_t MaskedUnits::num_elements() const {
  std::int64_t sum = 0;
  for (const MaskedWeight& weight : weights) sum += weight.num_elements();
  return sum;
}

double MaskedUnits::reached(double density) const {
  std::int64_t kept = 0, all = 0;
  for (const MaskedWeight& weight : weights) {
    kept +=
        weight.matrices * spec::kept_blocks(entry.pattern, weight.rows, weight.columns, density);
    all += weight.matrices * spec::num_blocks(entry.pattern, weight.rows, weight.columns);
  }
  return all > 0 ? static_cast<double>(kept) / static_cast<double>(all) : 1;
}

std::vector<MaskedUnits> masked_units(const ir::Graph& training, const RunConfig& run) {
  std::vector<MaskedUnits> units;
  for (const spec::SparseUnits& entry : run.sparsity.weights) units.push_back({.entry = entry});
  for (const ir::State& state : training.states) {
    if (state.role != ir::StateRole::kMask) continue;
    const ir::State* parameter = training.find_state(state.owner);
    ANABATIC_CHECK(parameter != nullptr && static_cast<std::size_t>(state.entry) < units.size(),
                   "[sparsity] {} is of no entry", text(state.name));
    const TensorType& type = training.value(parameter->before).type;
    units[static_cast<std::size_t>(state.entry)].weights.push_back(
        {.parameter = state.owner,
         .mask = state.name,
         .matrices = type.ndim() == 3 ? type.dim(0) : 1,
         .rows = type.dim(-2),
         .columns = type.dim(-1)});
  }
  return units;
}

std::vector<std::string> sparsity_lines(const ir::Graph& training, const RunConfig& run) {
  std::int64_t parameters = 0;
  for (const ir::State& state : training.states)
    if (state.kind() == ir::StateKind::kParameter)
      parameters += training.value(state.before).type.num_elements();
  std::vector<std::string> lines;
  for (const MaskedUnits& units : masked_units(training, run)) {
    const spec::SparseUnits& entry = units.entry;
    const double reached = units.reached(entry.density);
    const std::string asked =
        std::abs(reached - entry.density) < 5e-7
            ? ""
            : fmt::format(" (asked for {}; shapes give no nearer one)", entry.density);
    const std::string when =
        entry.schedule.begin == entry.schedule.end
            ? fmt::format("from step {} on", entry.schedule.end)
            : fmt::format("falling from 1 in steps {} to {}, every {}", entry.schedule.begin,
                          entry.schedule.end, entry.schedule.every);
    lines.push_back(fmt::format(
        "{}: {}{}, density {:.6g}{}, {}; {} weights of {} elements, {:.1f} % of the parameters",
        units.name(), to_string(entry.pattern), entry.is_transposable ? " transposable" : "",
        reached, asked, when, units.weights.size(), units.num_elements(),
        100.0 * static_cast<double>(units.num_elements()) / static_cast<double>(parameters)));
  }
  return lines;
}

std::int64_t choice_bytes(const ir::Graph& training, std::int64_t num_threads) {
  std::int64_t most = 0;
  for (const ir::State& state : training.states) {
    if (state.role != ir::StateRole::kMask) continue;
    const TensorType& type = training.value(training.find_state(state.owner)->before).type;
    const std::int64_t matrices = type.ndim() == 3 ? type.dim(0) : 1;
    if (matrices == 0) continue;
    // Values, and for single weights their scores twice and marks.
    const std::int64_t bytes = spec::mask_block(*state.pattern) > 1 ? 5 : 13;
    most =
        std::max(most, std::min(num_threads, matrices) * (type.num_elements() / matrices) * bytes);
  }
  return most;
}

std::vector<Name> new_masks(const ir::Graph& graph, const runtime::StateStore& store) {
  std::vector<Name> names;
  for (const ir::State& state : graph.states)
    if (state.role == ir::StateRole::kMask && !store.has(state.name)) names.push_back(state.name);
  return names;
}

void fill_mask(const TensorView& mask) { std::ranges::fill(bytes_of(mask), std::uint8_t{1}); }

std::vector<SparsityMetrics> SparseWeights::prepare(ModelSession& session,
                                                    std::int64_t step) const {
  std::vector<SparsityMetrics> changed;
  for (const MaskedUnits& units : units_) {
    const spec::SparsitySchedule& schedule = units.entry.schedule;
    if (!schedule.is_due(step)) continue;
    const double density = schedule.density_after(step, units.entry.density);
    for (const MaskedWeight& weight : units.weights) choose(session, units, weight, density);
    changed.push_back({.units = units.name(),
                       .pattern = std::string(to_string(units.entry.pattern)),
                       .density = units.reached(density),
                       .is_final = step == schedule.end});
  }
  return changed;
}

void SparseWeights::clear(ModelSession& session) const {
  StateCursor cursor(session.store());
  for (const MaskedUnits& units : units_)
    for (const MaskedWeight& weight : units.weights)
      for_unclear(session, units, weight, cursor,
                  [&](std::int64_t first, std::span<const float> values) {
                    cursor.write(weight.parameter, first, values);
                  });
  cursor.flush();
}

void SparseWeights::require_zeroes(ModelSession& session) const {
  StateCursor cursor(session.store());
  for (const MaskedUnits& units : units_)
    for (const MaskedWeight& weight : units.weights)
      for_unclear(session, units, weight, cursor, [&](std::int64_t first, auto&&) {
        throw InvalidArgument(fmt::format(
            "[sparsity] expected zeroes in '{}' where its mask is 0, as every step leaves them, "
            "got others in matrix {}; the checkpoint was changed, resume from another one",
            text(weight.parameter), first / (weight.rows * weight.columns)));
      });
}

}  // namespace anabatic::train
