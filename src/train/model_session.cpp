// SPDX-License-Identifier: Apache-2.0
#include "train/model_session.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "device/topology.h"
#include "io/gguf.h"
#include "io/parallel.h"
#include "model/weights.h"
#include "passes/pipelines.h"
#include "passes/slice_optimizer.h"
#include "plugin/plugin_set.h"
#include "runtime/swap/swap_space.h"
#include "runtime/verify_schedule.h"
#include "spec/shards.h"
#include "train/attention/key_blocks.h"
#include "train/calibration.h"
#include "train/config/precision_keys.h"
#include "train/config/quantization_keys.h"
#include "train/config/sparsity_keys.h"
#include "train/derived_states.h"
#include "train/lora/run_adapter.h"
#include "train/loss_scale/loss_scaler.h"
#include "train/memory_account.h"
#include "train/objective/mtp_batch.h"
#include "train/objective/run_model.h"
#include "train/ranks/draw_parameters.h"
#include "train/ranks/run_mesh.h"
#include "train/replan/carried_states.h"
#include "train/run_plan.h"
#include "train/sparsity/sparse_weights.h"
#include "train/state_rows.h"
#include "train/swap_tier.h"

namespace anabatic::train {
namespace {

void fill(runtime::Executor& executor, std::string_view name, std::span<const std::byte> bytes) {
  const std::span<std::byte> input = executor.input(name);
  ANABATIC_CHECK(input.size() == bytes.size(), "[session] input {} holds {} bytes, got {}", name,
                 input.size(), bytes.size());
  std::memcpy(input.data(), bytes.data(), bytes.size());
}

// A pass of the training pipeline alone: switching it off says nothing about a forward program.
bool is_training_only(std::string_view name) {
  const auto has = [&](const std::vector<passes::Pass>& pipeline) {
    return std::any_of(pipeline.begin(), pipeline.end(),
                       [&](const passes::Pass& pass) { return pass.name == name; });
  };
  return has(passes::training_pipeline()) && !has(passes::inference_pipeline());
}

spec::MomentPrecision moment_precision(const std::string& key) {
  using enum spec::MomentPrecision;
  return key == "bf16" ? kBf16 : key == "int8" ? kInt8 : kFp32;
}

lower::Precision precision_of(const RunConfig& run, bool as_trained, bool is_validation) {
  using enum lower::Precision;
  const std::string& word = run.train.precision;
  if (word == "fp32") return kFp32;
  if (!as_trained || (is_validation && validates_in_bf16(run))) return kBf16;
  return uses_int8(run) ? kInt8 : word == "fp16" ? kFp16 : word == "mixed" ? kMixed : kBf16;
}

}  // namespace

lower::CompileOptions compile_options(const RunConfig& run,
                                      const ModelSession::CompileRequest& request) {
  const RunConfig::Optimizer& optimizer = run.optimizer;
  lower::CompileOptions options;
  options.precision = precision_of(run, request.as_trained, request.is_validation);
  if (request.as_trained) {
    options.products =
        request.is_validation ? validation_product_options(run) : product_options(run);
    options.quantization = quantization_options(run);
    options.sparsity = sparsity_options(run);
  }
  // Others hold packings in int8 under the names of those in bf16.
  options.streams_weights = uses_int8(run) && options.precision == lower::Precision::kBf16;
  options.training = request.training;
  options.with_update = request.with_update;
  options.micro_batches = request.micro_batches;
  if (request.with_update) options.leaves = leaves_of_rank(run);
  if (request.is_of_ranks) {
    options.mesh = mesh_of(run);
    options.rank = request.rank;
    options.shards_optimizer = run.parallel.optimizer == "sharded";
  }
  options.overlaps_exchanges = run.parallel.overlap;
  options.optimizer = {.beta1 = optimizer.betas[0],
                       .beta2 = optimizer.betas[1],
                       .epsilon = optimizer.epsilon,
                       .weight_decay = optimizer.weight_decay,
                       .clip_grad_norm = optimizer.clip_grad_norm,
                       .decay_norms_and_biases = optimizer.decay_norms_and_biases,
                       .moments = moment_precision(optimizer.state_precision),
                       .seed = static_cast<std::uint64_t>(run.train.seed),
                       .in_backward = optimizer.update == "in_backward",
                       .scales_loss = scales_loss(run)};
  std::set<std::string> disabled = run.fusions.off;
  disabled.insert(run.compiler.disable_passes.begin(), run.compiler.disable_passes.end());
  // MPI's own collectives take packed rows, for which the plan has room then.
  if (run.parallel.exchange == "mpi") disabled.insert("fuse_exchange_rows");
  for (const std::string& pass : disabled)
    if (request.training || !is_training_only(pass)) options.disabled_passes.insert(pass);
  options.memory = {.budget_bytes = request.budget_bytes,
                    .recompute = run.memory.recompute,
                    .keep = run.memory.keep,
                    .hot = run.memory.hot};
  options.memory.compression.allowed = run.memory.compress == "int8"   ? spec::SavedForm::kInt8
                                       : run.memory.compress == "bf16" ? spec::SavedForm::kBFloat16
                                                                       : spec::SavedForm::kWhole;
  options.memory.offload.is_allowed = request.training && run.memory.activations == "disk";
  if (options.memory.offload.is_allowed) options.memory.offload.cold = run.memory.cold;
  options.frozen_format = frozen_format_of(run);
  options.pack_transposed = run.compiler.pack_transposed;
  options.keep_packings = run.compiler.keep_packings;
  options.norms_in_products = run.compiler.norms_in_products;
  options.disk.optimizer_state = run.memory.optimizer_state == "disk" || !run.memory.cold.empty();
  options.disk.only_cold = run.memory.optimizer_state != "disk" && !run.memory.cold.empty();
  options.disk.masters = run.memory.masters == "disk";
  options.disk.parameters = run.memory.parameters == "disk";
  options.disk_choice.may_take_masters = run.memory.masters == "auto";
  options.disk_choice.may_take_parameters = run.memory.parameters == "auto";
  options.disk.hot = run.memory.hot;
  options.disk.cold = run.memory.cold;
  options.disk.slice_bytes = run.memory.swap_slice;
  options.disk_choice.num_micro_batches = run.train.gradient_accumulation_steps;
  if (run.memory.optimizer_state == "auto" && request.with_update && request.budget_bytes > 0) {
    const SwapPlace place = find_swap_place(run);
    options.disk_choice.is_allowed = place.refusal.empty();
    options.disk_choice.refusal = place.refusal;
    options.disk_choice.free_bytes = place.free_bytes;
    options.disk_choice.beside_bytes = bytes_beside_disk();
  }
  options.disk.num_windows =
      static_cast<std::int32_t>(std::min<std::int64_t>(run.memory.swap_windows, 1 << 20));
  options.only_kernels = request.only_kernels;
  options.trivial_planners = run.compiler.trivial_planners;
  if (!run.compiler.dump.empty())
    options.dump_directory = (std::filesystem::path(run.compiler.dump) / request.name).string();
  options.explain_dispatch = run.compiler.explain_dispatch;
  const plugin::PluginSet& plugins = plugin::plugin_set(run.model.plugins);
  options.find_op = plugins.find_op();
  options.find_kernels = plugins.find_kernels();
  return options;
}

void BoundProgram::set(std::string_view input, std::span<const std::int32_t> values) {
  if (executor->has_input(input)) fill(*executor, input, std::as_bytes(values));
}

void BoundProgram::set(std::string_view input, std::span<const float> values) {
  if (executor->has_input(input)) fill(*executor, input, std::as_bytes(values));
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
  set("documents", batch.documents);
  if (!batch.weights.empty()) {
    set("weights", batch.weights);
  } else if (executor->has_input("weights")) {
    set("weights", std::vector<float>(batch.labels.size(), 1.0f));
  }
  if (!batch.completions.empty()) {
    set("completions", batch.completions);
    set("reference", batch.reference);
  } else if (executor->has_input("completions")) {
    throw Unsupported(
        "[session] expected pairs of completions (train.objective: dpo), got a batch without any");
  }
  set_mtp_rows(*this, batch);
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

std::span<const spec::StepEntry> BoundProgram::schedule(std::int64_t num_micro_batches) {
  if (num_micro_batches != num_scheduled_)
    schedule_ = runtime::schedule_of(compiled.program, num_micro_batches);
  num_scheduled_ = num_micro_batches;
  return schedule_;
}

bool BoundProgram::updates(const spec::StepEntry& entry) const {
  return compiled.program.variants.at(entry.action)
      .at(static_cast<std::size_t>(entry.variant))
      .updates;
}

void BoundProgram::run_alone(spec::Action action) {
  executor->run(runtime::lone_entry(compiled.program, action));
}

ModelSession::ModelSession(const RunConfig& run, bool measure,
                           runtime::swap::DeviceWrapper wrap_swap, const runtime::RankContext& rank)
    : run_(run),
      wrap_swap_(std::move(wrap_swap)),
      rank_(rank),
      config_(load_run_model(run)),
      team_(static_cast<int>(run.device.threads)) {
  note_missing_mtp(run_, config_);
  note_replaced_ops(run_);
  if (config_.key_blocks)
    log_info("attention: {}", key_blocks_text(config_, run_.data.sequence_length));
  if (run_.train.precision == "auto") take_precision_of_files();
  device_ = device::probe_cpu(team_, measure);
}

void ModelSession::take_precision_of_files() {
  const std::filesystem::path directory = model_directory(run_.model.path);
  const bool has_no_directory = run_.model.init == "random" || io::is_gguf(run_.model.path);
  const auto stored = has_no_directory ? std::nullopt : model::stored_dtype(directory);
  const std::string dtype(stored ? model::config_name(*stored) : config_.dtype);
  run_.train.precision = dtype == "bfloat16" ? "bf16" : "fp32";
  const std::string why = stored          ? fmt::format("the weights of it are {}", dtype)
                          : dtype.empty() ? "config.json names no dtype"
                                          : fmt::format("config.json says {}", dtype);
  log_info("{}: computing in {}, for {} (train.precision)",
           io::is_gguf(run_.model.path) ? run_.model.path : directory.string(),
           run_.train.precision, why);
}

std::unique_ptr<BoundProgram> ModelSession::bind(const CompileRequest& request) {
  CompileRequest of_rank = request;
  of_rank.rank = rank_.rank();
  lower::CompileOptions options = compile_options(run_, of_rank);
  for (const Name name : store_.names()) {
    const TensorType& type = *store_.find(name).type;
    options.held_states[std::string(text(name))] = {store_.part(name).role, type.layout,
                                                    type.blocks, type.dtype};
  }
  options.states_on_disk = names_on_disk(store_);
  if (options.memory.asks())
    options.efficiency = efficiency_of(stored_calibration(device_).efficiency, run_);
  return bind(lower::compile(forward_graph(run_, config_, request.build), options, device_));
}

std::unique_ptr<BoundProgram> ModelSession::bind(lower::Compiled compiled) {
  auto bound = std::make_unique<BoundProgram>();
  bound->compiled = std::move(compiled);
  (void)choose_methods(bound->compiled.program, rank_.mesh, methods_);
  if (!bound->compiled.program.windows.empty() && !store_.swap())
    store_.set_swap(std::make_unique<runtime::swap::SwapSpace>(
        runtime::swap::SwapOptions{.directory = swap_directory(run_),
                                   .num_compute_threads = team_.num_threads(),
                                   .wrap_device = wrap_swap_}));
  const std::vector<Name> masks = new_masks(bound->compiled.graph, store_);
  bound->executor = std::make_unique<runtime::Executor>(
      bound->compiled.program, store_, team_,
      runtime::ExecutorOptions{.poison = run_.compiler.poison, .rank = rank_});
  for (const Name mask : masks) fill_mask(store_.find(mask));
  fill_key_blocks(*bound);
  planned_arena_bytes_ += bound->executor->arena_bytes();
  for (const ir::State& state : bound->compiled.graph.states) {
    if (state.after != state.before) updated_.insert(state.name);
    std::vector<ir::State>* known = nullptr;
    if (state.kind() == ir::StateKind::kParameter) known = &parameters_;
    if (state.kind() == ir::StateKind::kDerived) known = &derived_;
    if (state.kind() == ir::StateKind::kMask) known = &masks_;
    if (known == nullptr) continue;
    const auto same = [&](const ir::State& other) { return other.name == state.name; };
    if (std::any_of(known->begin(), known->end(), same)) continue;
    known->push_back(state);
  }
  add_peers(bound->compiled.graph);
  add_saved_states(bound->compiled.graph);
  return bound;
}

std::unique_ptr<BoundProgram> ModelSession::rebind(const RunConfig& run, lower::Compiled compiled) {
  carry_states(compiled.program.states, store_, team_);
  run_ = run;
  parameters_.clear();
  derived_.clear();
  masks_.clear();
  updated_.clear();
  saved_states_.clear();
  planned_arena_bytes_ = 0;
  return bind(std::move(compiled));
}

// The lists of key blocks depend on the pattern alone: a program keeps them as long as it is bound.
void ModelSession::fill_key_blocks(BoundProgram& bound) const {
  if (!config_.key_blocks || !bound.executor->has_input(spec::kBlockOffsets)) return;
  const auto offsets =
      static_cast<std::int64_t>(bound.executor->input(spec::kBlockOffsets).size() / sizeof(int));
  const std::int64_t blocks = offsets / config_.key_blocks->groups() - 1;
  const spec::BlockLists lists =
      spec::make_block_lists(*config_.key_blocks, blocks * config_.key_blocks->size);
  bound.set(spec::kBlockOffsets, lists.offsets);
  bound.set(spec::kBlockIds, lists.ids);
}

// What ranks hold of a state of which this one has a part; empty: each holds all.
std::vector<HeldPart> ModelSession::parts_of(const ir::Graph& graph, const ir::State& state) const {
  const spec::StatePart part = store_.part(state.name);
  if (rank_.mesh.world() == 1 || part.rows.is_whole()) return {};
  const ir::State& owner = part.owner == Name{} ? state : *graph.find_state(part.owner);
  const TensorType& own = *store_.find(state.name).type;
  TensorType of_rank = graph.value(owner.before).type;
  of_rank.dtype = own.dtype;
  of_rank.layout = own.layout;
  return held_parts(rank_.mesh, of_rank, owner.rows, part.rows);
}

// The parts that other ranks hold of parameters and their lower bits, which weights are written
// from.
void ModelSession::add_peers(const ir::Graph& graph) {
  for (const ir::State& state : graph.states) {
    if (state.kind() != ir::StateKind::kParameter && state.role != ir::StateRole::kLower) continue;
    const spec::StatePart own = store_.part(state.name);
    const Name owner = own.owner == Name{} ? state.name : own.owner;
    const std::string whole = own.owner == Name{} ? std::string(text(state.name))
                                                  : spec::state_name(own.role, text(owner));
    const std::vector<HeldPart> parts = parts_of(graph, state);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Name name = intern(passes::slice_name(whole, i));
      if (parts[i].rows.first != own.rows.first && !store_.has(name))
        store_.add_peer(name, parts[i].type, {own.role, owner, parts[i].rows},
                        parts[i].ranks.front());
    }
  }
}

void ModelSession::add_saved_states(const ir::Graph& graph) {
  const auto add = [&](SavedState saved) {
    const auto same = [&](const SavedState& other) { return other.name == saved.name; };
    if (std::none_of(saved_states_.begin(), saved_states_.end(), same))
      saved_states_.push_back(std::move(saved));
  };
  // `saved` has the type of what this rank holds: of `held`, whose parts are those of `state`.
  const auto take_parts = [&](Name held, const ir::State& state, SavedState& saved) {
    saved.parts = parts_of(graph, state);
    if (const spec::Rows rows = store_.part(held).rows; !rows.is_whole())
      saved.type.shape[0] *= rows.total / (saved.type.num_elements() / saved.type.dim(-1));
  };
  // The lower bits of a parameter are saved as part of it.
  for (passes::SlicedState& sliced : passes::sliced_states(graph)) {
    if (sliced.role == ir::StateRole::kLower) continue;
    SavedState saved{.name = sliced.name, .type = std::move(sliced.type)};
    for (const passes::StateSlice& slice : sliced.slices) saved.slices.push_back(slice.name);
    take_parts(saved.slices.front(), *graph.find_state(saved.slices.front()), saved);
    add(std::move(saved));
  }
  for (const ir::State& state : graph.states) {
    const bool is_slice = state.owner != Name{} && !state.rows.is_whole();
    // The weights under an adapter stay in their own files.
    if (config_.adapter && state.kind() == ir::StateKind::kParameter && !state.is_trainable)
      continue;
    if (!spec::is_saved(state.kind()) || state.role == ir::StateRole::kLower || is_slice) continue;
    const TensorType& stored = *store_.find(state.name).type;
    SavedState saved{.name = state.name, .type = elements_type(stored)};
    saved.type.dtype = row_dtype(store_, state.name);
    // What this rank has of its experts, of which others have more.
    if (state.owner != Name{} && !store_.part(state.name).rows.is_whole())
      saved.slices = {state.name};
    const auto low = std::ranges::find_if(graph.states, [&](const ir::State& other) {
      return other.role == ir::StateRole::kLower && other.owner == state.name;
    });
    take_parts(state.name, low == graph.states.end() ? state : *low, saved);
    add(std::move(saved));
    if (stored.is_quantized())
      add({.name = intern(spec::scales_name(state.role, text(state.owner))),
           .type = scales_type(stored),
           .scales_of = state.name});
  }
  std::sort(saved_states_.begin(), saved_states_.end(),
            [](const SavedState& a, const SavedState& b) { return text(a.name) < text(b.name); });
}

model::ImportRecord ModelSession::load_parameters() {
  StateCursor cursor(store_);
  GridRows rows([&](Name state, std::int64_t first, std::span<const float> values) {
    cursor.write(state, first, values);
  });
  add_frozen_grids(rows);
  if (run_.model.init == "random") {
    draw_parameters(parameters_, store_, rank_, static_cast<std::uint64_t>(run_.train.seed),
                    [&](Name state, std::int64_t first, std::span<const float> values) {
                      rows.write(state, first, values);
                    });
    cursor.flush();
    grid_errors_ = rows.errors();
    weight_map_ = model::make_weight_map(config_);
    widen_grids();
    has_parameters_ = true;
    load_adapter();
    return {};
  }
  const bool is_gguf = io::is_gguf(run_.model.path);
  const std::filesystem::path directory =
      is_gguf ? std::filesystem::path(run_.model.path) : model_directory(run_.model.path);
  if (!is_gguf && !std::filesystem::exists(directory / "model.safetensors") &&
      !std::filesystem::exists(directory / "model.safetensors.index.json"))
    throw ResourceError(
        fmt::format("[model] {}: expected weights, model.safetensors or "
                    "model.safetensors.index.json, found neither; model.init: random starts from "
                    "config.json alone",
                    directory.string()));
  model::ImportRecord record;
  // A state on disk has one part in memory at a time: tensors take turns there.
  const bool is_in_memory = std::ranges::all_of(
      parameters_, [&](const ir::State& state) { return is_in_memory_whole(store_, state.name); });
  weight_map_ = model::import_weights(
      config_, directory,
      [&](std::string_view state, std::int64_t first, std::span<const float> values) {
        rows.write(intern(state), first, values);
      },
      record, is_in_memory ? std::min(io::threads_for_files(), team_.num_threads()) : 1,
      [&](std::string_view state, std::int64_t first, std::span<const std::byte> pairs,
          std::span<const std::byte> scales) {
        return !rows.rounds(intern(state)) &&
               cursor.write_mxfp4(intern(state), first, pairs, scales);
      });
  cursor.flush();
  grid_errors_ = rows.errors();
  widen_grids();
  has_parameters_ = true;
  load_adapter();
  return record;
}

void ModelSession::add_frozen_grids(GridRows& rows) const {
  for (const ir::State& state : parameters_)
    if (state.grid && !state.is_trainable)
      rows.add(state.name, *state.grid, num_elements(store_, state.name),
               store_.find(state.name).type->dim(-1));
}

void ModelSession::widen_grids() {
  const auto has_grid = [&](const model::WeightPiece& piece) {
    return std::ranges::any_of(parameters_, [&](const ir::State& state) {
      return state.grid && text(state.name) == piece.state;
    });
  };
  for (model::FileTensor& tensor : weight_map_.tensors)
    if (std::ranges::any_of(tensor.pieces, has_grid)) tensor.dtype = DType::kFloat32;
}

void ModelSession::load_adapter() {
  if (!config_.adapter) return;
  if (!run_.model.adapter.empty()) log_info("{}", base_to_string(run_));
  if (adapter_directory(run_).empty()) {
    std::vector<ir::State> fresh = parameters_;
    std::erase_if(fresh, [](const ir::State& state) { return !state.is_trainable; });
    StateCursor cursor(store_);
    draw_parameters(fresh, store_, rank_, static_cast<std::uint64_t>(run_.train.seed),
                    [&](Name state, std::int64_t first, std::span<const float> values) {
                      cursor.write(state, first, values);
                    });
    return cursor.flush();
  }
  StateCursor cursor(store_);
  const model::PeftFiles files = adapter_files(run_, config_);
  ANABATIC_REQUIRE(run_.model.init != "random" || !files.holds_weights(),
                   "[lora] model.init: expected pretrained, for {} holds weights of its model, got "
                   "random",
                   adapter_directory(run_));
  if (run_.model.init != "random") require_weights_of(files, run_.model.path);
  files.load([&](std::string_view state, std::int64_t first, std::span<const float> values) {
    cursor.write(intern(state), first, values);
  });
  cursor.flush();
}

void ModelSession::refresh_derived(std::int64_t updates) {
  train::refresh_derived(derived_, store_, team_, device_,
                         {.delay = quantization_options(run_).delay, .updates = updates});
}

std::string ModelSession::grid_coverage() const {
  const spec::QuantizationOptions options = quantization_options(run_);
  if (!options.grid) return "";
  std::int64_t count = 0, covered = 0, all = 0;
  for (const ir::State& state : parameters_) {
    const std::int64_t elements = store_.find(state.name).type->num_elements();
    all += elements;
    if (!state.grid) continue;
    ++count;
    covered += elements;
  }
  return fmt::format("{} for {} weights of {}: {} of {} parameters ({:.1f} %){}",
                     to_string(*options.grid), count, fmt::join(options.units, ", "), covered, all,
                     100.0 * static_cast<double>(covered) / static_cast<double>(all),
                     options.delay > 0       ? fmt::format(", after {} steps", options.delay)
                     : !grid_errors_.empty() ? ", rounded once as they were loaded"
                                             : "") +
         (options.rounds_activations ? "; their products read int8 activations, a scale a token"
                                     : "");
}

std::optional<TrainedGrid> ModelSession::trained_grid(std::int64_t updates) {
  const spec::QuantizationOptions options = quantization_options(run_);
  if (!options.grid) return std::nullopt;
  TrainedGrid trained{.grid = *options.grid,
                      .has_begun = updates >= options.delay,
                      .rounds_activations = options.rounds_activations};
  StateCursor cursor(store_);
  for (const ir::State& state : parameters_) {
    if (!state.grid) continue;
    std::optional<GridError>& error = trained.parameters[std::string(text(state.name))];
    if (is_shared(store_, state.name)) continue;
    if (!state.is_trainable) {
      error = grid_errors_.at(state.name);
      continue;
    }
    const TensorType& type = *store_.find(state.name).type;
    error = grid_error(*state.grid, type.num_elements(), type.dim(-1),
                       [&](std::int64_t first, std::span<float> values) {
                         cursor.read(state.name, first, values);
                       });
  }
  return trained;
}

void ModelSession::refresh_stale() {
  std::vector<ir::State> stale;
  for (const ir::State& state : derived_)
    if (updated_.count(state.name) == 0) stale.push_back(state);
  train::refresh_derived(stale, store_, team_, device_);
}

void ModelSession::adopt_weight_map(const std::filesystem::path& checkpoint) {
  weight_map_ = model::read_weight_map(config_, checkpoint);
  widen_grids();
  has_parameters_ = true;
}

std::int64_t ModelSession::bytes_beside_weights() const {
  return files_ == nullptr ? 0 : files_->num_bytes();
}

void ModelSession::prepare_export() {
  if (config_.key_blocks)
    log_info(
        "[checkpoint] attention.blocks: config.json has no word for it, so transformers will read "
        "all keys; {} keeps the pattern for evaluate, generate and further training",
        kKeyBlocksFile);
  if (!config_.adapter) files_ = std::make_unique<ModelFiles>(run_, config_);
}

io::ChecksumManifest ModelSession::export_model(const std::filesystem::path& directory) {
  record_key_blocks(run_, config_, directory);
  if (config_.adapter) {
    StateCursor cursor(store_);
    return model::write_peft_files(
        config_, *config_.adapter,
        [&](std::string_view state, std::int64_t first, std::span<float> values) {
          cursor.read(intern(state), first, values);
        },
        directory, std::filesystem::absolute(run_.model.path).string());
  }
  if (files_ == nullptr) prepare_export();
  model::use_own_names(config_, weight_map_);
  const auto dtype =
      run_.train.save_dtype == "fp32" ? model::SaveDType::kFloat32 : model::SaveDType::kSource;
  StateCursor cursor(store_);
  io::ChecksumManifest sums = model::export_weights(
      weight_map_, directory, dtype,
      [&](std::string_view state, std::int64_t first, std::span<float> values) {
        cursor.read(intern(state), first, values);
      });
  files_->write(directory, weight_map_, dtype);
  return sums;
}

}  // namespace anabatic::train
