// SPDX-License-Identifier: Apache-2.0
// The model that a run trains, as far as keys of the run decide: layers of multi-token prediction,
// and what balances the experts where keys leave that to the model.
#pragma once
#include "model/model.h"
#include "train/run_config.h"

namespace anabatic::train {

// The config of run.model.path. Layers of multi-token prediction are a part of it where the files
// hold them and model.keep_mtp is true, or in a random start where train.mtp_loss_coef is above 0.
// InvalidArgument where that coefficient has no such layers. With the adapter that keys ask for,
// and the blocks of keys.
model::ModelConfig load_run_model(const RunConfig& run);

// The graph of the model's forward, with the ops of plugins that model.replace names, and with the
// adapter.
ir::Graph forward_graph(const RunConfig& run, const model::ModelConfig& config,
                        const model::BuildOptions& options);

// The same run without these layers, for verbs that do not train.
RunConfig without_mtp(RunConfig run);

// Says that config.json names layers which the files do not hold.
void note_missing_mtp(const RunConfig& run, const model::ModelConfig& config);

// Says that the weights were trained with ops of plugins that this run does not use.
void note_replaced_ops(const RunConfig& run);

// What the keys' `auto` stands for.
double mtp_coef_of(const RunConfig& run, const model::ModelConfig& config);
double balance_coef_of(const RunConfig& run, const model::ModelConfig& config);
model::Dropout dropout_of(const RunConfig& run, const model::ModelConfig& config);
double router_bias_rate_of(const RunConfig& run, const model::ModelConfig& config);

// Whether a loss or the bias rule balances experts in training; true without experts.
bool balances_experts(const RunConfig& run, const model::ModelConfig& config);

// What training drops, by which keys, and what it does not, as "dropout.residual 0.1
// (config.json)". Empty where files and keys say 0, and for pairs.
std::string dropout_to_string(const RunConfig& run, const model::ModelConfig& config);

// What the balance loss counts, where transformers' counts something else than what was chosen;
// empty where it does not.
std::string note_on_balance_loss(const RunConfig& run, const model::ModelConfig& config);

}  // namespace anabatic::train
