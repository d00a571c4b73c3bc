// SPDX-License-Identifier: Apache-2.0
// Chooses items of a menu that make memory fit a budget at the least added time. It knows neither
// graph nor plan: a function tells the outcome of a set of items.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

namespace anabatic::plan {

struct MenuOutcome {
  std::int64_t peak_bytes = 0;  // over the simulated timeline
  double excess = 0;            // bytes above the budget, summed over positions: 0 if it fits
  double seconds = 0;           // added to a micro-batch
};

// The outcome of the items with chosen[i]. A function of its argument alone.
using EvaluateMenu = std::function<MenuOutcome(const std::vector<bool>& chosen)>;

enum class ItemRule : std::uint8_t { kFree, kTake, kLeave };

struct MenuChoice {
  std::vector<bool> chosen;
  MenuOutcome outcome{};
  bool holds = false;  // fits the budget; otherwise the choice with the least excess that was found
};

// For each item, the items that concern the same bytes; or empty.
using Alternatives = std::vector<std::vector<std::size_t>>;

// A menu of more items is long: searches take seconds there, and try less.
inline constexpr std::size_t kLongMenu = 400;

// Adds the item with the most excess removed per added second until the budget is met. Then removes
// items that are no longer needed, the most expensive first, and trades as long as that helps: a
// few items for others that fit into their bytes, in short menus then any pair and three. Takes
// about items · log items evaluations if gains shrink as items are taken, and a few thousand for
// trades. `taken` (or empty): free items that it begins with.
MenuChoice choose_by_ratio(const std::vector<ItemRule>& rules, const EvaluateMenu& evaluate,
                           const Alternatives& alternatives = {},
                           const std::vector<bool>& taken = {});

// Oracle: branch and bound, for at most 20 free items. Exact if an item never makes others cheaper,
// nor the excess larger; an item itself may save time.
MenuChoice choose_exactly(const std::vector<ItemRule>& rules, const EvaluateMenu& evaluate);

}  // namespace anabatic::plan
