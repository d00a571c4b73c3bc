// SPDX-License-Identifier: Apache-2.0
// Marks what the shared library exports; everything else in it is hidden.
#pragma once

#define ANABATIC_API __attribute__((visibility("default")))
