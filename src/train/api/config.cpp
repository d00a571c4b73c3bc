// SPDX-License-Identifier: Apache-2.0
// Every field under the name of its key. tools/print_config writes this file.
#include "train/api/config_values.h"

namespace anabatic::train {
namespace {

void add(Settings& all, const Config::Model& model) {
  all["model.path"] = values(model.path);
  all["model.init"] = values(model.init, {"random", "pretrained"});
  all["model.keep_mtp"] = values(model.keep_mtp);
  all["model.plugins"] = values(model.plugins);
  all["model.replace"] = values(model.replace);
  all["model.adapter"] = values(model.adapter);
}

void add(Settings& all, const Config::Data& data) {
  all["data.train"] = values(data.train);
  all["data.validation"] = values(data.validation);
  all["data.sequence_length"] = values(data.sequence_length);
  all["data.packing"] = values(data.packing, {"auto", "isolated", "concatenated", "best_fit"});
  all["data.shuffle"] = values(data.shuffle);
  all["data.add_bos"] = values(data.add_bos, {"auto", "true", "false"});
  all["data.append_eos"] = values(data.append_eos, {"auto", "true", "false"});
  all["data.format"] = values(data.format, {"auto", "text", "jsonl", "json", "bin"});
  all["data.cache"] = values(data.cache);
  all["data.chat_template"] = values(data.chat_template);
  all["data.now"] = values(data.now);
  all["data.allow_special_in_content"] = values(data.allow_special_in_content);
  all["data.require_stop_token"] = values(data.require_stop_token);
  all["data.loss_on"] = values(data.loss_on, {"assistant", "completion", "all"});
  all["data.max_length"] = values(data.max_length, "auto");
  all["data.truncation"] = values(data.truncation, {"keep_start", "keep_end", "drop", "error"});
}

void add(Settings& all, const Config::Train& train) {
  all["train.objective"] = values(train.objective, {"lm", "sft", "dpo"});
  all["train.steps"] = values(train.steps);
  all["train.micro_batch_size"] = values(train.micro_batch_size);
  all["train.gradient_accumulation_steps"] = values(train.gradient_accumulation_steps);
  all["train.gradient_leaves"] = values(train.gradient_leaves, "auto");
  all["train.precision"] =
      values(train.precision, {"auto", "adaptive", "bf16", "fp16", "fp32", "int8", "mixed"});
  all["train.seed"] = values(train.seed);
  all["train.output"] = values(train.output);
  all["train.resume"] = values(train.resume, {"auto", "never"});
  all["train.allow_changed_data"] = values(train.allow_changed_data);
  all["train.check_leak"] = values(train.check_leak, {"first", "off"});
  all["train.save_every"] = values(train.save_every);
  all["train.validate_every"] = values(train.validate_every);
  all["train.log_every"] = values(train.log_every, "auto");
  all["train.keep_last"] = values(train.keep_last);
  all["train.save_dtype"] = values(train.save_dtype, {"source", "fp32"});
  all["train.balance_loss"] =
      values(train.balance_loss, {"layer", "sequence", "all_layers", "none"});
  all["train.balance_coef"] = values(train.balance_coef, "auto");
  all["train.router_z_loss_coef"] = values(train.router_z_loss_coef);
  all["train.router_bias_update_rate"] = values(train.router_bias_update_rate, "auto");
  all["train.mtp_loss_coef"] = values(train.mtp_loss_coef, "auto");
}

void add(Settings& all, const Config::Precision& precision) {
  all["precision.int8.fallback"] = values(precision.int8_fallback, "off");
  all["precision.keep"] = values(precision.keep);
  all["precision.critical"] = values(precision.critical);
  all["precision.validation"] = values(precision.validation, {"bf16", "train"});
  all["precision.loss_scale"] = values(precision.loss_scale, {"auto", "dynamic"});
  all["precision.adaptive.error"] = values(precision.adaptive_error);
  all["precision.adaptive.every"] = values(precision.adaptive_every);
  all["precision.adaptive.lock"] = values(precision.adaptive_lock);
  all["precision.adaptive.high_share"] = values(precision.adaptive_high_share);
}

void add(Settings& all, const Config::Quantization& quantization) {
  all["quantization.enable"] = values(quantization.enable);
  all["quantization.units"] = values(quantization.units);
  all["quantization.format"] =
      values(quantization.format, {"auto", "int8_channel", "int4_group", "q8_0", "q4_0", "mxfp4"});
  all["quantization.group"] = values(quantization.group, {"auto", "32", "64", "128"});
  all["quantization.bit_num"] = values(quantization.bit_num, {"auto", "8", "4"});
  all["quantization.per_channel"] = values(quantization.per_channel, {"auto", "true", "false"});
  all["quantization.quant_delay"] = values(quantization.quant_delay);
  all["quantization.activations"] = values(quantization.activations, {"off", "int8_token"});
}

void add(Settings& all, const Config::Sparsity& sparsity) {
  all["sparsity.weights"] = values(sparsity.weights);
}

void add(Settings& all, const Config::Dropout& dropout) {
  all["dropout.residual"] = values(dropout.residual, "auto");
  all["dropout.embedding"] = values(dropout.embedding, "auto");
  all["dropout.attention"] = values(dropout.attention, "auto");
}

void add(Settings& all, const Config::Attention& attention) {
  all["attention.blocks.size"] = values(attention.blocks_size, {"auto", "off"});
  all["attention.blocks.local"] = values(attention.blocks_local);
  all["attention.blocks.global"] = values(attention.blocks_global);
  all["attention.blocks.stride"] = values(attention.blocks_stride);
  all["attention.blocks.random"] = values(attention.blocks_random);
  all["attention.blocks.seed"] = values(attention.blocks_seed);
  all["attention.blocks.file"] = values(attention.blocks_file);
}

void add(Settings& all, const Config::Optimizer& optimizer) {
  all["optimizer.name"] = values(optimizer.name, {"adamw"});
  all["optimizer.learning_rate"] = values(optimizer.learning_rate);
  all["optimizer.betas"] = values(optimizer.betas);
  all["optimizer.epsilon"] = values(optimizer.epsilon);
  all["optimizer.weight_decay"] = values(optimizer.weight_decay);
  all["optimizer.clip_grad_norm"] = values(optimizer.clip_grad_norm);
  all["optimizer.schedule"] = values(optimizer.schedule, {"cosine", "linear", "constant"});
  all["optimizer.warmup_steps"] = values(optimizer.warmup_steps);
  all["optimizer.min_learning_rate"] = values(optimizer.min_learning_rate);
  all["optimizer.decay_norms_and_biases"] = values(optimizer.decay_norms_and_biases);
  all["optimizer.state_precision"] = values(optimizer.state_precision, {"fp32", "bf16", "int8"});
  all["optimizer.update"] = values(optimizer.update, {"after_backward", "in_backward"});
}

void add(Settings& all, const Config::Memory& memory) {
  all["memory.budget"] = values(memory.budget, {"auto", "none"});
  all["memory.recompute"] = values(memory.recompute);
  all["memory.keep"] = values(memory.keep);
  all["memory.hot"] = values(memory.hot);
  all["memory.cold"] = values(memory.cold);
  all["memory.plan"] = values(memory.plan);
  all["memory.compress"] = values(memory.compress, {"off", "bf16", "int8"});
  all["memory.activations"] = values(memory.activations, {"resident", "disk"});
  all["memory.optimizer_state"] = values(memory.optimizer_state, {"auto", "resident", "disk"});
  all["memory.masters"] = values(memory.masters, {"auto", "resident", "disk"});
  all["memory.parameters"] = values(memory.parameters, {"auto", "resident", "disk"});
  all["memory.swap_directory"] = values(memory.swap_directory);
  all["memory.swap_windows"] = values(memory.swap_windows);
  all["memory.swap_slice"] = values(memory.swap_slice);
}

void add(Settings& all, const Config::Parallel& parallel) {
  all["parallel.local_ranks"] = values(parallel.local_ranks);
  all["parallel.strategy"] = values(parallel.strategy);
  all["parallel.world"] = values(parallel.world, "auto");
  all["parallel.data"] = values(parallel.data, "auto");
  all["parallel.expert"] = values(parallel.expert);
  all["parallel.tensor"] = values(parallel.tensor);
  all["parallel.context"] = values(parallel.context);
  all["parallel.pipeline"] = values(parallel.pipeline);
  all["parallel.optimizer"] = values(parallel.optimizer, {"sharded", "replicated"});
  all["parallel.reduction"] = values(parallel.reduction, {"ordered", "fast"});
  all["parallel.exchange"] = values(parallel.exchange, {"auto", "mpi", "ordered"});
  all["parallel.expert_capacity"] = values(parallel.expert_capacity, "auto");
  all["parallel.overlap"] = values(parallel.overlap);
  all["parallel.emulate"] = values(parallel.emulate);
  all["parallel.patience"] = values(parallel.patience);
}

void add(Settings& all, const Config::Lora& lora) {
  all["lora.targets"] = values(lora.targets);
  all["lora.rank"] = values(lora.rank, "auto");
  all["lora.alpha"] = values(lora.alpha, "auto");
  all["lora.rslora"] = values(lora.rslora);
  all["lora.share_gate_up"] = values(lora.share_gate_up);
  all["lora.dropout"] = values(lora.dropout, "auto");
  all["lora.base"] = values(lora.base, {"auto", "int8", "mxfp4"});
  all["lora.from"] = values(lora.from);
}

void add(Settings& all, const Config::Dpo& dpo) {
  all["dpo.beta"] = values(dpo.beta);
  all["dpo.label_smoothing"] = values(dpo.label_smoothing);
  all["dpo.loss"] = values(dpo.loss, {"sigmoid", "hinge", "ipo"});
  all["dpo.length_normalized"] = values(dpo.length_normalized);
  all["dpo.reference"] = values(dpo.reference);
}

void add(Settings& all, const Config::Device& device) {
  all["device.kind"] = values(device.kind, {"cpu"});
  all["device.threads"] = values(device.threads);
  all["device.calibrate"] = values(device.calibrate);
}

void add(Settings& all, const Config::Generate& generate) {
  all["generate.max_new_tokens"] = values(generate.max_new_tokens);
  all["generate.temperature"] = values(generate.temperature);
  all["generate.top_k"] = values(generate.top_k);
  all["generate.top_p"] = values(generate.top_p);
  all["generate.seed"] = values(generate.seed);
}

void add(Settings& all, const Config::Compiler& compiler) {
  all["compiler.disable_passes"] = values(compiler.disable_passes);
  all["compiler.pack_transposed"] = values(compiler.pack_transposed);
  all["compiler.keep_packings"] = values(compiler.keep_packings);
  all["compiler.norms_in_products"] = values(compiler.norms_in_products);
  all["compiler.dump"] = values(compiler.dump);
  all["compiler.explain_dispatch"] = values(compiler.explain_dispatch);
  all["compiler.trivial_planners"] = values(compiler.trivial_planners);
  all["compiler.poison"] = values(compiler.poison);
}

void add(Settings& all, const Config::Fusions& fusions) {
  all["fusions.fuse_head_loss"] = values(fusions.fuse_head_loss);
  all["fusions.sparse_products"] = values(fusions.sparse_products);
  all["fusions.pack_weights"] = values(fusions.pack_weights);
  all["fusions.panel_states"] = values(fusions.panel_states);
  all["fusions.split_parameters"] = values(fusions.split_parameters);
  all["fusions.fuse_activation"] = values(fusions.fuse_activation);
  all["fusions.fuse_moe_permute"] = values(fusions.fuse_moe_permute);
  all["fusions.move_router_weight"] = values(fusions.move_router_weight);
  all["fusions.fuse_exchange_rows"] = values(fusions.fuse_exchange_rows);
  all["fusions.fuse_gate_up"] = values(fusions.fuse_gate_up);
  all["fusions.fuse_qkv"] = values(fusions.fuse_qkv);
  all["fusions.fuse_rope"] = values(fusions.fuse_rope);
  all["fusions.pack_again"] = values(fusions.pack_again);
  all["fusions.accumulate_in_gemm"] = values(fusions.accumulate_in_gemm);
  all["fusions.slice_optimizer"] = values(fusions.slice_optimizer);
  all["fusions.fuse_optimizer"] = values(fusions.fuse_optimizer);
  all["fusions.fuse_norm_residual"] = values(fusions.fuse_norm_residual);
  all["fusions.fuse_norm_linear"] = values(fusions.fuse_norm_linear);
  all["fusions.common_subexpression"] = values(fusions.common_subexpression);
  all["fusions.dead_code"] = values(fusions.dead_code);
  all["fusions.drop_kept_products"] = values(fusions.drop_kept_products);
  all["fusions.quantize_in_product"] = values(fusions.quantize_in_product);
  all["fusions.activation_with_gradient"] = values(fusions.activation_with_gradient);
  all["fusions.read_quantized"] = values(fusions.read_quantized);
}

}  // namespace

Settings all_settings(const Config& config) {
  Settings all;
  add(all, config.model);
  add(all, config.data);
  add(all, config.train);
  add(all, config.precision);
  add(all, config.quantization);
  add(all, config.sparsity);
  add(all, config.dropout);
  add(all, config.attention);
  add(all, config.optimizer);
  add(all, config.memory);
  add(all, config.parallel);
  add(all, config.lora);
  add(all, config.dpo);
  add(all, config.device);
  add(all, config.generate);
  add(all, config.compiler);
  add(all, config.fusions);
  return all;
}

}  // namespace anabatic::train
