// SPDX-License-Identifier: Apache-2.0
// The programs of a layer for one signature: a forward, and a backward for each set of gradients
// that was asked for. All operands are the caller's.
#pragma once
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "layer/split_graph.h"
#include "plugin/plugin_set.h"
#include "runtime/executor.h"
#include "runtime/shared_frame.h"
#include "runtime/state_store.h"
#include "spec/device_spec.h"

namespace anabatic::layer {

// What the programs of an engine share; it outlives them. One of them runs at a time.
struct LayerMemory {
  runtime::StateStore store;    // layers have no states
  runtime::SharedFrame frame;   // of the programs
  runtime::SharedFrame staged;  // inputs that kernels cannot take as they are, during one run
  // Of calls, by layer, call and kernel; none while nobody counts.
  std::optional<std::map<std::array<std::string, 3>, LayerKernelTime>> profile;
};

struct LayerTarget {
  device::ThreadTeam* team = nullptr;
  const spec::DeviceSpec* device = nullptr;
  LayerMemory* memory = nullptr;
  std::string only_kernels{};
  bool poison = false;
  const plugin::PluginSet* plugins = nullptr;  // never null
};

// Addresses of operands, as LayerCall takes them.
struct LayerOperands {
  std::span<const void* const> inputs{};
  std::span<const void* const> saved{};
  std::span<const void* const> seeds{};
  std::span<const void* const> packings{};
  std::span<void* const> results{};  // of a forward outputs and then saved; of a backward gradients
};

class LayerProgram {
 public:
  // InvalidArgument as LayerEngine::layer.
  LayerProgram(const LayerSignature& signature, const LayerTarget& target);
  ~LayerProgram();

  const LayerSignature& signature() const { return signature_; }
  const std::vector<LayerTensor>& outputs() const { return outputs_; }
  const std::vector<SavedTensor>& saved() const { return saved_; }
  const std::vector<LayerPacking>& packings() const { return packings_; }

  void forward(std::span<const void* const> inputs, std::span<void* const> outputs,
               std::span<void* const> saved, std::span<const void* const> packings);
  void backward(std::span<const void* const> inputs, std::span<const void* const> saved,
                std::span<const void* const> seeds, std::span<void* const> gradients,
                std::span<const void* const> packings);
  void pack(std::size_t packing, const void* weight, void* to);

  std::string text() const;
  std::int64_t bytes() const;  // about what it takes in memory, without its operands

 private:
  class Bound;
  Bound& backward_of(const std::set<std::string>& inputs);
  void check_count(std::string_view what, std::size_t expected, std::size_t given) const;
  // Those that the forward or the backward reads are there.
  void check_packings(std::span<const void* const> packings, bool in_forward) const;

  LayerSignature signature_;
  LayerTarget target_;
  std::vector<IntegerRange> ranges_;
  std::vector<LayerTensor> outputs_;
  std::vector<SavedTensor> saved_;
  std::vector<LayerPacking> packings_;
  std::optional<ir::Graph> backward_graph_;
  std::unique_ptr<Bound> forward_;
  std::map<std::set<std::string>, std::unique_ptr<Bound>> backwards_;  // by inputs
  std::vector<std::unique_ptr<Bound>> packers_;                        // one a packing
};

}  // namespace anabatic::layer
