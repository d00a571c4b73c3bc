// SPDX-License-Identifier: Apache-2.0
// What the shared library exports; all else in it is hidden.
#pragma once

#define ANABATIC_API __attribute__((visibility("default")))
