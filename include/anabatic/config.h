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
    // Hugging Face model directory, or a GGUF file. With model.init random, config.json is the only
    // file that it needs.
    std::string path{};
    // Where the weights come from. pretrained reads the files of model.path; random initialises
    // them from train.seed.
    enum class Init { kRandom, kPretrained };
    Init init = Init::kPretrained;
    // Keep layers of multi-token prediction that the files hold: train them by train.mtp_loss_coef
    // and save them. false leaves them out.
    bool keep_mtp = true;
    // Shared libraries with operators and kernels of others. `plugins` outside of a section is the
    // same key.
    std::vector<std::string> plugins{};
    // Operators of the model that operators of plugins replace, wherever they are in a segment:
    // {segment: mlp, op: swiglu, with: my_swiglu}.
    // Allowed: {segment: NAME, op: NAME, with: NAME}.
    std::vector<std::string> replace{};
    // Directory of an adapter as PEFT writes it, or of a run that trained one. Its products are
    // added to those of the weights, which stay as they are.
    std::string adapter{};
  };
  Model model{};

  // Text and how it fills samples.
  struct Data {
    // Training files: text, JSON lines or JSON, also gzipped, or the prefix of a .bin/.idx pair of
    // token ids.
    std::vector<std::string> train{};
    // Held-out files, in any format that data.train takes.
    std::vector<std::string> validation{};
    // Tokens in one sample. Allowed: >= 1.
    std::int64_t sequence_length = 512;
    // How documents fill a sample. isolated keeps documents from attending to each other;
    // concatenated lets them. best_fit is isolated, and splits no document. auto is isolated with
    // train.objective lm, else best_fit.
    enum class Packing { kAuto, kIsolated, kConcatenated, kBestFit };
    Packing packing = Packing::kAuto;
    // Shuffle the samples, in a new order in each epoch.
    bool shuffle = true;
    // Begin text and JSON documents, and prompts, with BOS, once. auto does so where the
    // tokenizer's own rules do.
    enum class AddBos { kAuto, kTrue, kFalse };
    AddBos add_bos = AddBos::kAuto;
    // End text and JSON documents with EOS, once. auto does so where the model's files name an EOS
    // token.
    enum class AppendEos { kAuto, kTrue, kFalse };
    AppendEos append_eos = AppendEos::kAuto;
    // Format of the data files. auto takes it from the suffix, in upper or lower case, or else from
    // the content. bin is a .bin/.idx pair.
    enum class Format { kAuto, kText, kJsonl, kJson, kBin };
    Format format = Format::kAuto;
    // Directory for the token ids of text and JSON files. Empty is anabatic/tokens in the user's
    // cache directory; none is a temporary directory for the run.
    std::string cache{};
    // File with the chat template that turns rows of messages into text. Empty is the model's own.
    std::string chat_template{};
    // Date that a chat template prints, such as 2026-05-01 or 2026-05-01T12:30:00. Empty is the
    // time of the run.
    std::string now{};
    // Match special tokens in what messages say, too. false lets only the template write them.
    bool allow_special_in_content = false;
    // Refuse a row of messages with a turn of the assistant that no trained special token ends, and
    // one without a trained token.
    bool require_stop_token = true;
    // Tokens of a row that train.objective sft trains. assistant is each turn of the assistant, or
    // the completion; completion is what follows the prompt; all is every token.
    enum class LossOn { kAssistant, kCompletion, kAll };
    LossOn loss_on = LossOn::kAssistant;
    // Tokens of the longest row that best_fit keeps whole. auto is data.sequence_length, or with
    // train.objective dpo half of it.
    // Allowed: >= 1, or std::nullopt for auto.
    std::optional<std::int64_t> max_length{};
    // What becomes of a longer row: its first or last tokens are kept, it is left out, or the run
    // ends.
    enum class Truncation { kKeepStart, kKeepEnd, kDrop, kError };
    Truncation truncation = Truncation::kKeepStart;
  };
  Data data{};

  // Length, precision, checkpoints and losses of a run.
  struct Train {
    // What the loss is the mean of. lm counts every token of documents alike; sft fine-tunes on
    // rows, whose tokens have weights; dpo counts pairs of a chosen and a rejected completion.
    enum class Objective { kLm, kSft, kDpo };
    Objective objective = Objective::kLm;
    // Optimizer steps of the whole run. After a resume, the steps before it count too.
    // Allowed: >= 0.
    std::int64_t steps = 100;
    // Samples in one forward and backward. Allowed: >= 1.
    std::int64_t micro_batch_size = 4;
    // Micro-batches in one optimizer step. Allowed: >= 1.
    std::int64_t gradient_accumulation_steps = 1;
    // Parts of a step whose gradients add up in a balanced tree, on all ranks. Runs with as many of
    // them have equal bits on any number of data ranks: times a power of two, these give it. auto
    // is one a data rank.
    // Allowed: 1 to 32767, or std::nullopt for auto.
    std::optional<std::int64_t> gradient_leaves{};
    // Precision of matrix products and of activations saved for the backward. auto is bf16 for
    // training; elsewhere it is the precision of the weight files. int8 has products of trained
    // matrices in int8 and all else in bf16. fp16 stores activations, their gradients and copies of
    // weights in fp16, mixed the gradients of activations alone; both compute in fp32. adaptive is
    // int8 where the measured errors of products allow it (precision.adaptive). These four are for
    // training, fp16 and mixed for its validations too (precision.validation); elsewhere they are
    // bf16.
    enum class Precision { kAuto, kAdaptive, kBf16, kFp16, kFp32, kInt8, kMixed };
    Precision precision = Precision::kAuto;
    // Seed of random weights, of shuffling and of dropout. Allowed: >= 0.
    std::int64_t seed = 0;
    // Directory for checkpoints, metrics and logs.
    std::string output{};
    // Whether to resume. auto resumes from the newest complete checkpoint in train.output, if there
    // is one; never starts a new run.
    enum class Resume { kAuto, kNever };
    Resume resume = Resume::kAuto;
    // Resume from a checkpoint even if the training data have changed since.
    bool allow_changed_data = false;
    // Whether a run proves on its first micro-batch that documents of one sample do not see each
    // other. It takes two forwards.
    enum class CheckLeak { kFirst, kOff };
    CheckLeak check_leak = CheckLeak::kFirst;
    // Steps between checkpoints. 0 saves only at the end. Allowed: >= 0.
    std::int64_t save_every = 0;
    // Steps between validations. 0 validates only at the end. Allowed: >= 0.
    std::int64_t validate_every = 0;
    // Steps between plain lines on the console. auto prints fewer of them in long runs.
    // Allowed: >= 1, or std::nullopt for auto.
    std::optional<std::int64_t> log_every{};
    // Number of checkpoints to keep, the newest ones. 0 keeps all. Allowed: >= 0.
    std::int64_t keep_last = 2;
    // Dtype of exported weights. source is the dtype of the model's own files.
    enum class SaveDtype { kSource, kFp32 };
    SaveDtype save_dtype = SaveDtype::kSource;
    // Auxiliary loss that keeps experts equally busy. layer is one for each layer; sequence is one
    // within each document; all_layers is one over all layers together, as in transformers; none
    // trains without.
    enum class BalanceLoss { kLayer, kSequence, kAllLayers, kNone };
    BalanceLoss balance_loss = BalanceLoss::kLayer;
    // Weight of train.balance_loss in the objective. auto is router_aux_loss_coef of config.json.
    // Allowed: >= 0, or std::nullopt for auto.
    std::optional<double> balance_coef{};
    // Weight of the routers' z-loss in the objective. Allowed: >= 0.
    double router_z_loss_coef = 0;
    // After each update, added to the choosing bias of experts with fewer tokens than the mean, and
    // subtracted from that of busier ones. 0: the biases stay. auto is 0.001 in a random start of a
    // family without router_aux_loss_coef, else 0.
    // Allowed: >= 0, or std::nullopt for auto.
    std::optional<double> router_bias_update_rate{};
    // Weight in the objective of the mean loss of layers of multi-token prediction. 0 keeps them as
    // they are. auto is 0.1 where the files hold such layers. A random start has them only with a
    // number above 0 here. gradients takes auto as without them, and so does a run of an adapter
    // (lora), in which such layers stay frozen.
    // Allowed: >= 0, or std::nullopt for auto.
    std::optional<double> mtp_loss_coef{};
  };
  Train train{};

  // Precision of single products, scale of the loss.
  struct Precision {
    // When blocks of a layer's input fall back to 16 bits in int8 products. One of n elements does
    // if n times the largest exceeds this many times the sum of all. Lower values make more blocks
    // do so; off makes none.
    // Allowed: 0 to 127, or std::nullopt for off.
    std::optional<std::int64_t> int8_fallback = 64;
    // Units whose products have another precision than train.precision, such as {attention: bf16,
    // layers.0.experts.down: fp32}. A unit is a part of the names of weights, or a segment. The
    // longest one that fits counts. int8 goes with train.precision: int8 and adaptive.
    // Allowed: {UNIT: int8 | bf16 | fp32}.
    std::map<std::string, std::string> keep{};
    // Units whose products are never below bf16, such as [head, layers.0.experts.down]. They are
    // named as in precision.keep.
    std::vector<std::string> critical{};
    // Products of validations in a run with train.precision: int8 or adaptive. bf16 has the loss of
    // the model that is saved: it makes weights in bf16 of the fp32 ones, a layer at a time. train
    // has the products of the step. Other precisions validate as they train.
    enum class Validation { kBf16, kTrain };
    Validation validation = Validation::kBf16;
    // What a step's loss is multiplied by before its backward, so that gradients of few bits do not
    // underflow; the update undoes it. dynamic begins at 65536, doubles after 2000 steps, and is
    // divided by 2 with a step that is skipped because a gradient is not finite. auto is dynamic
    // with train.precision: fp16 and mixed, else 1.
    // Allowed: >= 1.
    enum class LossScaleWord { kAuto, kDynamic };
    std::variant<LossScaleWord, double> loss_scale = LossScaleWord::kAuto;
    // With train.precision: adaptive, the error that a product may have, as a share of the norm of
    // its result. One with two samples in a row above it becomes more precise.
    // Allowed: 1e-06 to 1.
    double adaptive_error = 0.02;
    // Steps from one sample of errors to the next. Allowed: >= 1.
    std::int64_t adaptive_every = 32;
    // Steps for which a product that moved stays, and least steps from one change of the plan to
    // the next.
    // Allowed: >= 1.
    std::int64_t adaptive_lock = 256;
    // Most of the FLOPs of a step's products that may be above int8. Larger errors go first.
    // Allowed: 0 to 1.
    double adaptive_high_share = 0.25;
  };
  Precision precision{};

  // Training on the values of a quantised file.
  struct Quantization {
    // Products of quantization.units read weights with the values that a quantised file will hold
    // of them. Weights that are trained stay fp32. Those under an adapter (lora) are rounded once,
    // as they are loaded.
    bool enable = false;
    // Units whose weights these are, such as experts, layers.3.mlp or experts.down. A unit is a
    // part of the names of weights, or a segment.
    std::vector<std::string> units = {"experts"};
    // The grid of values. int8_channel and int4_group are exported for compressed-tensors, q8_0 and
    // q4_0 as GGUF, mxfp4 as both. auto is that of quantization.bit_num.
    enum class Format { kAuto, kInt8Channel, kInt4Group, kQ80, kQ40, kMxfp4 };
    Format format = Format::kAuto;
    // Elements of a row that share a scale in int4_group. auto is 32.
    enum class Group { kAuto, k32, k64, k128 };
    Group group = Group::kAuto;
    // In place of quantization.format. 8, which auto is, stands for int8_channel, or for q8_0 where
    // quantization.per_channel is false. 4 is int4_group.
    enum class BitNum { kAuto, k8, k4 };
    BitNum bit_num = BitNum::kAuto;
    // With quantization.bit_num: true has one scale for a row, false one for a part of it. auto is
    // true for 8 bits and false for 4.
    enum class PerChannel { kAuto, kTrue, kFalse };
    PerChannel per_channel = PerChannel::kAuto;
    // First steps that read weights as they are, while errors are logged. Allowed: 0 to 1073741824.
    std::int64_t quant_delay = 0;
    // What these products read of activations. int8_token: 8 bits with a scale for each token, as
    // runtimes quantise them while they run. off leaves them as they are.
    enum class Activations { kOff, kInt8Token };
    Activations activations = Activations::kOff;
  };
  Quantization quantization{};

  // Weights that become sparse.
  struct Sparsity {
    // Weights that become sparse in training: {units, pattern, density, schedule: {begin, end,
    // every}, threshold, transposable}. Patterns are block32, block16, 2:4, which may be
    // transposable, and unstructured. The density falls from 1 in steps begin to end. threshold is
    // the share of zeroes from which products take a sparse kernel; auto goes by predicted times. A
    // list under `sparsity` itself is the same key.
    // Allowed: {units: [UNIT], pattern: WORD, density: D, ...}.
    std::vector<std::string> weights{};
  };
  Sparsity sparsity{};

  // Elements that training sets to 0 at random.
  struct Dropout {
    // Share of what attention and MLP add to the hidden state that training sets to 0. auto is that
    // of config.json (resid_pdrop), and 0 with train.objective dpo.
    // Allowed: 0 to below 1, or std::nullopt for auto.
    std::optional<double> residual{};
    // The same of the embedding of tokens and positions. auto is that of config.json (embd_pdrop),
    // and 0 with train.objective dpo.
    // Allowed: 0 to below 1, or std::nullopt for auto.
    std::optional<double> embedding{};
    // The same of the probabilities that attention multiplies values with. auto is that of
    // config.json (attention_dropout, attn_pdrop), and 0 with train.objective dpo.
    // Allowed: 0 to below 1, or std::nullopt for auto.
    std::optional<double> attention{};
  };
  Dropout dropout{};

  // Which keys attention reads.
  struct Attention {
    // Keys of a block. Rows attend to some blocks of keys alone, which the other keys of
    // attention.blocks choose, in every layer and within its window. Blocks count from the
    // beginning of a document. off is attention to all keys, auto what model.path was trained with.
    // Allowed: 1 to 1073741824.
    enum class BlocksSizeWord { kAuto, kOff };
    std::variant<BlocksSizeWord, std::int64_t> blocks_size = BlocksSizeWord::kAuto;
    // A row attends to so many blocks up to its own, which is always one of them.
    // Allowed: 0 to 1073741824.
    std::int64_t blocks_local = 0;
    // A row attends to the first blocks of its document, so many. Allowed: 0 to 1073741824.
    std::int64_t blocks_global = 0;
    // A row attends to every so many-th block of its document: with 4 to the 4th, the 8th and so
    // on. 0 is none.
    // Allowed: 0 to 1073741824.
    std::int64_t blocks_stride = 0;
    // A row attends to so many blocks before its own, which are drawn for each block of rows.
    // Allowed: 0 to 1073741824.
    std::int64_t blocks_random = 0;
    // Seed of these draws. Allowed: >= 0.
    std::int64_t blocks_seed = 0;
    // In place of these: a .npy file of bool [heads or 1, blocks, blocks]. Row i of it has the
    // blocks of keys that block i of rows attends to. Those after a block count for nothing, for
    // attention is causal.
    std::string blocks_file{};
  };
  Attention attention{};

  // The optimizer and its schedule.
  struct Optimizer {
    // The optimizer. adamw is the only one.
    enum class Name { kAdamw };
    Name name = Name::kAdamw;
    // Peak learning rate, at the end of the warm-up. Allowed: >= 0.
    double learning_rate = 0.0003;
    // Decay rates of the first and of the second moment of AdamW. Allowed: two in [0, 1).
    std::vector<double> betas = {0.9, 0.95};
    // Number added to the denominator of an update, as eps in PyTorch. Allowed: 0 to 1.
    double epsilon = 1e-08;
    // Decoupled weight decay, as in torch.optim.AdamW. Allowed: >= 0.
    double weight_decay = 0.1;
    // Largest global norm of the gradients. Larger ones are scaled down to it. 0 does not clip.
    // Allowed: >= 0.
    double clip_grad_norm = 1;
    // How the learning rate changes after the warm-up. cosine and linear fall to
    // optimizer.min_learning_rate.
    enum class Schedule { kCosine, kLinear, kConstant };
    Schedule schedule = Schedule::kCosine;
    // Number of first steps in which the learning rate rises linearly. Allowed: >= 0.
    std::int64_t warmup_steps = 10;
    // Learning rate at the end of a cosine or linear schedule. Allowed: >= 0.
    double min_learning_rate = 0;
    // Apply weight decay to one-dimensional parameters too, such as norms and biases.
    bool decay_norms_and_biases = false;
    // Dtype of the moments of matrices. bf16 is rounded stochastically; int8 has one scale for each
    // block of 256 values.
    enum class StatePrecision { kFp32, kBf16, kInt8 };
    StatePrecision state_precision = StatePrecision::kFp32;
    // When gradients are applied. in_backward updates each parameter as soon as its gradient is
    // complete, which takes less memory. It clips by the gradient norm of the previous step.
    enum class Update { kAfterBackward, kInBackward };
    Update update = Update::kAfterBackward;
  };
  Optimizer optimizer{};

  // Memory of the process, and what may go to disk.
  struct Memory {
    // Memory that the whole process may take. auto is what the machine has available when a run
    // begins; none is no limit. `anabatic plan` takes auto as none.
    enum class BudgetWord { kAuto, kNone };
    std::variant<BudgetWord, std::int64_t> budget = BudgetWord::kAuto;
    // Values or segments that the backward recomputes, with or without a budget. An example is
    // experts.activation.
    std::vector<std::string> recompute{};
    // Values or segments that are never recomputed, compressed or moved to disk.
    std::vector<std::string> keep{};
    // Values, segments or parameters that stay in memory unchanged. They are never recomputed,
    // compressed or moved to disk.
    std::vector<std::string> hot{};
    // Parameters or segments whose moments go to disk, such as embedding or experts.96-127. With
    // memory.activations disk, saved activations can be named too.
    std::vector<std::string> cold{};
    // File with the choices of a plan to replay, written by `anabatic plan --save FILE`. Empty
    // plans from the keys alone.
    std::string plan{};
    // Type to which saved activations may be compressed where a budget needs it; int8 also allows
    // bf16. Both change gradients slightly.
    enum class Compress { kOff, kBf16, kInt8 };
    Compress compress = Compress::kOff;
    // Where saved activations are stored until the backward. disk allows a budget to move them to a
    // scratch file.
    enum class Activations { kResident, kDisk };
    Activations activations = Activations::kResident;
    // Where moments are stored between updates. auto moves them to disk where memory.budget needs
    // it and nothing else costs less.
    enum class OptimizerState { kAuto, kResident, kDisk };
    OptimizerState optimizer_state = OptimizerState::kAuto;
    // Where the lower 16 bits of bf16 parameters are stored between updates. disk applies to
    // parameters whose moments are on disk.
    enum class Masters { kAuto, kResident, kDisk };
    Masters masters = Masters::kAuto;
    // Where the parameters that forward and backward read are stored. disk applies to parameters
    // whose moments are on disk; each call reads them from there.
    enum class Parameters { kAuto, kResident, kDisk };
    Parameters parameters = Parameters::kAuto;
    // Directory of the scratch file for data on disk. Empty is train.output.
    std::string swap_directory{};
    // Number of slices of moments in memory at once. More slices hide more of the disk's time and
    // may need more memory.
    // Allowed: >= 1.
    std::int64_t swap_windows = 2;
    // Largest number of bytes of a moment that one update reads from disk at once. Allowed: >= 1.
    std::int64_t swap_slice = 8388608;
  };
  Memory memory{};

  // Ranks that share a step.
  struct Parallel {
    // Ranks that share each step, as threads of this process. Each has its own micro-batches and a
    // copy of the model, and computes with its share of device.threads. A step has micro_batch_size
    // x gradient_accumulation_steps x local_ranks samples.
    // Allowed: 1 to 32767.
    std::int64_t local_ranks = 1;
    // JSON file with the sizes data_parallel, tensor_parallel or model_parallel, pipeline_parallel,
    // expert_parallel and context_parallel, in place of the keys. Empty takes the keys.
    std::string strategy{};
    // Ranks that a plan is for. auto is those that are started.
    // Allowed: 1 to 32767, or std::nullopt for auto.
    std::optional<std::int64_t> world{};
    // Ranks along the data axis: each has its own samples. auto is all ranks, divided by tensor x
    // context x pipeline.
    // Allowed: 1 to 32767, or std::nullopt for auto.
    std::optional<std::int64_t> data{};
    // Ranks that share the experts of a layer. It divides tensor x context x data and the number of
    // experts.
    // Allowed: 1 to 32767.
    std::int64_t expert = 1;
    // Ranks that share the matrices of a layer. Only 1 is there yet. Allowed: 1 to 32767.
    std::int64_t tensor = 1;
    // Ranks that share the tokens of a sample. Only 1 is there yet. Allowed: 1 to 32767.
    std::int64_t context = 1;
    // Stages of layers, each on ranks of its own. Only 1 is there yet. Allowed: 1 to 32767.
    std::int64_t pipeline = 1;
    // What each rank keeps of the optimizer's state. sharded is its share, which it updates for
    // all; replicated is all of it.
    enum class Optimizer { kSharded, kReplicated };
    Optimizer optimizer = Optimizer::kSharded;
    // How gradients are summed over ranks. ordered adds in a fixed order, so that bits repeat. fast
    // takes what `bench exchange` measured to be faster, or MPI's own sums from 8 ranks on.
    enum class Reduction { kOrdered, kFast };
    Reduction reduction = Reduction::kOrdered;
    // What moves the bytes of exchanges that add nothing. ordered is our own messages; mpi is the
    // collectives of MPI's library, between processes. auto is what `bench exchange` measured to be
    // faster, else ordered.
    enum class Exchange { kAuto, kMpi, kOrdered };
    Exchange exchange = Exchange::kAuto;
    // Room for the rows that come to a rank's experts, as a multiple of an even share. A step that
    // needs more runs again with more room. auto has room for the most that can come, or less where
    // memory.budget has none for it.
    // Allowed: >= 1, or std::nullopt for auto.
    std::optional<double> expert_capacity{};
    // Compute while exchanges between ranks are under way. false awaits each one at once, with
    // equal bits.
    bool overlap = true;
    // File with the links of a cluster. Exchanges take as long as over these. Empty takes the
    // machine as it is.
    std::string emulate{};
    // Seconds for which a rank waits within a step while nothing arrives. Then the run ends, and
    // names the ranks that are missing.
    // Allowed: >= 0.001.
    double patience = 600;
  };
  Parallel parallel{};

  // Adapters that are trained in place of the model.
  struct Lora {
    // Weights that get a low-rank adapter, which is trained in place of the model. Words:
    // attention, mlp (of dense layers), shared, experts, router, embedding, head, or all
    // (attention, mlp, shared, experts). Anything else is a regular expression over names of
    // parameters.
    std::vector<std::string> targets{};
    // Rank of the adapters. auto is 16, or that of lora.from.
    // Allowed: 1 to 4096, or std::nullopt for auto.
    std::optional<std::int64_t> rank{};
    // Products of adapters are scaled by alpha / rank. auto is twice the rank, or that of
    // lora.from.
    // Allowed: >= 1e-06, or std::nullopt for auto.
    std::optional<double> alpha{};
    // Scale by alpha / root of the rank instead.
    bool rslora = false;
    // One down-projection for gate and up of experts, as PEFT has it where both are one tensor.
    // false gives each its own.
    bool share_gate_up = true;
    // Share of what adapters read that training sets to 0. auto is that of lora.from, else 0.
    // Allowed: 0 to below 1, or std::nullopt for auto.
    std::optional<double> dropout{};
    // How the frozen weights are held. auto is the dtype of train.precision. int8 has matrices of
    // projections and experts in blocks of 128 with a scale. mxfp4 has experts in blocks of 32 of 4
    // bits, as files of gpt_oss do, and others as auto.
    enum class Base { kAuto, kInt8, kMxfp4 };
    Base base = Base::kAuto;
    // Directory of an adapter to go on from, as PEFT writes it. It says which weights have one, of
    // which rank.
    std::string from{};
  };
  Lora lora{};

  // Preferences (train.objective: dpo).
  struct Dpo {
    // What the log-probabilities of a pair, less those of the reference, are scaled by. Smaller
    // lets the model move further from the reference.
    // Allowed: >= 1e-06.
    double beta = 0.1;
    // Share of pairs whose completions are taken to be in the wrong order. Of the loss sigmoid.
    // Allowed: 0 to 0.5.
    double label_smoothing = 0;
    // Loss of a pair by its margin z. sigmoid is -log sigmoid(z); hinge is max(0, 1 - z); ipo is
    // the square of the margin's distance from 1/2 beta.
    enum class Loss { kSigmoid, kHinge, kIpo };
    Loss loss = Loss::kSigmoid;
    // Take means over the tokens of a completion rather than sums. ipo does.
    bool length_normalized = false;
    // The model that log-probabilities are compared with. base is the one that training starts
    // from, without an adapter; none compares with nothing; else a model directory with the same
    // vocabulary.
    std::string reference = "base";
  };
  Dpo dpo{};

  // The machine.
  struct Device {
    // The device. cpu is the only one.
    enum class Kind { kCpu };
    Kind kind = Kind::kCpu;
    // Compute threads. 0 is one for each physical core that CPU affinity and the CPU quota allow.
    // Allowed: >= 0.
    std::int64_t threads = 0;
    // Measure the machine once, so that predicted times fit it. This takes a few seconds before the
    // first run with a memory.budget.
    bool calibrate = true;
  };
  Device device{};

  // Sampling.
  struct Generate {
    // Largest number of tokens to generate. Allowed: >= 0.
    std::int64_t max_new_tokens = 128;
    // Number by which logits are divided before sampling. 0 always takes the most likely token.
    // Allowed: >= 0.
    double temperature = 1;
    // Sample among the k most likely tokens. 0 samples among all tokens. Allowed: >= 0.
    std::int64_t top_k = 0;
    // Sample among the most likely tokens whose probabilities add up to this share.
    // Allowed: 0 to 1.
    double top_p = 1;
    // Seed of sampling. Allowed: >= 0.
    std::int64_t seed = 0;
  };
  Generate generate{};

  // Compilation of a step, for debugging.
  struct Compiler {
    // Optional passes to skip, by name. The section fusions lists them.
    std::vector<std::string> disable_passes{};
    // Keep a second packed copy of each weight for input gradients. false packs weights during the
    // backward instead, which takes less memory.
    bool pack_transposed = true;
    // Keep packed copies of weights between steps. false makes each in front of the products that
    // read it, forward and backward, which takes less memory.
    bool keep_packings = true;
    // Dense products apply every norm that they can as they copy rows, and dropout of what adapters
    // read, so that these rows are not stored. false has it where that is predicted to take no
    // longer, and where memory.budget needs the bytes. fusions.fuse_norm_linear: off has none.
    bool norms_in_products = false;
    // Directory to which every graph, plan and program is written. Empty writes none.
    std::string dump{};
    // Print why each kernel was chosen.
    bool explain_dispatch = false;
    // Plan with the simplest planners.
    bool trivial_planners = false;
    // Fill memory that is no longer in use with NaN.
    bool poison = false;
  };
  Compiler compiler{};

  // Optional passes of the compiler.
  struct Fusions {
    // On: the product of the head, the loss and their gradients are one op. Off skips this pass.
    bool fuse_head_loss = true;
    // On: products of sparse weights read what is present alone, where that is faster. Off skips
    // this pass.
    bool sparse_products = true;
    // On: products read packed copies of weights that are kept between steps. Off skips this pass.
    bool pack_weights = true;
    // On: weights, their gradients and moments have the packed layout. Off skips this pass.
    bool panel_states = true;
    // On: a bf16 copy and the lower 16 bits replace each fp32 weight. Off skips this pass.
    bool split_parameters = true;
    // On: products and the activation next to them are one op. Off skips this pass.
    bool fuse_activation = true;
    // On: products of experts gather the rows of their tokens themselves. Off skips this pass.
    bool fuse_moe_permute = true;
    // On: the router's weight multiplies the activation before the down projection. Off skips this
    // pass.
    bool move_router_weight = true;
    // On: exchanges between ranks send rows from where they are, by a map. Off skips this pass.
    bool fuse_exchange_rows = true;
    // On: the gate and up projections are one op. Off skips this pass.
    bool fuse_gate_up = true;
    // On: the query, key and value projections are one op. Off skips this pass.
    bool fuse_qkv = true;
    // On: the rotations of query and key are one op. Off skips this pass.
    bool fuse_rope = true;
    // On: with compiler.pack_transposed false, the backward packs weights itself. Off skips this
    // pass.
    bool pack_again = true;
    // On: the product that completes a gradient also sums its squares for the norm. Off skips this
    // pass.
    bool accumulate_in_gemm = true;
    // On: with moments on disk, a large parameter is updated slice by slice. Off skips this pass.
    bool slice_optimizer = true;
    // On: an update and the packing of its result are one op. Off skips this pass.
    bool fuse_optimizer = true;
    // On: a residual sum and the norm of it are one op. Off skips this pass.
    bool fuse_norm_residual = true;
    // On: dense products may normalise the rows that they copy, and drop what adapters read; such
    // rows are not stored then (compiler.norms_in_products). Off skips this pass.
    bool fuse_norm_linear = true;
    // On: equal ops on equal values run once. Off skips this pass.
    bool common_subexpression = true;
    // On: ops whose results nothing reads are removed. Off skips this pass.
    bool dead_code = true;
    // On: products do not write gate and up if the backward recomputes both. Off skips this pass.
    bool drop_kept_products = true;
    // On: products quantise gate and up themselves if a budget keeps them as int8. Off skips this
    // pass.
    bool quantize_in_product = true;
    // On: the gradient that reads gate and up also recomputes their activation. Off skips this
    // pass.
    bool activation_with_gradient = true;
    // On: the gradient of an activation reads gate and up as int8. Off skips this pass.
    bool read_quantized = true;
  };
  Fusions fusions{};
};

// The keys whose values differ from the defaults, as text. Values are checked where they are used.
ANABATIC_API Settings to_settings(const Config& config);
// Every key with its value, as YAML writes it, where `settings` override the YAML file, if there is
// one. InvalidArgument lists every problem.
ANABATIC_API std::map<std::string, std::string> resolve_keys(const Settings& settings,
                                                             const std::string& yaml_file = "");

}  // namespace anabatic
