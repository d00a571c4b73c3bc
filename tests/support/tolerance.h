// SPDX-License-Identifier: Apache-2.0
// The only place where tests compute a tolerance. Bounds follow Higham, "Accuracy and Stability of
// Numerical Algorithms" (2002), chapter 3: |got - want| <= c·γ_K·Σ|a||b| + u_out·|want|.
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "support/reference.h"

namespace anabatic::testing {

// The share of nonzero values that a comparison must rest on.
inline constexpr double kZeroTrust = 0.3;

// The smallest normal f32 and bf16; kernels may flush smaller values to zero.
inline constexpr double kSmallestNormal = 0x1.0p-126;
// Half of the step of subnormal f16, which kernels keep: the largest error of one rounding there.
inline constexpr double kHalfStep = 0x1.0p-25;

// Largest relative error of one rounding to nearest: 2^-53, 2^-24, 2^-8 of bf16 and 2^-11 of f16; 0
// for integers.
double unit_roundoff(DType dtype);

// γ_K = K·u / (1 - K·u), u the unit roundoff of the accumulating dtype.
double gamma(double num_operations, DType accumulator);

// Roundings that a term passes through where a sum goes by blocks of at most kMostBlockTerms, one
// f32 accumulator a block, and blocks of at least `least_block` but the last one are added up in
// f32: those of its own block, and one for each of the blocks. A single chain over the whole depth
// has as many as it has terms (docs/internals/numerics.md).
inline constexpr double kMostBlockTerms = 512, kLeastBlockTerms = 256;
double blocked_roundings(double num_terms, double least_block = kLeastBlockTerms);
// The same of a row whose elements vectors of accumulators share, four or more lanes wide, and
// double adds up every few thousand.
double row_roundings(double width);

// Element by element for every output of a call, from its inputs and `wants`, the outputs in
// double. Kernels accumulate in f32 and round each output once to its dtype. `before`, when given,
// holds what each output was added to. `row`: the kernel's name, where it allows itself more.
std::vector<std::vector<double>> output_tolerances(const OpCall& call,
                                                   std::span<const Values> wants,
                                                   std::span<const Values> before = {},
                                                   std::string_view row = {});

// Whether a row allows itself more than others, which all have the same bounds.
bool is_coarser(std::string_view row);

// Whether output 1 of the op is the sum of squares of what output 0 holds afterwards; never `+=`.
bool sums_its_squares(std::string_view op);
double sum_of_squares(const Values& values);

// Two computations of one small formula, each in `dtype` with at most a few hundred operations for
// each value.
std::vector<double> agreement_tolerances(const Values& want, DType dtype);
double agreement_tolerance(double want, DType dtype);  // of one value

// |x - x'| of an element that op `quantize` keeps and `dequantize` gives back in `dtype`, of a
// block whose largest magnitude is `largest`: half a step, which is at most (1 + 2^-7) largest /
// 127, the roundings of f32, and that to bf16.
double quantization_tolerance(double largest, DType dtype);
// How far, in exact arithmetic, outputs of a gradient op may move when element i of input j moves
// by at most errors[j][i]; inputs without errors stay. Of linear_weight_gradient, swiglu_gradient,
// rms_norm_weight_gradient and rms_norm_input_gradient.
std::vector<std::vector<double>> gradient_tolerances(
    const OpCall& call, const std::vector<std::vector<double>>& errors);

// An operand of an int8 product: values [lines, depth] as they were before they became int8 values,
// a scale for each block of 128 along the depth, shared by tile_lines lines. falls_back [lines,
// blocks]: whether the block has second values; empty: none has.
struct Int8Operand {
  const std::vector<float>& values;
  std::int64_t lines = 0, depth = 0, tile_lines = 1;
  std::vector<bool> falls_back{};
};
// Bounds of a · bᵀ, element by element, from the exact product of the values, added to `before`.
// With s a block's scale and e = s (1/2 + 2^-15) the most that a code is off (s / 508 in place of s
// / 2 with second values): Σ over blocks of e_a |b|₁ + e_b |a|₁ + n e_a e_b, plus γ of two
// roundings a block of the sums that int8 values stand for, and the rounding to `dtype`.
std::vector<double> int8_product_tolerances(const Int8Operand& a, const Int8Operand& b, DType dtype,
                                            double before = 0);

// Bounds of the outputs of head_loss_with_gradient in int8 products: from those of the definition
// (kernels/ref), and from `wants`, what the head gives in exact arithmetic.
std::vector<std::vector<double>> int8_head_definition_tolerances(const OpCall& call,
                                                                 std::span<const Values> wants);
std::vector<std::vector<double>> int8_head_tolerances(const OpCall& call,
                                                      std::span<const Values> wants);

// The mean of `count` unbiased roundings to multiples of `step`: six deviations, and one rounding's
// is at most half a step.
double mean_of_roundings_tolerance(double step, double count);
// The number of events in `count` independent trials, against its mean, by Bernstein's inequality
// |X - np| <= L/3 + sqrt(L²/9 + 2 L n p (1-p)). More than that has a probability of 2 e^-L = 1e-9.
double event_count_tolerance(double count, double probability);
// tensor/dynamic_map.h, of x in a block whose largest magnitude is `scale`: half of the distance of
// entries in its decade, below all decades the smallest entry, and the roundings of f32.
double dynamic_map_tolerance(bool is_signed, double x, double scale);
// A mean loss of a short run with moments in bf16 or 8 bits against one with moments in fp32:
// roundings are noise of 2^-9 of a moment, or of a few percent of it where it matters in its block,
// which acts like another order of batches.
double noisy_moments_tolerance(double loss);
// A loss after a few steps against one of a run that adds some gradients in another order. In bf16
// weights round one way or the other.
double loss_tolerance(double loss, DType dtype);

// A central difference in double of step h has truncation error h²/6·f''' and rounding error u·f/h;
// h balances the two.
double difference_step();
double difference_tolerance(double magnitude);

// Whole models against another implementation: ‖got - want‖₂ <= bound · ‖want‖₂.
struct ParityBounds {
  double logits = 0;
  double gradient = 0;  // of each tensor
};

// Each layer rounds about eight tensors on the residual's way, and their errors are independent, so
// they add as a random walk; a sum of K products has error √K·u (Higham and Mary, 2019). A gradient
// goes the way twice and rests on a forward that is off already.
ParityBounds parity_bounds(std::int64_t num_layers, std::int64_t hidden_size, DType dtype);

// Internal to the source files: magnitudes of ops that are not products and sums.
struct Bound {
  std::vector<double> errors;  // before the rounding of the output
  double num_roundings = 1;    // to the output's dtype
  // With `+=`: additions that the value before passes through, for a sum may start with it.
  double num_additions = 1;
};
std::vector<Bound> nonlinear_bounds(const OpCall& call, std::span<const Values> wants,
                                    std::string_view row);
std::vector<Bound> attention_bounds(const OpCall& call, std::span<const Values> wants,
                                    std::string_view row);
std::vector<Bound> head_loss_bounds(const OpCall& call);
std::vector<Bound> head_log_probability_bounds(const OpCall& call);
std::vector<Bound> gate_rows_bounds(const OpCall& call);
std::vector<Bound> router_bounds(const OpCall& call, std::span<const Values> wants);
std::vector<Bound> router_gradient_bounds(const OpCall& call);
std::vector<Bound> linear_activation_bounds(const OpCall& call);

}  // namespace anabatic::testing
