// SPDX-License-Identifier: Apache-2.0
#include "plan/outcome.h"

#include "base/text.h"

namespace anabatic::plan {

std::string to_string(const Refusal& refusal) {
  std::string text = refusal.reason;
  for (const Consumer& consumer : refusal.consumers) {
    text += "\n  " + consumer.name;
    if (consumer.bytes > 0)
      text += " " + (refusal.unit.empty() ? format_bytes(consumer.bytes)
                                          : format_bytes_up(consumer.bytes, refusal.unit));
    if (!consumer.remedy.empty()) text += ": " + consumer.remedy;
  }
  return text;
}

}  // namespace anabatic::plan
