// SPDX-License-Identifier: Apache-2.0
// Layers as functions on memory of the caller: a forward, and a backward for the gradients that are
// asked for. Weights come with each call.
//
//   using anabatic::LayerDtype;
//   anabatic::LayerEngine engine({.threads = 2});
//   anabatic::LayerCall norm = engine.layer({.layer = "rms_norm",
//                                            .attributes = {{"epsilon", "1e-6"}},
//                                            .inputs = {{"x", LayerDtype::kFloat32, {8, 64}},
//                                                       {"weight", LayerDtype::kFloat32, {64}}},
//                                            .gradients = {"x"}});
//   norm.forward(inputs, outputs, saved);  // buffers of norm.outputs() and norm.saved()
//   norm.backward(inputs, saved, output_gradients, input_gradients);
//
// docs/reference/layers.md lists the layers with their operands and attributes.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "anabatic/export.h"

namespace anabatic {

enum class LayerDtype : std::uint8_t { kFloat32, kBFloat16, kInt32, kInt64 };

// What a buffer holds: row-major, each dimension at least 0.
struct LayerTensor {
  std::string name;
  LayerDtype dtype = LayerDtype::kFloat32;
  std::vector<std::int64_t> shape;
};
ANABATIC_API std::int64_t num_bytes(const LayerTensor& tensor);

// What the backward reads of the forward. The caller owns the buffer and keeps it until then.
struct SavedTensor : LayerTensor {
  int output = -1;  // it is the buffer of this output, and the forward takes no other; -1: its own
  // Where the gradient of the output is 1, it is the gradient of this input; -1: of none. A caller
  // that takes it saves the backward a copy.
  int gradient = -1;
};

// A layer for operands of certain types. Attributes are text: "1e-6", "swiglu", "true".
struct LayerSignature {
  std::string layer;
  std::map<std::string, std::string> attributes{};
  std::vector<LayerTensor> inputs{};     // by name; optional ones may be absent
  std::vector<std::string> gradients{};  // inputs whose gradients may be asked for
  std::vector<std::string> packed{};     // weights whose packings come with each call
};

// What kernels read in place of a weight: all or a part of it, in their order and dtype. It is good
// for as long as the weight does not change.
struct LayerPacking {
  std::size_t input = 0;  // index into LayerSignature::inputs
  std::string form{};     // equal forms of one weight have equal bytes, in any layer
  std::int64_t bytes = 0;
  bool in_forward = false, in_backward = false;  // who reads it
};

// Threads of a host program: calls body(context) on up to `threads` threads at once, the caller's
// among them, and returns when all are done. It may bring fewer.
using LayerHostRun = void (*)(void (*body)(void* context), void* context, int threads);

struct LayerOptions {
  int threads = 1;
  LayerHostRun host = nullptr;  // null: the engine has threads of its own
  // Programs are kept for this many bytes, those that were used last.
  std::int64_t cache_bytes = std::int64_t{64} << 20;
  std::string only_kernels{};          // rows whose name starts with it; empty: all
  std::vector<std::string> plugins{};  // shared libraries whose ops are layers too
  bool poison = false;                 // dead memory is filled with NaN before each call, for tests
};

// What the calls of one kernel have taken.
struct LayerKernelTime {
  std::string layer;   // "moe_experts"
  std::string call;    // "experts grouped_linear backward_weight"
  std::string kernel;  // "cpu:grouped_linear_avx512_bf16"
  std::int64_t calls = 0, nanoseconds = 0;
};

// A layer for one signature. Copies are handles of one program.
class ANABATIC_API LayerCall {
 public:
  // As in the signature, in the layer's order; buffers are passed in this order.
  const std::vector<LayerTensor>& inputs() const;
  const std::vector<LayerTensor>& outputs() const;
  const std::vector<SavedTensor>& saved() const;      // empty without gradients
  const std::vector<LayerPacking>& packings() const;  // of the weights that come packed

  // Fills outputs and saved. Inputs may lie anywhere; outputs and saved begin at multiples of 64
  // bytes and overlap nothing. Buffers without bytes may be null, and so may those of saved tensors
  // that are outputs. InvalidArgument naming the operand where an address or an index does not fit.
  // `packings` may be null where the forward reads none, and so may the weights that come packed.
  void forward(std::span<const void* const> inputs, std::span<void* const> outputs,
               std::span<void* const> saved, std::span<const void* const> packings = {}) const;

  // Fills the gradients of inputs that are not null, each like its input. `saved` is what the
  // forward filled for the same inputs, with the buffers of outputs where they are saved. The
  // gradient of an output is like the output; null stands for zeroes.
  void backward(std::span<const void* const> inputs, std::span<const void* const> saved,
                std::span<const void* const> output_gradients,
                std::span<void* const> input_gradients,
                std::span<const void* const> packings = {}) const;

  // Fills packings()[packing]; `to` begins at a multiple of 64 bytes.
  void pack(std::size_t packing, const void* weight, void* to) const;

  std::string text() const;  // the calls of both programs, one a line

 private:
  friend class LayerEngine;
  struct Impl;
  explicit LayerCall(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

// Programs of layers over one arena. Any thread may use it and its calls; one runs at a time.
class ANABATIC_API LayerEngine {
 public:
  explicit LayerEngine(const LayerOptions& options = {});
  ~LayerEngine();  // calls stay valid
  LayerEngine(const LayerEngine&) = delete;
  LayerEngine& operator=(const LayerEngine&) = delete;

  // From the cache, or planned now. InvalidArgument naming layer, operand or attribute.
  LayerCall layer(const LayerSignature& signature);

  // Adds a plugin to those of the options. InvalidArgument or ResourceError as it cannot be loaded.
  void load_plugin(const std::string& path);
  void set_threads(int threads);  // of the layers that are asked for from now on
  std::int64_t num_programs() const;
  std::int64_t program_bytes() const;  // of the programs that are kept
  std::int64_t arena_bytes() const;    // of the memory that all calls share

  // What kernels took since the last call of this. The first one starts to count.
  std::vector<LayerKernelTime> take_profile();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace anabatic
