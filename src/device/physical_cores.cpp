// SPDX-License-Identifier: Apache-2.0
#include "device/physical_cores.h"

#include <hwloc.h>

#include <map>
#include <set>

namespace anabatic::device {
namespace {

// hwloc's number of the core, by hardware thread.
std::map<int, unsigned> load_cores(const std::string& synthetic) {
  std::map<int, unsigned> core_of;
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return core_of;
  const bool is_set =
      synthetic.empty() || hwloc_topology_set_synthetic(topology, synthetic.c_str()) == 0;
  if (is_set && hwloc_topology_load(topology) == 0) {
    const int count = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU);
    for (int i = 0; i < count; ++i) {
      const hwloc_obj_t thread =
          hwloc_get_obj_by_type(topology, HWLOC_OBJ_PU, static_cast<unsigned>(i));
      const hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_CORE, thread);
      if (core != nullptr) core_of[static_cast<int>(thread->os_index)] = core->logical_index;
    }
  }
  hwloc_topology_destroy(topology);
  return core_of;
}

}  // namespace

PhysicalCores physical_cores(const std::vector<int>& mask, const std::string& synthetic) {
  static const std::map<int, unsigned> of_this_machine = load_cores({});
  const std::map<int, unsigned> core_of =
      synthetic.empty() ? of_this_machine : load_cores(synthetic);
  PhysicalCores result;
  std::vector<int> siblings;
  std::set<unsigned> taken;
  for (const int thread : mask) {
    const auto core = core_of.find(thread);
    const bool is_first = core == core_of.end() || taken.insert(core->second).second;
    (is_first ? result.hardware_threads : siblings).push_back(thread);
  }
  result.num_siblings = static_cast<int>(siblings.size());
  result.hardware_threads.insert(result.hardware_threads.end(), siblings.begin(), siblings.end());
  return result;
}

}  // namespace anabatic::device
