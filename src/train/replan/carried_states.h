// SPDX-License-Identifier: Apache-2.0
// What a run keeps when another program takes over between two steps: every bit of its parameters
// and moments, in the forms that this program reads them in.
#pragma once
#include <span>
#include <string>

#include "runtime/program.h"

namespace anabatic::device {
class ThreadTeam;
}
namespace anabatic::runtime {
class StateStore;
}

namespace anabatic::train {

// Why the store cannot hold its states as a program with these does; empty: it can. States on disk,
// slices of them and parts of ranks stay as they are or are refused by name.
std::string refuse_to_carry(std::span<const runtime::StateSlot> slots,
                            const runtime::StateStore& store);

// Gives parameters and moments the types, roles and layouts of `slots`, one at a time, and removes
// the states that are not among them. Needs memory for the largest one in rows. Derived states are
// to be rebuilt. An error leaves each parameter and moment whole, in its old or new form, so that
// they can be carried back. For what refuse_to_carry() accepts, while no program is bound to the
// store.
void carry_states(std::span<const runtime::StateSlot> slots, runtime::StateStore& store,
                  device::ThreadTeam& team);

}  // namespace anabatic::train
