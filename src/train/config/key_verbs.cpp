// SPDX-License-Identifier: Apache-2.0
#include "train/config/key_verbs.h"

#include <algorithm>
#include <array>

namespace anabatic::train {
namespace {

struct Row {
  std::string_view key;    // a whole key, or a section with its dot
  std::string_view verbs;  // separated by a space
};

// The longest row that is a prefix of a key applies. A verb that takes a run config reads every
// key.
constexpr std::string_view kRun = "train plan profile";
constexpr std::string_view kRunAndEvaluate = "train evaluate plan profile";
constexpr std::string_view kRowLengths = "train evaluate data plan profile";
constexpr std::string_view kRunAndGradients = "train gradients plan profile bench";
constexpr std::string_view kRunAndBench = "train plan profile bench";
constexpr std::string_view kText = "train evaluate tokenize data plan profile";
constexpr std::string_view kTextAndGenerate = "train evaluate generate tokenize data plan profile";
constexpr std::string_view kModel = "train evaluate generate gradients plan profile";
constexpr std::string_view kAnyModel = "train evaluate generate gradients plan profile bench";
constexpr std::array kRows{
    Row{"model.path", "train evaluate generate tokenize data plan profile bench lora"},
    Row{"model.init", kModel},
    Row{"model.keep_mtp", kRunAndGradients},
    Row{"model.plugins", kAnyModel},
    Row{"model.replace", kModel},
    Row{"model.adapter", "evaluate generate gradients"},
    Row{"data.", kRun},
    Row{"data.validation", kRunAndEvaluate},
    Row{"data.sequence_length", kRowLengths},
    Row{"data.packing", kRunAndEvaluate},
    Row{"data.chat_template", kTextAndGenerate},
    Row{"data.now", kTextAndGenerate},
    Row{"data.allow_special_in_content", kTextAndGenerate},
    Row{"data.require_stop_token", kText},
    Row{"data.loss_on", kText},
    Row{"data.max_length", kRowLengths},
    Row{"data.truncation", kRowLengths},
    Row{"data.append_eos", kText},
    Row{"data.format", kText},
    Row{"data.cache", kRunAndEvaluate},
    Row{"data.add_bos", kTextAndGenerate},
    Row{"train.", kRun},
    Row{"train.objective", "train evaluate tokenize plan profile"},
    Row{"train.micro_batch_size", kRunAndEvaluate},
    Row{"train.gradient_accumulation_steps", kRunAndBench},
    Row{"train.precision", kAnyModel},
    Row{"train.seed", kAnyModel},
    Row{"train.output", "train evaluate plan profile doctor"},
    Row{"train.router_z_loss_coef", kRunAndBench},
    Row{"train.router_bias_update_rate", kRun},
    Row{"train.balance_", kRunAndBench},
    Row{"train.mtp_loss_coef", kRunAndGradients},
    Row{"precision.", kRunAndBench},
    Row{"precision.int8.fallback", kRunAndGradients},
    Row{"precision.keep", kRunAndGradients},
    Row{"precision.critical", kRunAndGradients},
    Row{"quantization.", kRunAndBench},
    Row{"sparsity.", kRunAndBench},
    Row{"dropout.", kRunAndBench},
    Row{"attention.", kAnyModel},
    Row{"optimizer.", kRunAndBench},
    Row{"memory.", kRunAndBench},
    Row{"memory.swap_directory", "train plan profile bench doctor"},
    Row{"parallel.", kRun},
    Row{"lora.", kRunAndBench},
    Row{"dpo.", kRun},
    Row{"parallel.emulate", "train"},
    Row{"parallel.patience", "train"},
    Row{"device.", "train evaluate generate gradients tokenize plan profile bench doctor"},
    Row{"device.calibrate", kRun},
    Row{"generate.", "generate"},
    Row{"generate.max_new_tokens", "generate evaluate"},
    Row{"compiler.", kAnyModel},
    Row{"fusions.", kAnyModel},
};

struct Section {
  std::string_view name, title;
};
constexpr std::array kSections{
    Section{"model", "the model"},
    Section{"data", "text and how it fills samples"},
    Section{"train", "length, precision, checkpoints and losses of a run"},
    Section{"precision", "precision of single products, scale of the loss"},
    Section{"quantization", "training on the values of a quantised file"},
    Section{"sparsity", "weights that become sparse"},
    Section{"dropout", "elements that training sets to 0 at random"},
    Section{"attention", "which keys attention reads"},
    Section{"optimizer", "the optimizer and its schedule"},
    Section{"memory", "memory of the process, and what may go to disk"},
    Section{"parallel", "ranks that share a step"},
    Section{"lora", "adapters that are trained in place of the model"},
    Section{"dpo", "preferences (train.objective: dpo)"},
    Section{"device", "the machine"},
    Section{"generate", "sampling"},
    Section{"compiler", "compilation of a step, for debugging"},
    Section{"fusions", "optional passes of the compiler"},
};

}  // namespace

std::vector<std::string_view> verbs_reading(std::string_view key) {
  std::string_view verbs = kRun;
  std::size_t longest = 0;
  for (const Row& row : kRows)
    if (key.starts_with(row.key) && row.key.size() > longest) {
      longest = row.key.size();
      verbs = row.verbs;
    }
  std::vector<std::string_view> list;
  while (!verbs.empty()) {
    const std::size_t end = std::min(verbs.find(' '), verbs.size());
    list.push_back(verbs.substr(0, end));
    verbs.remove_prefix(std::min(end + 1, verbs.size()));
  }
  // It runs parts of a step, as `profile` does.
  if (std::find(list.begin(), list.end(), "profile") != list.end()) list.emplace_back("check");
  return list;
}

bool reads_key(std::string_view verb, std::string_view key) {
  const std::vector<std::string_view> verbs = verbs_reading(key);
  return std::find(verbs.begin(), verbs.end(), verb) != verbs.end();
}

std::string_view section_title(std::string_view section) {
  for (const Section& known : kSections)
    if (known.name == section) return known.title;
  return "";
}

}  // namespace anabatic::train
