// SPDX-License-Identifier: Apache-2.0
// A choice: what is done with some saved values, or calls, instead of keeping them.
#pragma once
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "spec/decisions.h"

namespace anabatic::plan {

enum class Way : std::uint8_t {
  kAgain,     // recomputed in the backward
  kBFloat16,  // saved in this form (spec::SavedForm)
  kInt8,      // likewise
  kDisk,      // likewise
  kSlices     // calls are cut
};

// As in plan files: "recompute", "bf16", "int8", "disk", "slices".
std::string_view to_string(Way way);
std::optional<Way> way_of(std::string_view word);
// The way of a saved form; kWhole and kAgain stand for one another, as nothing of the value is
// kept.
Way way_of(spec::SavedForm form);
spec::SavedForm form_of(Way way);  // not of kSlices

struct ChoiceId {
  std::string name{};  // key of its first value (analysis/rebuild.h), or of calls
  Way way = Way::kAgain;
  std::int64_t slices = 0;  // of kSlices

  auto operator<=>(const ChoiceId&) const = default;
  // Its name, with "as int8", "on disk" or "in 8 slices" after it.
  std::string label() const;
};

}  // namespace anabatic::plan
