// SPDX-License-Identifier: Apache-2.0
// Kernels that gain nothing from an instruction set, each in the file of its family.
#pragma once
#include "kernels/cpu/call.h"

namespace anabatic::kernels::cpu {

// copies.cpp
void exchange_alone(const Arguments& args);  // in a group of one
void cache_write(const Arguments& args);
void embedding(const Arguments& args);
void fill(const Arguments& args);
void permute(const Arguments& args);
void reload(const Arguments& args);

// scalars.cpp
void clip_factor(const Arguments& args);
void global_norm(const Arguments& args);
void load_balancing_loss(const Arguments& args);
void load_balancing_loss_gradient(const Arguments& args);
void rope_table(const Arguments& args);
void sequence_balance_loss(const Arguments& args);
void sequence_balance_loss_gradient(const Arguments& args);
std::int64_t sequence_balance_loss_workspace_bytes(const spec::Problem& problem);

// route_sort.cpp
void dispatch_map(const Arguments& args);
void route_sort(const Arguments& args);
std::int64_t route_sort_workspace_bytes(const spec::Problem& problem);

}  // namespace anabatic::kernels::cpu
