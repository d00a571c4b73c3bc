// SPDX-License-Identifier: Apache-2.0
#include "comm/launcher.h"

#include <charconv>

#include "base/environment.h"

namespace anabatic::comm {
namespace {

// -1 if the text is no number.
std::int32_t number(const std::string& text) {
  std::int32_t value = -1;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && stop == text.data() + text.size() ? value : -1;
}

}  // namespace

std::optional<LaunchedProcess> launched_process() {
  for (const environment::Launcher& launcher : environment::launchers()) {
    const std::int32_t size = number(launcher.size), rank = number(launcher.rank);
    if (size >= 1 && rank >= 0 && rank < size)
      return LaunchedProcess{rank, size, launcher.variable};
  }
  return std::nullopt;
}

}  // namespace anabatic::comm
