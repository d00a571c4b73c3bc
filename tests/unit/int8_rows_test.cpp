// SPDX-License-Identifier: Apache-2.0
// Rows of int8 products of the linear ops: plain ones against the definition, and the other forms
// against plain ones, bit by bit, in workspace of the size that they ask for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "device/denormals.h"
#include "device/thread_team.h"
#include "int8_samples.h"
#include "kernels/kernel.h"
#include "support/rows_under_test.h"
#include "tensor/panels.h"

namespace anabatic::kernels::cpu {
namespace {

using Int = std::int64_t;
using samples::at;
using samples::same;

constexpr Int kExperts = 3, kOut = 83, kIn = 300, kFallback = 16;
const std::vector<Int> kOffsets{0, 0, 38, 171};
constexpr Int kRows = 171;

struct Tensor {
  TensorType type;
  samples::Aligned<std::byte> bytes{};

  explicit Tensor(TensorType of) : type(std::move(of)) { bytes.resize(type.num_bytes()); }
  Tensor(DType dtype, std::vector<Int> shape) : Tensor(tensor_type(dtype, std::move(shape))) {}
  Tensor(const Tensor&) = delete;
  TensorView view() const { return {bytes.data, &type}; }
  float at_index(Int i) const {
    return type.dtype == DType::kFloat32
               ? reinterpret_cast<const float*>(bytes.data)[i]
               : to_float(reinterpret_cast<const BFloat16*>(bytes.data)[i]);
  }
  bool operator==(const Tensor& other) const {
    return type == other.type &&
           std::memcmp(bytes.data, other.bytes.data, at(type.num_bytes())) == 0;
  }
};
using Inputs = std::vector<const Tensor*>;
using Outputs = std::vector<Tensor*>;

std::unique_ptr<Tensor> rows_of(Int rows, Int width, std::uint64_t stream) {
  auto result = std::make_unique<Tensor>(DType::kBFloat16, std::vector<Int>{rows, width});
  const std::vector<float> values = samples::int8_values(rows, width, DType::kBFloat16, stream);
  for (std::size_t i = 0; i < values.size(); ++i)
    reinterpret_cast<BFloat16*>(result->bytes.data)[i] = to_bfloat16(values[i]);
  return result;
}

std::vector<float> matrix_of(Int expert, std::uint64_t stream) {
  return samples::int8_values(kOut, kIn, DType::kBFloat16, stream + static_cast<unsigned>(expert));
}

// A stack in int8 panels.
std::unique_ptr<Tensor> weights_of(bool transposed, std::uint64_t stream) {
  TensorType type = tensor_type(DType::kInt8, {kExperts, kOut, kIn});
  type.blocks = int8_tile_format();
  type.layout = panels_layout(transposed);
  auto result = std::make_unique<Tensor>(type);
  const PanelShape panels = panel_shape(type);
  const Int tiles = ceil_div(kOut, kInt8Tile) * ceil_div(kIn, kInt8Tile);
  const TensorView view = result->view();
  for (Int e = 0; e < kExperts; ++e) {
    const samples::Source source(matrix_of(e, stream), kOut, kIn, DType::kBFloat16, false);
    Int8Lines lines;
    lines.in_panels = true;
    lines.codes = view.as<std::int8_t>() + e * panels.num_elements();
    lines.scales = view.scales<BFloat16>() + e * tiles;
    lines.compensation =
        view.compensations() + e * panels.num_panels() * int8_blocks(panels.depth) * kInt8Panel;
    portable::int8_coding().weights(source.source, 0, ceil_div(kOut, kInt8Block),
                                    transposed ? nullptr : &lines, transposed ? &lines : nullptr);
  }
  return result;
}

const Tensor& offsets() {
  static const auto tensor = [] {
    auto made = std::make_unique<Tensor>(DType::kInt32, std::vector<Int>{kExperts + 1});
    for (std::size_t e = 0; e < kOffsets.size(); ++e)
      reinterpret_cast<std::int32_t*>(made->bytes.data)[e] = static_cast<std::int32_t>(kOffsets[e]);
    return made;
  }();
  return *tensor;
}

// Suffixes of the rows under test.
std::vector<std::string> variants() {
  std::vector<std::string> found;
  for (const GemmEngine* engine : samples::int8_engines())
    found.push_back(engine->isa == nullptr ? "_int8_portable"
                                           : "_int8_" + samples::name_of(*engine));
  return found;
}

void run_row(const std::string& op, const std::string& variant, const Inputs& inputs,
             const Outputs& outputs, const spec::Attributes& attributes, bool adds = false,
             int threads = 2, CodingCounts* counts = nullptr) {
  const Kernel* kernel = find_kernel("cpu:" + op + variant);
  ASSERT_NE(kernel, nullptr) << op << variant;
  spec::DeviceSpec device{.instruction_sets = testing::instruction_sets()};
  device.num_threads = threads;
  std::vector<TensorType> in, out;
  std::vector<TensorView> views, results;
  for (const Tensor* input : inputs) {
    in.push_back(input->type);
    views.push_back(input->view());
  }
  for (const Tensor* output : outputs) {
    out.push_back(output->type);
    results.push_back(output->view());
  }
  const spec::Problem problem{
      .op = intern(op), .attributes = &attributes, .inputs = in, .outputs = out, .device = &device};
  const Support support = kernel->supports(problem);
  ASSERT_TRUE(support) << kernel->name << ": " << support.reason;
  constexpr Int kGuard = 4096;
  const Int booked = kernel->workspace_bytes != nullptr ? kernel->workspace_bytes(problem) : 0;
  samples::Aligned<std::byte> workspace;
  workspace.resize(booked + kGuard);
  std::memset(workspace.data, 0xFF, at(booked + kGuard));
  device::ThreadTeam team(threads);
  const auto accumulate = std::make_unique<bool[]>(outputs.size());
  std::fill_n(accumulate.get(), outputs.size(), adds);
  kernel->run({.inputs = views,
               .outputs = results,
               .attributes = &attributes,
               .workspace = workspace.data,
               .prepared = nullptr,
               .accumulate = {accumulate.get(), outputs.size()},
               .launch = {.team = &team},
               .counts = counts});
  EXPECT_TRUE(std::all_of(workspace.data + booked, workspace.data + booked + kGuard,
                          [](std::byte byte) { return byte == std::byte{0xFF}; }))
      << kernel->name << " wrote beyond its workspace";
}

spec::Attributes with_fallback(spec::Attributes attributes = {}) {
  attributes.emplace("fallback", kFallback);
  return attributes;
}

void expect_rows(const Tensor& got, Int width, Int expert, const std::vector<float>& want,
                 const std::string& name) {
  const Int begin = kOffsets[at(expert)], count = kOffsets[at(expert + 1)] - begin;
  ASSERT_EQ(std::ssize(want), count * width);
  for (Int i = 0; i < count * width; ++i)
    ASSERT_TRUE(same(got.at_index(begin * width + i), to_float(to_bfloat16(want[at(i)]))))
        << name << " expert " << expert << " element " << i;
}

std::vector<float> floats_of(const Tensor& x, Int width, Int expert) {
  std::vector<float> result;
  for (Int i = kOffsets[at(expert)] * width; i < kOffsets[at(expert + 1)] * width; ++i)
    result.push_back(x.at_index(i));
  return result;
}

TEST(Int8Rows, OfStacksHaveTheBitsOfTheDefinitionInBothDirections) {
  const device::DenormalsAreZero mode;
  const auto x = rows_of(kRows, kIn, 1), dy = rows_of(kRows, kOut, 2);
  const auto weight = weights_of(false, 10), turned = weights_of(true, 10);
  for (const std::string& variant : variants()) {
    Tensor y(DType::kBFloat16, {kRows, kOut}), dx(DType::kBFloat16, {kRows, kIn});
    run_row("grouped_linear", variant, {x.get(), weight.get(), &offsets()}, {&y}, with_fallback());
    run_row("grouped_linear_input_gradient", variant, {dy.get(), turned.get(), &offsets()}, {&dx},
            {});
    for (Int e = 0; e < kExperts; ++e) {
      const Int count = kOffsets[at(e + 1)] - kOffsets[at(e)];
      const ref::CodedLines tiles = ref::code_tiles(matrix_of(e, 10), kOut, kIn);
      expect_rows(
          y, kOut, e,
          samples::product_of(ref::code_lines(floats_of(*x, kIn, e), count, kIn, kFallback), tiles),
          "forward" + variant);
      expect_rows(
          dx, kIn, e,
          samples::product_of(ref::code_lines(floats_of(*dy, kOut, e), count, kOut, kNoFallback),
                              ref::transposed_tiles(tiles)),
          "input gradient" + variant);
    }
  }
}

bool operator==(const CodingCounts& a, const CodingCounts& b) {
  return a.elements == b.elements && a.zeroed == b.zeroed && a.blocks == b.blocks &&
         a.fallbacks == b.fallbacks && a.largest == b.largest;
}

// Whatever the threads and the instruction set. Several weights share the rows.
TEST(Int8Rows, CountTheRowsThatTheyQuantiseOnce) {
  const device::DenormalsAreZero mode;
  const auto x = rows_of(kRows, kIn, 1), dy = rows_of(kRows, kOut, 2);
  const auto weight = weights_of(false, 10), other = weights_of(false, 20),
             turned = weights_of(true, 10);
  CodingCounts of_x, of_dy;
  for (Int e = 0; e < kExperts; ++e) {
    const Int count = kOffsets[at(e + 1)] - kOffsets[at(e)];
    const auto add = [&](CodingCounts& to, const Tensor& rows, Int width, int fallback) {
      const std::vector<float> values = floats_of(rows, width, e);
      to.add(ref::counts_of(ref::code_lines(values, count, width, fallback), values));
    };
    add(of_x, *x, kIn, kFallback);
    add(of_dy, *dy, kOut, kNoFallback);
  }
  EXPECT_GT(of_x.zeroed, 0);
  EXPECT_GT(of_x.fallbacks, 0);
  for (const std::string& variant : variants())
    for (const int threads : {1, 3}) {
      Tensor y(DType::kBFloat16, {kRows, kOut}), z(y.type), dx(DType::kBFloat16, {kRows, kIn});
      CodingCounts forward, many, gradient;
      run_row("grouped_linear", variant, {x.get(), weight.get(), &offsets()}, {&y}, with_fallback(),
              false, threads, &forward);
      run_row("grouped_linear_many", variant, {x.get(), weight.get(), other.get(), &offsets()},
              {&y, &z}, with_fallback(), false, threads, &many);
      run_row("grouped_linear_input_gradient", variant, {dy.get(), turned.get(), &offsets()}, {&dx},
              {}, false, threads, &gradient);
      EXPECT_TRUE(forward == of_x) << variant;
      EXPECT_TRUE(many == of_x) << variant;
      EXPECT_TRUE(gradient == of_dy) << variant;
    }
}

TEST(Int8Rows, OfSeveralWeightsEqualThoseOfOne) {
  const auto x = rows_of(kRows, kIn, 1), dy = rows_of(kRows, kOut, 2), du = rows_of(kRows, kOut, 3);
  const auto first = weights_of(false, 10), second = weights_of(false, 20);
  for (const std::string& variant : variants()) {
    Tensor y(DType::kBFloat16, {kRows, kOut}), z(y.type), y_alone(y.type), z_alone(y.type);
    run_row("grouped_linear_many", variant, {x.get(), first.get(), second.get(), &offsets()},
            {&y, &z}, with_fallback());
    run_row("grouped_linear", variant, {x.get(), first.get(), &offsets()}, {&y_alone},
            with_fallback());
    run_row("grouped_linear", variant, {x.get(), second.get(), &offsets()}, {&z_alone},
            with_fallback());
    EXPECT_TRUE(y == y_alone && z == z_alone) << variant;
    Tensor dw(DType::kFloat32, {kExperts, kOut, kIn}), du_w(dw.type), dw_alone(dw.type),
        du_alone(dw.type);
    for (const bool adds : {false, true}) {
      run_row("grouped_linear_many_weight_gradient", variant,
              {x.get(), dy.get(), du.get(), &offsets()}, {&dw, &du_w}, with_fallback(), adds);
      run_row("grouped_linear_weight_gradient", variant, {x.get(), dy.get(), &offsets()},
              {&dw_alone}, with_fallback(), adds, 3);
      run_row("grouped_linear_weight_gradient", variant, {x.get(), du.get(), &offsets()},
              {&du_alone}, with_fallback(), adds, 1);
      EXPECT_TRUE(dw == dw_alone && du_w == du_alone) << variant;
    }
  }
}

// The chain of two products in one call goes on: that of a second call rounds in between.
TEST(Int8Rows, OfSeveralInputGradientsSumInOneChain) {
  const device::DenormalsAreZero mode;
  const auto dy = rows_of(kRows, kOut, 2), du = rows_of(kRows, kOut, 3);
  const auto first = weights_of(true, 10), second = weights_of(true, 20);
  for (const std::string& variant : variants()) {
    Tensor dx(DType::kBFloat16, {kRows, kIn});
    run_row("grouped_linear_many_input_gradient", variant,
            {dy.get(), first.get(), du.get(), second.get(), &offsets()}, {&dx}, {});
    for (Int e = 0; e < kExperts; ++e) {
      const Int count = kOffsets[at(e + 1)] - kOffsets[at(e)];
      const auto tiles = [&](std::uint64_t stream) {
        return ref::transposed_tiles(ref::code_tiles(matrix_of(e, stream), kOut, kIn));
      };
      const auto lines = [&](const Tensor& of) {
        return ref::code_lines(floats_of(of, kOut, e), count, kOut, kNoFallback);
      };
      std::vector<float> want = samples::product_of(lines(*dy), tiles(10));
      ref::add_int8_product(lines(*du), tiles(20), want);
      expect_rows(dx, kIn, e, want, variant);
    }
  }
}

TEST(Int8Rows, WithAnActivationEqualSeparateOnes) {
  const auto x = rows_of(kRows, kIn, 1);
  const auto gate_weight = weights_of(false, 10), up_weight = weights_of(false, 20);
  const spec::Attributes activation{{"activation", std::string("swiglu")}};
  for (const std::string& variant : variants()) {
    const TensorType wide = tensor_type(DType::kBFloat16, {kRows, kOut});
    Tensor h(wide), gate(wide), up(wide), gate_alone(wide), up_alone(wide), h_alone(wide);
    run_row("grouped_linear_activation_with_products", variant,
            {x.get(), gate_weight.get(), up_weight.get(), &offsets()}, {&h, &gate, &up},
            with_fallback(activation));
    run_row("grouped_linear", variant, {x.get(), gate_weight.get(), &offsets()}, {&gate_alone},
            with_fallback());
    run_row("grouped_linear", variant, {x.get(), up_weight.get(), &offsets()}, {&up_alone},
            with_fallback());
    EXPECT_TRUE(gate == gate_alone && up == up_alone) << variant;
    run_row("grouped_linear_activation", variant,
            {x.get(), gate_weight.get(), up_weight.get(), &offsets()}, {&h_alone},
            with_fallback(activation), false, 3);
    EXPECT_TRUE(h == h_alone) << variant;
    const auto turned = weights_of(true, 30);
    const auto narrow = rows_of(kRows, kOut, 4), wide_gate = rows_of(kRows, kIn, 5),
               wide_up = rows_of(kRows, kIn, 6);
    Tensor dh(DType::kBFloat16, {kRows, kIn}), dgate(dh.type), dup(dh.type), dgate_alone(dh.type),
        dup_alone(dh.type);
    run_row("grouped_linear_activation_gradient", variant,
            {narrow.get(), turned.get(), &offsets(), wide_gate.get(), wide_up.get()},
            {&dgate, &dup}, activation);
    run_row("grouped_linear_input_gradient", variant, {narrow.get(), turned.get(), &offsets()},
            {&dh}, {});
    const std::string suffix = variant == "_int8_portable" ? ""
                               : variant == "_int8_avx2"   ? "_avx2"
                                                           : "_avx512";
    run_row("activation_gradient", suffix, {wide_gate.get(), wide_up.get(), &dh},
            {&dgate_alone, &dup_alone}, activation);
    EXPECT_TRUE(dgate == dgate_alone && dup == dup_alone) << variant;
  }
}

TEST(Int8Rows, OfWeightGradientsEqualEachOtherInEveryLayout) {
  const auto x = rows_of(kRows, kIn, 1), dy = rows_of(kRows, kOut, 2);
  for (const std::string& variant : variants()) {
    Tensor dw(DType::kFloat32, {kExperts, kOut, kIn}), again(dw.type);
    TensorType packed_type = dw.type;
    packed_type.layout = panels_layout(false);
    Tensor packed(packed_type), squares(DType::kFloat64, {});
    run_row("grouped_linear_weight_gradient", variant, {x.get(), dy.get(), &offsets()}, {&dw},
            with_fallback());
    run_row("grouped_linear_weight_gradient_squares", variant, {x.get(), dy.get(), &offsets()},
            {&again, &squares}, with_fallback());
    run_row("grouped_linear_weight_gradient", variant, {x.get(), dy.get(), &offsets()}, {&packed},
            with_fallback({{"layout", std::string("panels")}}));
    EXPECT_TRUE(dw == again) << variant;
    double sum = 0;
    for (Int i = 0; i < kExperts * kOut * kIn; ++i) {
      ASSERT_TRUE(same(dw.at_index(i), packed.at_index(packed_offset(packed.type, i))))
          << variant << " element " << i;
      sum += double{dw.at_index(i)} * dw.at_index(i);
    }
    EXPECT_EQ(static_cast<float>(*reinterpret_cast<const double*>(squares.bytes.data)),
              static_cast<float>(sum));
  }
}

// Whatever is no int8 product goes to other rows, and int8 products to none of those.
TEST(Int8Rows, TakeInt8ProductsAlone) {
  const auto x = rows_of(kRows, kIn, 1), dy = rows_of(kRows, kOut, 2);
  const auto weight = weights_of(false, 10);
  const spec::Attributes none, fallback = with_fallback();
  const spec::DeviceSpec device{.instruction_sets = testing::instruction_sets()};
  const auto supported = [&](const char* op, const std::vector<TensorType>& in,
                             const std::vector<TensorType>& out, const spec::Attributes& attributes,
                             bool in_int8) {
    const spec::Problem problem{.op = intern(op),
                                .attributes = &attributes,
                                .inputs = in,
                                .outputs = out,
                                .device = &device};
    Int count = 0;
    for (const Kernel* kernel : candidates(op))
      if (kernel->name.starts_with("cpu:") &&
          (kernel->name.find("_int8_") != kernel->name.npos) == in_int8)
        count += kernel->supports(problem) ? 1 : 0;
    return count;
  };
  const std::vector<TensorType> coded{x->type, weight->type, offsets().type}, result{dy->type};
  EXPECT_GT(supported("grouped_linear", coded, result, fallback, true), 0);
  EXPECT_EQ(supported("grouped_linear", coded, result, fallback, false), 0);
  const std::vector<TensorType> plain{x->type, tensor_type(DType::kBFloat16, {kExperts, kOut, kIn}),
                                      offsets().type};
  EXPECT_EQ(supported("grouped_linear", plain, result, none, true), 0);
  EXPECT_GT(supported("grouped_linear", plain, result, none, false), 0);
  // One of two weights.
  EXPECT_EQ(supported("grouped_linear_many", {x->type, weight->type, plain[1], offsets().type},
                      {dy->type, dy->type}, fallback, true),
            0);
  const std::vector<TensorType> tokens{x->type, dy->type, offsets().type},
      gradient{tensor_type(DType::kFloat32, {kExperts, kOut, kIn})};
  EXPECT_GT(supported("grouped_linear_weight_gradient", tokens, gradient, fallback, true), 0);
  EXPECT_EQ(supported("grouped_linear_weight_gradient", tokens, gradient, fallback, false), 0);
  EXPECT_EQ(supported("grouped_linear_weight_gradient", tokens, gradient, none, true), 0);
}

}  // namespace
}  // namespace anabatic::kernels::cpu
