// SPDX-License-Identifier: Apache-2.0
// The run configuration: one aggregate, read from YAML and flags at the edge. Every key is also a
// flag.
#pragma once
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/document_ends.h"
#include "plugin/replacement.h"
#include "spec/product.h"
#include "spec/sparsity.h"
#include "spec/training.h"

namespace anabatic::train {

struct RunConfig {
  static constexpr double kUsualDropout = -1;  // of the files that a run starts from
  struct Model {
    std::string path;  // a Hugging Face directory, or a config.json when init is random
    std::string init = "pretrained";           // random | pretrained
    bool keep_mtp = true;                      // layers of multi-token prediction
    std::vector<std::string> plugins;          // shared libraries with ops and kernels
    std::vector<plugin::Replacement> replace;  // ops of the model by ops of plugins
    std::string adapter;                       // a directory of PEFT's; empty: none
  } model;
  struct Data {
    std::vector<std::string> train, validation;
    std::int64_t sequence_length = 512;
    std::string packing = "auto";  // auto | isolated | concatenated | best_fit
    bool shuffle = true;
    io::AddToken add_bos = io::AddToken::kAuto;     // in front of text and JSON documents, prompts
    io::AddToken append_eos = io::AddToken::kAuto;  // after text and JSON documents
    std::string format = "auto";                    // auto | text | jsonl | json | bin
    std::string cache;                              // of token ids; empty: the user's; none: none
    std::string chat_template;                      // file; empty: the model's
    std::string now;                                // for templates; empty: the time of the run
    bool allow_special_in_content = false, require_stop_token = true;
    std::string loss_on = "assistant";  // assistant | completion | all
    static constexpr std::int64_t kWholeSample = 0;
    std::int64_t max_length = kWholeSample;  // tokens of a row
    std::string truncation = "keep_start";   // keep_start | keep_end | drop | error
  } data;
  struct Train {
    std::string objective = "lm";  // lm | sft | dpo
    std::int64_t steps = 100, micro_batch_size = 4, gradient_accumulation_steps = 1;
    static constexpr std::int64_t kOneADataRank = 0;
    std::int64_t gradient_leaves = kOneADataRank;  // of a step, on all ranks
    std::string precision = "auto";                // auto | bf16 | fp32 | int8
    std::int64_t seed = 0;
    std::string output;
    std::string resume = "auto";                      // auto | never
    bool allow_changed_data = false;                  // a resume may find other training data
    std::string check_leak = "first";                 // first | off: of documents in a sample
    std::int64_t save_every = 0, validate_every = 0;  // 0: only at the end
    static constexpr std::int64_t kThinning = 0;      // of log_every: fewer lines on long runs
    std::int64_t log_every = kThinning;               // steps between plain console lines
    std::int64_t keep_last = 2;                       // checkpoints kept; 0: all
    std::string save_dtype = "source";                // source | fp32
    std::string balance_loss = "layer";               // layer | sequence | all_layers | none
    static constexpr double kCoefOfModel = -1;        // router_aux_loss_coef of config.json
    double balance_coef = kCoefOfModel;
    double router_z_loss_coef = 0.0;
    static constexpr double kRateOfModel = -1;
    double router_bias_update_rate = kRateOfModel;
    static constexpr double kCoefOfFiles = -1;  // by whether they hold such layers
    double mtp_loss_coef = kCoefOfFiles;
  } train;
  struct Precision {
    static constexpr std::int64_t kOff = spec::kNoFallback;
    struct Int8 {
      std::int64_t fallback = spec::kDefaultFallback;
    } int8;
    std::map<std::string, std::string> keep;  // int8 | bf16 | fp32 by unit
    std::vector<std::string> critical;        // units that are never below bf16
    std::string validation = "bf16";          // bf16 | train: of runs with int8 products
    static constexpr double kDynamic = 0, kByPrecision = -1;
    double loss_scale = kByPrecision;  // from which a backward begins
    // How train.precision: adaptive moves units.
    struct Adaptive {
      double error = 0.02;       // most of a product, as |Y^ - Y| / |Y|
      std::int64_t every = 32;   // steps from one sample of errors to the next
      std::int64_t lock = 256;   // steps in which a product that moved stays
      double high_share = 0.25;  // most of a step's product FLOPs that may be above int8
    } adaptive;
    // No key: the products that train.precision: adaptive has in bf16 or fp32, sorted.
    std::vector<spec::RaisedProduct> raised;
  } precision;
  // Training with the values that a quantised file will hold.
  struct Quantization {
    bool enable = false;
    std::vector<std::string> units = {"experts"};
    std::string format = "auto";       // of bit_num, or of tensor/weight_grid.h
    std::string group = "auto";        // auto | 32 | 64 | 128: of int4_group
    std::string bit_num = "auto";      // auto | 8 | 4
    std::string per_channel = "auto";  // auto | true | false
    std::int64_t quant_delay = 0;
    std::string activations = "off";  // off | int8_token
  } quantization;
  // Weights that become sparse.
  struct Sparsity {
    std::vector<spec::SparseUnits> weights;
    bool is_final = false;  // no key: set by a run whose masks stay as they are
  } sparsity;
  // Shares of elements that training sets to 0 at random.
  struct Dropout {
    double residual = kUsualDropout, embedding = kUsualDropout, attention = kUsualDropout;
  } dropout;
  struct Attention {
    // Which blocks of keys a row attends to.
    struct Blocks {
      static constexpr std::int64_t kOfModel = 0, kOff = -1;
      std::int64_t size = kOfModel;  // of a block
      std::int64_t local = 0, global = 0, stride = 0, random = 0, seed = 0;
      std::string file;  // a mask; empty: none
    } blocks;
  } attention;
  struct Optimizer {
    std::string name = "adamw";
    double learning_rate = 3e-4;
    std::vector<double> betas = {0.9, 0.95};
    double epsilon = 1e-8, weight_decay = 0.1, clip_grad_norm = 1.0;
    std::string schedule = "cosine";  // cosine | linear | constant
    std::int64_t warmup_steps = 10;
    double min_learning_rate = 0.0;
    bool decay_norms_and_biases = false;
    std::string state_precision = "fp32";   // of the moments: fp32 | bf16 | int8
    std::string update = "after_backward";  // after_backward | in_backward
  } optimizer;
  struct Memory {
    // Bytes of the whole process; 0: no budget.
    static constexpr std::int64_t kAvailable = -1;  // those that are available when the run begins
    std::int64_t budget = kAvailable;
    std::string budget_unit = " GiB";          // that it was given in, "MB"; for messages
    std::vector<std::string> recompute, keep;  // hints to the planner
    std::vector<std::string> hot, cold;        // likewise, of states too
    std::string plan;                          // a file of choices to replay; empty: none
    std::string compress = "off";              // what a budget may: off | bf16 | int8
    std::string activations = "resident";      // resident | disk: where a budget may put them
    std::string optimizer_state = "auto";      // auto | resident | disk
    std::string masters = "auto";     // lower 16 bits of parameters: auto | resident | disk
    std::string parameters = "auto";  // what the model reads of them, likewise
    std::string swap_directory;       // of the swap file; empty: train.output
    std::int64_t swap_windows = 2;    // slices of parameters that fit into memory at once
    std::int64_t swap_slice = std::int64_t{8} << 20;  // bytes of a moment in one window, at most
  } memory;
  struct Parallel {
    std::int64_t local_ranks = 1;  // threads of this process that each train a part of a step
    std::string strategy;  // a file of sizes, which load_run_config reads; empty in its result
    static constexpr std::int64_t kStarted = 0;
    std::int64_t world = kStarted;  // ranks to plan for; those that are started
    static constexpr std::int64_t kRest = 0;
    std::int64_t data = kRest;  // what tensor, context and pipeline leave
    std::int64_t expert = 1, tensor = 1, context = 1, pipeline = 1;
    std::string optimizer = "sharded";  // sharded | replicated
    std::string reduction = "ordered";  // of exchanges that add: ordered | fast
    std::string exchange = "auto";      // of the others: auto | mpi | ordered
    static constexpr double kFitting = 0;
    double expert_capacity = kFitting;  // room for received rows, of an even share; what fits
    bool overlap = true;                // exchanges go on while calls run
    std::string emulate;                // a file of links that replace the machine's; empty: none
    double patience = 600;              // seconds for which nothing may move within a step
  } parallel;
  struct Lora {
    std::vector<std::string> targets;              // empty, and no `from`: all weights are trained
    static constexpr std::int64_t kUsualRank = 0;  // 16, or that of `from`
    std::int64_t rank = kUsualRank;
    static constexpr double kUsualAlpha = 0;  // twice the rank, or that of `from`
    double alpha = kUsualAlpha;
    bool rslora = false;             // scale is alpha / root of the rank
    bool share_gate_up = true;       // one A for gate and up of experts
    double dropout = kUsualDropout;  // of what adapters read
    std::string base = "auto";       // how frozen weights are held
    std::string from;                // a directory of PEFT's to go on from; empty: a fresh adapter
  } lora;
  struct Dpo {
    double beta = 0.1, label_smoothing = 0.0;
    std::string loss = "sigmoid";  // sigmoid | hinge | ipo
    bool length_normalized = false;
    std::string reference = "base";  // base | none | a model directory
  } dpo;
  struct Device {
    std::string kind = "cpu";
    std::int64_t threads = 0;  // 0: all cores that this process may use
    bool calibrate = true;     // measures the machine once, before the first run with a budget
  } device;
  struct Generate {
    std::int64_t max_new_tokens = 128;
    double temperature = 1.0;  // 0: greedy
    std::int64_t top_k = 0;    // 0: all
    double top_p = 1.0;
    std::int64_t seed = 0;
  } generate;
  struct Compiler {
    std::vector<std::string> disable_passes;
    bool pack_transposed = true;     // a second packing of every weight, for input-gradients
    bool keep_packings = true;       // any packing between steps
    bool norms_in_products = false;  // at any price
    std::string dump;                // a directory for every artifact; empty: none
    bool explain_dispatch = false;
    bool trivial_planners = false;
    bool poison = false;  // NaN-fill dead memory
  } compiler;
  // One key for every optional pass, `fusions: {fuse_head_loss: off}`; adds to disable_passes.
  struct Fusions {
    std::set<std::string> off;
  } fusions;
};

// One key, such as "train.steps": its help, and conversion from and to text. `set` throws
// InvalidArgument "expected ..., got ...". config_key.h makes most keys; key_verbs.h tells who
// reads them.
struct ConfigKey {
  std::string name, help;
  bool is_list = false;
  std::function<void(RunConfig&, std::span<const std::string>)> set;
  std::function<std::string(const RunConfig&)> show;  // YAML text
  bool takes_maps = false;    // its items are maps in YAML, which `set` gets as text
  bool is_map = false;        // a map in YAML, whose entries `set` gets as NAME=VALUE
  std::string type = "text";  // integer, number, boolean, word, text, bytes, list of ...
  std::string allowed = "";   // of its values, such as ">= 1" or "bf16 | fp32"; empty: all
};
const std::vector<ConfigKey>& config_keys();  // sorted by section in the order of RunConfig

// true, yes, on, 1 and their opposites in upper or lower case, as YAML and flags write them.
std::optional<bool> parse_boolean(std::string_view text);

// Values by key, as flags give them; they override the file.
using Overrides = std::map<std::string, std::vector<std::string>, std::less<>>;

// Reads `file` (empty: none) and then the overrides. Throws one InvalidArgument listing every
// problem: unknown keys with the nearest known one, values that do not parse, values out of range.
RunConfig load_run_config(const std::filesystem::path& file, const Overrides& overrides);

// Checks that need more than one key; returns every problem.
std::vector<std::string> problems_of(const RunConfig& config);

// device.threads, or of all cores that this process may use.
int num_threads_of(const RunConfig& config);

// Whether an adapter is trained, and the weights are frozen.
bool trains_adapter(const RunConfig& config);

// Whether activations are bf16. With train.precision auto those of a training step are; in int8 all
// but products of trained matrices is as in bf16.
bool uses_bf16(const RunConfig& config);
bool uses_int8(const RunConfig& config);  // int8 or adaptive
bool adapts_precision(const RunConfig& config);
bool uses_fp16(const RunConfig& config);
// train.precision: fp16 or mixed.
bool has_gradients_in_fp16(const RunConfig& config);

// Whether data are rows whose tokens have weights, by train.objective.
bool trains_on_rows(const RunConfig& config);

// Whether these are preferences, by the same key.
bool trains_on_pairs(const RunConfig& config);

// Whether pairs are compared with a model (dpo.reference).
bool has_reference(const RunConfig& config);

// data.packing without auto.
std::string packing_of(const RunConfig& config);
// data.now; nothing if it is no date, such as "".
std::optional<std::tm> date_of(const std::string& text);
// Replaces train.precision: auto by its meaning for a training step.
RunConfig with_training_precision(RunConfig config);

// The resolved config as YAML; load_run_config of it gives the same config.
std::string to_yaml(const RunConfig& config);

}  // namespace anabatic::train
