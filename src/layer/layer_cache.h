// SPDX-License-Identifier: Apache-2.0
// The programs of layers that were used last, and the teams and the memory that they share.
#pragma once
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "device/thread_team.h"
#include "layer/layer_program.h"

namespace anabatic::layer {

// Every member function, and every run of a program, is called under `mutex`.
class LayerCache {
 public:
  explicit LayerCache(const LayerOptions& options);

  // The program of a signature, planned where none is kept. One that is no longer kept lives as
  // long as it is held.
  std::shared_ptr<LayerProgram> program(const LayerSignature& signature);
  void set_threads(int threads);
  void load_plugin(const std::string& path);
  std::vector<LayerKernelTime> take_profile();
  // Drops the programs that were used longest ago until the others fit. The last one used stays.
  void shrink();

  std::int64_t num_programs() const { return std::ssize(kept_); }
  std::int64_t program_bytes() const;
  std::int64_t arena_bytes() const {
    return memory_.frame.memory().bytes() + memory_.staged.memory().bytes();
  }

  std::mutex mutex;

 private:
  struct Team {
    device::ThreadTeam threads;
    spec::DeviceSpec device;
  };
  struct Entry {
    std::string key;
    std::shared_ptr<LayerProgram> program;
  };

  Team& team(int threads);

  LayerOptions options_;
  const plugin::PluginSet* plugins_;  // of options_.plugins
  LayerMemory memory_;
  std::map<int, std::unique_ptr<Team>> teams_;  // by number of threads
  std::list<Entry> kept_;                       // the last one used first
  std::map<std::string, std::list<Entry>::iterator> by_key_;
};

}  // namespace anabatic::layer
