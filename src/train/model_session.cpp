// SPDX-License-Identifier: Apache-2.0
#include "train/model_session.h"

#include <algorithm>
#include <cstring>

#include "base/environment.h"
#include "base/error.h"
#include "device/topology.h"
#include "model/initialize.h"
#include "model/weights.h"
#include "passes/pipelines.h"
#include "passes/split_parameters.h"
#include "runtime/swap/swap_space.h"
#include "train/calibration.h"
#include "train/derived_states.h"
#include "train/state_rows.h"

namespace anabatic::train {
namespace {

std::span<const std::byte> bytes_of(std::span<const std::int32_t> values) {
  return std::as_bytes(values);
}

void fill(runtime::Executor& executor, std::string_view name, std::span<const std::byte> bytes) {
  const std::span<std::byte> input = executor.input(name);
  ANABATIC_CHECK(input.size() == bytes.size(), "[session] input {} holds {} bytes, got {}", name,
                 input.size(), bytes.size());
  std::memcpy(input.data(), bytes.data(), bytes.size());
}

// With the lower halves of a parameter, which are saved as part of it.
bool is_low_state(const ir::Graph& graph, const ir::State& state) {
  static const std::string prefix = passes::low_state_name("");
  const std::string_view name = text(state.name);
  return name.starts_with(prefix) &&
         graph.find_state(intern(name.substr(prefix.size()))) != nullptr;
}

// A pass of the training pipeline alone: switching it off says nothing about a forward program.
bool is_training_only(std::string_view name) {
  const auto has = [&](const std::vector<passes::Pass>& pipeline) {
    return std::any_of(pipeline.begin(), pipeline.end(),
                       [&](const passes::Pass& pass) { return pass.name == name; });
  };
  return has(passes::training_pipeline()) && !has(passes::inference_pipeline());
}

}  // namespace

lower::CompileOptions compile_options(const RunConfig& run,
                                      const ModelSession::CompileRequest& request) {
  const RunConfig::Optimizer& optimizer = run.optimizer;
  lower::CompileOptions options;
  options.precision =
      run.train.precision == "bf16" ? lower::Precision::kBf16 : lower::Precision::kFp32;
  options.training = request.training;
  options.with_update = request.with_update;
  options.single_micro_batch = request.single_micro_batch;
  options.optimizer = {.beta1 = optimizer.betas[0],
                       .beta2 = optimizer.betas[1],
                       .epsilon = optimizer.epsilon,
                       .weight_decay = optimizer.weight_decay,
                       .clip_grad_norm = optimizer.clip_grad_norm,
                       .decay_norms_and_biases = optimizer.decay_norms_and_biases,
                       .half_moments = optimizer.state_precision == "bf16",
                       .seed = static_cast<std::uint64_t>(run.train.seed),
                       .in_backward = optimizer.update == "in_backward"};
  std::set<std::string> disabled = run.fusions.off;
  disabled.insert(run.compiler.disable_passes.begin(), run.compiler.disable_passes.end());
  for (const std::string& pass : disabled)
    if (request.training || !is_training_only(pass)) options.disabled_passes.insert(pass);
  options.memory = {.budget_bytes = request.budget_bytes,
                    .recompute = run.memory.recompute,
                    .keep = run.memory.keep};
  options.memory.compression.allowed = run.memory.compress == "int8" ? spec::Compression::kInt8
                                       : run.memory.compress == "bf16"
                                           ? spec::Compression::kBFloat16
                                           : spec::Compression::kNone;
  options.pack_transposed = run.compiler.pack_transposed;
  options.disk.optimizer_state = run.memory.optimizer_state == "disk";
  options.disk.num_windows =
      static_cast<std::int32_t>(std::min<std::int64_t>(run.memory.swap_windows, 1 << 20));
  options.only_kernels = request.only_kernels;
  options.trivial_planners = run.compiler.trivial_planners;
  if (!run.compiler.dump.empty())
    options.dump_directory = (std::filesystem::path(run.compiler.dump) / request.name).string();
  options.explain_dispatch = run.compiler.explain_dispatch;
  if (environment::is_plain_test_config()) {
    options.trivial_planners = true;
    for (const passes::Pass& pass : passes::training_pipeline())
      if (!pass.required && (request.training || !is_training_only(pass.name)))
        options.disabled_passes.insert(std::string(pass.name));
  }
  return options;
}

void BoundProgram::set(std::string_view input, std::span<const std::int32_t> values) {
  if (executor->has_input(input)) fill(*executor, input, bytes_of(values));
}

void BoundProgram::set_scalar(std::string_view input, float value) {
  if (executor->has_input(input)) fill(*executor, input, std::as_bytes(std::span(&value, 1)));
}

void BoundProgram::set_scalar(std::string_view input, std::int32_t value) {
  if (executor->has_input(input)) fill(*executor, input, std::as_bytes(std::span(&value, 1)));
}

void BoundProgram::set_batch(const io::MicroBatch& batch) {
  set("tokens", batch.tokens);
  set("labels", batch.labels);
  set("positions", batch.positions);
  set("key_begin", batch.key_begin);
  set("key_end", batch.key_end);
}

double BoundProgram::scalar(std::string_view output) const {
  const TensorView view = executor->output(output);
  ANABATIC_CHECK(view.type->num_elements() == 1, "[session] output {} is {}, not a scalar", output,
                 to_string(*view.type));
  if (view.type->dtype == DType::kFloat64) return *view.as<const double>();
  ANABATIC_CHECK(view.type->dtype == DType::kFloat32, "[session] output {} is {}", output,
                 to_string(*view.type));
  return *view.as<const float>();
}

std::filesystem::path model_directory(const std::string& path) {
  return std::filesystem::is_directory(path) ? std::filesystem::path(path)
                                             : std::filesystem::path(path).parent_path();
}

std::filesystem::path swap_directory(const RunConfig& run) {
  if (!run.memory.swap_directory.empty()) return run.memory.swap_directory;
  return run.train.output.empty() ? std::filesystem::temp_directory_path()
                                  : std::filesystem::path(run.train.output);
}

ModelSession::ModelSession(const RunConfig& run, bool measure,
                           runtime::swap::DeviceWrapper wrap_swap)
    : run_(run),
      wrap_swap_(std::move(wrap_swap)),
      config_(model::load_config(run.model.path)),
      team_(static_cast<int>(run.device.threads)) {
  device_ = device::probe_cpu(team_, measure);
}

std::unique_ptr<BoundProgram> ModelSession::bind(const CompileRequest& request) {
  auto bound = std::make_unique<BoundProgram>();
  lower::CompileOptions options = compile_options(run_, request);
  for (const Name name : store_.names())
    options.state_layouts[std::string(text(name))] = store_.find(name).type->layout;
  if (options.memory.asks()) {
    options.efficiency = stored_calibration(device_).efficiency;
    options.efficiency.sequence_length = run_.data.sequence_length;
  }
  if (options.training && options.with_update && options.disk.optimizer_state && !store_.swap())
    store_.set_swap(std::make_unique<runtime::swap::SwapSpace>(
        runtime::swap::SwapOptions{.directory = swap_directory(run_),
                                   .num_compute_threads = team_.num_threads(),
                                   .wrap_device = wrap_swap_}));
  bound->compiled = lower::compile(model::build_graph(config_, request.build), options, device_);
  bound->executor = std::make_unique<runtime::Executor>(
      bound->compiled.program, store_, team_,
      runtime::ExecutorOptions{.poison =
                                   run_.compiler.poison || environment::is_plain_test_config()});
  planned_arena_bytes_ += bound->executor->arena_bytes();
  for (const ir::State& state : bound->compiled.graph.states) {
    const bool is_saved =
        state.kind == ir::StateKind::kParameter ||
        (state.kind == ir::StateKind::kOptimizer && !is_low_state(bound->compiled.graph, state));
    if (is_saved &&
        std::find(saved_states_.begin(), saved_states_.end(), state.name) == saved_states_.end())
      saved_states_.push_back(state.name);
    if (state.after != state.before) updated_.insert(state.name);
    std::vector<ir::State>* known = nullptr;
    if (state.kind == ir::StateKind::kParameter) known = &parameters_;
    if (state.kind == ir::StateKind::kDerived) known = &derived_;
    if (known == nullptr) continue;
    const auto same = [&](const ir::State& other) { return other.name == state.name; };
    if (std::none_of(known->begin(), known->end(), same)) known->push_back(state);
  }
  std::sort(saved_states_.begin(), saved_states_.end(),
            [](Name a, Name b) { return text(a) < text(b); });
  return bound;
}

void ModelSession::load_parameters() {
  if (run_.model.init == "random") {
    for (const ir::State& state : parameters_)
      for_row_blocks(find_rows(store_, state.name),
                     [&](std::int64_t first, std::span<float> block) {
                       model::initialize(config_, text(state.name), first, block,
                                         static_cast<std::uint64_t>(run_.train.seed));
                       write_rows(find_rows(store_, state.name), first, block);
                     });
    weight_map_ = model::make_weight_map(config_);
    return;
  }
  const std::filesystem::path directory = model_directory(run_.model.path);
  if (!std::filesystem::exists(directory / "model.safetensors") &&
      !std::filesystem::exists(directory / "model.safetensors.index.json"))
    throw ResourceError(
        fmt::format("[model] {}: expected weights, model.safetensors or "
                    "model.safetensors.index.json, found neither; model.init: random starts from "
                    "config.json alone",
                    directory.string()));
  weight_map_ = model::import_weights(
      config_, directory,
      [&](std::string_view state, std::int64_t first, std::span<const float> values) {
        write_rows(find_rows(store_, intern(state)), first, values);
      });
}

void ModelSession::refresh_derived() { train::refresh_derived(derived_, store_, team_, device_); }

void ModelSession::refresh_stale() {
  std::vector<ir::State> stale;
  for (const ir::State& state : derived_)
    if (updated_.count(state.name) == 0) stale.push_back(state);
  train::refresh_derived(stale, store_, team_, device_);
}

void ModelSession::adopt_weight_map(const std::filesystem::path& checkpoint) {
  weight_map_ = model::read_weight_map(config_, checkpoint);
}

void ModelSession::export_model(const std::filesystem::path& directory) {
  const auto dtype =
      run_.train.save_dtype == "fp32" ? model::SaveDType::kFloat32 : model::SaveDType::kSource;
  model::export_weights(weight_map_, directory, dtype,
                        [&](std::string_view state, std::int64_t first, std::span<float> values) {
                          read_rows(find_rows(store_, intern(state)), first, values);
                        });
}

}  // namespace anabatic::train
