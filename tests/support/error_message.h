// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "anabatic/error.h"

namespace anabatic::testing {

// What `action` throws as E; "" for nothing. Another kind of error ends the test.
template <class E = Error, class Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

}  // namespace anabatic::testing
