// SPDX-License-Identifier: Apache-2.0
#include "train/replan/carried_states.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "base/error.h"
#include "device/thread_team.h"
#include "runtime/state_store.h"
#include "train/state_rows.h"

namespace anabatic::train {
namespace {

using runtime::StateSlot;
using runtime::StateStore;
using runtime::Tier;
using spec::StateRole;

bool is_of_parameter(StateRole role) {
  return role == StateRole::kParameter || role == StateRole::kUpper || role == StateRole::kLower;
}

Name owner_of(Name name, const spec::StatePart& part) {
  return part.role == StateRole::kLower ? part.owner : name;
}

Tier tier_of(const StateSlot& slot) { return slot.is_on_disk ? Tier::kDisk : Tier::kMemory; }

bool is_as_held(const StateSlot& slot, const StateStore& store) {
  return store.has(slot.name) && store.tier(slot.name) == tier_of(slot) &&
         store.part(slot.name) == slot.part && *store.find(slot.name).type == slot.type;
}

const StateSlot* find_slot(std::span<const StateSlot> slots, Name name) {
  const auto found = std::ranges::find(slots, name, &StateSlot::name);
  return found == slots.end() ? nullptr : &*found;
}

const StateSlot* find_lower(std::span<const StateSlot> slots, Name parameter) {
  const auto found = std::ranges::find_if(slots, [&](const StateSlot& slot) {
    return slot.part.role == StateRole::kLower && slot.part.owner == parameter;
  });
  return found == slots.end() ? nullptr : &*found;
}

// The saved states, parameters under their own names, that do not stay as they are.
std::vector<Name> changed_states(std::span<const StateSlot> slots, const StateStore& store) {
  std::vector<Name> result;
  const auto note = [&](Name name, const spec::StatePart& part) {
    const Name owner = owner_of(name, part);
    if (std::ranges::find(result, owner) == result.end()) result.push_back(owner);
  };
  for (const StateSlot& slot : slots)
    if (spec::is_saved(slot.part.kind()) && !is_as_held(slot, store)) note(slot.name, slot.part);
  for (const Name name : store.names())
    if (spec::is_saved(store.part(name).kind()) && find_slot(slots, name) == nullptr)
      note(name, store.part(name));
  return result;
}

bool is_whole_in_memory(const StateSlot& slot) {
  return !slot.is_on_disk && slot.part.rows.is_whole() && !slot.type.is_quantized();
}

std::string refuse(std::span<const StateSlot> slots, const StateStore& store, Name name) {
  const StateSlot* slot = find_slot(slots, name);
  // One that begins with zeroes.
  if (!store.has(name) && slot != nullptr && slot->part.role != StateRole::kParameter) return "";
  if (!store.has(name)) return fmt::format("{} would be new", text(name));
  if (slot == nullptr) return fmt::format("{} would be lost", text(name));
  const StateSlot* low = find_lower(slots, name);
  if (!is_in_memory_whole(store, name) || !is_whole_in_memory(*slot) ||
      (low != nullptr && !is_whole_in_memory(*low)) || store.find(name).type->is_quantized())
    return fmt::format("{} is on disk, in parts or in a block format, and would change its form",
                       text(name));
  const StateRows rows = find_rows(store, name);
  const bool is_parameter = is_of_parameter(slot->part.role);
  const DType wanted = low != nullptr ? DType::kFloat32 : slot->type.dtype;
  if (rows.state.type->shape != slot->type.shape || rows.dtype() != wanted ||
      is_parameter != is_of_parameter(store.part(name).role))
    return fmt::format("{} is {} of {}, and would be {} of {}", text(name), to_string(rows.dtype()),
                       to_string(*rows.state.type), to_string(wanted), to_string(slot->type));
  return "";
}

std::int64_t num_row_bytes(const StateRows& rows) {
  return rows.state.type->num_elements() * size_bytes(rows.dtype());
}

// Calls body(first, begin, end) for parts of all elements of a state, each on one thread: the first
// element, and where its bytes are among those of all rows. Parts are many lines, as panels are.
template <class Body>
void for_parts(const StateRows& rows, device::ThreadTeam& team, Body&& body) {
  constexpr std::int64_t kLines = 16;
  const TensorType& type = *rows.state.type;
  const std::int64_t width = type.ndim() == 0 ? 1 : std::max<std::int64_t>(1, type.shape.back());
  const std::int64_t size = size_bytes(rows.dtype());
  team.for_range(type.num_elements(), kLines * width, [&](std::int64_t first, std::int64_t last) {
    body(first, static_cast<std::size_t>(first * size), static_cast<std::size_t>(last * size));
  });
}

// `space` has room for the state in rows.
void carry(std::span<const StateSlot> slots, StateStore& store, Name name, device::ThreadTeam& team,
           std::span<std::byte> space) {
  if (!store.has(name)) return;
  const StateRows from = find_rows(store, name);
  const std::span<std::byte> bytes = space.first(static_cast<std::size_t>(num_row_bytes(from)));
  for_parts(from, team, [&](std::int64_t first, std::size_t begin, std::size_t end) {
    read_row_bytes(from, first, bytes.subspan(begin, end - begin));
  });
  std::vector<StateSlot> held;
  const auto hold = [&](Name state) {
    held.push_back({.name = state, .part = store.part(state), .type = *store.find(state).type});
  };
  hold(name);
  for (const Name lower : low_states(store, name)) hold(lower);
  for (const StateSlot& slot : held) store.remove(slot.name);
  const auto put = [&](const StateSlot& slot) {
    store.add(slot.name, slot.type, Tier::kMemory, slot.part);
  };
  const StateSlot& slot = *find_slot(slots, name);
  const StateSlot* lower = find_lower(slots, name);
  const auto write = [&] {
    const StateRows to = find_rows(store, name);
    for_parts(to, team, [&](std::int64_t first, std::size_t begin, std::size_t end) {
      write_row_bytes(to, first, bytes.subspan(begin, end - begin));
    });
  };
  try {
    put(slot);
    if (lower != nullptr) put(*lower);
  } catch (...) {  // no memory: the bytes that are free again hold what they held
    if (store.has(name)) store.remove(name);
    for (const StateSlot& before : held) put(before);
    write();
    throw;
  }
  write();
}

// Derived states, gradients and sums that the program has not, or in another form.
std::vector<Name> removed_states(std::span<const StateSlot> slots, const StateStore& store) {
  std::vector<Name> result;
  for (const Name name : store.names()) {
    if (spec::is_saved(store.part(name).kind())) continue;
    const StateSlot* slot = find_slot(slots, name);
    if (slot == nullptr || !is_as_held(*slot, store)) result.push_back(name);
  }
  return result;
}

}  // namespace

std::string refuse_to_carry(std::span<const StateSlot> slots, const StateStore& store) {
  for (const Name name : changed_states(slots, store))
    if (std::string text = refuse(slots, store, name); !text.empty()) return text;
  for (const Name name : removed_states(slots, store))
    if (store.tier(name) != Tier::kMemory)
      return fmt::format("{} is not in memory, and would change its form", text(name));
  return "";
}

void carry_states(std::span<const StateSlot> slots, StateStore& store, device::ThreadTeam& team) {
  const std::string refusal = refuse_to_carry(slots, store);
  ANABATIC_CHECK(refusal.empty(), "[carry states] {}", refusal);
  for (const Name name : removed_states(slots, store)) store.remove(name);
  const std::vector<Name> changed = changed_states(slots, store);
  std::int64_t most = 0;
  for (const Name name : changed)
    if (store.has(name)) most = std::max(most, num_row_bytes(find_rows(store, name)));
  // Nothing reads it before it is written.
  const auto size = static_cast<std::size_t>(most);
  const auto space = std::make_unique_for_overwrite<std::byte[]>(size);
  for (const Name name : changed) carry(slots, store, name, team, {space.get(), size});
}

}  // namespace anabatic::train
