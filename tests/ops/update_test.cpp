// SPDX-License-Identifier: Apache-2.0
// Updates have the same bits in every form of a parameter and its moments, cut or whole, and with a
// mask those of the same update, with zeroes.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/philox.h"
#include "kernels/byte_watch.h"
#include "ops/kernel_runner.h"
#include "ops/run_all.h"
#include "ops/table.h"
#include "spec/sparsity.h"
#include "support/comparator.h"
#include "support/random_data.h"
#include "support/tolerance.h"
#include "tensor/dynamic_map.h"
#include "tensor/panels.h"
#include "tensor/split_float.h"

namespace anabatic::testing {
namespace {

constexpr auto kWide = DType::kFloat32;

Values scalar(double value) { return {.type = tensor_type(kWide, {}), .data = {value}}; }

// An update of a parameter kept whole, in `layout`, with moments of `moments`.
OpCall adamw_call(const std::string& layout, DType moments, std::vector<std::int64_t> shape) {
  TensorType type = tensor_type(kWide, shape), moment;
  if (!layout.empty()) type.layout = intern(layout);
  moment = with_dtype(type, moments);
  OpCall call{.op = "optimizer_step",
              .attributes = {{"rule", std::string("adamw")},
                             {"beta1", 0.9},
                             {"beta2", 0.95},
                             {"epsilon", 1e-8},
                             {"weight_decay", 0.1}}};
  if (moments == DType::kBFloat16) call.attributes["stream"] = std::int64_t{99};
  const auto moment_of = [&](ElementMap map) {
    return moments == DType::kUInt8 ? quantized(moment, moment_format(map)) : moment;
  };
  call.outputs = {type, moment_of(ElementMap::kDynamic), moment_of(ElementMap::kDynamicUnsigned)};
  std::uint64_t stream = 0;
  for (const TensorType& input : {type, type, call.outputs[1], call.outputs[2]}) {
    if (!input.is_quantized()) {
      call.inputs.push_back(random_values(input, Regime::kBounded, 5, stream++));
      continue;
    }
    Values values{.type = input};
    for (std::int64_t i = 0; i < input.num_elements(); ++i)
      values.data.push_back(static_cast<double>((i * 37 + call.inputs.size() + 1) % 256));
    for (const double scale : random_values(scales_type(input), Regime::kBounded, 5, stream++).data)
      values.data.push_back(std::abs(scale));
    call.inputs.push_back(std::move(values));
  }
  for (double& value : call.inputs[3].data) value = std::abs(value);
  call.inputs.push_back(scalar(0.5));
  call.inputs.push_back(scalar(0.01));
  call.inputs.push_back({.type = tensor_type(DType::kInt32, {}), .data = {3}});
  return call;
}

// The same update of a parameter in its upper and lower 16 bits.
OpCall in_halves(const OpCall& whole, bool packs) {
  OpCall call = whole;
  call.attributes["split"] = true;
  if (packs) call.attributes["packs"] = std::string("transposed");
  const TensorType type = whole.outputs[0];
  Values high{.type = with_dtype(type, DType::kBFloat16)},
      low{.type = with_dtype(type, DType::kUInt16)};
  for (const double value : whole.inputs[0].data) {
    const SplitFloat halves = split_float(static_cast<float>(value));
    high.data.push_back(to_float(halves.high));
    low.data.push_back(halves.low);
  }
  call.outputs[0] = low.type;
  call.outputs.insert(call.outputs.begin(), high.type);
  if (packs) {
    TensorType packed = high.type;
    packed.layout = panels_layout(true);
    call.outputs.insert(call.outputs.begin() + 4, packed);
  }
  call.inputs[0] = std::move(low);
  call.inputs.insert(call.inputs.begin(), std::move(high));
  return call;
}

// Runs the row whose suffix follows an op's name: "_avx2".
std::vector<Values> run_variant(const OpCall& call, const std::string& device,
                                const std::string& variant) {
  const kernels::Kernel* kernel = kernels::find_kernel(device + std::string(call.op) + variant);
  EXPECT_NE(kernel, nullptr) << call.op << variant;
  if (kernel == nullptr) return {};
  EXPECT_TRUE(supports(*kernel, call)) << kernel->name << supports(*kernel, call).reason;
  const RunResult result = run_kernel(*kernel, *ops::find_op(call.op), call);
  EXPECT_EQ(result.violation, "") << kernel->name;
  std::vector<Values> outputs;
  for (const HostTensor& output : result.outputs) outputs.push_back(output.values());
  return outputs;
}

TEST(AdamW, OfAParameterInHalvesHasTheBitsOfTheWholeOne) {
  int num_rows = 0;
  for (const kernels::Kernel* row : kernels::candidates("optimizer_step")) {
    const std::string name(row->name), device = name.substr(0, name.find(':') + 1),
                                       variant = name.substr(device.size() + row->op.size());
    for (const char* layout : {"", "panels"})
      for (const DType moments : {DType::kFloat32, DType::kBFloat16, DType::kUInt8})
        for (const auto& shape : {std::vector<std::int64_t>{17, 33}, {2, 37, 70}, {1, 1}}) {
          const OpCall whole = adamw_call(layout, moments, shape);
          if (!supports(*row, whole)) continue;
          ++num_rows;
          SCOPED_TRACE(fmt::format("{} {} {}", name, to_string(whole.outputs[0]),
                                   to_string(whole.outputs[1])));
          const std::vector<Values> want = run_variant(whole, device, variant);
          for (const bool packs : {false, true}) {
            if (packs && whole.outputs[0].layout == kRowMajor) continue;
            const std::vector<Values> got = run_variant(in_halves(whole, packs), device, variant);
            ASSERT_GE(got.size(), 4u);
            std::vector<double> merged, rounded;
            for (std::size_t i = 0; i < got[0].data.size(); ++i) {
              const BFloat16 high = to_bfloat16(static_cast<float>(got[0].data[i]));
              merged.push_back(merge_float({high, static_cast<std::uint16_t>(got[1].data[i])}));
              rounded.push_back(
                  to_float(to_bfloat16_half_away(static_cast<float>(want[0].data[i]))));
            }
            EXPECT_EQ(merged, want[0].data);
            EXPECT_EQ(got[0].data, rounded);
            EXPECT_EQ(got[2].data, want[1].data);
            EXPECT_EQ(got[3].data, want[2].data);
            if (packs) {
              EXPECT_EQ(got[4].data, rounded);
            }
            for (std::size_t i = 3; i < want.size(); ++i)
              EXPECT_EQ(got[i + 1 + packs].data, want[i].data);
          }
        }
  }
  EXPECT_GT(num_rows, 0);
}

// The same update of a parameter kept whole, with its packings.
OpCall with_packings(const OpCall& whole, const std::string& packs, DType dtype) {
  OpCall call = whole;
  call.attributes["packs"] = packs;
  call.attributes["dtype"] = std::string(to_string(dtype));
  for (const bool transposed : {true, false}) {
    if (!transposed && packs == "transposed") continue;
    TensorType packed = with_dtype(whole.outputs[0], dtype);
    packed.layout = panels_layout(transposed);
    call.outputs.insert(call.outputs.begin() + 3, packed);
  }
  return call;
}

TEST(AdamW, WithPackingsHasTheBitsOfPackBehindIt) {
  int num_rows = 0;
  for (const kernels::Kernel* row : kernels::candidates("optimizer_step")) {
    const std::string name(row->name), device = name.substr(0, name.find(':') + 1),
                                       variant = name.substr(device.size() + row->op.size());
    for (const std::string layout : {"", "panels"})
      for (const DType moments : {DType::kFloat32, DType::kBFloat16, DType::kUInt8})
        for (const DType dtype : {kWide, DType::kBFloat16})
          for (const std::string packs : {"transposed", "both"}) {
            const OpCall whole = adamw_call(layout, moments, {2, 37, 70});
            if ((packs == "transposed" && layout.empty()) || !supports(*row, whole)) continue;
            ++num_rows;
            SCOPED_TRACE(fmt::format("{} {} {} {}", name, layout, to_string(dtype), packs));
            const OpCall fused = with_packings(whole, packs, dtype);
            const std::vector<Values> got = run_variant(fused, device, variant);
            std::vector<Values> want = run_variant(whole, device, variant);
            const std::size_t num_packings = fused.outputs.size() - whole.outputs.size();
            for (std::size_t i = 0; i < num_packings; ++i) {
              const TensorType& packed = fused.outputs[3 + i];
              const OpCall pack{"pack",
                                {{"dtype", std::string(to_string(dtype))},
                                 {"layout", std::string(text(packed.layout))}},
                                {want[0]},
                                {packed}};
              const auto place = static_cast<std::ptrdiff_t>(3 + i);
              want.insert(want.begin() + place, run_variant(pack, device, variant)[0]);
            }
            ASSERT_EQ(got.size(), want.size());
            for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].data, want[i].data) << i;
          }
  }
  EXPECT_GT(num_rows, 10);
}

// A tile and parts of others; a stack; and one large enough to be written past the caches.
TEST(AdamW, WithPackingsOfInt8ProductsHasTheBitsOfPackBehindIt) {
  const std::string dtype = to_string(int8_tile_format());
  int num_rows = 0;
  for (const kernels::Kernel* row : kernels::candidates("optimizer_step")) {
    const std::string name(row->name), device = name.substr(0, name.find(':') + 1),
                                       variant = name.substr(device.size() + row->op.size());
    for (const DType moments : {DType::kFloat32, DType::kBFloat16, DType::kUInt8})
      for (const auto& shape :
           {std::vector<std::int64_t>{130, 70}, {3, 37, 300}, {2, 128, 256}, {385, 690}}) {
        const bool is_large = shape.size() == 2 && shape[0] == 385;
        if (is_large && (device == "ref:" || moments != kWide)) continue;
        const OpCall whole = adamw_call("", moments, shape);
        if (!supports(*row, whole)) continue;
        for (const double clip : {0.5, std::numeric_limits<double>::quiet_NaN()}) {
          OpCall fused = whole;
          fused.inputs[4].data = {clip};
          std::vector<Values> want = run_variant(fused, device, variant);
          fused.attributes["packs"] = std::string("both");
          fused.attributes["dtype"] = dtype;
          for (const bool transposed : {false, true}) {
            TensorType packed = quantized(whole.outputs[0], int8_tile_format());
            packed.layout = panels_layout(transposed);
            fused.outputs.push_back(packed);
            const OpCall pack{"pack",
                              {{"dtype", dtype}, {"layout", std::string(text(packed.layout))}},
                              {transposed ? want.back() : want[0]},
                              {packed}};
            want.push_back(run_variant(pack, device, variant)[0]);
          }
          SCOPED_TRACE(fmt::format("{} {} {}", name, to_string(whole.outputs[1]), clip));
          const std::vector<Values> got = run_variant(fused, device, variant);
          ASSERT_EQ(got.size(), want.size());
          for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].data, want[i].data) << i;
          ++num_rows;
        }
      }
  }
  EXPECT_GT(num_rows, 30);
}

// Row-major elements [first, first + count) as a tensor of that type.
Values part_of(const Values& whole, const TensorType& type, std::int64_t first) {
  const auto begin = whole.data.begin() + static_cast<std::ptrdiff_t>(first);
  return {type, {begin, begin + static_cast<std::ptrdiff_t>(type.num_elements())}};
}

struct RowRange {
  std::int64_t matrices, rows, first_row;
};

// Slices of some rows, one after the other, where each finds what the ones before left.
std::vector<Values> run_in_slices(const OpCall& whole, const std::vector<RowRange>& slices,
                                  const std::string& device, const std::string& variant) {
  OpCall call = whole;
  // The parameter, or its upper 16 bits, stays whole; lower 16 bits and moments are cut.
  const std::vector<std::size_t> cut = !whole.attributes.contains("split")
                                           ? std::vector<std::size_t>{2, 3}
                                           : std::vector<std::size_t>{1, 3, 4};
  const std::int64_t width = whole.outputs[0].dim(-1);
  std::vector<Values> result{whole.inputs[0]};
  for (std::size_t i = 1; i <= cut.size(); ++i) result.push_back({whole.outputs[i], {}});
  const bool packs = whole.attributes.contains("packs");
  if (packs) {
    // What an earlier step left.
    result.push_back(random_values(whole.outputs[4], Regime::kBounded, 6, 0));
    call.inputs.push_back(result.back());
  }
  for (const RowRange& slice : slices) {
    for (std::size_t i = 0; i < cut.size(); ++i) {
      TensorType type = whole.outputs[1 + i];
      type.shape[type.shape.size() - 2] = {slice.rows};
      if (type.ndim() == 3) type.shape[0] = {slice.matrices};
      call.inputs[cut[i]] = part_of(whole.inputs[cut[i]], type, slice.first_row * width);
      call.outputs[1 + i] = type;
    }
    call.inputs[0] = result[0];
    call.attributes["first_row"] = slice.first_row;
    const std::vector<Values> got = run_variant(call, device, variant);
    if (got.size() != result.size()) return {};
    result[0] = got[0];
    for (std::size_t i = 1; i <= cut.size(); ++i)
      result[i].data.insert(result[i].data.end(), got[i].data.begin(), got[i].data.end());
    if (packs) result.back() = call.inputs.back() = got.back();
  }
  return result;
}

TEST(AdamW, InSlicesOfItsMomentsHasTheBitsOfTheWhole) {
  struct Case {
    std::vector<std::int64_t> shape;
    std::vector<RowRange> slices;
  };
  const std::vector<Case> cases{{{53, 33}, {{1, 16, 0}, {1, 32, 16}, {1, 5, 48}}},
                                {{5, 37, 70}, {{2, 37, 0}, {2, 37, 74}, {1, 37, 148}}},
                                {{2, 37, 70}, {{1, 32, 0}, {1, 5, 32}, {1, 32, 37}, {1, 5, 69}}}};
  int num_rows = 0;
  for (const kernels::Kernel* row : kernels::candidates("optimizer_step")) {
    const std::string name(row->name), device = name.substr(0, name.find(':') + 1),
                                       variant = name.substr(device.size() + row->op.size());
    for (const char* layout : {"", "panels"})
      for (const DType moments : {DType::kFloat32, DType::kBFloat16})
        for (const Case& one : cases) {
          const OpCall whole = adamw_call(layout, moments, one.shape);
          if (!supports(*row, whole)) continue;
          for (const OpCall& call : {whole, in_halves(whole, false), in_halves(whole, true)}) {
            const bool packs = call.attributes.contains("packs");
            if (packs && call.outputs[0].layout == kRowMajor) continue;
            SCOPED_TRACE(fmt::format("{} {} {}", name, packs, to_string(call.outputs[2])));
            const std::vector<Values> want = run_variant(call, device, variant),
                                      got = run_in_slices(call, one.slices, device, variant);
            ASSERT_EQ(got.size(), want.size());
            for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].data, want[i].data) << i;
            ++num_rows;
          }
        }
  }
  EXPECT_GT(num_rows, 20);
}

// A mask of every other block or so, for outputs or a gradient of this type.
Values mask_of(spec::SparsityPattern pattern, const TensorType& weight) {
  Values mask{.type = spec::mask_type(pattern, weight)};
  for (std::int64_t i = 0; i < mask.type.num_elements(); ++i)
    mask.data.push_back(random_bits(8, 0, static_cast<std::uint64_t>(i)) % 2);
  return mask;
}

bool has(const Values& mask, std::int64_t block, const TensorType& weight, std::int64_t i) {
  const std::int64_t row = i / weight.dim(-1), column = i % weight.dim(-1),
                     line = row / weight.dim(-2) * mask.type.dim(-2) + row % weight.dim(-2) / block;
  return mask.data[static_cast<std::size_t>(line * mask.type.dim(-1) + column / block)] != 0;
}

// With NaN where nothing is present, to which no result may yield.
TEST(Masks, LeaveBitsOfWhatIsPresentAndZeroes) {
  int num_rows = 0;
  for (const kernels::Kernel* row : kernels::candidates("optimizer_step")) {
    const std::string name(row->name), device = name.substr(0, name.find(':') + 1),
                                       variant = name.substr(device.size() + row->op.size());
    for (const char* layout : {"", "panels"})
      for (const DType moments : {DType::kFloat32, DType::kBFloat16, DType::kUInt8})
        for (const spec::SparsityPattern pattern : spec::kSparsityPatterns) {
          const OpCall whole = adamw_call(layout, moments, {2, 37, 70});
          if (!supports(*row, whole)) continue;
          const TensorType& weight = whole.outputs[0];
          const Values mask = mask_of(pattern, weight);
          const auto is_present = [&](std::size_t i) {
            return has(mask, spec::mask_block(pattern), weight, static_cast<std::int64_t>(i));
          };
          for (const OpCall& call : {whole, in_halves(whole, false), in_halves(whole, true),
                                     with_packings(whole, "both", DType::kBFloat16)}) {
            const bool is_split = call.attributes.contains("split");
            if (is_split && call.attributes.contains("packs") && weight.layout == kRowMajor)
              continue;
            SCOPED_TRACE(fmt::format("{} {} {} {} {}", name, layout, to_string(moments),
                                     to_string(pattern), call.outputs.size()));
            OpCall masked = call;
            masked.attributes["mask"] = std::string(to_string(pattern));
            masked.inputs.push_back(mask);
            std::vector<double>& gradient = masked.inputs[is_split ? 2 : 1].data;
            for (std::size_t i = 0; i < gradient.size(); ++i)
              if (!is_present(i)) gradient[i] = std::numeric_limits<double>::quiet_NaN();
            const auto want = run_variant(call, device, variant),
                       got = run_variant(masked, device, variant);
            ASSERT_EQ(got.size(), want.size());
            for (std::size_t o = 0; o < got.size(); ++o) {
              const bool is_low = is_split && o == 1;
              for (std::size_t i = 0; i < gradient.size(); ++i) {
                // Scales follow what is left; the lower half of 0 is 0x8000 (split_float.h).
                if (is_present(i) && want[o].type.is_quantized()) continue;
                ASSERT_EQ(got[o].data[i], is_present(i) ? want[o].data[i]
                                          : is_low      ? 0x8000
                                                        : 0)
                    << o << " " << i;
              }
            }
            // What is absent and 0 already is left alone, with the same bits.
            OpCall again = masked;
            const std::size_t states[] = {0, is_split ? 3u : 2u, is_split ? 4u : 3u};
            for (std::size_t i = 0; i < gradient.size(); ++i) {
              if (is_present(i)) continue;
              for (const std::size_t state : states) again.inputs[state].data[i] = 0;
              if (is_split) again.inputs[1].data[i] = 0x8000;
            }
            for (const bool says_so : {false, true}) {
              if (says_so && moments == DType::kUInt8) continue;
              if (says_so) again.attributes["kept"] = std::int64_t{1};
              const auto repeated = run_variant(again, device, variant);
              ASSERT_EQ(repeated.size(), got.size());
              for (std::size_t o = 0; o < got.size(); ++o)
                for (std::size_t i = 0; i < gradient.size();
                     ++i)  // not the scales of tiles of zeroes
                  ASSERT_EQ(repeated[o].data[i], got[o].data[i]) << o << " " << i << " " << says_so;
            }
            ++num_rows;
            if (moments == DType::kUInt8 || (!is_split && call.outputs.size() > 3)) continue;
            const auto sliced =
                run_in_slices(masked, {{1, 32, 0}, {1, 5, 32}, {1, 37, 37}}, device, variant);
            ASSERT_EQ(sliced.size(), got.size());
            for (std::size_t o = 0; o < got.size(); ++o) EXPECT_EQ(sliced[o].data, got[o].data);
          }
        }
  }
  EXPECT_GT(num_rows, 50);
}

// So a step that knows of zeroes takes the time of what is present: others would have become 0.
TEST(Masks, HaveUpdatesOfPresentBlocksAloneWhereTheOthersAreZeroAlready) {
  int num_rows = 0;
  for (const kernels::Kernel* row : kernels::candidates("optimizer_step")) {
    const std::string name(row->name), device = name.substr(0, name.find(':') + 1),
                                       variant = name.substr(device.size() + row->op.size());
    if (device == "ref:") continue;
    for (const DType moments : {DType::kFloat32, DType::kBFloat16})
      for (const auto pattern :
           {spec::SparsityPattern::kBlock32, spec::SparsityPattern::kBlock16}) {
        SCOPED_TRACE(fmt::format("{} {} {}", name, to_string(moments), to_string(pattern)));
        OpCall call = adamw_call("", moments, {2, 37, 70});
        const TensorType weight = call.outputs[0];
        const Values mask = mask_of(pattern, weight);
        call.attributes["mask"] = std::string(to_string(pattern));
        call.attributes["kept"] = std::int64_t{1};
        call.inputs.push_back(mask);
        if (!supports(*row, call)) continue;
        ++num_rows;
        // A watch would be told of all bytes.
        const RunResult result = run_kernel(*row, *ops::find_op(call.op), call);
        std::vector<Values> got;
        for (const HostTensor& output : result.outputs) got.push_back(output.values());
        const std::size_t inputs[] = {0, 2, 3};  // of the outputs
        for (std::size_t o = 0; o < got.size(); ++o)
          for (std::size_t i = 0; i < got[0].data.size(); ++i) {
            if (has(mask, spec::mask_block(pattern), weight, static_cast<std::int64_t>(i)))
              continue;
            ASSERT_EQ(got[o].data[i], call.inputs[inputs[o]].data[i]) << o << " " << i;
          }
      }
  }
  EXPECT_GE(num_rows, 4);
}

TEST(Masks, LeaveOutOfASumOfSquaresWhatIsAbsent) {
  for (const auto& [layout, columns] : {std::pair{"", 650}, {"", 640}, {"", 16}, {"panels", 650}})
    for (const spec::SparsityPattern pattern : spec::kSparsityPatterns) {
      TensorType type = tensor_type(kWide, {3, 37, columns});
      if (layout[0] != '\0') type.layout = intern(layout);
      OpCall call{.op = "sum_squares",
                  .attributes = {},
                  .inputs = {random_values(type, Regime::kBounded, 5, 0)},
                  .outputs = {tensor_type(DType::kFloat64, {})}};
      OpCall masked = call;
      masked.attributes["mask"] = std::string(to_string(pattern));
      masked.inputs.push_back(mask_of(pattern, type));
      for (std::size_t i = 0; i < call.inputs[0].data.size(); ++i)
        if (!has(masked.inputs[1], spec::mask_block(pattern), type, static_cast<std::int64_t>(i))) {
          call.inputs[0].data[i] = 0;
          masked.inputs[0].data[i] = std::numeric_limits<double>::quiet_NaN();
        }
      const auto want = run_all(call), got = run_all(masked);
      ASSERT_EQ(got.size(), want.size());
      ASSERT_GT(got.size(), 1u);
      for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i][0].data, want[i][0].data);
    }
}

// More than one block of a watch, which end inside panels; an odd depth.
TEST(AdamW, TellsAWatchOfStatesOfSeveralBlocks) {
  for (const char* layout : {"", "panels"})
    for (const DType moments : {DType::kFloat32, DType::kBFloat16}) {
      const OpCall whole = adamw_call(layout, moments, {592, 531});
      EXPECT_GT(whole.outputs[1].num_bytes() * (moments == DType::kBFloat16 ? 2 : 1),
                kernels::ByteWatch::kBlockBytes);
      const OpCall halves = in_halves(whole, layout[0] != '\0');
      for (const kernels::Kernel* row : kernels::candidates(halves.op)) {
        if (row->watched_outputs == nullptr || !supports(*row, halves)) continue;
        EXPECT_EQ(row->watched_outputs(halves.attributes, halves.outputs), 0b1110u);
        EXPECT_EQ(run_kernel(*row, *ops::find_op(halves.op), halves).violation, "") << row->name;
      }
    }
}

// With rates of 0 the new moments are the gradient and its square: the same floats whatever
// computes them, so that quantised values and scales must be the same bits.
TEST(AdamW, QuantizesMomentsAlikeInEveryRowAndLayout) {
  for (const auto& shape : {std::vector<std::int64_t>{211, 97}, {3, 16, 33}}) {
    std::vector<std::vector<Values>> results;
    for (const char* layout : {"", "panels"}) {
      OpCall call = adamw_call(layout, DType::kUInt8, shape);
      call.attributes["beta1"] = call.attributes["beta2"] = 0.0;
      for (Values* moment : {&call.inputs[2], &call.inputs[3]})
        std::fill_n(moment->data.begin(), moment->type.num_elements(), 0.0);
      std::vector<double>& gradient = call.inputs[1].data;
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        const double size = std::exp(-20 * random_uniform(5, 77, i));
        gradient[i] = i % 11 == 0 ? 0 : static_cast<float>(i % 2 == 0 ? size : -size);
      }
      std::fill_n(gradient.begin(), 97 * 16, 0);  // a tile and more
      for (std::vector<Values>& outputs : run_all(call)) results.push_back(std::move(outputs));
    }
    ASSERT_GE(results.size(), 4u);
    for (std::size_t i = 1; i < results.size(); ++i)
      for (std::size_t output = 1; output < 3; ++output)
        EXPECT_EQ(results[i][output].data, results[0][output].data) << i << ", " << output;
  }
}

TEST(AdamW, RoundsMomentsAlikeInEveryLayoutAndWithoutBias) {
  constexpr std::int64_t kRows = 211, kColumns = 97;
  constexpr double kStep = 0x1p-8;  // of bf16 between 0.5 and 1
  for (const kernels::Kernel* row : kernels::candidates("optimizer_step")) {
    std::vector<std::vector<double>> firsts;
    for (const char* layout : {"", "panels"}) {
      OpCall call = adamw_call(layout, DType::kBFloat16, {kRows, kColumns});
      if (!supports(*row, call)) continue;
      // The new moment is 0.9 · 0.5 + 0.1 · 0.5 · 1.4 = 0.52 whatever the element.
      call.inputs[1].data.assign(call.inputs[1].data.size(), 1.4);
      call.inputs[2].data.assign(call.inputs[2].data.size(), 0.5);
      const RunResult result = run_kernel(*row, *ops::find_op("optimizer_step"), call);
      firsts.push_back(result.outputs[1].values().data);
      double sum = 0;
      for (const double value : firsts.back()) sum += value;
      const auto count = static_cast<double>(kRows * kColumns);
      EXPECT_LE(std::abs(sum / count - 0.52), mean_of_roundings_tolerance(kStep, count))
          << row->name;
    }
    if (firsts.size() == 2) {
      EXPECT_EQ(firsts[0], firsts[1]) << row->name;
    }
  }
}

}  // namespace
}  // namespace anabatic::testing
