// SPDX-License-Identifier: Apache-2.0
#include "train/adaptive/sampled_errors.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/philox.h"
#include "device/thread_team.h"
#include "kernels/ref/access.h"
#include "kernels/ref/int8_products.h"
#include "passes/precision/product_units.h"
#include "spec/product_bias.h"
#include "spec/product_prologue.h"
#include "tensor/split_float.h"

namespace anabatic::train {
namespace {

using Int = std::int64_t;
using kernels::ref::CodedLines;
using kernels::ref::load;
using kernels::ref::load_as;
using spec::ProductRole;

constexpr Int kTile = 128;  // and of blocks

std::size_t at(Int i) { return static_cast<std::size_t>(i); }

// Which rows of the operands a row of a product reads, and of which matrix.
class Rows {
 public:
  Rows(const ProductCall& call, const runtime::CallEvent& event) {
    const spec::Attributes& attributes = event.call.attributes;
    const auto inputs = spec::without_biases(event.inputs, attributes);
    const bool is_many = !attributes.contains("activation") && has_several(event);
    std::size_t offsets = 2;
    std::size_t map = 3;
    if (attributes.contains("activation") && call.role == ProductRole::kForward) {
      const spec::ActivationInputs of = spec::activation_inputs(attributes);
      offsets = at(of.offsets());
      map = at(of.row_map());
    } else if (attributes.contains("activation")) {
      const auto of = spec::activation_gradient_inputs(attributes, call.is_grouped);
      map = at(of.row_map());
      if (map + 1 < inputs.size()) divisor_ = inputs[map + 1].type->dim(-1);
    } else if (is_many) {
      offsets = inputs.size() - 1;
      map = inputs.size();
    }
    if (!call.is_grouped) return;
    offsets_ = inputs[offsets].as<const std::int32_t>();
    num_groups_ = inputs[offsets].type->dim(0) - 1;
    if (attributes.contains("top_k")) divisor_ = spec::get_int(attributes, "top_k");
    if (divisor_ == 0 || map >= inputs.size()) return;
    map_ = inputs[map].as<const std::int32_t>();
    gathers_dy_ =
        attributes.contains("gathered") && spec::get_string(attributes, "gathered") == "dy";
  }

  // The rows of the product; those of the operand where it is one matrix.
  Int count(Int rows_of_operand) const {
    return offsets_ != nullptr ? offsets_[num_groups_] : rows_of_operand;
  }
  Int group_of(Int row) const {
    if (offsets_ == nullptr) return 0;
    return std::upper_bound(offsets_, offsets_ + num_groups_ + 1, row) - offsets_ - 1;
  }
  // [begin, end) of a group.
  Int begin(Int group) const { return offsets_ != nullptr ? offsets_[group] : 0; }
  Int end(Int group, Int rows_of_operand) const {
    return offsets_ != nullptr ? offsets_[group + 1] : rows_of_operand;
  }
  // Where the row is in x, or in what an input gradient multiplies; and in the dy of a weight
  // gradient.
  Int of_left(Int row) const { return gathers_dy_ ? row : source(row); }
  Int of_dy(Int row) const { return gathers_dy_ ? source(row) : row; }

 private:
  static bool has_several(const runtime::CallEvent& event) {
    const spec::ProductForm* form = spec::find_product(event.call.kernel->op);
    return form != nullptr && form->has_several;
  }
  Int source(Int row) const { return map_ != nullptr ? map_[row] / divisor_ : row; }

  const std::int32_t *offsets_ = nullptr, *map_ = nullptr;
  Int num_groups_ = 1, divisor_ = 0;
  bool gathers_dy_ = false;
};

// A weight ahead of quantising: the parameter itself, whose upper and lower bits may be apart.
class Weight {
 public:
  Weight(TensorView whole, std::optional<TensorView> low)
      : whole_(whole), low_(low), rows_(whole.type->dim(-2)), columns_(whole.type->dim(-1)) {
    if (whole.type->dtype == DType::kFloat32 && whole.type->layout == kRowMajor)
      floats_ = whole.as<const float>();
  }

  bool is_there() const {
    return whole_.data != nullptr && (!low_.has_value() || low_->data != nullptr);
  }
  Int rows() const { return rows_; }
  Int columns() const { return columns_; }
  void prefetch(Int group, Int n, Int k) const {
    if (floats_ != nullptr) __builtin_prefetch(floats_ + (group * rows_ + n) * columns_ + k);
  }
  float value(Int group, Int n, Int k) const {
    const Int i = (group * rows_ + n) * columns_ + k;
    if (floats_ != nullptr) return floats_[i];
    const auto high = static_cast<float>(load(whole_, i));
    if (!low_.has_value()) return high;
    return merge_float({to_bfloat16(high), static_cast<std::uint16_t>(load(*low_, i))});
  }

 private:
  TensorView whole_;
  std::optional<TensorView> low_;
  Int rows_, columns_;
  const float* floats_ = nullptr;  // where it is one array of them
};

// Rows of activations or their gradients, as products read them. `norm`: the inputs of a norm that
// the product applies to them (spec/product_prologue.h).
class Activations {
 public:
  explicit Activations(const TensorView& view, std::span<const TensorView> norm = {})
      : view_(view), dtype_(view.type->value_dtype()), width_(view.type->dim(-1)) {
    if (!norm.empty()) {
      statistics_ = norm[0].as<const float>();
      num_statistics_ = norm[0].type->dim(-1);
      weight_ = norm[1].as<const float>();
      if (norm.size() > 2) bias_ = norm[2].as<const float>();
    }
    if (view.type->is_quantized() || view.type->layout != kRowMajor) return;
    if (dtype_ == DType::kBFloat16) halves_ = view.as<const BFloat16>();
    if (dtype_ == DType::kFloat32) floats_ = view.as<const float>();
  }

  bool is_bf16() const { return dtype_ == DType::kBFloat16; }
  Int width() const { return width_; }
  // Elements [first, first + to.size()) of a row.
  [[gnu::always_inline]] void read(Int row, Int first, std::span<float> to) const {
    const Int begin = row * width_ + first;
    for (std::size_t i = 0; i < to.size(); ++i) {
      const Int at = begin + static_cast<Int>(i);
      to[i] = halves_ != nullptr   ? to_float(halves_[at])
              : floats_ != nullptr ? floats_[at]
                                   : static_cast<float>(load_as(dtype_, view_, at));
    }
    if (statistics_ != nullptr) normalise(statistics_ + row * num_statistics_, first, to);
  }

 private:
  [[gnu::noinline]] void normalise(const float* of_row, Int first, std::span<float> values) const {
    const auto as_stored = [&](float x) { return is_bf16() ? to_float(to_bfloat16(x)) : x; };
    const float* weight = weight_ + first;
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = bias_ == nullptr ? as_stored(weight[i] * as_stored(values[i] * of_row[0]))
                                   : as_stored(std::fma((values[i] - of_row[1]) * of_row[0],
                                                        weight[i], bias_[first + Int(i)]));
  }

  TensorView view_;
  DType dtype_;
  Int width_;
  const BFloat16* halves_ = nullptr;
  const float* floats_ = nullptr;
  const float *statistics_ = nullptr, *weight_ = nullptr, *bias_ = nullptr;  // of a norm
  Int num_statistics_ = 1;
};

// The largest magnitude of a tile of 128 x 128; NaN where an element is not finite.
float largest_of_tile(const Weight& w, Int group, Int n, Int k) {
  float largest = 0;
  for (Int i = n / kTile * kTile; i < std::min(w.rows(), n / kTile * kTile + kTile); ++i)
    for (Int j = k / kTile * kTile; j < std::min(w.columns(), k / kTile * kTile + kTile); ++j) {
      const float size = std::abs(w.value(group, i, j));
      if (!(size <= largest)) largest = size;
      if (!std::isfinite(size)) return std::nanf("");
    }
  return largest;
}

// Values [lines, depth].
struct Lines {
  std::vector<float> values;
  Int count = 0, depth = 0;
  float operator()(Int line, Int k) const { return values[at(line * depth + k)]; }
};

// Lines of a weight as tiles give their int8 values. scale(line, k): of the tile.
template <class Scale>
CodedLines code_by_tiles(const Lines& lines, Scale&& scale) {
  constexpr float kRounder = 12582912.0f;  // 1.5 · 2^23: rounds to a whole number, to even
  CodedLines coded{.lines = lines.count, .depth = lines.depth};
  coded.codes.resize(lines.values.size());
  coded.second_codes.resize(lines.values.size());
  for (Int line = 0; line < lines.count; ++line)
    for (Int k = 0; k < lines.depth; k += kTile) {
      const float of_tile = scale(line, k), inverse = of_tile > 0 ? 1.0f / of_tile : 0.0f;
      coded.scales.push_back(of_tile);
      for (Int i = k; i < std::min(lines.depth, k + kTile); ++i)
        coded.codes[at(line * lines.depth + i)] =
            static_cast<std::int16_t>(lines(line, i) * inverse + kRounder - kRounder);
    }
  coded.falls_back.resize(coded.scales.size());
  return coded;
}

float to_16_bits(float x) { return to_float(to_bfloat16(x)); }

// Adds a row of a product: left · each line of right. `int8` and `wide` have its int8 forms.
// `is_bf16`: rounding the operands to bf16 changes nothing. `rounds`: the result becomes bf16, at
// every level.
template <class Sums>
void add_row(const Lines& left, const Lines& right, const std::vector<float>& int8,
             const std::vector<float>& wide, bool is_bf16, bool rounds, Sums& sums) {
  std::vector<double> row(left.values.begin(), left.values.end()), rounded_row = row;
  for (double& value : rounded_row) value = to_16_bits(static_cast<float>(value));
  for (Int j = 0; j < right.count; ++j) {
    double exact = 0, of_bf16 = 0;
    const float* line = right.values.data() + j * right.depth;
    for (Int k = 0; k < left.depth; ++k) exact += row[at(k)] * double{line[k]};
    for (Int k = 0; k < left.depth && !is_bf16; ++k)
      of_bf16 += rounded_row[at(k)] * to_16_bits(line[k]);
    const auto add = [&](PrecisionLevel level, double value) {
      const double rounded = rounds ? to_16_bits(static_cast<float>(value)) : value;
      sums.errors[static_cast<std::size_t>(level)] += (rounded - exact) * (rounded - exact);
    };
    add(PrecisionLevel::kInt8, int8[at(j)]);
    add(PrecisionLevel::kWide, wide[at(j)]);
    add(PrecisionLevel::kBf16, is_bf16 ? exact : of_bf16);
    add(PrecisionLevel::kFp32, exact);
    sums.norm += exact * exact;
  }
  sums.is_there = true;
}

// Lines as they are with second values in every block that is not 0, and the same by a fallback.
struct BothForms {
  CodedLines wide, int8;
};
BothForms code_both(const Lines& lines, int fallback) {
  BothForms both;
  both.wide = kernels::ref::code_lines(lines.values, lines.count, lines.depth, 0);
  both.int8 = both.wide;
  for (std::size_t block = 0; block < both.int8.scales.size(); ++block) {
    const Int line = static_cast<Int>(block) / both.int8.blocks(),
              begin = static_cast<Int>(block) % both.int8.blocks() * kTile,
              end = std::min(lines.depth, begin + kTile);
    Int most = 0, total = 0;
    for (Int k = begin; k < end; ++k) {
      const Int size = std::abs(Int{both.int8.codes[at(line * lines.depth + k)]});
      most = std::max(most, size);
      total += size;
    }
    both.int8.falls_back[block] = (end - begin) * most > fallback * total;
  }
  return both;
}

std::vector<float> product_of(const CodedLines& left, const CodedLines& right) {
  std::vector<float> y(at(left.lines * right.lines), 0.0f);
  add_int8_product(left, right, y);
  return y;
}

// The first of kColumns columns in eighth `i` of them.
Int first_column(Int columns, Int i, std::uint64_t draw) {
  const Int groups = std::max<Int>(1, columns / SampledErrors::kColumns),
            begin = groups * i / SampledErrors::kRows,
            end = std::max(begin + 1, groups * (i + 1) / SampledErrors::kRows);
  const Int group = begin + static_cast<Int>(draw % static_cast<std::uint64_t>(end - begin));
  return std::min(group, groups - 1) * SampledErrors::kColumns;
}

}  // namespace

SampledErrors::SampledErrors(const BoundProgram& program, const ProductCalls& calls,
                             runtime::StateStore& store, device::ThreadTeam& team,
                             std::int64_t fallback, std::uint64_t seed)
    : program_(program),
      calls_(calls),
      store_(store),
      team_(team),
      fallback_(static_cast<int>(fallback)),
      seed_(seed),
      by_call_(program.compiled.program.calls.size(), -1),
      sums_(calls.units().size() * kNumRoles) {
  for (std::size_t i = 0; i < calls.calls().size(); ++i)
    by_call_[static_cast<std::size_t>(calls.calls()[i].call)] = static_cast<std::int32_t>(i);
}

void SampledErrors::begin(std::int64_t step) {
  step_ = step;
  std::ranges::fill(sums_, Sums{});
  program_.executor->observe({.on_call = on_call, .context = this, .before_call = before_call}, 1);
}

void SampledErrors::end() { program_.executor->observe({}, 1); }

void SampledErrors::before_call(void* context, const runtime::CallEvent& event) {
  auto& self = *static_cast<SampledErrors*>(context);
  const std::int32_t number = self.by_call_[static_cast<std::size_t>(event.index)];
  if (number < 0) return;
  const ProductCall& call = self.calls_.calls()[static_cast<std::size_t>(number)];
  if (call.role == ProductRole::kForward && event.action != spec::Action::kForward) return;
  for (const ProductOperand& operand : call.operands)
    if (Sums& sums = self.sums_of(operand.unit, call.role); !sums.is_there)
      self.sample(call, operand, event, sums);
}

void SampledErrors::sample(const ProductCall& call, const ProductOperand& operand,
                           const runtime::CallEvent& event, Sums& sums) const {
  const ProductUnit& unit = calls_.units()[operand.unit];
  const std::uint64_t stream =
      stream_of(fmt::format("{} {}", unit.name, passes::to_string(call.role)));
  const auto draw = [&](Int i) {
    return random_bits(seed_, stream, static_cast<std::uint64_t>(step_ * 2 * kRows + i));
  };
  const auto below = [](std::uint64_t bits, Int bound) {
    return static_cast<Int>(bits % static_cast<std::uint64_t>(bound));
  };
  const Rows rows(call, event);
  const TensorView& left_view = event.inputs[operand.rows_input];
  // A gathered operand has fewer rows than the product.
  const TensorView& counted =
      call.role == ProductRole::kWeightGradient ? event.inputs[operand.input] : left_view;
  const Int num_rows = rows.count(std::max(left_view.type->dim(0), counted.type->dim(0)));
  if (num_rows == 0) return;
  // Dropout in front of a product is of adapters, which `adaptive` refuses.
  ANABATIC_CHECK(!spec::drops_x(event.call.attributes), "[adaptive] a product with dropout of x");
  const Activations left(left_view, spec::norm_inputs(event.inputs, event.call.attributes));
  std::array<Sums, kRows> of_rows{};
  const auto add_up = [&] {
    for (const Sums& of_row : of_rows) {
      for (std::size_t l = 0; l < kNumLevels; ++l) sums.errors[l] += of_row.errors[l];
      sums.norm += of_row.norm;
      sums.is_there |= of_row.is_there;
    }
  };
  if (call.role == ProductRole::kWeightGradient) {
    const Activations dy(event.inputs[operand.input]);
    const Int out = dy.width(), width = left.width();
    const bool is_bf16 = left.is_bf16() && dy.is_bf16();
    struct Part {  // of a row of the gradient: rows [begin, end) of both operands
      Int begin = 0, end = 0, n = 0, first = 0;
      Lines of_dy{}, of_x{};
    };
    std::array<Part, kRows> parts;
    for (Int i = 0; i < kRows; ++i) {
      Part& part = parts[at(i)];
      const Int group = rows.group_of(below(draw(2 * i), num_rows));
      part.begin = rows.begin(group);
      part.end = rows.end(group, num_rows);
      part.n = std::min(out - 1,
                        out * i / kRows + below(draw(2 * i) >> 32, std::max<Int>(1, out / kRows)));
      part.first = first_column(width, below(draw(2 * i + 1) >> 32, kRows), draw(2 * i + 1));
      const Int depth = part.end - part.begin;
      part.of_dy = {std::vector<float>(at(depth)), 1, depth};
      part.of_x = {{}, std::min(kColumns, width - part.first), depth};
      part.of_x.values.resize(at(part.of_x.count * depth));
    }
    // Row by row for all parts: what they read is apart, and memory answers several at a time.
    team_.for_range(num_rows, kTile, [&](Int from, Int to) {
      for (Int t = from; t < to; ++t)
        for (Part& part : parts) {
          if (t < part.begin || t >= part.end) continue;
          const std::size_t place = at(t - part.begin);
          dy.read(rows.of_dy(t), part.n, std::span(part.of_dy.values).subspan(place, 1));
          std::array<float, kColumns> of_row;
          const auto x = std::span(of_row).first(at(part.of_x.count));
          left.read(rows.of_left(t), part.first, x);
          for (std::size_t j = 0; j < x.size(); ++j)
            part.of_x.values[j * at(part.of_x.depth) + place] = x[j];
        }
    });
    team_.for_tasks(kRows, [&](Int i) {
      const Lines &of_dy = parts[at(i)].of_dy, &of_x = parts[at(i)].of_x;
      const CodedLines of_left =
          kernels::ref::code_lines(of_dy.values, 1, of_dy.depth, kernels::ref::kWithoutFallback);
      const BothForms both = code_both(of_x, fallback_);
      add_row(of_dy, of_x, product_of(of_left, both.int8), product_of(of_left, both.wide), is_bf16,
              false, of_rows[at(i)]);
    });
    return add_up();
  }
  const ir::State* low = program_.compiled.graph.find_state(ir::StateRole::kLower, unit.parameter);
  const Weight weight(store_.find(unit.parameter),
                      low != nullptr ? std::optional(store_.find(low->name)) : std::nullopt);
  if (!weight.is_there()) return;
  const bool is_forward = call.role == ProductRole::kForward;
  const TensorView& read = event.inputs[operand.input];
  const bool has_tiles = is_int8_panels(*read.type);
  const Int columns = is_forward ? weight.rows() : weight.columns(),
            depth = is_forward ? weight.columns() : weight.rows();
  team_.for_tasks(kRows, [&](Int i) {
    const Int row = below(draw(2 * i), num_rows), group = rows.group_of(row),
              first = first_column(columns, i, draw(2 * i + 1));
    Lines of_row{{}, 1, depth}, of_weight{{}, std::min(kColumns, columns - first), depth};
    of_row.values.resize(at(depth));
    left.read(rows.of_left(row), 0, of_row.values);
    of_weight.values.resize(at(of_weight.count * depth));
    constexpr Int kLinesAhead = 16;  // of an input gradient, which reads a few elements of each
    for (Int k = 0; k < depth; ++k) {
      if (!is_forward && k + kLinesAhead < depth) weight.prefetch(group, k + kLinesAhead, first);
      for (Int j = 0; j < of_weight.count; ++j)
        of_weight.values[at(j * depth + k)] =
            is_forward ? weight.value(group, first + j, k) : weight.value(group, k, first + j);
    }
    std::map<std::pair<Int, Int>, float> scales;  // of tiles that no packing has
    const auto scale = [&](Int j, Int k) {
      const Int n = is_forward ? first + j : k, m = is_forward ? k : first + j;
      if (has_tiles)
        return static_cast<float>(kernels::ref::load_scale(
            read, kernels::ref::block_of(*read.type,
                                         (group * weight.rows() + n) * weight.columns() + m)));
      const auto [tile, is_new] = scales.try_emplace({n / kTile, m / kTile}, 0.0f);
      if (is_new)
        tile->second = kernels::ref::scale_of_largest(largest_of_tile(weight, group, n, m));
      return tile->second;
    };
    const CodedLines of_right = code_by_tiles(of_weight, scale);
    BothForms both;
    if (is_forward) {
      both = code_both(of_row, fallback_);
    } else {  // blocks of dy never fall back
      both.int8 = kernels::ref::code_lines(of_row.values, 1, depth, kernels::ref::kWithoutFallback);
      both.wide = both.int8;
    }
    add_row(of_row, of_weight, product_of(both.int8, of_right), product_of(both.wide, of_right),
            false, true, of_rows[at(i)]);
  });
  add_up();
}

std::optional<LevelErrors> SampledErrors::errors(std::size_t unit, ProductRole role) const {
  const Sums& sums = sums_[unit * kNumRoles + static_cast<std::size_t>(role)];
  if (!sums.is_there) return std::nullopt;
  LevelErrors result{};
  for (std::size_t l = 0; l < kNumLevels; ++l) {
    const double error = sums.errors[l];
    result[l] = error == 0 ? 0.0 : std::sqrt(error / sums.norm);
  }
  return result;
}

}  // namespace anabatic::train
