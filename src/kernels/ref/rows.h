// SPDX-License-Identifier: Apache-2.0
// The ref kernels by op, each in the file of its family; table.cpp lists them.
#pragma once
#include "kernels/kernel.h"

namespace anabatic::kernels::ref {

// elementwise.cpp
void add(const Arguments& args);
void cache_write(const Arguments& args);
void cast(const Arguments& args);
void clamp(const Arguments& args);
void clamp_gradient(const Arguments& args);
void exchange_alone(const Arguments& args);  // in a group of one
void reload(const Arguments& args);
void dropout(const Arguments& args);
void fake_quantize_tokens(const Arguments& args);
void embedding(const Arguments& args);
void embedding_weight_gradient(const Arguments& args);
void fill(const Arguments& args);
void gate_rows(const Arguments& args);
void gate_rows_gradient(const Arguments& args);
void pack(const Arguments& args);
void scale(const Arguments& args);
void scale_by(const Arguments& args);
void sum_rows(const Arguments& args);
void activation(const Arguments& args);
void activation_gradient(const Arguments& args);

// attention.cpp
void attention(const Arguments& args);
void attention_gradient(const Arguments& args);
void sinks_gradient(const Arguments& args);
std::int64_t attention_workspace_bytes(const spec::Problem& problem);
std::int64_t attention_gradient_workspace_bytes(const spec::Problem& problem);

// fake_quantize.cpp
void fake_quantize(const Arguments& args);

// join_heads.cpp
void join_heads(const Arguments& args);
void join_heads_gradient(const Arguments& args);

// expert_bias.cpp
void expert_bias(const Arguments& args);
void expert_bias_router_gradient(const Arguments& args);
void expert_bias_weight_gradient(const Arguments& args);

// linear.cpp
void grouped_linear(const Arguments& args);
void grouped_linear_input_gradient(const Arguments& args);
void grouped_linear_weight_gradient(const Arguments& args);
void grouped_linear_weight_gradient_squares(const Arguments& args);
void linear(const Arguments& args);
void linear_input_gradient(const Arguments& args);
void linear_weight_gradient(const Arguments& args);
void linear_weight_gradient_squares(const Arguments& args);

// linear_many.cpp
void grouped_linear_many(const Arguments& args);
void grouped_linear_many_input_gradient(const Arguments& args);
void grouped_linear_many_weight_gradient(const Arguments& args);
void linear_many(const Arguments& args);
void linear_many_input_gradient(const Arguments& args);
void linear_many_weight_gradient(const Arguments& args);
// sparse.cpp
void grouped_sparse_linear(const Arguments& args);
void grouped_sparse_linear_input_gradient(const Arguments& args);
void grouped_sparse_linear_weight_gradient(const Arguments& args);
void pack_sparse(const Arguments& args);
void sparse_index(const Arguments& args);
void sparse_linear(const Arguments& args);
void sparse_linear_input_gradient(const Arguments& args);
void sparse_linear_weight_gradient(const Arguments& args);
// linear_activation.cpp
void grouped_linear_activation(const Arguments& args);
void grouped_linear_activation_gradient(const Arguments& args);
void grouped_linear_activation_gradient_with_weights(const Arguments& args);
void grouped_linear_activation_with_codes(const Arguments& args);
void grouped_linear_activation_with_products(const Arguments& args);
void linear_activation(const Arguments& args);
void linear_activation_gradient(const Arguments& args);
void linear_activation_with_codes(const Arguments& args);
void linear_activation_with_products(const Arguments& args);

// preference_loss.cpp
void preference_loss(const Arguments& args);
std::int64_t preference_loss_workspace_bytes(const spec::Problem& problem);

// quantize.cpp
void dequantize(const Arguments& args);
void quantize(const Arguments& args);
std::int64_t quantize_workspace_bytes(const spec::Problem& problem);

// loss.cpp
void cross_entropy(const Arguments& args);
void cross_entropy_gradient(const Arguments& args);
void head_loss(const Arguments& args);
void head_loss_with_gradient(const Arguments& args);
void head_loss_with_input_gradient(const Arguments& args);
std::int64_t head_loss_workspace_bytes(const spec::Problem& problem);
void label_log_probabilities(const Arguments& args);
void head_log_probabilities(const Arguments& args);
std::int64_t label_log_probabilities_workspace_bytes(const spec::Problem& problem);

// moe.cpp
void dispatch_map(const Arguments& args);
void exchange_rows(const Arguments& args);  // in a group of one
void permute(const Arguments& args);
void permute_gradient(const Arguments& args);
void route_sort(const Arguments& args);
void unpermute(const Arguments& args);
void unpermute_gradient(const Arguments& args);

// norm.cpp
void add_norm_statistics(const Arguments& args);
void add_rms_norm(const Arguments& args);
void layer_norm(const Arguments& args);
void layer_norm_input_gradient(const Arguments& args);
void layer_norm_weight_gradient(const Arguments& args);
void norm_statistics(const Arguments& args);
void rms_norm(const Arguments& args);
void rms_norm_input_gradient(const Arguments& args);
void rms_norm_weight_gradient(const Arguments& args);

// optimizer.cpp
void clip_factor(const Arguments& args);
void global_norm(const Arguments& args);
void optimizer_step(const Arguments& args);
void sum_squares(const Arguments& args);
void sum_leaves(const Arguments& args);
void sum_squares_of_parts(const Arguments& args);

// rope.cpp
void rope(const Arguments& args);
void rope_pair(const Arguments& args);
void rope_table(const Arguments& args);

// router.cpp
void router(const Arguments& args);
void router_gradient(const Arguments& args);

// router_losses.cpp
void load_balancing_loss(const Arguments& args);
void load_balancing_loss_gradient(const Arguments& args);
void router_z_loss(const Arguments& args);
void router_z_loss_gradient(const Arguments& args);
void sequence_balance_loss(const Arguments& args);
void sequence_balance_loss_gradient(const Arguments& args);

}  // namespace anabatic::kernels::ref
