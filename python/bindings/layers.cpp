// SPDX-License-Identifier: Apache-2.0
// Layers on memory of the caller: addresses as integers, and what a call keeps for its backward in
// one buffer.
#include "anabatic/layers.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "anabatic/adamw.h"
#include "anabatic/error.h"
#include "bindings.h"

namespace anabatic::python {
namespace {

namespace nb = nanobind;

// Threads of the OpenMP that the host program has loaded.
using Parallel = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);
Parallel gomp_parallel = nullptr;

void run_on_gomp(void (*body)(void* context), void* context, int threads) {
  gomp_parallel(body, context, static_cast<unsigned>(threads), 0);
}

// False if no such library is loaded.
bool find_gomp(const std::string& path) {
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return false;
  gomp_parallel = reinterpret_cast<Parallel>(::dlsym(library, "GOMP_parallel"));
  return gomp_parallel != nullptr;
}

constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kLeastBytes = std::int64_t{128} << 10;  // of inputs, for several threads

std::int64_t round_up(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

LayerDtype dtype_of(const std::string& name) {
  if (name == "f32") return LayerDtype::kFloat32;
  if (name == "bf16") return LayerDtype::kBFloat16;
  if (name == "i32") return LayerDtype::kInt32;
  if (name == "i64") return LayerDtype::kInt64;
  throw InvalidArgument(fmt::format("[layers] expected f32, bf16, i32 or i64, got {}", name));
}

std::string name_of(LayerDtype dtype) {
  constexpr const char* kNames[] = {"f32", "bf16", "i32", "i64"};
  return kNames[static_cast<std::size_t>(dtype)];
}

// Name, dtype, shape.
using Operand = std::tuple<std::string, std::string, std::vector<std::int64_t>>;
using Addresses = std::vector<std::uintptr_t>;  // 0: none
// Name of the weight, form, bytes, whether the forward and the backward read it.
using Packing = std::tuple<std::string, std::string, std::int64_t, bool, bool>;

LayerSignature signature_of(const std::string& layer, std::map<std::string, std::string> attributes,
                            const std::vector<Operand>& inputs, std::vector<std::string> gradients,
                            std::vector<std::string> packed) {
  LayerSignature signature{.layer = layer,
                           .attributes = std::move(attributes),
                           .gradients = std::move(gradients),
                           .packed = std::move(packed)};
  for (const auto& [name, dtype, shape] : inputs)
    signature.inputs.push_back({name, dtype_of(dtype), shape});
  return signature;
}

template <class Pointer>
std::vector<Pointer> pointers_of(const Addresses& addresses) {
  std::vector<Pointer> pointers;
  pointers.reserve(addresses.size());
  for (const std::uintptr_t address : addresses)
    pointers.push_back(reinterpret_cast<Pointer>(address));
  return pointers;
}

// Addresses of what is saved: those of outputs, and places in `buffer`.
template <class Pointer, class Outputs>
std::vector<Pointer> saved_of(const LayerCall& call, const Outputs& outputs,
                              std::uintptr_t buffer) {
  std::vector<Pointer> saved;
  for (const SavedTensor& tensor : call.saved()) {
    if (tensor.output >= 0) {
      saved.push_back(static_cast<Pointer>(outputs[static_cast<std::size_t>(tensor.output)]));
      continue;
    }
    const std::int64_t size = num_bytes(tensor);
    saved.push_back(size == 0 ? nullptr : reinterpret_cast<Pointer>(buffer));
    buffer += static_cast<std::uintptr_t>(round_up(size));
  }
  return saved;
}

// Buffers of torch are new memory in every step: its first touch costs half where pages are large.
void ask_for_large_pages(std::uintptr_t address, std::int64_t bytes) {
  constexpr std::uintptr_t kPage = std::uintptr_t{2} << 20;
  const std::uintptr_t begin = (address + kPage - 1) / kPage * kPage,
                       end = (address + static_cast<std::uintptr_t>(bytes)) / kPage * kPage;
  if (begin < end) (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

template <class Tensors>
void ask_for_large_pages(const Addresses& addresses, const Tensors& tensors) {
  for (std::size_t i = 0; i < addresses.size(); ++i)
    if (addresses[i] != 0) ask_for_large_pages(addresses[i], num_bytes(tensors[i]));
}

// Bytes of the buffer that no tensor has: torch compares whole buffers where it checks an operator.
void clear_gaps(const LayerCall& call, std::uintptr_t buffer, std::int64_t bytes) {
  if (bytes == 0) return;
  auto* data = reinterpret_cast<std::byte*>(buffer);
  std::int64_t place = 0;
  for (const SavedTensor& tensor : call.saved()) {
    if (tensor.output >= 0) continue;
    const std::int64_t size = num_bytes(tensor), room = round_up(size);
    std::memset(data + place + size, 0, static_cast<std::size_t>(room - size));
    place += room;
  }
  std::memset(data + place, 0, static_cast<std::size_t>(bytes - place));
}

class Layers {
 public:
  // On threads of the OpenMP library at that path; "": on its own.
  Layers(int threads, const std::string& openmp)
      : is_hosted_(!openmp.empty() && find_gomp(openmp)),
        engine_(std::make_unique<LayerEngine>(
            LayerOptions{.threads = threads, .host = is_hosted_ ? run_on_gomp : nullptr})),
        single_(std::make_unique<LayerEngine>()) {}

  void set_threads(int threads) {
    if (::getpid() == pid_) engine_->set_threads(threads);
  }
  bool is_hosted() const { return is_hosted_; }

  void load_plugin(const std::string& path) {
    engine_->load_plugin(path);
    single_->load_plugin(path);
    plugins_.push_back(path);
  }

  std::vector<Operand> outputs(const LayerSignature& signature) {
    std::vector<Operand> outputs;
    for (const LayerTensor& output : call(signature).outputs())
      outputs.emplace_back(output.name, name_of(output.dtype), output.shape);
    return outputs;
  }

  // Bytes of the buffer for what is saved.
  std::int64_t saved_bytes(const LayerSignature& signature) {
    std::int64_t bytes = 0;
    for (const SavedTensor& tensor : call(signature).saved())
      if (tensor.output < 0) bytes += round_up(num_bytes(tensor));
    return bytes;
  }

  std::vector<Packing> packings(const LayerSignature& signature) {
    std::vector<Packing> packings;
    for (const LayerPacking& one : call(signature).packings())
      packings.emplace_back(signature.inputs[one.input].name, one.form, one.bytes, one.in_forward,
                            one.in_backward);
    return packings;
  }

  void pack(const LayerSignature& signature, std::size_t packing, std::uintptr_t weight,
            std::uintptr_t to) {
    const LayerCall layer = call(signature);
    if (packing < layer.packings().size()) ask_for_large_pages(to, layer.packings()[packing].bytes);
    layer.pack(packing, reinterpret_cast<const void*>(weight), reinterpret_cast<void*>(to));
  }

  void forward(const LayerSignature& signature, const Addresses& inputs, const Addresses& outputs,
               std::uintptr_t saved, std::int64_t saved_bytes, const Addresses& packings) {
    const LayerCall layer = call(signature);
    const auto buffers = pointers_of<void*>(outputs);
    require_room(signature, saved_bytes);
    ask_for_large_pages(outputs, layer.outputs());
    ask_for_large_pages(saved, saved_bytes);
    clear_gaps(layer, saved, saved_bytes);
    layer.forward(pointers_of<const void*>(inputs), buffers, saved_of<void*>(layer, buffers, saved),
                  pointers_of<const void*>(packings));
  }

  void backward(const LayerSignature& signature, const Addresses& inputs, const Addresses& outputs,
                std::uintptr_t saved, const Addresses& output_gradients,
                const Addresses& input_gradients, const Addresses& packings) {
    const LayerCall layer = call(signature);
    ask_for_large_pages(input_gradients, layer.inputs());
    layer.backward(pointers_of<const void*>(inputs),
                   saved_of<const void*>(layer, pointers_of<const void*>(outputs), saved),
                   pointers_of<const void*>(output_gradients), pointers_of<void*>(input_gradients),
                   pointers_of<const void*>(packings));
  }

  // Outputs that the backward reads too.
  std::vector<int> saved_outputs(const LayerSignature& signature) {
    std::vector<int> outputs;
    for (const SavedTensor& tensor : call(signature).saved())
      if (tensor.output >= 0) outputs.push_back(tensor.output);
    return outputs;
  }

  // Layer, call, kernel, calls, seconds.
  std::vector<std::tuple<std::string, std::string, std::string, std::int64_t, double>>
  take_profile() {
    std::vector<std::tuple<std::string, std::string, std::string, std::int64_t, double>> times;
    for (LayerEngine* engine : {engine_.get(), single_.get()})
      for (const LayerKernelTime& time : engine->take_profile())
        times.emplace_back(time.layer, time.call, time.kernel, time.calls,
                           static_cast<double>(time.nanoseconds) * 1e-9);
    return times;
  }

  std::string text(const LayerSignature& signature) { return call(signature).text(); }
  std::int64_t num_programs() const { return engine_->num_programs() + single_->num_programs(); }
  std::int64_t program_bytes() const { return engine_->program_bytes() + single_->program_bytes(); }
  std::int64_t arena_bytes() const { return engine_->arena_bytes() + single_->arena_bytes(); }

 private:
  // A forked child has none of the threads: it computes with one.
  LayerCall call(const LayerSignature& signature) {
    if (::getpid() != pid_) {
      (void)engine_.release();  // whose threads nobody can join
      (void)single_.release();  // whose lock may be held for good
      engine_ = std::make_unique<LayerEngine>(LayerOptions{.plugins = plugins_});
      single_ = std::make_unique<LayerEngine>(LayerOptions{.plugins = plugins_});
      pid_ = ::getpid();
      is_hosted_ = false;
    }
    // Little is done sooner than other threads are awake. Bits are those of any number of threads.
    std::int64_t bytes = 0;
    for (const LayerTensor& input : signature.inputs) bytes += num_bytes(input);
    return (bytes < kLeastBytes ? *single_ : *engine_).layer(signature);
  }

  void require_room(const LayerSignature& signature, std::int64_t bytes) {
    const std::int64_t needed = saved_bytes(signature);
    if (bytes < needed)
      throw InternalError(fmt::format("[{}] expected {} bytes for what the backward reads, got {}",
                                      signature.layer, needed, bytes));
  }

  bool is_hosted_;
  std::unique_ptr<LayerEngine> engine_, single_;
  std::vector<std::string> plugins_;
  pid_t pid_ = ::getpid();
};

// Addresses of value, gradient and moments; rows, columns; stream.
using Parameter = std::tuple<std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t,
                             std::int64_t, std::int64_t, std::int64_t>;

std::vector<AdamWParameter> parameters_of(const std::vector<Parameter>& parameters) {
  std::vector<AdamWParameter> made;
  for (const auto& [value, gradient, first, second, rows, columns, stream] : parameters)
    made.push_back({.value = reinterpret_cast<float*>(value),
                    .gradient = reinterpret_cast<const float*>(gradient),
                    .first_moment = reinterpret_cast<void*>(first),
                    .second_moment = reinterpret_cast<void*>(second),
                    .rows = rows,
                    .columns = columns,
                    .stream = stream});
  return made;
}

AdamWMoments moments_of(const std::string& name) {
  if (name == "fp32") return AdamWMoments::kFloat32;
  if (name == "bf16") return AdamWMoments::kBFloat16;
  if (name == "int8") return AdamWMoments::kInt8;
  throw InvalidArgument("[adamw] expected moments in fp32, bf16 or int8, got '" + name + "'");
}

AdamWMoment moment_of(int number) {
  return number == 0 ? AdamWMoment::kFirst : AdamWMoment::kSecond;
}

using Release = nb::call_guard<nb::gil_scoped_release>;

}  // namespace

void bind_layers(nb::module_& core) {
  nb::class_<AdamW>(core, "AdamW", "Updates of parameters in place; see anabatic.torch.optim.")
      .def(
          "__init__",
          [](AdamW* self, int threads, const std::string& openmp) {
            const bool is_hosted = !openmp.empty() && find_gomp(openmp);
            new (self) AdamW(threads, is_hosted ? run_on_gomp : nullptr);
          },
          nb::arg("threads"), nb::arg("openmp"))
      .def(
          "sum_squares",
          [](AdamW& adamw, const std::vector<Parameter>& parameters) {
            return adamw.sum_squares(parameters_of(parameters));
          },
          nb::arg("parameters"), Release())
      .def(
          "update",
          [](AdamW& adamw, const std::vector<Parameter>& parameters, double learning_rate,
             double beta1, double beta2, double epsilon, double weight_decay,
             const std::string& moments, std::int64_t step, double clip_factor) {
            adamw.update(parameters_of(parameters),
                         {.beta1 = beta1,
                          .beta2 = beta2,
                          .epsilon = epsilon,
                          .weight_decay = weight_decay,
                          .moments = moments_of(moments)},
                         learning_rate, step, clip_factor);
          },
          nb::arg("parameters"), nb::arg("learning_rate"), nb::arg("beta1"), nb::arg("beta2"),
          nb::arg("epsilon"), nb::arg("weight_decay"), nb::arg("moments"), nb::arg("step"),
          nb::arg("clip_factor"), Release());

  core.def(
      "adamw_moment_bytes",
      [](const std::string& moments, std::int64_t rows, std::int64_t columns) {
        return adamw_moment_bytes(moments_of(moments), rows, columns);
      },
      nb::arg("moments"), nb::arg("rows"), nb::arg("columns"));
  // Moments 0 and 1, in 8 bits.
  core.def(
      "decode_moment",
      [](int which, std::uintptr_t moment, std::uintptr_t values, std::int64_t rows,
         std::int64_t columns) {
        decode_moment(moment_of(which), reinterpret_cast<const void*>(moment),
                      reinterpret_cast<float*>(values), rows, columns);
      },
      nb::arg("which"), nb::arg("moment"), nb::arg("values"), nb::arg("rows"), nb::arg("columns"),
      Release());
  core.def(
      "encode_moment",
      [](int which, std::uintptr_t values, std::uintptr_t moment, std::int64_t rows,
         std::int64_t columns) {
        encode_moment(moment_of(which), reinterpret_cast<const float*>(values),
                      reinterpret_cast<void*>(moment), rows, columns);
      },
      nb::arg("which"), nb::arg("values"), nb::arg("moment"), nb::arg("rows"), nb::arg("columns"),
      Release());

  nb::class_<LayerSignature>(core, "LayerSignature",
                             "A layer for operands of certain types: name, attributes, inputs as "
                             "(name, dtype, shape), the inputs that have gradients, and those "
                             "whose packings come with each call.")
      .def(nb::new_(&signature_of), nb::arg("layer"), nb::arg("attributes"), nb::arg("inputs"),
           nb::arg("gradients"), nb::arg("packed"))
      .def_ro("layer", &LayerSignature::layer);

  nb::class_<Layers>(core, "Layers", "Layers on memory of the caller; see anabatic.torch.ops.")
      .def(nb::init<int, const std::string&>(), nb::arg("threads"), nb::arg("openmp"))
      .def("set_threads", &Layers::set_threads, nb::arg("threads"), Release())
      .def_prop_ro("is_hosted", &Layers::is_hosted)
      .def("load_plugin", &Layers::load_plugin, nb::arg("path"), Release())
      .def("outputs", &Layers::outputs, nb::arg("signature"), Release())
      .def("saved_bytes", &Layers::saved_bytes, nb::arg("signature"), Release())
      .def("saved_outputs", &Layers::saved_outputs, nb::arg("signature"), Release())
      .def("forward", &Layers::forward, nb::arg("signature"), nb::arg("inputs"), nb::arg("outputs"),
           nb::arg("saved"), nb::arg("saved_bytes"), nb::arg("packings"), Release())
      .def("backward", &Layers::backward, nb::arg("signature"), nb::arg("inputs"),
           nb::arg("outputs"), nb::arg("saved"), nb::arg("output_gradients"),
           nb::arg("input_gradients"), nb::arg("packings"), Release())
      .def("packings", &Layers::packings, nb::arg("signature"), Release())
      .def("pack", &Layers::pack, nb::arg("signature"), nb::arg("packing"), nb::arg("weight"),
           nb::arg("to"), Release())
      .def("take_profile", &Layers::take_profile, Release())
      .def("text", &Layers::text, nb::arg("signature"), Release())
      .def_prop_ro("num_programs", &Layers::num_programs)
      .def_prop_ro("program_bytes", &Layers::program_bytes)
      .def_prop_ro("arena_bytes", &Layers::arena_bytes);
}

}  // namespace anabatic::python
