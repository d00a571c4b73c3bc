// SPDX-License-Identifier: Apache-2.0
// Every key of a run as a typed field with its default. tools/print_config writes this file.
//
//   anabatic::Config config;
//   config.model = {.path = "config.json", .init = anabatic::Config::Model::Init::kRandom};
//   config.data.train = {"text.jsonl"};
//   config.train.steps = 1000;
//
// docs/reference/keys.md says which verb of the command line reads which key.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "anabatic/export.h"

namespace anabatic {

// Values by key, as text: {"train.steps", {"1000"}}.
using Settings = std::map<std::string, std::vector<std::string>>;

struct Config {
  // The model.
  struct Model {
    // Hugging Face model directory; a config.json alone will do where model.init is random.
    std::string path{};
    // Where the weights come from.
    enum class Init { kRandom, kPretrained };
    Init init = Init::kPretrained;
  };
  Model model{};

  // Text and how it fills samples.
  struct Data {
    // Training files: text, JSON lines or JSON, gzipped or not, or the prefix of a .bin/.idx pair.
    std::vector<std::string> train{};
    // Held-out files, of the same kinds as data.train.
    std::vector<std::string> validation{};
    // Tokens of a sample. Allowed: >= 1.
    std::int64_t sequence_length = 512;
    // How documents fill samples; isolated ones do not attend to each other.
    enum class Packing { kIsolated, kConcatenated };
    Packing packing = Packing::kIsolated;
    // Samples are shuffled, anew in each epoch.
    bool shuffle = true;
    // Text and JSON documents, and prompts, begin with BOS, once; auto: where the tokenizer's own
    // rules say so.
    enum class AddBos { kAuto, kTrue, kFalse };
    AddBos add_bos = AddBos::kAuto;
    // Text and JSON documents end with EOS, once; auto: where the model's files name one.
    enum class AppendEos { kAuto, kTrue, kFalse };
    AppendEos append_eos = AppendEos::kAuto;
    // What data files hold; auto: their suffix says it in any case, else their content; bin: pairs
    // of .bin/.idx.
    enum class Format { kAuto, kText, kJsonl, kJson, kBin };
    Format format = Format::kAuto;
    // Directory for token ids of text and JSON; empty: anabatic/tokens in the user's cache
    // directory; none: a temporary one for the run.
    std::string cache{};
  };
  Data data{};

  // The run: its length, checkpoints and losses.
  struct Train {
    // Optimizer steps of the whole run, from its very start. Allowed: >= 0.
    std::int64_t steps = 100;
    // Samples that go through the model at once. Allowed: >= 1.
    std::int64_t micro_batch_size = 4;
    // Micro-batches of a step. Allowed: >= 1.
    std::int64_t gradient_accumulation_steps = 1;
    // Arithmetic of matrix products and of what is saved for the backward; auto: bf16 to train,
    // else that of the weights' files.
    enum class Precision { kAuto, kBf16, kFp32 };
    Precision precision = Precision::kAuto;
    // Seed of random weights and of shuffling. Allowed: >= 0.
    std::int64_t seed = 0;
    // Directory of checkpoints, metrics and logs.
    std::string output{};
    // Whether a run goes on from the newest whole checkpoint in train.output.
    enum class Resume { kAuto, kNever };
    Resume resume = Resume::kAuto;
    // A run goes on from its checkpoint though the training data have changed.
    bool allow_changed_data = false;
    // Steps between checkpoints; 0 saves at the end only. Allowed: >= 0.
    std::int64_t save_every = 0;
    // Steps between validations; 0 validates at the end only. Allowed: >= 0.
    std::int64_t validate_every = 0;
    // Steps between plain lines on the console; auto thins them out on long runs.
    // Allowed: >= 1, or std::nullopt for auto.
    std::optional<std::int64_t> log_every{};
    // Checkpoints that are kept; 0 keeps all. Allowed: >= 0.
    std::int64_t keep_last = 2;
    // Type of exported weights; source is that of the model's own files.
    enum class SaveDtype { kSource, kFp32 };
    SaveDtype save_dtype = SaveDtype::kSource;
    // What keeps experts equally busy: a loss layer by layer, one within each document,
    // transformers' over all layers together, or none.
    enum class BalanceLoss { kLayer, kSequence, kAllLayers, kNone };
    BalanceLoss balance_loss = BalanceLoss::kLayer;
    // Weight of train.balance_loss; auto is router_aux_loss_coef of config.json.
    // Allowed: >= 0, or std::nullopt for auto.
    std::optional<double> balance_coef{};
    // Weight of the routers' z-loss in the objective. Allowed: >= 0.
    double router_z_loss_coef = 0;
  };
  Train train{};

  // The optimizer and its schedule.
  struct Optimizer {
    // The optimizer.
    enum class Name { kAdamw };
    Name name = Name::kAdamw;
    // Peak learning rate. Allowed: >= 0.
    double learning_rate = 0.0003;
    // Decay rates of the first and of the second moment. Allowed: two in [0, 1).
    std::vector<double> betas = {0.9, 0.95};
    // What is added to the denominator of an update. Allowed: 0 to 1.
    double epsilon = 1e-08;
    // Decoupled weight decay. Allowed: >= 0.
    double weight_decay = 0.1;
    // Largest global norm of the gradients; 0 clips nothing. Allowed: >= 0.
    double clip_grad_norm = 1;
    // How the learning rate falls after the warm-up.
    enum class Schedule { kCosine, kLinear, kConstant };
    Schedule schedule = Schedule::kCosine;
    // Steps in which the learning rate rises linearly. Allowed: >= 0.
    std::int64_t warmup_steps = 10;
    // Learning rate at the end of the schedule. Allowed: >= 0.
    double min_learning_rate = 0;
    // Weight decay applies to one-dimensional parameters too.
    bool decay_norms_and_biases = false;
    // Type of the moments of matrices; bf16 is rounded stochastically, int8 has a scale for each
    // block of 256.
    enum class StatePrecision { kFp32, kBf16, kInt8 };
    StatePrecision state_precision = StatePrecision::kFp32;
    // When gradients are applied; in_backward applies each as soon as it is whole, clipped by the
    // norm of the step before.
    enum class Update { kAfterBackward, kInBackward };
    Update update = Update::kAfterBackward;
  };
  Optimizer optimizer{};

  // What a step may hold and where.
  struct Memory {
    // Bytes that the process may take; auto is what the machine has left when a run begins, none is
    // no budget.
    enum class BudgetWord { kAuto, kNone };
    std::variant<BudgetWord, std::int64_t> budget = BudgetWord::kAuto;
    // Values or segments that the backward computes again, such as experts.activation.
    std::vector<std::string> recompute{};
    // Values or segments that are never recomputed.
    std::vector<std::string> keep{};
    // Values, segments or parameters that stay in memory as they are: neither recomputed nor on
    // disk.
    std::vector<std::string> hot{};
    // Parameters or segments whose moments go to disk, such as embedding or experts.96-127;
    // activations too with memory.activations: disk.
    std::vector<std::string> cold{};
    // File of choices to replay, as `anabatic plan --save FILE` writes it; empty chooses anew.
    std::string plan{};
    // What saved activations may be compressed to where a budget needs it; each changes gradients a
    // little.
    enum class Compress { kOff, kBf16, kInt8 };
    Compress compress = Compress::kOff;
    // Where saved activations wait for the backward; disk lets a budget put them into a scratch
    // file.
    enum class Activations { kResident, kDisk };
    Activations activations = Activations::kResident;
    // Where moments stay between updates; auto puts them on disk where memory.budget asks for it
    // and nothing costs less.
    enum class OptimizerState { kAuto, kResident, kDisk };
    OptimizerState optimizer_state = OptimizerState::kAuto;
    // Where the lower halves of bf16 parameters stay between updates; disk is beside moments that
    // are there.
    enum class Masters { kAuto, kResident, kDisk };
    Masters masters = Masters::kAuto;
    // Where the parameters that the model reads stay; disk is beside moments that are there, and
    // each call has them brought.
    enum class Parameters { kAuto, kResident, kDisk };
    Parameters parameters = Parameters::kAuto;
    // Directory of the scratch file; empty is train.output.
    std::string swap_directory{};
    // Slices of moments in memory at once; more hides more of the disk's time and may cost memory.
    // Allowed: >= 1.
    std::int64_t swap_windows = 2;
    // Bytes of a moment that one update takes from disk at once, at most. Allowed: >= 1.
    std::int64_t swap_slice = 8388608;
  };
  Memory memory{};

  // The machine.
  struct Device {
    // The device.
    enum class Kind { kCpu };
    Kind kind = Kind::kCpu;
    // Compute threads; 0 is one for each whole core that affinity and the CPU quota allow.
    // Allowed: >= 0.
    std::int64_t threads = 0;
    // The machine is measured once, a few seconds before the first run with a memory.budget, for
    // the prices of choices.
    bool calibrate = true;
  };
  Device device{};

  // Sampling.
  struct Generate {
    // Tokens to generate, at most. Allowed: >= 0.
    std::int64_t max_new_tokens = 128;
    // What logits are divided by before sampling; 0 takes the likeliest token. Allowed: >= 0.
    double temperature = 1;
    // Sampling is among the k likeliest tokens; 0 is all. Allowed: >= 0.
    std::int64_t top_k = 0;
    // Sampling is among the likeliest tokens that hold this share of the probability.
    // Allowed: 0 to 1.
    double top_p = 1;
    // Seed of sampling. Allowed: >= 0.
    std::int64_t seed = 0;
  };
  Generate generate{};

  // How a step is compiled; for finding faults.
  struct Compiler {
    // Optional passes to leave out.
    std::vector<std::string> disable_passes{};
    // Weights are kept in a second packing for input gradients; without it the backward packs them,
    // in less memory.
    bool pack_transposed = true;
    // Directory for every graph, plan and program; empty writes none.
    std::string dump{};
    // Why each kernel is chosen is printed.
    bool explain_dispatch = false;
    // The plan is made by the simplest planners.
    bool trivial_planners = false;
    // Dead memory is filled with NaN.
    bool poison = false;
  };
  Compiler compiler{};

  // Optional passes of the compiler.
  struct Fusions {
    // Off leaves this optional pass out.
    bool fuse_head_loss = true;
    bool pack_weights = true;
    bool panel_states = true;
    bool split_parameters = true;
    bool fuse_activation = true;
    bool fuse_moe_permute = true;
    bool move_router_weight = true;
    bool fuse_gate_up = true;
    bool fuse_qkv = true;
    bool fuse_rope = true;
    bool pack_again = true;
    bool accumulate_in_gemm = true;
    bool slice_optimizer = true;
    bool fuse_optimizer = true;
    bool fuse_norm_residual = true;
    bool common_subexpression = true;
    bool dead_code = true;
  };
  Fusions fusions{};
};

// The keys whose values differ from the defaults, as text. Values are checked where they are used.
ANABATIC_API Settings to_settings(const Config& config);

}  // namespace anabatic
