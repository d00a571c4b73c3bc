// SPDX-License-Identifier: Apache-2.0
#include "plan/choice_id.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"

namespace anabatic::plan {
namespace {

struct WayRow {
  Way way;
  std::string_view word;
  std::optional<spec::SavedForm> form;
};
constexpr WayRow kWayRows[] = {{Way::kAgain, "recompute", spec::SavedForm::kWhole},
                               {Way::kBFloat16, "bf16", spec::SavedForm::kBFloat16},
                               {Way::kInt8, "int8", spec::SavedForm::kInt8},
                               {Way::kDisk, "disk", spec::SavedForm::kDisk},
                               {Way::kSlices, "slices", std::nullopt}};

template <class Key>
const WayRow* find(Key WayRow::*member, const Key& key) {
  const auto row = std::find_if(std::begin(kWayRows), std::end(kWayRows),
                                [&](const WayRow& other) { return other.*member == key; });
  return row == std::end(kWayRows) ? nullptr : row;
}

template <class Key>
const WayRow& row_of(Key WayRow::*member, const Key& key) {
  const WayRow* row = find(member, key);
  ANABATIC_CHECK(row != nullptr, "[choice] expected a way of the table");
  return *row;
}

}  // namespace

std::string_view to_string(Way way) { return row_of(&WayRow::way, way).word; }

std::optional<Way> way_of(std::string_view word) {
  const WayRow* row = find(&WayRow::word, word);
  return row == nullptr ? std::nullopt : std::optional(row->way);
}

Way way_of(spec::SavedForm form) { return row_of(&WayRow::form, std::optional(form)).way; }

spec::SavedForm form_of(Way way) { return row_of(&WayRow::way, way).form.value(); }

std::string ChoiceId::label() const {
  switch (way) {
    case Way::kAgain:
      return name;
    case Way::kDisk:
      return fmt::format("{} on disk", name);
    case Way::kSlices:
      return fmt::format("{} in {} slices", name, slices);
    default:
      return fmt::format("{} as {}", name, to_string(way));
  }
}

}  // namespace anabatic::plan
