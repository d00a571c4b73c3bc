// SPDX-License-Identifier: Apache-2.0
// What a signal or an exit inside a plugin prints before the process ends: plugin, op, node and
// layer.
#pragma once
#include "plugin/plugin_call.h"

namespace anabatic::plugin {

// The thread is inside that call from now on; null: in none. Gives what it was inside before.
const CallPlace* enter_plugin(const CallPlace* place);

// From now on SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT inside a plugin are reported on standard
// error. What handled them before does so afterwards. An exit there is reported too, and ends the
// process with code 1. Once is enough.
void report_crashes();

}  // namespace anabatic::plugin
