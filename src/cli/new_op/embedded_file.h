// SPDX-License-Identifier: Apache-2.0
// Files that the build puts into the program (cmake/AnabaticEmbed.cmake).
#pragma once
#include <span>
#include <string_view>

namespace anabatic::cli {

struct EmbeddedFile {
  std::string_view name;  // without its folder: "op.c.in"
  std::string_view text;
};

// The templates of `anabatic new-op`, and plugin.h.
std::span<const EmbeddedFile> new_op_files();

}  // namespace anabatic::cli
