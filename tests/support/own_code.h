// SPDX-License-Identifier: Apache-2.0
// Where the code of this program and of the C++ library lies. Whatever else calls malloc belongs to
// other libraries, such as MPI: for counts_caller of support/counted_allocations.h.
#pragma once
#include <link.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace anabatic::testing {

struct CodeRange {
  std::uintptr_t first, end;
};
inline std::array<CodeRange, 8> own_code{};
inline std::size_t num_own_code = 0;

inline bool is_own(const void* caller) {
  const auto address = reinterpret_cast<std::uintptr_t>(caller);
  for (std::size_t i = 0; i < num_own_code; ++i)
    if (address >= own_code[i].first && address < own_code[i].end) return true;
  return false;
}

inline void find_own_code() {
  num_own_code = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void*) {
        const std::string_view name = object->dlpi_name;  // empty: the program
        if (!name.empty() && name.find("libstdc++") == std::string_view::npos) return 0;
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          const auto& part = object->dlpi_phdr[i];
          if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
          const std::uintptr_t first = object->dlpi_addr + part.p_vaddr;
          own_code.at(num_own_code++) = {first, first + part.p_memsz};
        }
        return 0;
      },
      nullptr);
}

}  // namespace anabatic::testing
