// SPDX-License-Identifier: Apache-2.0
// What int8 products quantise, next to the products that do so, at several fallbacks in turn.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <numeric>

#include "base/error.h"
#include "base/philox.h"
#include "bench/cases.h"
#include "bench/check.h"
#include "bench/graph_case.h"
#include "device/memory.h"
#include "device/topology.h"
#include "kernels/int8_operand.h"
#include "kernels/kernel.h"
#include "kernels/ref/int8_products.h"
#include "ops/pack.h"
#include "passes/precision/product_units.h"
#include "spec/product.h"
#include "tensor/panels.h"

namespace anabatic::bench {
namespace {

using device::Memory;
using kernels::Int8Operand;
using kernels::Int8OperandForm;

constexpr std::int64_t kBlock = 128;
constexpr std::int64_t kGroup = 16;
// Shares of the blocks of x, and sizes of the one element there that outweighs the others. Such a
// block falls back at 64, or from 16 on: n · max / Σ is about 98 and 32.
constexpr double kFarShare = 0.004, kNearShare = 0.096;
constexpr float kFar = 360, kNear = 37;
constexpr std::int64_t kMostCheckedRows = 256;

}  // namespace

float with_outliers(float value, std::int64_t i, std::int64_t columns) {
  const std::int64_t row = i / columns, column = i % columns, block = column / kBlock;
  const auto place = static_cast<std::uint64_t>(row / kGroup * ceil_div(columns, kBlock) + block);
  // Multiples of the golden ratio spread evenly, so that few groups have the share too.
  constexpr double kGolden = 0.6180339887498949;
  const double multiple = kGolden * static_cast<double>(place),
               draw = multiple - std::floor(multiple);
  if (draw >= kFarShare + kNearShare) return value;
  const std::int64_t width = std::min(kBlock, columns - block * kBlock);
  const std::uint64_t groups = static_cast<std::uint64_t>(ceil_div(width, kGroup));
  const auto group = static_cast<std::int64_t>(random_below(0, stream_of("group"), place, groups));
  if (column != block * kBlock + group * kGroup + row % kGroup) return value;
  return draw < kFarShare ? kFar : kNear;
}

namespace {

std::string fallback_name(std::int64_t fallback) {
  return fallback >= spec::kNoFallback ? "off" : std::to_string(fallback);
}

// A kernel of the table on operands of its own.
struct KernelCall {
  const kernels::Kernel* kernel = nullptr;
  spec::Attributes attributes;
  TensorType input, output;
  spec::Problem problem;
  const std::byte* from = nullptr;
  Memory to, workspace;
  std::vector<std::byte> prepared;

  KernelCall(std::string_view op, spec::Attributes the_attributes, const TensorType& in,
             const TensorType& out, const std::byte* the_from, const spec::DeviceSpec& device)
      : attributes(std::move(the_attributes)), input(in), output(out), from(the_from) {
    problem = {.op = intern(op),
               .attributes = &attributes,
               .inputs = {&input, 1},
               .outputs = {&output, 1},
               .device = &device};
    for (const kernels::Kernel* row : kernels::candidates(op))
      if (kernel == nullptr && row->supports(problem)) kernel = row;
    ANABATIC_CHECK(kernel != nullptr, "[bench] no kernel for {} of {}", op, to_string(input));
    to = Memory(output.num_bytes());
    workspace = workspace_of(*kernel);
    if (kernel->prepare) prepared = kernel->prepare(problem);
  }
  KernelCall(const KernelCall&) = delete;
  KernelCall& operator=(const KernelCall&) = delete;

  Memory workspace_of(const kernels::Kernel& of) const {
    return Memory(of.workspace_bytes ? of.workspace_bytes(problem) : 0);
  }
  void run(device::ThreadTeam& team) { run(*kernel, to, workspace, team); }
  void run(const kernels::Kernel& with, const Memory& result, const Memory& space,
           device::ThreadTeam& team) const {
    const TensorView in{const_cast<std::byte*>(from), &input}, out{result.data(), &output};
    const bool adds = false;
    with.run({.inputs = {&in, 1},
              .outputs = {&out, 1},
              .attributes = &attributes,
              .workspace = space.data(),
              .prepared = &with == kernel && !prepared.empty() ? prepared.data() : nullptr,
              .accumulate = {&adds, 1},
              .launch = {.team = &team}});
  }
  // InternalError unless the reference has the same bytes.
  void check(std::string_view op, device::ThreadTeam& team) {
    const kernels::Kernel& reference = *kernels::find_kernel(fmt::format("ref:{}", op));
    const Memory want(output.num_bytes());
    std::memset(to.data(), 0, static_cast<std::size_t>(output.num_bytes()));
    run(team);
    run(reference, want, workspace_of(reference), team);
    ANABATIC_CHECK(
        std::memcmp(to.data(), want.data(), static_cast<std::size_t>(output.num_bytes())) == 0,
        "[bench] {} of {} to {} differs from the reference", op, to_string(input),
        to_string(output));
  }
};

struct OperandCall {
  const char* name;
  bool is_gradient;  // dy, else x
  Int8OperandForm form;
  bool is_gathered;
  const char* product;  // that begins with it
};
constexpr OperandCall kOperands[] = {
    {"x_rows", false, Int8OperandForm::kRows, false, "forward"},
    {"dy_rows", true, Int8OperandForm::kRows, false, "input_gradient"},
    {"dy_columns", true, Int8OperandForm::kLeftColumns, false, "weight_gradient"},
    {"x_columns", false, Int8OperandForm::kRightColumns, false, "weight_gradient"},
    {"x_gathered", false, Int8OperandForm::kRows, true, "forward"}};
constexpr std::size_t kNumOfProducts = 4;  // of these, that the products of one layer have

class QuantizeBenchmark final : public Benchmark {
 public:
  QuantizeBenchmark(const train::RunConfig& run, const GemmSizes& sizes, bool accumulate)
      : sizes_(sizes),
        team_(std::make_shared<device::ThreadTeam>(static_cast<int>(run.device.threads))),
        device_(device::probe_cpu(*team_, false)),
        fallback_(run.precision.int8.fallback) {
    make_products(run, accumulate);
    fill();
    for (const OperandCall& operand : kOperands) add_operand(operand);
    const TensorType weight = tensor_type(DType::kFloat32, {sizes.out, sizes.in});
    TensorType packed = quantized(weight, int8_tile_format()), transposed = packed, kept;
    packed.layout = panels_layout(false);
    transposed.layout = panels_layout(true);
    const TensorType x = tensor_type(DType::kBFloat16, {sizes.rows, sizes.in});
    kept = quantized(x, int8_format(kBlock));
    add_call("packing", "pack", ops::packing_attributes(packed), weight, packed, w_.data());
    add_call("packing_transposed", "pack", ops::packing_attributes(transposed), packed, transposed,
             calls_[0].to.data());
    add_call("quantize", "quantize", {{"block", kBlock}}, x, kept, x_.data());
    make_parts();
  }

  const std::vector<Part>& parts() const override { return parts_; }
  device::ThreadTeam& team() override { return *team_; }
  std::int64_t arena_bytes() const override {
    std::int64_t bytes = 0;
    for (const auto& product : products_) bytes += product->arena_bytes();
    return bytes;
  }

  // Int8 values and packings have the bits of the reference, products its results.
  Check check() override {
    Check worst = products_[1]->check();
    for (std::size_t i = 0; i < operands_.size(); ++i) check_operand(i);
    calls_[0].check("pack", *team_);
    calls_[1].check("pack", *team_);
    calls_[2].check("quantize", *team_);
    return worst;
  }

  void run(std::span<double> seconds) override {
    std::size_t part = 0;
    const auto timed = [&](auto&& work) {
      const std::int64_t begin = clock()();
      work();
      const double took = 1e-9 * static_cast<double>(clock()() - begin);
      seconds[++part] += took;
      if (part <= kNumOfProducts) seconds[0] += took;
    };
    for (const Operand& operand : operands_)
      timed([&] { operand.coded.quantize(operand.workspace.data(), *team_, nullptr); });
    for (KernelCall& call : calls_) timed([&] { call.run(*team_); });
    for (const auto& product : products_) {
      product->use_clock(clock());
      const std::size_t count = product->parts().size();
      product->run(seconds.subspan(++part, count));
      part += count - 1;
    }
  }

 private:
  struct Operand {
    Int8Operand coded;
    Memory workspace;
  };

  void make_products(const train::RunConfig& run, bool accumulate) {
    levels_ = {spec::kNoFallback};
    for (const std::int64_t level : {fallback_, std::int64_t{16}, std::int64_t{0}})
      if (std::ranges::find(levels_, level) == levels_.end()) levels_.push_back(level);
    for (const std::int64_t level : levels_) {
      train::RunConfig at_level = run;
      at_level.precision.int8.fallback = level;
      products_.push_back(make_graph_benchmark(
          at_level,
          [sizes = sizes_](std::int64_t first) {
            GraphCase made = gemm_case(sizes, first > 0 ? first : sizes.rows);
            made.value = [width = sizes.in, value = std::move(made.value)](std::string_view name,
                                                                           std::int64_t i) {
              return name == "x" ? with_outliers(value(name, i), i, width) : value(name, i);
            };
            return made;
          },
          accumulate, team_));
    }
  }

  void fill() {
    const auto draw = [](Memory& to, std::string_view name, std::int64_t rows,
                         std::int64_t columns) {
      to = Memory(2 * rows * columns);
      auto* values = reinterpret_cast<BFloat16*>(to.data());
      for (std::int64_t i = 0; i < rows * columns; ++i)
        values[i] = to_bfloat16(name == "x" ? with_outliers(deviate(name, i), i, columns)
                                            : deviate(name, i));
    };
    draw(x_, "x", sizes_.rows, sizes_.in);
    draw(dy_, "dy", sizes_.rows, sizes_.out);
    w_ = Memory(4 * sizes_.out * sizes_.in);
    for (std::int64_t i = 0; i < sizes_.out * sizes_.in; ++i)
      reinterpret_cast<float*>(w_.data())[i] = deviate("weight", i);
    order_.resize(static_cast<std::size_t>(sizes_.rows));
    std::iota(order_.begin(), order_.end(), 0);
    for (std::size_t i = order_.size(); i > 1; --i)
      std::swap(order_[i - 1], order_[random_below(0, stream_of("order"), i, i)]);
  }

  void add_operand(const OperandCall& operand) {
    const TensorView x{operand.is_gradient ? dy_.data() : x_.data(),
                       operand.is_gradient ? &dy_type_ : &x_type_};
    Int8Operand coded(x, operand.is_gathered ? order_.data() : nullptr, operand.form,
                      operand.is_gradient ? spec::kNoFallback : fallback_, device_);
    Memory workspace(coded.workspace_bytes());
    operands_.push_back({std::move(coded), std::move(workspace)});
    const auto elements = static_cast<double>(x.type->num_elements());
    // bf16 read, int8 values and their scales written.
    parts_.push_back({.name = operand.name,
                      .bytes = (2 + 1 + 2.0 / kBlock) * elements,
                      .of = fmt::format("{}_{}", operand.product, fallback_name(fallback_))});
  }

  void add_call(const char* name, std::string_view op, spec::Attributes attributes,
                const TensorType& in, const TensorType& out, const std::byte* from) {
    calls_.emplace_back(op, std::move(attributes), in, out, from, device_);
    calls_.back().run(*team_);
    parts_.push_back(
        {.name = name, .bytes = static_cast<double>(in.num_bytes() + out.num_bytes())});
  }

  void make_parts() {
    Part total{.name = "total", .of = fmt::format("products_{}", fallback_name(fallback_))};
    for (std::size_t i = 0; i < kNumOfProducts; ++i) total.bytes += parts_[i].bytes;
    parts_.insert(parts_.begin(), total);
    for (std::size_t i = 0; i < levels_.size(); ++i)
      for (Part part : products_[i]->parts()) {
        const std::string name = part.name == "total" ? "products" : part.name;
        part.name = fmt::format("{}_{}", name, fallback_name(levels_[i]));
        if (i > 0) part.of = fmt::format("{}_{}", name, fallback_name(spec::kNoFallback));
        parts_.push_back(std::move(part));
      }
  }

  // As many rows as the definition takes little time for.
  void check_operand(std::size_t i) {
    const OperandCall& operand = kOperands[i];
    const std::int64_t width = operand.is_gradient ? sizes_.out : sizes_.in;
    const std::int64_t rows = std::min(sizes_.rows, kMostCheckedRows);
    const TensorType type = tensor_type(DType::kBFloat16, {rows, width});
    const TensorView x{operand.is_gradient ? dy_.data() : x_.data(), &type};
    const std::int64_t fallback = operand.is_gradient ? spec::kNoFallback : fallback_;
    const Int8Operand coded(x, operand.is_gathered ? order_.data() : nullptr, operand.form,
                            fallback, device_);
    const Memory workspace(coded.workspace_bytes());
    coded.quantize(workspace.data(), *team_, nullptr);
    const bool by_rows = operand.form == Int8OperandForm::kRows;
    const std::int64_t lines = by_rows ? rows : width, depth = by_rows ? width : rows;
    std::vector<float> values(static_cast<std::size_t>(lines * depth));
    for (std::int64_t line = 0; line < lines; ++line)
      for (std::int64_t k = 0; k < depth; ++k) {
        std::int64_t row = by_rows ? line : k;
        if (operand.is_gathered) row = order_[static_cast<std::size_t>(row)];
        values[static_cast<std::size_t>(line * depth + k)] =
            to_float(x.as<const BFloat16>()[row * width + (by_rows ? k : line)]);
      }
    const kernels::ref::CodedLines want =
        kernels::ref::code_lines(values, lines, depth, static_cast<int>(fallback));
    const std::vector<double> got = coded.values(workspace.data());
    for (std::size_t at = 0; at < got.size(); ++at) {
      const std::size_t line = at / static_cast<std::size_t>(depth),
                        k = at % static_cast<std::size_t>(depth),
                        block = line * static_cast<std::size_t>(want.blocks()) + k / kBlock;
      const double second = want.falls_back[block] ? want.second_codes[at] / 254.0 : 0.0;
      const double value = static_cast<double>(want.scales[block]) * (want.codes[at] + second);
      ANABATIC_CHECK(got[at] == value,
                     "[bench] {} at line {}, element {}: expected {} as the definition has it, got "
                     "{}",
                     operand.name, line, k, value, got[at]);
    }
  }

  GemmSizes sizes_;
  std::shared_ptr<device::ThreadTeam> team_;
  spec::DeviceSpec device_;
  std::int64_t fallback_;
  TensorType x_type_ = tensor_type(DType::kBFloat16, {sizes_.rows, sizes_.in}),
             dy_type_ = tensor_type(DType::kBFloat16, {sizes_.rows, sizes_.out});
  Memory x_, dy_, w_;
  std::vector<std::int32_t> order_;
  std::vector<Operand> operands_;
  std::deque<KernelCall> calls_;
  std::vector<std::int64_t> levels_;
  std::vector<std::unique_ptr<Benchmark>> products_;  // by level
  std::vector<Part> parts_;
};

}  // namespace

std::unique_ptr<Benchmark> make_quantize(const train::RunConfig& run, Settings& settings,
                                         bool accumulate) {
  ANABATIC_REQUIRE(run.train.precision == "int8",
                   "[bench] quantize: expected --train.precision int8, got {}",
                   run.train.precision);
  const GemmSizes sizes{.rows = settings.integer("rows", 1024),
                        .in = settings.integer("in", 512, passes::kLeastInt8Depth),
                        .out = settings.integer("out", 1536, passes::kLeastInt8Depth),
                        .element = 2};
  return std::make_unique<QuantizeBenchmark>(run, sizes, accumulate);
}

}  // namespace anabatic::bench
