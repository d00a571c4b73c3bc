// SPDX-License-Identifier: Apache-2.0
// One call of a function of a plugin, in memory that shows what breaks its contract.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <string_view>

#include "device/thread_team.h"
#include "plugin/check/child.h"
#include "plugin/check/values.h"
#include "plugin/plugin_call.h"

namespace anabatic::plugin::check {

struct Setting {
  int threads = 1;
  Side side = Side::kBegin;
  std::byte poison{0x55};  // of outputs, workspace and what surrounds them
};

// Teams whose sleeping threads have no cores of their own: they disturb no one, and differ more in
// time.
class Teams {
 public:
  // Null for one thread.
  device::ThreadTeam* of(int threads);

 private:
  std::map<int, std::unique_ptr<device::ThreadTeam>> teams_;
};

struct GuardedCall {
  CallPlace place;
  const char* attributes;  // JSON
  std::int32_t (*function)(const anabatic_call*);
  std::int64_t workspace_bytes = 0;
  // Per output the input whose memory it has, or -1. Outputs beyond its end have their own.
  std::span<const int> in_place{};
};

// The workspace that a check gives; it skips a case that asks for more.
inline constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;

// `outputs` are given by their types; returns them with what was written. Fails where the call
// does, or writes what it may not.
Operands run_guarded(const GuardedCall& what, const Operands& inputs, Operands outputs,
                     const Setting& setting, std::string_view note, Teams& teams,
                     Reporter& reporter);

}  // namespace anabatic::plugin::check
