// SPDX-License-Identifier: Apache-2.0
#include "anabatic/version.h"
#include "bindings.h"

NB_MODULE(_core, core) {
  nanobind::set_leak_warnings(
      false);  // torch keeps its operators, and what they hold, until the end
  core.attr("VERSION") = anabatic::kVersion;
  anabatic::python::bind_errors(core);
  anabatic::python::bind_results(core);
  anabatic::python::bind_runs(core);
  anabatic::python::bind_layers(core);
  anabatic::python::bind_tools(core);
}
