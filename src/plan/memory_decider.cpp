// SPDX-License-Identifier: Apache-2.0
#include "plan/memory_decider.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "plan/hints.h"

namespace anabatic::plan {
namespace {

// Frames that are tried too, less by these shares, where the menu is not long.
constexpr std::int64_t kSharesLess[] = {256, 96};

std::vector<std::string> known_names(const MemoryMenu& menu) {
  std::vector<std::string> names;
  for (const MenuItem& item : menu.items())
    if (item.way != Way::kSlices) names.insert(names.end(), item.keys.begin(), item.keys.end());
  return names;
}

// Marks what the hints name of the items that go one of the `ways`.
void apply(const MemoryMenu& menu, const std::vector<std::string>& hints, std::string_view key,
           ItemRule rule, std::initializer_list<Way> ways, bool must_be_known,
           std::vector<ItemRule>& rules) {
  for (const std::string& hint : hints) {
    bool is_known = false;
    for (std::size_t i = 0; i < rules.size(); ++i) {
      const MenuItem& item = menu.items()[i];
      if (!item.is_of(hint) || std::find(ways.begin(), ways.end(), item.way) == ways.end())
        continue;
      is_known = true;
      ANABATIC_REQUIRE(
          rules[i] == ItemRule::kFree || rules[i] == rule,
          "[memory] {}: expected hints that agree, got '{}' against another hint for {}", key, hint,
          item.name);
      rules[i] = rule;
    }
    if (is_known || !must_be_known) continue;
    const std::vector<std::string> names = known_names(menu);
    const auto nearest = nearest_word(hint, names);
    throw InvalidArgument(
        fmt::format("[memory] {}: expected a segment or a value that the backward reads, such as "
                    "{}, got '{}'{}",
                    key, names.empty() ? "none in this model" : names.front(), hint,
                    nearest ? fmt::format("; did you mean {}?", *nearest) : ""));
  }
}

// Whether `decisions` do what the item does. They do not if another item of its value or call has
// precedence.
bool is_effective(const MenuItem& item, const spec::Decisions& decisions) {
  if (item.way == Way::kSlices) {
    const auto found = decisions.slices.find(item.name);
    return found != decisions.slices.end() && found->second == item.slices;
  }
  if (item.way == Way::kAgain) return true;
  return std::any_of(item.keys.begin(), item.keys.end(), [&](const std::string& key) {
    const auto found = decisions.saved_as.find(key);
    return found != decisions.saved_as.end() && found->second == form_of(item.way);
  });
}

// Values and forms that `decisions` name and `known`, which are of the menu, do not.
std::string strangers_of(const MemoryMenu& menu, const spec::Decisions& known,
                         const spec::Decisions& decisions) {
  std::string strangers;
  const auto refuse = [&](const std::string& key) {
    const auto nearest = nearest_word(key, known_names(menu));
    strangers +=
        fmt::format("\n  {}{}", key,
                    nearest && *nearest != key ? fmt::format("; did you mean {}?", *nearest) : "");
  };
  for (const std::string& key : decisions.recompute)
    if (!known.recompute.contains(key)) refuse(key);
  for (const auto& [key, form] : decisions.saved_as) {
    const auto found = known.saved_as.find(key);
    if (found == known.saved_as.end() || found->second != form)
      refuse(ChoiceId{key, way_of(form)}.label());
  }
  return strangers;
}

// InvalidArgument naming calls that `decisions` cut otherwise than any item of the menu does.
void require_known_slices(const MemoryMenu& menu, const spec::Decisions& known,
                          const spec::Decisions& decisions) {
  std::string strangers, offered;
  for (const auto& [key, slices] : decisions.slices) {
    const auto found = known.slices.find(key);
    if (found == known.slices.end() || found->second != slices)
      strangers += "\n  " + ChoiceId{key, Way::kSlices, slices}.label();
  }
  if (strangers.empty()) return;
  for (const MenuItem& item : menu.items())
    if (item.way == Way::kSlices) offered += "\n  " + item.label();
  throw InvalidArgument(fmt::format(
      "[memory] expected a saved plan with slices of calls that this step offers:{}\ngot{}",
      offered.empty() ? "\n  none" : offered, strangers));
}

// The items that do what `decisions` say, no more and no less; InvalidArgument where none do.
std::vector<bool> items_of(const MemoryMenu& menu, const spec::Decisions& decisions) {
  std::vector<bool> chosen;
  for (const MenuItem& item : menu.items())
    chosen.push_back(
        item.way == Way::kAgain
            ? std::all_of(item.keys.begin(), item.keys.end(),
                          [&](const std::string& key) { return decisions.recompute.contains(key); })
            : is_effective(item, decisions));
  const spec::Decisions known = menu.decisions(chosen);
  const std::string strangers = strangers_of(menu, known, decisions);
  ANABATIC_REQUIRE(
      strangers.empty(),
      "[memory] expected a saved plan of values that this backward reads, each with all that is "
      "recomputed with it, in forms that memory.compress and memory.activations allow; got{}",
      strangers);
  std::string missing;
  for (const auto& [key, form] : known.saved_as)
    if (!decisions.saved_as.contains(key)) missing += "\n  " + ChoiceId{key, way_of(form)}.label();
  ANABATIC_REQUIRE(missing.empty(),
                   "[memory] expected a saved plan that stores each value in one form with its "
                   "group, which are neighbours in models of many layers; missing are{}",
                   missing);
  require_known_slices(menu, known, decisions);
  return chosen;
}

// Items that exclude each other: the forms in which a value can be saved, and its recomputation.
Alternatives alternatives_of(const MemoryMenu& menu) {
  std::map<ir::ValueId, std::vector<std::size_t>> of_value;
  for (std::size_t i = 0; i < menu.items().size(); ++i)
    for (const ir::ValueId value : menu.items()[i].values) of_value[value].push_back(i);
  Alternatives result(menu.items().size());
  for (const auto& [value, items] : of_value)
    for (const std::size_t item : items)
      for (const std::size_t other : items)
        if (std::vector<std::size_t>& list = result[item];
            other != item && std::find(list.begin(), list.end(), other) == list.end())
          list.push_back(other);
  return result;
}

// InvalidArgument where the hints say otherwise than what is replayed.
void require_agreement(const MemoryMenu& menu, const std::vector<ItemRule>& rules,
                       const std::vector<bool>& chosen) {
  for (std::size_t i = 0; i < rules.size(); ++i)
    ANABATIC_REQUIRE(rules[i] != (chosen[i] ? ItemRule::kLeave : ItemRule::kTake),
                     "[memory] the saved plan {} {}, but the hints of this run say otherwise",
                     chosen[i] ? "does not keep" : "keeps", menu.items()[i].name);
}

}  // namespace

MemoryDecider::MemoryDecider(const MemoryMenu& menu, const MemoryOptions& options)
    : menu_(menu),
      options_(options),
      rules_(menu.items().size(), ItemRule::kFree),
      alternatives_(alternatives_of(menu)) {
  using enum Way;
  apply(menu, options.recompute, "memory.recompute", ItemRule::kTake, {kAgain}, true, rules_);
  apply(menu, options.keep, "memory.keep", ItemRule::kLeave, {kAgain, kBFloat16, kInt8, kDisk},
        true, rules_);
  apply(menu, options.hot, "memory.hot", ItemRule::kLeave, {kAgain, kBFloat16, kInt8, kDisk}, false,
        rules_);
  apply(menu, options.offload.cold, "memory.cold", ItemRule::kTake, {kDisk}, false, rules_);
  apply(menu, options.compress, "memory.compress", ItemRule::kTake,
        {way_of(options.compression.allowed)}, true, rules_);
  if (options.budget_bytes > 0 || options.replay) return;
  for (ItemRule& rule : rules_)
    if (rule == ItemRule::kFree) rule = ItemRule::kLeave;
}

MenuChoice MemoryDecider::choose(std::int64_t frame_bytes, const std::vector<bool>& taken) const {
  if (!options_.replay)
    return choose_by_ratio(
        rules_,
        [&](const std::vector<bool>& chosen) { return menu_.evaluate(chosen, frame_bytes); },
        alternatives_, taken);
  std::vector<bool> chosen = items_of(menu_, *options_.replay);
  require_agreement(menu_, rules_, chosen);
  return evaluated(std::move(chosen), frame_bytes);
}

MenuChoice MemoryDecider::evaluated(std::vector<bool> chosen, std::int64_t frame_bytes) const {
  MenuChoice choice{.chosen = std::move(chosen)};
  choice.outcome = menu_.evaluate(choice.chosen, frame_bytes);
  choice.holds = choice.outcome.excess <= 0;
  return choice;
}

MemoryDecision MemoryDecider::priced(const MenuChoice& choice) const {
  MemoryDecision result{.decisions = menu_.decisions(choice.chosen),
                        .added_seconds = choice.outcome.seconds,
                        .holds = choice.holds || options_.budget_bytes == 0};
  // A price is what would be won without the choice, not with another that it has replaced.
  std::vector<bool> others = choice.chosen;
  for (std::size_t i = 0; i < rules_.size(); ++i)
    others[i] = others[i] && is_effective(menu_.items()[i], result.decisions);
  const std::vector<bool> effective = others;
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    const MenuItem& item = menu_.items()[i];
    if (!effective[i]) continue;
    others[i] = false;  // seconds are those of any budget
    result.choices.push_back(
        {item, item.bytes, choice.outcome.seconds - menu_.evaluate(others, 0).seconds, i});
    others[i] = true;
  }
  return result;
}

MemoryDecision MemoryDecider::decide(std::int64_t frame_bytes) const {
  return priced(choose(frame_bytes));
}

MemoryDecision MemoryDecider::decide_cheapest(std::int64_t frame_bytes,
                                              const MemoryDecision* last) const {
  std::vector<bool> taken;
  if (last != nullptr && rules_.size() > kLongMenu) {
    taken.resize(rules_.size());
    for (const PricedChoice& choice : last->choices) taken[choice.item] = true;
  }
  MenuChoice best = choose(frame_bytes, taken);
  const bool is_free = options_.budget_bytes > 0 && !options_.replay;
  const bool is_any = std::find(best.chosen.begin(), best.chosen.end(), true) != best.chosen.end();
  if (is_free && best.holds && is_any && rules_.size() <= kLongMenu)
    for (const std::int64_t share : kSharesLess) {
      MenuChoice other = choose(frame_bytes - frame_bytes / share);
      if (other.holds && other.outcome.seconds < best.outcome.seconds) best = std::move(other);
    }
  return priced(best);
}

MemoryDecision MemoryDecider::without(const MemoryDecision& decision,
                                      const std::vector<PricedChoice>& choices,
                                      std::int64_t frame_bytes) const {
  std::vector<bool> chosen(rules_.size(), false);
  for (const PricedChoice& choice : decision.choices) chosen[choice.item] = true;
  for (const PricedChoice& choice : choices) chosen[choice.item] = false;
  return priced(evaluated(std::move(chosen), frame_bytes));
}

std::string to_string(const MemoryDecision& decision) {
  struct Kind {
    std::string name;
    std::int64_t count = 0, bytes = 0;
    double seconds = 0;
  };
  std::vector<Kind> kinds;
  for (const PricedChoice& choice : decision.choices) {
    const std::string label = choice.label(), name(without_layer(label));
    auto kind = std::find_if(kinds.begin(), kinds.end(),
                             [&](const Kind& other) { return other.name == name; });
    if (kind == kinds.end()) kind = kinds.insert(kind, {name});
    ++kind->count;
    kind->bytes += choice.bytes;
    kind->seconds += choice.seconds;
  }
  std::string result;
  if (decision.packings_bytes > 0)
    result += fmt::format("  {:<28} {:>14}: {:>12}, {:+.1f} ms\n",
                          decision.decisions.keep_packings ? "second packings" : "packings",
                          "of all weights", format_bytes(decision.packings_bytes),
                          1e3 * decision.packing_seconds);
  if (const auto& norms = decision.decisions.norms_in_products; norms && !norms->empty())
    result += fmt::format("  {:<28} in {:>3} place{}\n", "norms, dropout in products",
                          norms->size(), norms->size() == 1 ? "" : "s");
  for (const Kind& kind : kinds)
    result +=
        fmt::format("  {:<28} in {:>3} place{}: {:>12}, {:+.1f} ms\n", kind.name, kind.count,
                    kind.count == 1 ? " " : "s", format_bytes(kind.bytes), 1e3 * kind.seconds);
  if (decision.decisions.first)
    result += fmt::format(
        "  {:<28} {:+.1f} ms: {} of its own, because gradients that are not started leave room\n",
        "a step's first micro-batch", 1e3 * decision.first_added_seconds,
        decision.first_choices.empty() ? "no choice"
        : decision.first_choices.size() == 1
            ? "1 choice"
            : fmt::format("{} choices", decision.first_choices.size()));
  return result;
}

}  // namespace anabatic::plan
