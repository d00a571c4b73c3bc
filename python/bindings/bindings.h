// SPDX-License-Identifier: Apache-2.0
// The parts of the module anabatic._core. Each adds its names to the module; nothing here computes.
#pragma once
#include <nanobind/nanobind.h>

namespace anabatic::python {

void bind_errors(nanobind::module_& core);   // C++ exceptions become those of anabatic/errors.py
void bind_results(nanobind::module_& core);  // what steps, runs and plans return
void bind_runs(nanobind::module_& core);     // Engine, Session
void bind_layers(nanobind::module_& core);   // Layers
void bind_tools(nanobind::module_& core);    // plan, info, Tokenizer, Dataset, the command line

}  // namespace anabatic::python
