// SPDX-License-Identifier: Apache-2.0
#include "plan/prices.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "analysis/product_norms.h"
#include "ir/op_schema.h"
#include "plan/kernel_selection.h"
#include "plan/offload.h"
#include "plan/transfers.h"
#include "spec/product.h"
#include "spec/product_prologue.h"

namespace anabatic::plan {
namespace {

// For ops that the list below does not name: they stream through memory.
constexpr double kFallbackShare = 0.5;
// For updates of moments in 8 bits, which arithmetic bounds.
constexpr double kShareOfUpdateIn8Bits = 0.3;

// Words that op names begin with, and the share of the roof that kernels reach on two cores of an
// AMD Milan; longer words first.
constexpr std::array<std::pair<std::string_view, double>, 10> kShares{
    {{"attention_gradient", 0.6},
     {"attention", 0.65},
     {"grouped_sparse_linear", 0.6},
     {"sparse_linear", 0.65},
     {"head_loss", 0.8},
     {"router", 0.2},
     {"optimizer_step", 0.9},
     {"cast", 0.8},
     {"dequantize", 0.8},
     {"quantize", 0.5}}};

// Products that run the same loops share a price: what they keep and a sum of squares do not count.
// A calibration measures one step, which has only one of these forms.
std::string_view priced_as(const spec::ProductForm& product) {
  spec::ProductForm form = product;
  if (form.role == spec::ProductRole::kForward && form.has_activation)
    form.keeps = spec::KeptProducts::kWhole;
  if (form.role == spec::ProductRole::kWeightGradient && form.is_plain()) form.sums_squares = true;
  return product_like(form).op;
}
constexpr double kShareOfProducts = 0.8, kShareOfGroupedProducts = 0.75;
// What an int8 product reaches of the share of one in bf16: 1.65 times its speed at twice its peak
// (AVX-512-VNNI, AVX-512-BF16).
constexpr double kShareOfInt8 = 1.65 / 2;

double default_share(std::string_view op) {
  if (const spec::ProductForm* product = spec::find_product(op))
    return product->is_grouped ? kShareOfGroupedProducts : kShareOfProducts;
  for (const auto& [word, share] : kShares)
    if (op.starts_with(word)) return share;
  return kFallbackShare;
}

bool reads(DType dtype, const ir::Graph& graph, const ir::Node& node) {
  return std::any_of(node.inputs.begin(), node.inputs.end(), [&](ir::ValueId input) {
    return graph.value(input).type.value_dtype() == dtype;
  });
}

// f16 is stored alone: what reads it computes in f32.
bool reads_bf16(const ir::Graph& graph, const ir::Node& node) {
  return reads(DType::kBFloat16, graph, node) && !reads(DType::kFloat16, graph, node);
}

bool reads_quantized(const ir::Graph& graph, const ir::Node& node) {
  return std::any_of(node.inputs.begin(), node.inputs.end(),
                     [&](ir::ValueId input) { return graph.value(input).type.is_quantized(); });
}

bool updates_in_8_bits(const ir::Graph& graph, const ir::Node& node) {
  return node.op->name == "optimizer_step" && reads_quantized(graph, node);
}

// Operands of the activation that the product writes as int8, or its gradient reads so.
std::int64_t num_in_int8(const ir::Graph& graph, const ir::Node& node) {
  const auto is_int8 = [&](ir::ValueId value) { return graph.value(value).type.is_quantized(); };
  const spec::ProductForm* form = ir::product_form(node);
  if (form == nullptr || !form->has_activation) return 0;
  if (form->role == spec::ProductRole::kForward)
    return std::count_if(node.outputs.begin(), node.outputs.end(), is_int8);
  constexpr std::ptrdiff_t kAfterWeight = 2;
  return std::count_if(node.inputs.begin() + kAfterWeight, node.inputs.end(), is_int8);
}

// Query-key pairs of one head in a causal document of `length` rows.
double unmasked_pairs(std::int64_t length, std::int64_t window) {
  const auto n = static_cast<double>(length);
  if (window <= 0 || window >= length) return n * (n + 1) / 2;
  const auto w = static_cast<double>(window);
  return w * (w + 1) / 2 + (n - w) * w;
}

bool is_attention(const ir::Node& node) { return node.op->name.starts_with("attention"); }

std::int64_t window_of(const ir::Node& node) {
  return spec::get_int_or(node.attributes, "window", 0);
}

// Unmasked pairs of one head over those in the op's estimate.
double pairs_ratio(const ir::Graph& graph, const ir::Node& node, std::int64_t sequence_length) {
  const std::int64_t rows = graph.value(node.inputs[0]).type.dim(0), window = window_of(node);
  if (sequence_length <= 0 || sequence_length >= rows) return 1;
  const double estimated =
      window > 0 ? std::min(static_cast<double>(rows) * static_cast<double>(rows + 1) / 2,
                            static_cast<double>(rows) * static_cast<double>(window))
                 : unmasked_pairs(rows, window);
  return static_cast<double>(rows) / static_cast<double>(sequence_length) *
         unmasked_pairs(sequence_length, window) / estimated;
}

struct Work {
  double flops = 0, bytes = 0;
};

Work work_of(const ir::Graph& graph, const ir::Node& node, const OpEfficiency& efficiency) {
  const NodeTypes types = expected_types(graph, node);
  const ir::Cost cost = node.op->cost(types.inputs, types.outputs, node.attributes);
  Work work{static_cast<double>(cost.flops),
            static_cast<double>(cost.bytes_read + cost.bytes_written)};
  if (is_attention(node)) work.flops *= pairs_ratio(graph, node, efficiency.sequence_length);
  return work;
}

double peak_of(const ir::Graph& graph, const ir::Node& node, const spec::DeviceSpec& device) {
  if (is_int8_product(graph, node)) return device.int8_ops_per_second;
  return reads_bf16(graph, node) ? device.bf16_flops_per_second : device.fp32_flops_per_second;
}

double roof_of(const Work& work, double peak, const spec::DeviceSpec& device) {
  const double bandwidth = device.copy_bytes_per_second;
  return std::max(peak > 0 ? work.flops / peak : 0, bandwidth > 0 ? work.bytes / bandwidth : 0);
}

// The time to convert between a matrix of `type` and its int8 values, at the share of `key`.
double conversion_seconds(std::string_view key, const TensorType& type,
                          const spec::DeviceSpec& device, const OpEfficiency& efficiency) {
  const auto found = efficiency.share_of_roof.find(key);
  const double share = found != efficiency.share_of_roof.end() && found->second > 0
                           ? found->second
                           : default_share(key);
  const double bytes = static_cast<double>(type.num_bytes() + type.num_elements());
  return roof_of({.bytes = bytes}, 0, device) / share;
}

}  // namespace

OpEfficiency default_efficiency() { return {}; }

bool is_int8_product(const ir::Graph& graph, const ir::Node& node) {
  return node.attributes.contains("fallback") || node.attributes.contains(spec::kPackedFormat) ||
         (ir::product_form(node) != nullptr &&
          std::any_of(node.inputs.begin(), node.inputs.end(),
                      [&](ir::ValueId input) { return is_int8_panels(graph.value(input).type); }));
}

double attention_blocks_ratio(std::int64_t length, std::int64_t window) {
  // A row computes about half a block of masked keys. A line through times of 256 to 4096 rows,
  // forward and backward, gives blocks of 108 to 114 (AVX-512-BF16).
  constexpr double kBlock = 112;
  return 1 + (kBlock - 1) / 2 * static_cast<double>(length) / unmasked_pairs(length, window);
}

std::string price_key(const ir::Graph& graph, const ir::Node& node) {
  std::string op = ir::op_and_form(node);
  if (const spec::ProductForm* product = ir::product_form(node)) op = priced_as(*product);
  const bool is_int8 = updates_in_8_bits(graph, node) || is_int8_product(graph, node);
  return op + (is_int8 ? " int8" : reads_bf16(graph, node) ? " bf16" : " fp32");
}

spec::DeviceSpec with_peaks(spec::DeviceSpec device) {
  // FLOP/s of a core near 3 GHz with two multiply-add units, and bytes/s of two memory channels.
  constexpr double kPortable = 24e9, kAvx2 = 96e9, kAvx512 = 160e9, kBandwidth = 2e10;
  const double threads = device.num_threads;
  if (device.fp32_flops_per_second <= 0)
    device.fp32_flops_per_second = threads * (device.has("avx512f") ? kAvx512
                                              : device.has("avx2")  ? kAvx2
                                                                    : kPortable);
  if (device.bf16_flops_per_second <= 0)
    device.bf16_flops_per_second =
        device.has("avx512_bf16") ? 2 * device.fp32_flops_per_second : device.fp32_flops_per_second;
  if (device.int8_ops_per_second <= 0)
    device.int8_ops_per_second = device.has("avx512_vnni") || device.has("avx_vnni")
                                     ? 4 * device.fp32_flops_per_second
                                     : device.fp32_flops_per_second;
  if (device.copy_bytes_per_second <= 0) device.copy_bytes_per_second = kBandwidth;
  return device;
}

double roof_seconds(const ir::Graph& graph, const ir::Node& node, const spec::DeviceSpec& device,
                    const OpEfficiency& efficiency) {
  if (is_accumulate(node)) return 0;
  Work work = work_of(graph, node, efficiency);
  if (is_attention(node)) {
    const std::int64_t rows = graph.value(node.inputs[0]).type.dim(0);
    const std::int64_t length = efficiency.sequence_length;
    work.flops *=
        attention_blocks_ratio(length > 0 ? std::min(length, rows) : rows, window_of(node));
  }
  return roof_of(work, peak_of(graph, node, device), device);
}

std::int64_t weight_bytes(const ir::Graph& graph, const ir::Node& node) {
  const auto matrix_bytes = [&](ir::ValueId value) {
    const TensorType& type = graph.value(value).type;
    const bool is_matrix = type.dtype == DType::kFloat32 || type.dtype == DType::kBFloat16 ||
                           type.dtype == DType::kFloat16 || is_int8_panels(type);
    return is_matrix && type.ndim() >= 2 ? type.num_bytes() : 0;
  };
  std::int64_t bytes = 0;
  for (const ir::ValueId input : node.inputs) {
    const ir::NodeId producer = graph.value(input).producer;
    const bool is_weight =
        producer == ir::kNoNode
            ? std::find(graph.batch.begin(), graph.batch.end(), input) == graph.batch.end()
            : graph.node(producer).op->name == "pack" || graph.node(producer).op->name == "reload";
    if (is_weight) bytes += matrix_bytes(input);
  }
  if (node.tag.phase == ir::Phase::kBackwardWeight)
    for (const ir::ValueId output : node.outputs) bytes += matrix_bytes(output);
  return bytes;
}

double predicted_seconds(const ir::Graph& graph, const ir::Node& node,
                         const spec::DeviceSpec& device, const OpEfficiency& efficiency) {
  if (is_accumulate(node)) return 0;
  const std::string key = price_key(graph, node);
  const auto found = efficiency.share_of_roof.find(key);
  const double share = found != efficiency.share_of_roof.end() && found->second > 0 ? found->second
                       : updates_in_8_bits(graph, node) ? kShareOfUpdateIn8Bits
                       : is_int8_product(graph, node) ? kShareOfInt8 * default_share(node.op->name)
                                                      : default_share(node.op->name);
  double seconds = efficiency.seconds_a_call;
  if (const auto fixed = efficiency.fixed_seconds.find(key);
      fixed != efficiency.fixed_seconds.end()) {
    const auto of_weights = efficiency.fixed_weight_bytes.find(key);
    const double times = of_weights != efficiency.fixed_weight_bytes.end() && of_weights->second > 0
                             ? static_cast<double>(weight_bytes(graph, node)) / of_weights->second
                             : 1;
    seconds = fixed->second * times;
  }
  if (const std::int64_t count = num_in_int8(graph, node); count > 0) {
    const auto seconds_each = ir::product_form(node)->role == spec::ProductRole::kForward
                                  ? codes_behind_product_seconds
                                  : codes_in_gradient_seconds;
    seconds += static_cast<double>(count) *
               seconds_each(graph.value(node.outputs[0]).type, device, efficiency);
  }
  if (ir::product_form(node) != nullptr && spec::norm_of(node.attributes) != spec::Norm::kNone)
    seconds += norm_in_product_seconds(graph, node, device, efficiency);
  if (ir::product_form(node) != nullptr && spec::drops_x(node.attributes))
    seconds += dropout_in_product_seconds(graph, node, device, efficiency);
  if (node.attributes.contains("with_activation"))
    seconds += activation_beside_gradient_seconds(graph.value(node.outputs[0]).type, device);
  return seconds + roof_seconds(graph, node, device, efficiency) / share;
}

std::string norm_price_key(spec::ProductRole role, DType dtype) {
  return fmt::format("{} norm {}",
                     role == spec::ProductRole::kForward ? "linear" : "linear_weight_gradient",
                     dtype == DType::kBFloat16 ? "bf16" : "fp32");
}

double row_copies(std::int64_t width, std::int64_t out, spec::ProductRole role, int num_threads) {
  // What kernels cut a product into: columns of a block, and blocks that a thread has of a weight
  // gradient, which are about square.
  constexpr std::int64_t kColumns = 528;
  constexpr double kBlocksAThread = 4;
  const double copies =
      static_cast<double>(std::max<std::int64_t>(1, (out + kColumns - 1) / kColumns));
  if (role != spec::ProductRole::kWeightGradient || num_threads == 1) return copies;
  return std::max(copies, std::sqrt(kBlocksAThread * num_threads * static_cast<double>(out) /
                                    static_cast<double>(width)));
}

double norm_roof_seconds(std::int64_t rows, std::int64_t width, std::int64_t out, DType dtype,
                         spec::ProductRole role, const spec::DeviceSpec& device) {
  return row_copies(width, out, role, device.num_threads) *
         roof_of({.bytes = static_cast<double>(rows * width * size_bytes(dtype))}, 0, device);
}

namespace {

// Columns of all results of a product of one x.
std::int64_t columns_of_results(const ir::Graph& graph, const ir::Node& product) {
  std::int64_t out = 0;
  const auto add = [&](ir::ValueId matrix) {
    if (const TensorType& type = graph.value(matrix).type; type.ndim() == 2) out += type.dim(0);
  };
  if (ir::product_form(product)->role == spec::ProductRole::kForward) {
    const auto inputs = spec::without_prologue(product.inputs, product.attributes);
    for (const ir::ValueId weight : inputs.subspan(1)) add(weight);
  } else {
    for (const ir::ValueId gradient : product.outputs) add(gradient);
  }
  return out;
}

}  // namespace

double norm_in_product_seconds(const ir::Graph& graph, const ir::Node& product,
                               const spec::DeviceSpec& device, const OpEfficiency& efficiency) {
  // Without a calibration: those of one product of 192 to 1536 columns (AVX-512-BF16).
  constexpr double kShareOfForward = 2, kShareOfGradient = 1;
  const spec::ProductRole role = ir::product_form(product)->role;
  const TensorType& x = graph.value(product.inputs[0]).type;
  if (x.dim(1) <= analysis::kMostNormWidth && device.num_threads <= analysis::kMostNormThreads)
    return 0;
  const auto found = efficiency.share_of_roof.find(norm_price_key(role, x.dtype));
  const bool is_measured = found != efficiency.share_of_roof.end() && found->second > 0;
  // An int8 product normalises rows as it quantises them, once a call.
  const std::int64_t out = is_int8_product(graph, product) ? 1 : columns_of_results(graph, product);
  const double share = is_measured                           ? found->second
                       : role == spec::ProductRole::kForward ? kShareOfForward
                                                             : kShareOfGradient;
  return norm_roof_seconds(x.dim(0), x.dim(1), out, x.dtype, role, device) / share;
}

double dropout_in_product_seconds(const ir::Graph& graph, const ir::Node& product,
                                  const spec::DeviceSpec& device, const OpEfficiency& efficiency) {
  // A copy, measured against `dropout` of stored rows (AVX-512-BF16): 0.8; 1.3 to 1.8.
  constexpr double kOfForward = 0.8, kOfGradient = 1.5;
  const spec::ProductRole role = ir::product_form(product)->role;
  const TensorType& x = graph.value(product.inputs[0]).type;
  const auto found =
      efficiency.share_of_roof.find(x.dtype == DType::kBFloat16 ? "dropout bf16" : "dropout fp32");
  const double share = found != efficiency.share_of_roof.end() && found->second > 0
                           ? found->second
                           : default_share("dropout");
  const double copies =
      row_copies(x.dim(1), columns_of_results(graph, product), role, device.num_threads);
  return (role == spec::ProductRole::kForward ? kOfForward : kOfGradient) * copies *
         roof_of({.bytes = 2 * static_cast<double>(x.num_bytes())}, 0, device) / share;
}

double activation_beside_gradient_seconds(const TensorType& type, const spec::DeviceSpec& device) {
  // Measured in addition to the gradient alone (AVX-512-BF16): up to 0.65, 0 after a long product.
  constexpr double kShareOfRoof = 0.65;
  return kShareOfRoof * roof_of({.bytes = static_cast<double>(type.num_bytes())}, 0, device);
}

double codes_behind_product_seconds(const TensorType& type, const spec::DeviceSpec& device,
                                    const OpEfficiency& efficiency) {
  // Measured against `quantize` of the stored product (AVX-512-BF16): 0.5.
  return 0.5 *
         conversion_seconds(type.dtype == DType::kBFloat16 ? "quantize bf16" : "quantize fp32",
                            type, device, efficiency);
}

double codes_in_gradient_seconds(const TensorType& type, const spec::DeviceSpec& device,
                                 const OpEfficiency& efficiency) {
  // Measured against `dequantize` before the gradient (AVX-512-BF16): 0.4 to 0.65.
  return 0.5 * conversion_seconds("dequantize bf16", type, device, efficiency);  // bf16: scales
}

double slicing_seconds(std::int64_t bytes, const spec::DeviceSpec& device) {
  // Measured with a head in 8 slices against an uncut one (AVX-512-BF16): 0.55.
  return roof_of({.bytes = static_cast<double>(bytes)}, 0, device) / kFallbackShare;
}

namespace {

// The time of the `times` calls of a planned node in a step.
double calls_seconds(const ir::Graph& graph, const PlannedNode& planned,
                     const spec::DeviceSpec& device, const OpEfficiency& efficiency, double times) {
  return times * (predicted_seconds(graph, graph.node(planned.node), device, efficiency) +
                  slicing_seconds(planned.slicing_bytes, device));
}

// The time to fill outputs with zeroes before these calls; 0 where that is not done.
double zero_fill_seconds(const ir::Graph& graph, const PlannedNode& planned,
                         const spec::DeviceSpec& device, double times) {
  if (planned.zero_fill == ZeroFill::kNone) return 0;
  Work zeroes;
  for (const ir::ValueId output : graph.node(planned.node).outputs)
    zeroes.bytes += static_cast<double>(graph.value(output).type.num_bytes());
  return (planned.zero_fill == ZeroFill::kFirstMicroBatch ? 1 : times) *
         (roof_of(zeroes, 0, device) / kFallbackShare);
}

// Sums of leaves come with each leaf, the others of an update with the last micro-batch.
double times_in_step(const ir::Node& node, std::int64_t num_micro_batches) {
  if (!node.is_of_update()) return static_cast<double>(num_micro_batches);
  return static_cast<double>(
      node.op->name == "sum_leaves" ? spec::get_int(node.attributes, "leaves") : 1);
}

}  // namespace

std::map<std::string, double> price_segments(const ir::Graph& graph, const Plan& plan,
                                             const spec::DeviceSpec& device,
                                             const OpEfficiency& efficiency,
                                             std::int64_t num_micro_batches, bool with_update) {
  std::map<std::string, double> seconds;
  for (const auto& [action, order] : plan.orders)
    for (const PlannedNode& planned : order) {
      if (planned.is_offloaded || (action == spec::Action::kUpdate && !with_update)) continue;
      const ir::Node& node = graph.node(planned.node);
      const double times = times_in_step(node, num_micro_batches);
      seconds[std::string(text(node.tag.segment))] +=
          calls_seconds(graph, planned, device, efficiency, times) +
          zero_fill_seconds(graph, planned, device, times);
    }
  return seconds;
}

StepPrice price_step(const ir::Graph& graph, const Plan& plan, const spec::DeviceSpec& device,
                     const OpEfficiency& efficiency, std::int64_t num_micro_batches) {
  StepPrice price;
  const auto repeats = static_cast<double>(num_micro_batches);
  for (const auto& [action, order] : plan.orders) {
    double seconds = 0, flops = 0;  // of all micro-batches
    for (const PlannedNode& planned : order) {
      if (planned.is_offloaded) continue;
      const ir::Node& node = graph.node(planned.node);
      const double times = times_in_step(node, num_micro_batches);
      seconds += calls_seconds(graph, planned, device, efficiency, times);
      seconds += zero_fill_seconds(graph, planned, device, times);
      flops += times * work_of(graph, node, efficiency).flops;
    }
    double& part = action == spec::Action::kForward    ? price.forward_seconds
                   : action == spec::Action::kBackward ? price.backward_seconds
                                                       : price.update_seconds;
    part = seconds;
    price.flops += flops;
  }
  price.disk_seconds = disk_seconds(graph, plan, device, efficiency, num_micro_batches);
  for (const SwapWindow& window : plan.windows)
    price.disk_seconds += window_seconds(window, device);
  for (const Offload& offload : plan.offloads)
    price.disk_seconds += repeats * offload_seconds(offload, device);
  price.seconds =
      price.forward_seconds + price.backward_seconds + price.update_seconds + price.disk_seconds;
  return price;
}

}  // namespace anabatic::plan
