// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "anabatic/layers.h"
#include "layer/layer_cache.h"

namespace anabatic {

std::int64_t num_bytes(const LayerTensor& tensor) { return layer::to_type(tensor).num_bytes(); }

struct LayerEngine::Impl {
  explicit Impl(const LayerOptions& options) : cache(options) {}
  layer::LayerCache cache;
};

struct LayerCall::Impl {
  // The memory of the program; destroyed after it.
  std::shared_ptr<layer::LayerCache> cache;
  std::shared_ptr<layer::LayerProgram> program;
};

LayerCall::LayerCall(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

const std::vector<LayerTensor>& LayerCall::inputs() const {
  return impl_->program->signature().inputs;
}
const std::vector<LayerTensor>& LayerCall::outputs() const { return impl_->program->outputs(); }
const std::vector<SavedTensor>& LayerCall::saved() const { return impl_->program->saved(); }
const std::vector<LayerPacking>& LayerCall::packings() const { return impl_->program->packings(); }

void LayerCall::forward(std::span<const void* const> inputs, std::span<void* const> outputs,
                        std::span<void* const> saved, std::span<const void* const> packings) const {
  const std::lock_guard lock(impl_->cache->mutex);
  impl_->program->forward(inputs, outputs, saved, packings);
}

void LayerCall::backward(std::span<const void* const> inputs, std::span<const void* const> saved,
                         std::span<const void* const> output_gradients,
                         std::span<void* const> input_gradients,
                         std::span<const void* const> packings) const {
  const std::lock_guard lock(impl_->cache->mutex);
  impl_->program->backward(inputs, saved, output_gradients, input_gradients, packings);
}

void LayerCall::pack(std::size_t packing, const void* weight, void* to) const {
  const std::lock_guard lock(impl_->cache->mutex);
  impl_->program->pack(packing, weight, to);
}

std::string LayerCall::text() const {
  const std::lock_guard lock(impl_->cache->mutex);
  return impl_->program->text();
}

LayerEngine::LayerEngine(const LayerOptions& options) : impl_(std::make_shared<Impl>(options)) {}
LayerEngine::~LayerEngine() = default;

LayerCall LayerEngine::layer(const LayerSignature& signature) {
  const std::shared_ptr<layer::LayerCache> cache(impl_, &impl_->cache);
  const std::lock_guard lock(cache->mutex);
  return LayerCall(std::make_shared<LayerCall::Impl>(
      LayerCall::Impl{.cache = cache, .program = cache->program(signature)}));
}

void LayerEngine::set_threads(int threads) {
  const std::lock_guard lock(impl_->cache.mutex);
  impl_->cache.set_threads(threads);
}

void LayerEngine::load_plugin(const std::string& path) {
  const std::lock_guard lock(impl_->cache.mutex);
  impl_->cache.load_plugin(path);
}

std::vector<LayerKernelTime> LayerEngine::take_profile() {
  const std::lock_guard lock(impl_->cache.mutex);
  return impl_->cache.take_profile();
}

std::int64_t LayerEngine::num_programs() const {
  const std::lock_guard lock(impl_->cache.mutex);
  return impl_->cache.num_programs();
}

std::int64_t LayerEngine::program_bytes() const {
  const std::lock_guard lock(impl_->cache.mutex);
  return impl_->cache.program_bytes();
}

std::int64_t LayerEngine::arena_bytes() const {
  const std::lock_guard lock(impl_->cache.mutex);
  return impl_->cache.arena_bytes();
}

}  // namespace anabatic
