// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace anabatic::device {

// Whether threads of this process may use AMX's tile registers for products of bf16. Linux (5.16
// and later) keeps them from a process until it asks for them: the first call does, for all
// threads.
bool may_use_amx();

}  // namespace anabatic::device
