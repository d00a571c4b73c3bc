// SPDX-License-Identifier: Apache-2.0
#include "layer/layer_cache.h"

#include "base/error.h"
#include "device/topology.h"

namespace anabatic::layer {
namespace {

// Equal for signatures of one program: lengths keep texts apart.
std::string key_of(const LayerSignature& signature, int threads) {
  std::string key = fmt::format("{}", threads);
  const auto add = [&](const std::string& text) {
    key += fmt::format(" {}:{}", text.size(), text);
  };
  add(signature.layer);
  for (const auto& [name, value] : signature.attributes) {
    add(name);
    add(value);
  }
  key += '|';
  for (const LayerTensor& input : signature.inputs) {
    add(input.name);
    key += fmt::format(" {}", static_cast<int>(input.dtype));
    for (const std::int64_t size : input.shape) key += fmt::format(",{}", size);
  }
  key += '|';
  for (const std::string& input : signature.gradients) add(input);
  key += '|';
  for (const std::string& input : signature.packed) add(input);
  return key;
}

}  // namespace

LayerCache::LayerCache(const LayerOptions& options)
    : options_(options), plugins_(&plugin::plugin_set(options.plugins)) {
  set_threads(options.threads);
}

void LayerCache::set_threads(int threads) {
  ANABATIC_REQUIRE(threads >= 1, "[layers] expected at least 1 thread, got {}", threads);
  options_.threads = threads;
}

LayerCache::Team& LayerCache::team(int threads) {
  std::unique_ptr<Team>& found = teams_[threads];
  if (found == nullptr) {
    const spec::DeviceSpec device = device::describe_cpu(threads);
    found =
        options_.host != nullptr
            ? std::unique_ptr<Team>(new Team{device::ThreadTeam(threads, options_.host), device})
            : std::unique_ptr<Team>(new Team{device::ThreadTeam(threads), device});
  }
  return *found;
}

std::shared_ptr<LayerProgram> LayerCache::program(const LayerSignature& signature) {
  const std::string key = key_of(signature, options_.threads);
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    kept_.splice(kept_.begin(), kept_, found->second);
    return kept_.front().program;
  }
  Team& on = team(options_.threads);
  auto program =
      std::make_shared<LayerProgram>(signature, LayerTarget{.team = &on.threads,
                                                            .device = &on.device,
                                                            .memory = &memory_,
                                                            .only_kernels = options_.only_kernels,
                                                            .poison = options_.poison,
                                                            .plugins = plugins_});
  kept_.push_front({key, program});
  by_key_[key] = kept_.begin();
  shrink();
  return program;
}

void LayerCache::load_plugin(const std::string& path) {
  std::vector<std::string> paths = options_.plugins;
  paths.push_back(path);
  plugins_ = &plugin::plugin_set(paths);
  options_.plugins = std::move(paths);
  // A kernel of the plugin may be another choice.
  kept_.clear();
  by_key_.clear();
}

std::vector<LayerKernelTime> LayerCache::take_profile() {
  std::vector<LayerKernelTime> times;
  if (memory_.profile)
    for (auto& [key, time] : *memory_.profile) times.push_back(std::move(time));
  memory_.profile.emplace();
  return times;
}

void LayerCache::shrink() {
  std::int64_t bytes = program_bytes();
  while (bytes > options_.cache_bytes && kept_.size() > 1) {
    bytes -= kept_.back().program->bytes();
    by_key_.erase(kept_.back().key);
    kept_.pop_back();
  }
}

std::int64_t LayerCache::program_bytes() const {
  std::int64_t bytes = 0;
  for (const Entry& entry : kept_) bytes += entry.program->bytes();
  return bytes;
}

}  // namespace anabatic::layer
