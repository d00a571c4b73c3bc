// SPDX-License-Identifier: Apache-2.0
#include "device/helper_cores.h"

#include <sched.h>

namespace anabatic::device {

void keep_off_compute_cores(int num_compute_threads) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  cpu_set_t rest;
  CPU_ZERO(&rest);
  int seen = 0;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &allowed) && seen++ >= num_compute_threads) CPU_SET(core, &rest);
  if (CPU_COUNT(&rest) > 0) sched_setaffinity(0, sizeof rest, &rest);
}

}  // namespace anabatic::device
