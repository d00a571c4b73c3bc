// SPDX-License-Identifier: Apache-2.0
#include "device/cgroup.h"

#include <fstream>
#include <string>

namespace anabatic::device {
namespace {

namespace fs = std::filesystem;
using Visit = std::function<void(const fs::path&, CgroupVersion)>;

void visit_upwards(const fs::path& root, fs::path group, CgroupVersion version,
                   const Visit& visit) {
  for (;;) {
    visit(root / group, version);
    if (group.empty()) return;
    group =
        group.has_parent_path() && group.parent_path() != group ? group.parent_path() : fs::path();
  }
}

// "/a/b" as a path that can be appended to a root.
fs::path relative_group(std::string_view text) {
  while (!text.empty() && text.front() == '/') text.remove_prefix(1);
  // A group outside this process's view begins with "..": only the root can be looked at.
  if (text.starts_with("..")) return {};
  return fs::path(text);
}

bool lists(std::string_view controllers, std::string_view controller) {
  while (!controllers.empty()) {
    const std::size_t end = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, end) == controller) return true;
    controllers.remove_prefix(std::min(end + 1, controllers.size()));
  }
  return false;
}

}  // namespace

void visit_cgroups(const SystemRoots& roots, std::string_view controller, const Visit& visit) {
  // Lines "0::/path" (version 2) and "4:cpu,cpuacct:/path" (version 1). Version 1 is mounted under
  // the list of its controllers, with a link for each.
  std::ifstream file(roots.proc / "self" / "cgroup");
  bool has_line = false;
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path group = relative_group(std::string_view(line).substr(second + 1));
    has_line = true;
    if (controllers.empty()) {
      visit_upwards(roots.cgroup, group, CgroupVersion::kTwo, visit);
      visit_upwards(roots.cgroup / "unified", group, CgroupVersion::kTwo, visit);
    } else if (lists(controllers, controller)) {
      visit_upwards(roots.cgroup / controller, group, CgroupVersion::kOne, visit);
      if (controllers != controller)
        visit_upwards(roots.cgroup / controllers, group, CgroupVersion::kOne, visit);
    }
  }
  if (has_line) return;
  visit(roots.cgroup, CgroupVersion::kTwo);
  visit(roots.cgroup / controller, CgroupVersion::kOne);
}

}  // namespace anabatic::device
