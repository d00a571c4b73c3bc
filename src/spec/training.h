// SPDX-License-Identifier: Apache-2.0
// Training options as the passes and the compiler read them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "spec/product.h"
#include "tensor/weight_grid.h"

namespace anabatic::spec {

// kBf16: bf16 activations and matrix copies, fp32 master weights and accumulation. kInt8: likewise,
// with products of trained matrices in int8. kFp16: likewise, in f16 in place of bf16; arithmetic
// is in f32. kMixed: bf16, with gradients of activations in f16.
enum class Precision : std::uint8_t { kFp32, kBf16, kInt8, kFp16, kMixed };

// Products of a weight in one role that a measured error has raised above the policy. A head that
// is fused with its loss has all of them in kForward.
struct RaisedProduct {
  std::string weight;  // its whole name without ".weight"
  ProductRole role{};
  Precision precision{};  // kBf16 or kFp32

  auto operator<=>(const RaisedProduct&) const = default;
};

// What differs from the policy for some products.
struct ProductOptions {
  std::int64_t fallback = kDefaultFallback;  // of int8 products
  // kFp32, kBf16 or kInt8 by unit: a part of the dotted name of a weight without ".weight", such
  // as "attention" or "layers.3.experts.down", or a segment.
  std::vector<std::pair<std::string, Precision>> keep{};
  std::vector<std::string> critical{};  // units that have no int8 products
  std::vector<RaisedProduct> raised{};
};

// Quantization-aware training: products of some weights read the values that a file in this grid
// holds of them. Weights that are trained stay f32; those under an adapter are rounded as they are
// loaded.
struct QuantizationOptions {
  std::optional<WeightGrid> grid{};  // none: off
  std::vector<std::string> units{};  // of products, as in ProductOptions::keep
  std::int64_t delay = 0;            // updates after which it begins
  bool rounds_activations = false;   // rows that these products read too (fake_quantize_tokens)

  bool operator==(const QuantizationOptions&) const = default;
};

// Precision of the moments of matrices. kBf16: rounded stochastically. kInt8: by blocks
// (tensor/dynamic_map.h), except embeddings and small matrices, which stay fp32.
enum class MomentPrecision : std::uint8_t { kFp32, kBf16, kInt8 };

struct OptimizerOptions {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
  double clip_grad_norm = 1.0;  // 0: no clipping
  bool decay_norms_and_biases = false;
  MomentPrecision moments = MomentPrecision::kFp32;
  std::uint64_t seed = 0;  // for stochastic rounding to bf16
  // Update each parameter in the backward of the step's last micro-batch, as soon as its gradient
  // is complete. Clipping uses the norm of the step before.
  bool in_backward = false;
  // Gradients are those of the loss times a step input, which the update undoes.
  bool scales_loss = false;
};

}  // namespace anabatic::spec
