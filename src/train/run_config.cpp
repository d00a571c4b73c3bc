// SPDX-License-Identifier: Apache-2.0
#include "train/run_config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "device/cpu_limits.h"
#include "passes/pipelines.h"
#include "train/checkpoint/checkpoint_search.h"
#include "train/config/attention_keys.h"
#include "train/config/config_key.h"
#include "train/config/dpo_keys.h"
#include "train/config/dropout_keys.h"
#include "train/config/lora_keys.h"
#include "train/config/other_names.h"
#include "train/config/parallel_keys.h"
#include "train/config/plugin_keys.h"
#include "train/config/precision_keys.h"
#include "train/config/quantization_keys.h"
#include "train/config/sparsity_keys.h"
#include "train/config/strategy_file.h"

namespace anabatic::train {
namespace {

ConfigKey budget_key() {
  return {.name = "memory.budget",
          .help =
              "Memory that the whole process may take. auto is what the machine has available when "
              "a run begins; none is no limit. `anabatic plan` takes auto as none.",
          .set =
              [](RunConfig& config, Values values) {
                const std::string& text = only(values);
                const auto value = parse_bytes(text);
                ANABATIC_REQUIRE(value.has_value() || text == "auto" || text == "none",
                                 "expected bytes such as 6GiB or 500MB, auto or none, got '{}'",
                                 text);
                config.memory.budget =
                    text == "auto" ? RunConfig::Memory::kAvailable : value.value_or(0);
                if (value) config.memory.budget_unit = unit_of_bytes(text);
              },
          .show = [](const RunConfig& config) -> std::string {
            if (config.memory.budget < 0) return "auto";
            return config.memory.budget == 0 ? "none" : std::to_string(config.memory.budget);
          },
          .type = "bytes",
          .allowed = "auto | none | such as 6GiB or 500MB"};
}

ConfigKey betas_key() {
  return {
      .name = "optimizer.betas",
      .help = "Decay rates of the first and of the second moment of AdamW.",
      .is_list = true,
      .set =
          [](RunConfig& config, Values values) {
            ANABATIC_REQUIRE(values.size() == 2, "expected two numbers, got {} values",
                             values.size());
            std::vector<double> betas;
            for (const std::string& text : values) {
              betas.push_back(parse_number<double>(text, "a number"));
              ANABATIC_REQUIRE(betas.back() >= 0 && betas.back() < 1,
                               "expected numbers in [0, 1), got {}", text);
            }
            config.optimizer.betas = betas;
          },
      .show =
          [](const RunConfig& config) { return show_list(config.optimizer.betas, show_double); },
      .type = "list of numbers",
      .allowed = "two in [0, 1)"};
}

void add_data_keys(std::vector<ConfigKey>& keys) {
  keys.push_back(string("model.path",
                        "Hugging Face model directory, or a GGUF file. "
                        "With model.init random, config.json is the only file that it needs.",
                        AT(model.path)));
  keys.push_back(choice("model.init",
                        "Where the weights come from. pretrained reads the files of model.path; "
                        "random initialises them from train.seed.",
                        {"random", "pretrained"}, AT(model.init)));
  keys.push_back(boolean("model.keep_mtp",
                         "Keep layers of multi-token prediction that the files hold: train them by "
                         "train.mtp_loss_coef and save them. false leaves them out.",
                         AT(model.keep_mtp)));
  keys.push_back(strings("model.plugins",
                         "Shared libraries with operators and kernels of others. `plugins` outside "
                         "of a section is the same key.",
                         AT(model.plugins)));
  keys.push_back(replace_key());
  keys.push_back(adapter_key());
  keys.push_back(strings("data.train",
                         "Training files: text, JSON lines or JSON, also gzipped, or the prefix of "
                         "a .bin/.idx pair of token ids.",
                         AT(data.train)));
  keys.push_back(strings("data.validation", "Held-out files, in any format that data.train takes.",
                         AT(data.validation)));
  keys.push_back(
      integer("data.sequence_length", "Tokens in one sample.", 1, AT(data.sequence_length)));
  keys.push_back(choice("data.packing",
                        "How documents fill a sample. isolated keeps documents from attending to "
                        "each other; concatenated lets them. best_fit is isolated, and splits no "
                        "document. auto is isolated with train.objective lm, else best_fit.",
                        {"auto", "isolated", "concatenated", "best_fit"}, AT(data.packing)));
  keys.push_back(boolean("data.shuffle", "Shuffle the samples, in a new order in each epoch.",
                         AT(data.shuffle)));
  keys.push_back(add_token("data.add_bos",
                           "Begin text and JSON documents, and prompts, with BOS, once. auto does "
                           "so where the tokenizer's own rules do.",
                           AT(data.add_bos)));
  keys.push_back(add_token("data.append_eos",
                           "End text and JSON documents with EOS, once. auto does so where the "
                           "model's files name an EOS token.",
                           AT(data.append_eos)));
  keys.push_back(choice("data.format",
                        "Format of the data files. auto takes it from the suffix, in upper or "
                        "lower case, or else from the content. bin is a .bin/.idx pair.",
                        {"auto", "text", "jsonl", "json", "bin"}, AT(data.format)));
  keys.push_back(
      string("data.cache",
             "Directory for the token ids of text and JSON files. Empty is anabatic/tokens in the "
             "user's cache directory; none is a temporary directory for the run.",
             AT(data.cache)));
  keys.push_back(string("data.chat_template",
                        "File with the chat template that turns rows of messages into text. Empty "
                        "is the model's own.",
                        AT(data.chat_template)));
  keys.push_back(string("data.now",
                        "Date that a chat template prints, such as 2026-05-01 or "
                        "2026-05-01T12:30:00. Empty is the time of the run.",
                        AT(data.now)));
  keys.push_back(boolean("data.allow_special_in_content",
                         "Match special tokens in what messages say, too. false lets only the "
                         "template write them.",
                         AT(data.allow_special_in_content)));
  keys.push_back(boolean("data.require_stop_token",
                         "Refuse a row of messages with a turn of the assistant that no trained "
                         "special token ends, and one without a trained token.",
                         AT(data.require_stop_token)));
  keys.push_back(choice("data.loss_on",
                        "Tokens of a row that train.objective sft trains. assistant is each turn "
                        "of the assistant, or the completion; completion is what follows the "
                        "prompt; all is every token.",
                        {"assistant", "completion", "all"}, AT(data.loss_on)));
  keys.push_back(or_word(integer("data.max_length",
                                 "Tokens of the longest row that best_fit keeps whole. auto is "
                                 "data.sequence_length, or with train.objective dpo half of it.",
                                 1, AT(data.max_length)),
                         "auto", RunConfig::Data::kWholeSample, AT(data.max_length)));
  keys.push_back(choice("data.truncation",
                        "What becomes of a longer row: its first or last tokens are kept, it is "
                        "left out, or the run ends.",
                        {"keep_start", "keep_end", "drop", "error"}, AT(data.truncation)));
}

void add_train_keys(std::vector<ConfigKey>& keys) {
  keys.push_back(
      choice("train.objective",
             "What the loss is the mean of. lm counts every token of documents alike; "
             "sft fine-tunes on rows, whose tokens have weights; dpo counts pairs of a chosen "
             "and a rejected completion.",
             {"lm", "sft", "dpo"}, AT(train.objective)));
  keys.push_back(
      integer("train.steps",
              "Optimizer steps of the whole run. After a resume, the steps before it count too.", 0,
              AT(train.steps)));
  keys.push_back(integer("train.micro_batch_size", "Samples in one forward and backward.", 1,
                         AT(train.micro_batch_size)));
  keys.push_back(integer("train.gradient_accumulation_steps",
                         "Micro-batches in one optimizer step.", 1,
                         AT(train.gradient_accumulation_steps)));
  keys.push_back(or_word(
      integer("train.gradient_leaves",
              "Parts of a step whose gradients add up in a balanced tree, on all ranks. Runs with "
              "as many of them have equal bits on any number of data ranks: times a power of two, "
              "these give it. auto is one a data rank.",
              1, AT(train.gradient_leaves), kMostRanks),
      "auto", RunConfig::Train::kOneADataRank, AT(train.gradient_leaves)));
  keys.push_back(choice(
      "train.precision",
      "Precision of matrix products and of activations saved for the backward. auto is bf16 "
      "for training; elsewhere it is the precision of the weight files. int8 has products "
      "of trained matrices in int8 and all else in bf16. fp16 stores activations, their "
      "gradients and copies of weights in fp16, mixed the gradients of activations alone; "
      "both compute in fp32. adaptive is int8 where the measured errors of products allow "
      "it (precision.adaptive). These four are for training, fp16 and mixed for its validations "
      "too (precision.validation); elsewhere they are bf16.",
      {"auto", "adaptive", "bf16", "fp16", "fp32", "int8", "mixed"}, AT(train.precision)));
  keys.push_back(integer("train.seed", "Seed of random weights, of shuffling and of dropout.", 0,
                         AT(train.seed)));
  keys.push_back(
      string("train.output", "Directory for checkpoints, metrics and logs.", AT(train.output)));
  keys.push_back(choice("train.resume",
                        "Whether to resume. auto resumes from the newest complete checkpoint in "
                        "train.output, if there is one; never starts a new run.",
                        {"auto", "never"}, AT(train.resume)));
  keys.push_back(boolean("train.allow_changed_data",
                         "Resume from a checkpoint even if the training data have changed since.",
                         AT(train.allow_changed_data)));
  keys.push_back(
      choice("train.check_leak",
             "Whether a run proves on its first micro-batch that documents of one sample "
             "do not see each other. It takes two forwards.",
             {"first", "off"}, AT(train.check_leak)));
  keys.push_back(integer("train.save_every", "Steps between checkpoints. 0 saves only at the end.",
                         0, AT(train.save_every)));
  keys.push_back(integer("train.validate_every",
                         "Steps between validations. 0 validates only at the end.", 0,
                         AT(train.validate_every)));
  keys.push_back(or_word(
      integer("train.log_every",
              "Steps between plain lines on the console. auto prints fewer of them in long runs.",
              1, AT(train.log_every)),
      "auto", RunConfig::Train::kThinning, AT(train.log_every)));
  keys.push_back(integer("train.keep_last",
                         "Number of checkpoints to keep, the newest ones. 0 keeps all.", 0,
                         AT(train.keep_last)));
  keys.push_back(choice("train.save_dtype",
                        "Dtype of exported weights. source is the dtype of the model's own files.",
                        {"source", "fp32"}, AT(train.save_dtype)));
  keys.push_back(choice("train.balance_loss",
                        "Auxiliary loss that keeps experts equally busy. layer is one for each "
                        "layer; sequence is one within each document; all_layers is one over all "
                        "layers together, as in transformers; none trains without.",
                        {"layer", "sequence", "all_layers", "none"}, AT(train.balance_loss)));
  keys.push_back(or_word(number("train.balance_coef",
                                "Weight of train.balance_loss in the objective. auto is "
                                "router_aux_loss_coef of config.json.",
                                0, 1e6, AT(train.balance_coef)),
                         "auto", RunConfig::Train::kCoefOfModel, AT(train.balance_coef)));
  keys.push_back(number("train.router_z_loss_coef",
                        "Weight of the routers' z-loss in the objective.", 0, 1e6,
                        AT(train.router_z_loss_coef)));
  keys.push_back(
      or_word(number("train.router_bias_update_rate",
                     "After each update, added to the choosing bias of experts with fewer tokens "
                     "than the mean, and subtracted from that of busier ones. 0: the biases stay. "
                     "auto is 0.001 in a random start of a family without router_aux_loss_coef, "
                     "else 0.",
                     0, 1e6, AT(train.router_bias_update_rate)),
              "auto", RunConfig::Train::kRateOfModel, AT(train.router_bias_update_rate)));
  keys.push_back(or_word(
      number("train.mtp_loss_coef",
             "Weight in the objective of the mean loss of layers of multi-token prediction. "
             "0 keeps them as they are. auto is 0.1 where the files hold such layers. A "
             "random start has them only with a number above 0 here. gradients takes auto "
             "as without them, and so does a run of an adapter (lora), in which such layers "
             "stay frozen.",
             0, 1e6, AT(train.mtp_loss_coef)),
      "auto", RunConfig::Train::kCoefOfFiles, AT(train.mtp_loss_coef)));
}

void add_optimizer_keys(std::vector<ConfigKey>& keys) {
  keys.push_back(choice("optimizer.name", "The optimizer. adamw is the only one.", {"adamw"},
                        AT(optimizer.name)));
  keys.push_back(number("optimizer.learning_rate", "Peak learning rate, at the end of the warm-up.",
                        0, 1e6, AT(optimizer.learning_rate)));
  keys.push_back(betas_key());
  keys.push_back(number("optimizer.epsilon",
                        "Number added to the denominator of an update, as eps in PyTorch.", 0, 1,
                        AT(optimizer.epsilon)));
  keys.push_back(number("optimizer.weight_decay",
                        "Decoupled weight decay, as in torch.optim.AdamW.", 0, 1e6,
                        AT(optimizer.weight_decay)));
  keys.push_back(number(
      "optimizer.clip_grad_norm",
      "Largest global norm of the gradients. Larger ones are scaled down to it. 0 does not clip.",
      0, 1e30, AT(optimizer.clip_grad_norm)));
  keys.push_back(choice("optimizer.schedule",
                        "How the learning rate changes after the warm-up. cosine and linear fall "
                        "to optimizer.min_learning_rate.",
                        {"cosine", "linear", "constant"}, AT(optimizer.schedule)));
  keys.push_back(integer("optimizer.warmup_steps",
                         "Number of first steps in which the learning rate rises linearly.", 0,
                         AT(optimizer.warmup_steps)));
  keys.push_back(number("optimizer.min_learning_rate",
                        "Learning rate at the end of a cosine or linear schedule.", 0, 1e6,
                        AT(optimizer.min_learning_rate)));
  keys.push_back(
      boolean("optimizer.decay_norms_and_biases",
              "Apply weight decay to one-dimensional parameters too, such as norms and biases.",
              AT(optimizer.decay_norms_and_biases)));
  keys.push_back(choice("optimizer.state_precision",
                        "Dtype of the moments of matrices. bf16 is rounded stochastically; int8 "
                        "has one scale for each block of 256 values.",
                        {"fp32", "bf16", "int8"}, AT(optimizer.state_precision)));
  keys.push_back(choice(
      "optimizer.update",
      "When gradients are applied. in_backward updates each parameter as soon as its gradient is "
      "complete, which takes less memory. It clips by the gradient norm of the previous step.",
      {"after_backward", "in_backward"}, AT(optimizer.update)));
}

void add_memory_keys(std::vector<ConfigKey>& keys) {
  keys.push_back(budget_key());
  keys.push_back(strings("memory.recompute",
                         "Values or segments that the backward recomputes, with or without a "
                         "budget. An example is experts.activation.",
                         AT(memory.recompute)));
  keys.push_back(strings(
      "memory.keep", "Values or segments that are never recomputed, compressed or moved to disk.",
      AT(memory.keep)));
  keys.push_back(strings("memory.hot",
                         "Values, segments or parameters that stay in memory unchanged. They are "
                         "never recomputed, compressed or moved to disk.",
                         AT(memory.hot)));
  keys.push_back(
      strings("memory.cold",
              "Parameters or segments whose moments go to disk, such as embedding or "
              "experts.96-127. With memory.activations disk, saved activations can be named too.",
              AT(memory.cold)));
  keys.push_back(string("memory.plan",
                        "File with the choices of a plan to replay, written by `anabatic plan "
                        "--save FILE`. Empty plans from the keys alone.",
                        AT(memory.plan)));
  keys.push_back(choice("memory.compress",
                        "Type to which saved activations may be compressed where a budget needs "
                        "it; int8 also allows bf16. Both change gradients slightly.",
                        {"off", "bf16", "int8"}, AT(memory.compress)));
  keys.push_back(choice("memory.activations",
                        "Where saved activations are stored until the backward. disk allows a "
                        "budget to move them to a scratch file.",
                        {"resident", "disk"}, AT(memory.activations)));
  keys.push_back(choice("memory.optimizer_state",
                        "Where moments are stored between updates. auto moves them to disk where "
                        "memory.budget needs it and nothing else costs less.",
                        {"auto", "resident", "disk"}, AT(memory.optimizer_state)));
  keys.push_back(choice("memory.masters",
                        "Where the lower 16 bits of bf16 parameters are stored between updates. "
                        "disk applies to parameters whose moments are on disk.",
                        {"auto", "resident", "disk"}, AT(memory.masters)));
  keys.push_back(
      choice("memory.parameters",
             "Where the parameters that forward and backward read are stored. disk applies to "
             "parameters whose moments are on disk; each call reads them from there.",
             {"auto", "resident", "disk"}, AT(memory.parameters)));
  keys.push_back(string("memory.swap_directory",
                        "Directory of the scratch file for data on disk. Empty is train.output.",
                        AT(memory.swap_directory)));
  keys.push_back(integer("memory.swap_windows",
                         "Number of slices of moments in memory at once. More slices hide more of "
                         "the disk's time and may need more memory.",
                         1, AT(memory.swap_windows)));
  keys.push_back(
      integer("memory.swap_slice",
              "Largest number of bytes of a moment that one update reads from disk at once.", 1,
              AT(memory.swap_slice)));
}

struct PassHelp {
  std::string_view pass, does;
};
constexpr std::array kPassHelp{
    PassHelp{"fuse_head_loss", "the product of the head, the loss and their gradients are one op."},
    PassHelp{"sparse_products",
             "products of sparse weights read what is present alone, where that is faster."},
    PassHelp{"pack_weights", "products read packed copies of weights that are kept between steps."},
    PassHelp{"panel_states", "weights, their gradients and moments have the packed layout."},
    PassHelp{"split_parameters", "a bf16 copy and the lower 16 bits replace each fp32 weight."},
    PassHelp{"fuse_activation", "products and the activation next to them are one op."},
    PassHelp{"fuse_moe_permute", "products of experts gather the rows of their tokens themselves."},
    PassHelp{"move_router_weight",
             "the router's weight multiplies the activation before the down projection."},
    PassHelp{"fuse_exchange_rows",
             "exchanges between ranks send rows from where they are, by a map."},
    PassHelp{"fuse_gate_up", "the gate and up projections are one op."},
    PassHelp{"fuse_qkv", "the query, key and value projections are one op."},
    PassHelp{"fuse_rope", "the rotations of query and key are one op."},
    PassHelp{"pack_again",
             "with compiler.pack_transposed false, the backward packs weights itself."},
    PassHelp{"accumulate_in_gemm",
             "the product that completes a gradient also sums its squares for the norm."},
    PassHelp{"slice_optimizer",
             "with moments on disk, a large parameter is updated slice by slice."},
    PassHelp{"fuse_optimizer", "an update and the packing of its result are one op."},
    PassHelp{"fuse_norm_residual", "a residual sum and the norm of it are one op."},
    PassHelp{"fuse_norm_linear",
             "dense products may normalise the rows that they copy, and drop what adapters read; "
             "such rows are not stored then (compiler.norms_in_products)."},
    PassHelp{"common_subexpression", "equal ops on equal values run once."},
    PassHelp{"dead_code", "ops whose results nothing reads are removed."},
    PassHelp{"drop_kept_products",
             "products do not write gate and up if the backward recomputes both."},
    PassHelp{"quantize_in_product",
             "products quantise gate and up themselves if a budget keeps them as int8."},
    PassHelp{"activation_with_gradient",
             "the gradient that reads gate and up also recomputes their activation."},
    PassHelp{"read_quantized", "the gradient of an activation reads gate and up as int8."}};

std::string help_of_pass(std::string_view pass) {
  for (const PassHelp& row : kPassHelp)
    if (row.pass == pass) return fmt::format("On: {} Off skips this pass.", row.does);
  throw InternalError(fmt::format("[config] expected a help text of pass {}, got none", pass));
}

// "fusions.NAME" for every pass of either pipeline that may be left out.
void add_fusion_keys(std::vector<ConfigKey>& keys) {
  std::vector<passes::Pass> all = passes::training_pipeline();
  for (passes::Pass& pass : passes::inference_pipeline()) all.push_back(std::move(pass));
  std::set<std::string> seen;
  for (const passes::Pass& pass : all) {
    const std::string name(pass.name);
    if (pass.required || !seen.insert(name).second) continue;
    keys.push_back({.name = "fusions." + name,
                    .help = help_of_pass(name),
                    .set =
                        [name](RunConfig& config, Values values) {
                          const auto on = parse_boolean(only(values));
                          ANABATIC_REQUIRE(on.has_value(), "expected on or off, got '{}'",
                                           values[0]);
                          if (*on)
                            config.fusions.off.erase(name);
                          else
                            config.fusions.off.insert(name);
                        },
                    .show =
                        [name](const RunConfig& config) {
                          return config.fusions.off.contains(name) ? "off" : "on";
                        },
                    .type = "boolean",
                    .allowed = "on | off"});
  }
}

void add_other_keys(std::vector<ConfigKey>& keys) {
  keys.push_back(
      choice("device.kind", "The device. cpu is the only one.", {"cpu"}, AT(device.kind)));
  keys.push_back(integer(
      "device.threads",
      "Compute threads. 0 is one for each physical core that CPU affinity and the CPU quota allow.",
      0, AT(device.threads)));
  keys.push_back(boolean("device.calibrate",
                         "Measure the machine once, so that predicted times fit it. This takes a "
                         "few seconds before the first run with a memory.budget.",
                         AT(device.calibrate)));
  keys.push_back(integer("generate.max_new_tokens", "Largest number of tokens to generate.", 0,
                         AT(generate.max_new_tokens)));
  keys.push_back(number(
      "generate.temperature",
      "Number by which logits are divided before sampling. 0 always takes the most likely token.",
      0, 1e6, AT(generate.temperature)));
  keys.push_back(integer("generate.top_k",
                         "Sample among the k most likely tokens. 0 samples among all tokens.", 0,
                         AT(generate.top_k)));
  keys.push_back(
      number("generate.top_p",
             "Sample among the most likely tokens whose probabilities add up to this share.", 0, 1,
             AT(generate.top_p)));
  keys.push_back(integer("generate.seed", "Seed of sampling.", 0, AT(generate.seed)));
  keys.push_back(strings("compiler.disable_passes",
                         "Optional passes to skip, by name. The section fusions lists them.",
                         AT(compiler.disable_passes)));
  keys.push_back(boolean("compiler.pack_transposed",
                         "Keep a second packed copy of each weight for input gradients. false "
                         "packs weights during the backward instead, which takes less memory.",
                         AT(compiler.pack_transposed)));
  keys.push_back(
      boolean("compiler.keep_packings",
              "Keep packed copies of weights between steps. false makes each in front of "
              "the products that read it, forward and backward, which takes less memory.",
              AT(compiler.keep_packings)));
  keys.push_back(boolean(
      "compiler.norms_in_products",
      "Dense products apply every norm that they can as they copy rows, and dropout of what "
      "adapters read, so that these rows are not stored. false has it where that is predicted "
      "to take no longer, and where memory.budget needs the bytes. "
      "fusions.fuse_norm_linear: off has none.",
      AT(compiler.norms_in_products)));
  keys.push_back(
      string("compiler.dump",
             "Directory to which every graph, plan and program is written. Empty writes none.",
             AT(compiler.dump)));
  keys.push_back(boolean("compiler.explain_dispatch", "Print why each kernel was chosen.",
                         AT(compiler.explain_dispatch)));
  keys.push_back(boolean("compiler.trivial_planners", "Plan with the simplest planners.",
                         AT(compiler.trivial_planners)));
  keys.push_back(boolean("compiler.poison", "Fill memory that is no longer in use with NaN.",
                         AT(compiler.poison)));
}

const ConfigKey* find_key(std::string_view name) {
  if (name == "plugins") name = "model.plugins";
  if (name == "sparsity") name = "sparsity.weights";
  if (name == "precision.int8_fallback") name = "precision.int8.fallback";  // in older checkpoints
  for (const ConfigKey& key : config_keys())
    if (key.name == name) return &key;
  return nullptr;
}

std::string one_map(const ConfigKey& key) {
  return fmt::format("{}: expected a list, got one map; put it in [ ]", key.name);
}

std::string unknown_key(const std::string& name) {
  for (const ConfigKey& key : config_keys())
    if (key.takes_maps && name.starts_with(key.name + ".")) return one_map(key);
  if (name.starts_with("sparsity.")) return one_map(*find_key("sparsity"));
  std::vector<std::string> names;
  for (const ConfigKey& key : config_keys()) names.push_back(key.name);
  if (name.starts_with("fusions.")) {
    std::string known;
    for (const std::string& key : names)
      if (key.starts_with("fusions.")) known += (known.empty() ? "" : ", ") + key.substr(8);
    return fmt::format("{}: unknown pass; expected one of {}", name, known);
  }
  auto nearest = key_of_other_name(name, names);
  if (!nearest) nearest = nearest_word(name, names);
  return nearest ? fmt::format("{}: unknown key; did you mean {}?", name, *nearest)
                 : fmt::format("{}: unknown key", name);
}

void apply(RunConfig& config, const std::string& name, Values values,
           std::vector<std::string>& problems) {
  const ConfigKey* key = find_key(name);
  if (key == nullptr) {
    const std::string problem = unknown_key(name);
    if (std::ranges::find(problems, problem) == problems.end()) problems.push_back(problem);
    return;
  }
  try {
    key->set(config, values);
  } catch (const Error& error) {
    problems.push_back(fmt::format("{}: {}", name, error.what()));
  }
}

bool is_section(const std::string& name) {
  return std::any_of(config_keys().begin(), config_keys().end(),
                     [&](const ConfigKey& key) { return key.name.starts_with(name + "."); });
}

// The keys of parallel.strategy, which then has no more to say.
void apply_strategy(RunConfig& config, const std::set<std::string>& given,
                    std::vector<std::string>& problems) {
  const std::string file = std::exchange(config.parallel.strategy, {});
  if (file.empty()) return;
  for (const StrategySize& size : read_strategy(file, problems)) {
    const std::string text = std::to_string(size.size), there = find_key(size.key)->show(config);
    if (!given.contains(size.key))
      apply(config, size.key, std::array{text}, problems);
    else if (there != text)
      problems.push_back(
          fmt::format("parallel.strategy: {}: {}: expected {} as {} is given, got {}", file,
                      size.name, there, size.key, text));
  }
}

// A map as texts NAME=VALUE.
std::vector<std::string> entries_of(const YAML::Node& map) {
  std::vector<std::string> entries;
  for (const auto& entry : map)
    entries.push_back(fmt::format("{}={}", entry.first.as<std::string>(),
                                  entry.second.IsScalar() ? entry.second.Scalar() : ""));
  return entries;
}

void apply_node(RunConfig& config, const YAML::Node& node, const std::string& name,
                std::set<std::string>& given, std::vector<std::string>& problems) {
  const bool may_hold_keys = name.empty() || is_section(name);
  if (node.IsNull() && may_hold_keys) return;  // a section whose keys are all left out
  if (node.IsMap()) {
    const ConfigKey* key = name.empty() ? nullptr : find_key(name);
    if (key != nullptr && key->is_map) {
      given.insert(name);
      apply(config, name, entries_of(node), problems);
      return;
    }
    if (!may_hold_keys) {
      problems.push_back(key == nullptr    ? unknown_key(name)
                         : key->takes_maps ? one_map(*key)
                                           : fmt::format("{}: expected a value, got a map", name));
      return;
    }
    std::set<std::string> seen;
    for (const auto& entry : node) {
      const std::string child = (name.empty() ? "" : name + ".") + entry.first.as<std::string>();
      if (!seen.insert(child).second) problems.push_back(fmt::format("{}: given twice", child));
      apply_node(config, entry.second, child, given, problems);
    }
    return;
  }
  if (name.empty()) {
    problems.emplace_back("expected a map of sections such as `train: {steps: 100}`");
    return;
  }
  std::vector<std::string> values;
  if (node.IsSequence()) {
    for (const YAML::Node& item : node) {
      if (const ConfigKey* key = find_key(name);
          item.IsMap() && key != nullptr && key->takes_maps) {
        YAML::Emitter text;
        text << YAML::Flow << item;
        values.emplace_back(text.c_str());
        continue;
      }
      if (!item.IsScalar()) {
        problems.push_back(fmt::format("{}: expected a list of values", name));
        return;
      }
      values.push_back(item.Scalar());
    }
  } else if (node.IsScalar()) {
    values.push_back(node.Scalar());
  } else {
    problems.push_back(fmt::format("{}: expected a value, got nothing", name));
    return;
  }
  given.insert(name);
  apply(config, name, values, problems);
}

}  // namespace

const std::vector<ConfigKey>& config_keys() {
  static const std::vector<ConfigKey> keys = [] {
    std::vector<ConfigKey> all;
    add_data_keys(all);
    add_train_keys(all);
    add_precision_keys(all);
    add_quantization_keys(all);
    add_sparsity_keys(all);
    add_dropout_keys(all);
    add_attention_keys(all);
    add_optimizer_keys(all);
    add_memory_keys(all);
    add_parallel_keys(all);
    add_lora_keys(all);
    add_dpo_keys(all);
    add_other_keys(all);
    add_fusion_keys(all);
    return all;
  }();
  return keys;
}

std::optional<bool> parse_boolean(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (lower == "true" || lower == "1" || lower == "yes" || lower == "on") return true;
  if (lower == "false" || lower == "0" || lower == "no" || lower == "off") return false;
  return std::nullopt;
}

int num_threads_of(const RunConfig& config) {
  return config.device.threads > 0 ? static_cast<int>(config.device.threads)
                                   : device::cpu_limits().num_threads();
}

bool trains_adapter(const RunConfig& config) {
  return !config.lora.targets.empty() || !config.lora.from.empty();
}

bool uses_bf16(const RunConfig& config) {
  return config.train.precision != "fp32" && !uses_fp16(config);
}

bool uses_fp16(const RunConfig& config) { return config.train.precision == "fp16"; }

bool has_gradients_in_fp16(const RunConfig& config) {
  return uses_fp16(config) || config.train.precision == "mixed";
}

bool trains_on_rows(const RunConfig& config) { return config.train.objective != "lm"; }

bool trains_on_pairs(const RunConfig& config) { return config.train.objective == "dpo"; }

bool has_reference(const RunConfig& config) {
  return trains_on_pairs(config) && config.dpo.reference != "none";
}

std::string packing_of(const RunConfig& config) {
  if (config.data.packing != "auto") return config.data.packing;
  return trains_on_rows(config) ? "best_fit" : "isolated";
}

std::optional<std::tm> date_of(const std::string& text) {
  for (const char* form : {"%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"}) {
    std::tm time{};
    const char* const end = ::strptime(text.c_str(), form, &time);
    if (end != nullptr && *end == '\0') return time;
  }
  return std::nullopt;
}

RunConfig with_training_precision(RunConfig config) {
  if (config.train.precision == "auto") config.train.precision = "bf16";
  return config;
}

std::vector<std::string> problems_of(const RunConfig& config) {
  std::vector<std::string> problems;
  const auto& optimizer = config.optimizer;
  if (optimizer.min_learning_rate > optimizer.learning_rate)
    problems.push_back(
        fmt::format("optimizer.min_learning_rate: expected <= optimizer.learning_rate = {}, got {}",
                    optimizer.learning_rate, optimizer.min_learning_rate));
  if (config.train.balance_loss == "none" && config.train.balance_coef > 0)
    problems.push_back(
        fmt::format("train.balance_coef: expected auto or 0 with train.balance_loss: none, got {}",
                    config.train.balance_coef));
  const RunConfig::Memory& memory = config.memory;
  if (memory.masters == "disk" && (memory.optimizer_state == "resident" || !uses_bf16(config)))
    problems.push_back(fmt::format(
        "memory.masters: disk stores the lower 16 bits of bf16 parameters with the moments; "
        "expected memory.optimizer_state: disk or auto and train.precision: bf16, got {} and {}",
        memory.optimizer_state, config.train.precision));
  if (memory.parameters == "disk" && memory.optimizer_state == "resident")
    problems.push_back(
        "memory.parameters: disk stores parameters with the moments; expected "
        "memory.optimizer_state: disk or auto, got resident");
  const RunConfig::Parallel& parallel = config.parallel;
  if (parallel.local_ranks > 1 && parallel.world != RunConfig::Parallel::kStarted &&
      parallel.world != parallel.local_ranks)
    problems.push_back(
        fmt::format("parallel.world: expected auto or parallel.local_ranks = {}, got {}",
                    parallel.local_ranks, parallel.world));
  const RunConfig::Data& data = config.data;
  if (trains_on_rows(config) && data.packing == "concatenated")
    problems.emplace_back(
        "data.packing: expected best_fit or isolated with train.objective: sft, got concatenated");
  add_dpo_problems(config, problems);
  if (data.max_length > data.sequence_length)
    problems.push_back(
        fmt::format("data.max_length: expected at most data.sequence_length = {}, got {}",
                    data.sequence_length, data.max_length));
  if (!data.now.empty() && !date_of(data.now))
    problems.push_back(fmt::format(
        "data.now: expected a date such as 2026-05-01 or 2026-05-01T12:30:00, got '{}'", data.now));
  add_lora_problems(config, problems);
  add_precision_problems(config, problems);
  add_quantization_problems(config, problems);
  add_sparsity_problems(config, problems);
  add_dropout_problems(config, problems);
  add_attention_problems(config, problems);
  constexpr std::int64_t kMaxTokens = std::int64_t{1} << 31;
  if (config.data.sequence_length > kMaxTokens / config.train.micro_batch_size)
    problems.push_back(fmt::format(
        "train.micro_batch_size x data.sequence_length: expected < 2^31 tokens, got {} x {}",
        config.train.micro_batch_size, config.data.sequence_length));
  return problems;
}

RunConfig load_run_config(const std::filesystem::path& file, const Overrides& overrides) {
  RunConfig config;
  std::vector<std::string> problems;
  std::set<std::string> given;  // keys
  if (!file.empty()) {
    try {
      apply_node(config, YAML::Load(read_file(file, std::int64_t{1} << 20)), "", given, problems);
    } catch (const YAML::Exception& error) {
      problems.push_back(fmt::format("{}: {}", file.string(), error.what()));
    } catch (const ResourceError& error) {
      problems.emplace_back(error.what());
    }
  }
  for (const auto& [name, values] : overrides) {
    given.insert(name);
    apply(config, name, values, problems);
  }
  apply_strategy(config, given, problems);
  for (std::string& problem : problems_of(config)) problems.push_back(std::move(problem));
  if (!problems.empty()) {
    std::string text =
        fmt::format("[config] {} problem{}:", problems.size(), problems.size() == 1 ? "" : "s");
    for (const std::string& problem : problems) text += "\n  " + problem;
    throw InvalidArgument(text);
  }
  config.model.path = model_path_of(config.model.path);
  for (std::string* adapter : {&config.model.adapter, &config.lora.from})
    *adapter = model_path_of(*adapter);
  return config;
}

std::string to_yaml(const RunConfig& config) {
  std::string out, section, subsection;
  for (const ConfigKey& key : config_keys()) {
    const auto dot = key.name.find('.'), last = key.name.rfind('.');
    const std::string head = key.name.substr(0, dot), inner = key.name.substr(0, last);
    if (head != section) out += (section = head) + ":\n";
    if (last != dot && inner != subsection)
      out += fmt::format("  {}:\n", (subsection = inner).substr(dot + 1));
    out += fmt::format("{}  {}: {}\n", last == dot ? "" : "  ", key.name.substr(last + 1),
                       key.show(config));
  }
  return out;
}

}  // namespace anabatic::train
