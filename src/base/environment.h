// SPDX-License-Identifier: Apache-2.0
// Every environment variable that Anabatic reads. They limit instruction sets, or tell where caches
// are; options are in the run config.
#pragma once
#include <string>

namespace anabatic::environment {

// ANABATIC_MAX_ISA: portable | avx2 | avx512f | avx512_bf16; "" for no limit. InvalidArgument for
// another value.
std::string max_isa();

// XDG_CACHE_HOME, or .cache in HOME; "" if neither is set. Measurements of the machine are stored
// there.
std::string cache_directory();

}  // namespace anabatic::environment
