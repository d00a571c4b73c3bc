// SPDX-License-Identifier: Apache-2.0
#include "device/amx.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace anabatic::device {
namespace {

bool ask() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;           // of leaf 7, EDX
  constexpr long kRequestComponent = 0x1023, kTileRegisters = 18;  // of arch_prctl(2)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & (kBf16 | kTile)) != (kBf16 | kTile)) return false;
  return ::syscall(SYS_arch_prctl, kRequestComponent, kTileRegisters) == 0;
#else
  return false;
#endif
}

}  // namespace

bool may_use_amx() {
  static const bool may = ask();
  return may;
}

}  // namespace anabatic::device
