// SPDX-License-Identifier: Apache-2.0
// The model under an adapter that a command line names.
#pragma once
#include <string>

#include "cli/verb.h"

namespace anabatic::cli {

// The weights' directory: as --model.path asks, or as the adapter's config names it.
// InvalidArgument where neither does.
std::string adapter_base(const Invocation& invocation, const std::string& adapter);

}  // namespace anabatic::cli
