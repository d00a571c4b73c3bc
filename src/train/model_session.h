// SPDX-License-Identifier: Apache-2.0
// A model in memory: its config, its states, the machine it runs on, and programs compiled for it.
// Training, evaluation and generation share the states.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "device/thread_team.h"
#include "io/data/loader.h"
#include "lower/compile.h"
#include "model/import_record.h"
#include "model/model.h"
#include "runtime/executor.h"
#include "runtime/state_store.h"
#include "runtime/swap/block_device.h"
#include "spec/device_spec.h"
#include "train/checkpoint/model_files.h"
#include "train/convert/trained_grid.h"
#include "train/derived_states.h"
#include "train/lora/grid_rows.h"
#include "train/ranks/exchange_methods.h"
#include "train/run_config.h"
#include "train/state_tiers.h"

namespace anabatic::train {

// A program bound to the session's states.
struct BoundProgram {
  lower::Compiled compiled;
  std::unique_ptr<runtime::Executor> executor;

  // Copies values into a batch or step input; an input that the program does not read is skipped.
  void set(std::string_view input, std::span<const std::int32_t> values);
  void set(std::string_view input, std::span<const float> values);
  void set_scalar(std::string_view input, float value);
  void set_scalar(std::string_view input, std::int32_t value);
  void set_batch(const io::MicroBatch& batch);
  // A scalar output as double.
  double scalar(std::string_view output) const;

  // The entries of a step of so many micro-batches, verified; remembered until another number asks.
  std::span<const spec::StepEntry> schedule(std::int64_t num_micro_batches);
  // Whether states change their values for good.
  bool updates(const spec::StepEntry& entry) const;
  // An action of a step of one micro-batch: a forward that nothing follows, say.
  void run_alone(spec::Action action);

 private:
  std::vector<spec::StepEntry> schedule_;
  std::int64_t num_scheduled_ = 0;  // micro-batches of it
};

class ModelSession {
 public:
  // Reads the config of run.model.path, probes the machine (measuring its peaks when `measure`) and
  // starts the thread team. `wrap_swap` is put between the swap file and its device (tests).
  // `rank` is the one that programs exchange as.
  ModelSession(const RunConfig& run, bool measure, runtime::swap::DeviceWrapper wrap_swap = {},
               const runtime::RankContext& rank = {});

  const model::ModelConfig& config() const { return config_; }
  const spec::DeviceSpec& device() const { return device_; }
  runtime::StateStore& store() { return store_; }
  device::ThreadTeam& team() { return team_; }
  const RunConfig& run() const { return run_; }

  // RunConfig::Precision::raised, for programs that are bound from now on.
  void set_raised(std::vector<spec::RaisedProduct> raised) {
    run_.precision.raised = std::move(raised);
  }
  // How programs that are bound from now on exchange; until then by our own messages.
  void set_methods(MethodPolicy methods) { methods_ = std::move(methods); }

  struct CompileRequest {
    std::string name;  // of the program: a folder of --dump
    model::BuildOptions build{};
    bool training = false, with_update = false;
    std::int64_t micro_batches = 0;  // of a step; 0: not known
    std::int64_t budget_bytes = 0;   // for states and arenas; 0: none
    std::string only_kernels{};      // rows whose name starts with it; empty: all
    // Int8 products and grids of weights as the run has them; else bf16 and weights as they are.
    bool as_trained = false;
    bool is_validation = false;  // as_trained, but with the products of precision.validation
    bool is_of_ranks = false;    // that share its steps, or its micro-batches
    std::int32_t rank = 0;       // of these
  };
  // Builds, compiles and binds; adds the program's states to the store.
  std::unique_ptr<BoundProgram> bind(const CompileRequest& request);
  // Likewise what was compiled before (train/run_plan), for this session's device.
  std::unique_ptr<BoundProgram> bind(lower::Compiled compiled);
  // Likewise in place of all programs bound so far, which are destroyed, for steps as `run` says
  // them from now on. Parameters and moments keep their bits (train/replan/carried_states.h);
  // refresh_derived() is to follow.
  std::unique_ptr<BoundProgram> rebind(const RunConfig& run, lower::Compiled compiled);

  // Fills the parameters from run.model.path, or draws them when run.model.init is random. Call
  // after the first bind.
  // Returns what was read, which is nothing where they are drawn.
  model::ImportRecord load_parameters();
  // Whether the parameters have values, from run.model.path or from a checkpoint.
  bool has_parameters() const { return has_parameters_; }
  // Makes derived states (bf16 copies, packings) equal to their primaries.
  // As after so many updates: a delay of quantization is over by default.
  void refresh_derived(std::int64_t updates = GridPhase{}.updates);
  // Likewise, only those that no bound program updates. To be called between an update and a run of
  // a program that reads other derived states than the training program.
  // "q4_0 for 24 weights of experts, 61.2 % of the parameters"; "" without quantization.
  std::string grid_coverage() const;
  // The grid of weights that programs round, after so many updates; nothing without quantization.
  // Weights under an adapter have the errors of when they were loaded.
  std::optional<TrainedGrid> trained_grid(std::int64_t updates);
  void refresh_stale();

  // The masks of sparse parameters, of every program bound so far.
  const std::vector<ir::State>& masks() const { return masks_; }

  // What a checkpoint keeps: parameters and moments, in the order of their names.
  const std::vector<SavedState>& saved_states() const { return saved_states_; }
  // Which file tensor holds which part of which parameter: as the source spells them, known after
  // load_parameters() or adopt_weight_map().
  const model::WeightMap& weight_map() const { return weight_map_; }
  // The spelling and dtypes of the weights in a checkpoint, when its states were loaded instead.
  void adopt_weight_map(const std::filesystem::path& checkpoint);
  // Reads the files of a checkpoint other than the weights, and logs where they disagree. What
  // cannot be exported fails here rather than in the first export_model().
  void prepare_export();
  // Estimated bytes of the files that export_model() writes without the weights; after
  // prepare_export().
  std::int64_t bytes_beside_weights() const;
  // Writes a Hugging Face model directory: the parameters in the source's spelling and dtype (fp32
  // under train.save_dtype: fp32), and files that agree with them. With an adapter, PEFT's files of
  // it alone. Returns the checksums of the weights' files.
  io::ChecksumManifest export_model(const std::filesystem::path& directory);

  // Bytes of states in memory and of the arenas of every program bound so far, as planned.
  std::int64_t planned_bytes() const { return planned_arena_bytes_ + store_.num_bytes(); }

 private:
  // Frozen parameters that are rounded to a grid while they are loaded.
  void add_frozen_grids(GridRows& rows) const;
  // Weights that are trained on a grid are saved in f32: those of bf16 have another place in it.
  void widen_grids();
  // Fills A and B of the adapter, which may have been drawn with the parameters.
  void load_adapter();
  // Resolves train.precision: auto for a model that is not trained: no rounding of its weights.
  void take_precision_of_files();
  void fill_key_blocks(BoundProgram& bound) const;
  std::vector<HeldPart> parts_of(const ir::Graph& graph, const ir::State& state) const;
  void add_peers(const ir::Graph& graph);
  void add_saved_states(const ir::Graph& graph);

  RunConfig run_;
  runtime::swap::DeviceWrapper wrap_swap_;
  runtime::RankContext rank_;
  MethodPolicy methods_;
  model::ModelConfig config_;
  spec::DeviceSpec device_;
  device::ThreadTeam team_;
  runtime::StateStore store_;
  // What every program bound so far has, each once.
  std::vector<ir::State> parameters_, derived_, masks_;
  std::set<Name> updated_;                 // states that some program writes
  std::map<Name, GridError> grid_errors_;  // of frozen weights, when they were loaded
  std::vector<SavedState> saved_states_;
  model::WeightMap weight_map_;
  std::unique_ptr<ModelFiles> files_;
  std::int64_t planned_arena_bytes_ = 0;
  bool has_parameters_ = false;
};

// The options of the compiler that follow from the run config.
lower::CompileOptions compile_options(const RunConfig& run,
                                      const ModelSession::CompileRequest& request);

// The directory that holds config.json: `path` itself or its parent when it is the file.
std::filesystem::path model_directory(const std::string& path);

}  // namespace anabatic::train
