// SPDX-License-Identifier: Apache-2.0
#include "train/objective/run_model.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/log.h"
#include "io/gguf.h"
#include "model/mtp.h"
#include "plugin/replace_ops.h"
#include "train/attention/key_blocks.h"
#include "train/checkpoint/checkpoint_progress.h"
#include "train/config/dropout_keys.h"
#include "train/lora/run_adapter.h"
#include "train/model_session.h"

namespace anabatic::train {
namespace {

constexpr double kMtpCoef = 0.1;          // DeepSeek-V3's at the end of its training
constexpr double kRouterBiasRate = 1e-3;  // DeepSeek-V3's

bool is_random(const RunConfig& run) { return run.model.init == "random"; }

bool has_mtp(const RunConfig& run, const model::ModelConfig& config) {
  // An adapter is of the model's own layers: those after them are read for their loss alone.
  const bool has_adapter = trains_adapter(run) || !run.model.adapter.empty();
  if (has_adapter && run.train.mtp_loss_coef <= 0) return false;
  if (!run.model.keep_mtp || config.mtp_layers.empty()) return false;
  if (is_random(run)) return run.train.mtp_loss_coef > 0;
  return !io::is_gguf(run.model.path) && model::holds_mtp(config, model_directory(run.model.path));
}

}  // namespace

model::ModelConfig load_run_model(const RunConfig& run) {
  require_no_adapter(run.model.path);
  model::ModelConfig config = model::load_config(run.model.path);
  const double coef = run.train.mtp_loss_coef;
  if (has_mtp(run, config)) {
    model::take_mtp(config, coef != 0 && !trains_on_pairs(run));
  } else if (coef > 0) {
    throw InvalidArgument(fmt::format(
        "[train] train.mtp_loss_coef: expected layers of multi-token prediction, as {} and "
        "model.keep_mtp true give them, found none ({})",
        is_random(run) ? "num_nextn_predict_layers of config.json" : "the files of model.path",
        coef));
  }
  config.adapter = adapter_of(run, config);
  config.key_blocks = key_blocks_of(run, config);
  return config;
}

ir::Graph forward_graph(const RunConfig& run, const model::ModelConfig& config,
                        const model::BuildOptions& options) {
  ir::Graph graph = model::build_graph(config, options);
  plugin::replace_ops(graph, run.model.replace, plugin::plugin_set(run.model.plugins));
  if (config.adapter) model::add_adapter(graph, *config.adapter, options.dropout.adapter);
  return graph;
}

RunConfig without_mtp(RunConfig run) {
  run.model.keep_mtp = false;
  run.train.mtp_loss_coef = 0;
  return run;
}

void note_missing_mtp(const RunConfig& run, const model::ModelConfig& config) {
  if (!run.model.keep_mtp || is_random(run) || config.mtp_layers.empty() ||
      !config.spec.mtp.empty())
    return;
  log_info("{}: config.json names {} layer{} of multi-token prediction, the files hold none",
           run.model.path, config.mtp_layers.size(), config.mtp_layers.size() == 1 ? "" : "s");
}

void note_replaced_ops(const RunConfig& run) {
  const std::filesystem::path saved = model_directory(run.model.path) / kRunConfigFile;
  std::error_code ignored;
  if (is_random(run) || !std::filesystem::is_regular_file(saved, ignored)) return;
  std::vector<plugin::Replacement> replaced;
  try {
    replaced = load_run_config(saved, {}).model.replace;
  } catch (const Error&) {
    return;  // of a version with other keys, and so of another's ops
  }
  const auto show = [](const std::vector<plugin::Replacement>& list) {
    std::string text;
    for (const plugin::Replacement& one : list)
      text += (text.empty() ? "" : ", ") + plugin::to_string(one);
    return text.empty() ? std::string("none") : text;
  };
  if (show(replaced) != show(run.model.replace))
    log_warning(
        "{}: trained with model.replace {}; this run has {}, and computes another function "
        "where they differ",
        run.model.path, show(replaced), show(run.model.replace));
}

double mtp_coef_of(const RunConfig& run, const model::ModelConfig& config) {
  if (config.spec.mtp.empty() || trains_on_pairs(run)) return 0;
  return run.train.mtp_loss_coef == RunConfig::Train::kCoefOfFiles ? kMtpCoef
                                                                   : run.train.mtp_loss_coef;
}

double balance_coef_of(const RunConfig& run, const model::ModelConfig& config) {
  return run.train.balance_coef == RunConfig::Train::kCoefOfModel ? config.router_aux_loss_coef
                                                                  : run.train.balance_coef;
}

namespace {

// That of the key, or where it is auto what config.json says under another name.
double rate_of(double key, double of_config, const char* name, const char* field) {
  if (key != RunConfig::kUsualDropout) return key;
  const std::string problem = problem_of_rate(of_config);
  ANABATIC_REQUIRE(problem.empty(), "[config] {}: {}; {} overrides it", field, problem, name);
  return of_config;
}

}  // namespace

model::Dropout dropout_of(const RunConfig& run, const model::ModelConfig& config) {
  if (trains_on_pairs(run)) return {};
  return {.residual = rate_of(run.dropout.residual, config.dropout.residual, "dropout.residual",
                              "resid_pdrop"),
          .embedding = rate_of(run.dropout.embedding, config.dropout.embedding, "dropout.embedding",
                               "embd_pdrop"),
          .attention = rate_of(run.dropout.attention, config.dropout.attention, "dropout.attention",
                               config.model_type == "gpt2" ? "attn_pdrop" : "attention_dropout"),
          .adapter = trains_adapter(run) && config.adapter ? config.adapter->dropout : 0};
}

std::string dropout_to_string(const RunConfig& run, const model::ModelConfig& config) {
  if (trains_on_pairs(run)) return "";
  const model::Dropout rates = dropout_of(run, config);
  std::vector<std::string> parts;
  const auto add = [&](const char* name, double rate, double key, const char* source) {
    if (rate > 0)
      parts.push_back(
          fmt::format("{} {}{}", name, rate, key == RunConfig::kUsualDropout ? source : ""));
  };
  add("dropout.residual", rates.residual, run.dropout.residual, " (config.json)");
  add("dropout.embedding", rates.embedding, run.dropout.embedding, " (config.json)");
  add("dropout.attention", rates.attention, run.dropout.attention, " (config.json)");
  add("lora.dropout", rates.adapter, run.lora.dropout, " (lora.from)");
  return fmt::format("{}", fmt::join(parts, ", "));
}

double router_bias_rate_of(const RunConfig& run, const model::ModelConfig& config) {
  if (run.train.router_bias_update_rate != RunConfig::Train::kRateOfModel)
    return run.train.router_bias_update_rate;
  const model::Moe* moe = model::first_moe(config.spec);
  const bool has_bias = moe != nullptr && moe->router.form.has_bias;
  return is_random(run) && has_bias && !config.has_balance_loss ? kRouterBiasRate : 0;
}

bool balances_experts(const RunConfig& run, const model::ModelConfig& config) {
  return model::num_experts(config.spec) == 0 || router_bias_rate_of(run, config) != 0 ||
         (run.train.balance_loss != "none" && balance_coef_of(run, config) != 0);
}

std::string note_on_balance_loss(const RunConfig& run, const model::ModelConfig& config) {
  const model::Moe* moe = model::first_moe(config.spec);
  if (moe == nullptr || !config.has_balance_loss || run.train.balance_loss == "none" ||
      balance_coef_of(run, config) == 0)
    return "";
  const spec::RouterForm& form = moe->router.form;
  if (form.score == spec::RouterScore::kSoftmax && form.chooses_by_logits()) return "";
  constexpr const char* kTopK = "the experts with the largest softmax(logits)";
  if (run.train.balance_loss == "all_layers")
    return fmt::format(
        "train.balance_loss all_layers counts {}, as transformers does, not those that the router "
        "chose",
        kTopK);
  return fmt::format(
      "train.balance_loss {} counts the experts that the router chose; transformers, and "
      "all_layers, count {}",
      run.train.balance_loss, kTopK);
}

}  // namespace anabatic::train
