// SPDX-License-Identifier: Apache-2.0
#include "support/random_data.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/philox.h"

namespace anabatic::testing {
namespace {

using Data = std::vector<double>;

// One input under construction.
struct Draw {
  const OpCall& call;  // with the inputs before this one
  const CaseOperand& operand;
  const TensorType& type;
  Regime regime;
  std::uint64_t seed, stream;

  std::size_t size() const { return static_cast<std::size_t>(type.num_elements()); }
  std::size_t columns() const { return static_cast<std::size_t>(type.dim(-1)); }
  double number(std::size_t option) const {
    ANABATIC_REQUIRE(option < operand.options.size(), "[recipe] '{}' wants {} options",
                     operand.recipe, option + 1);
    return std::stod(operand.options[option]);
  }
  std::size_t count(std::size_t option) const { return static_cast<std::size_t>(number(option)); }
  std::string word(std::size_t option) const {
    return option < operand.options.size() ? operand.options[option] : "";
  }
  std::size_t below(std::size_t element, std::size_t bound) const {
    return static_cast<std::size_t>(random_below(seed, stream, element, bound));
  }
  double normal(std::size_t element) const { return random_normal(seed, stream, element); }
};

// Nonzero, so that no sum of products meets a zero whose sign depends on order.
double small_integer(const Draw& draw, std::size_t i) {
  const auto magnitude = static_cast<double>(1 + draw.below(2 * i, 4));
  return draw.below(2 * i + 1, 2) == 0 ? magnitude : -magnitude;
}

Data plain(const Draw& draw, double scale) {
  Data data(draw.size());
  for (std::size_t i = 0; i < data.size(); ++i)
    data[i] = draw.regime == Regime::kExact ? small_integer(draw, i) : scale * draw.normal(i);
  return data;
}

Data positive(const Draw& draw) {
  Data data = plain(draw, 1.0);
  for (double& value : data) value = std::abs(value) + (draw.regime == Regime::kExact ? 0.0 : 0.1);
  return data;
}

Data softmax(const Draw& draw) {
  Data data(draw.size());
  const std::size_t width = draw.columns();
  for (std::size_t begin = 0; begin < data.size(); begin += width) {
    double sum = 0;
    for (std::size_t i = begin; i < begin + width; ++i) sum += data[i] = std::exp(draw.normal(i));
    for (std::size_t i = begin; i < begin + width; ++i) data[i] /= sum;
  }
  return data;
}

Data permutation(const Draw& draw) {
  Data data(draw.size());
  std::iota(data.begin(), data.end(), 0.0);
  for (std::size_t i = data.size(); i > 1; --i) std::swap(data[i - 1], data[draw.below(i, i)]);
  return data;
}

// Distinct experts for every token. "skewed" prefers low numbers, "same" sends all tokens to the
// first k experts, "high" leaves the lower half without a token.
Data experts(const Draw& draw) {
  const std::size_t num_experts = draw.count(0), top_k = draw.columns();
  const std::string kind = draw.word(1);
  Data data(draw.size());
  for (std::size_t begin = 0; begin < data.size(); begin += top_k) {
    for (std::size_t j = 0; j < top_k; ++j) {
      std::size_t e = j;
      if (kind == "high")
        e = num_experts / 2 + draw.below(begin + j, num_experts - num_experts / 2);
      else if (kind == "skewed")
        e = std::min(draw.below(begin + j, num_experts), draw.below(~(begin + j), num_experts));
      else if (kind.empty())
        e = draw.below(begin + j, num_experts);
      const auto taken = [&] {
        return std::find(data.begin() + static_cast<std::ptrdiff_t>(begin),
                         data.begin() + static_cast<std::ptrdiff_t>(begin + j),
                         static_cast<double>(e)) !=
               data.begin() + static_cast<std::ptrdiff_t>(begin + j);
      };
      while (taken()) e = (e + 1) % num_experts;
      data[begin + j] = static_cast<double>(e);
    }
  }
  return data;
}

// "skewed": half of the rows to the first expert, every other expert without rows; "last": all rows
// to the last one.
Data offsets(const Draw& draw) {
  const std::size_t num_rows = draw.count(0), num_experts = draw.columns() - 1;
  const std::string kind = draw.word(1);
  Data data(draw.size(), 0.0);
  for (std::size_t begin = 0; begin < data.size(); begin += num_experts + 1) {
    std::vector<std::size_t> sizes(num_experts, 0);
    for (std::size_t r = 0; r < num_rows; ++r) {
      std::size_t e = draw.below(begin + r, num_experts);
      if (kind == "last") e = num_experts - 1;
      if (kind == "skewed") e = r < num_rows / 2 ? 0 : e - e % 2;
      ++sizes[e];
    }
    for (std::size_t e = 0; e < num_experts; ++e)
      data[begin + e + 1] = data[begin + e] + static_cast<double>(sizes[e]);
  }
  return data;
}

// For rows cut into n documents of unequal length: where each row's document begins.
Data document_begins(const Draw& draw) {
  const std::size_t size = draw.size(), n = draw.count(0);
  Data data(size);
  for (std::size_t t = 0; t < size; ++t) {
    std::size_t begin = 0;
    for (std::size_t d = 1; d < n; ++d) {
      const std::size_t cut = size * d * d / (n * n);
      if (cut <= t) begin = cut;
    }
    data[t] = static_cast<double>(begin);
  }
  return data;
}

Data documents(const Draw& draw) {
  const Data begins = document_begins(draw);
  Data data = begins;
  std::size_t document = 0;
  for (std::size_t t = 0; t < data.size(); ++t) {
    if (t > 0 && begins[t] != begins[t - 1]) ++document;
    if (document % 3 == 2) data[t] = -1;
  }
  return data;
}

Data integers(const Draw& draw) {
  const std::string& recipe = draw.operand.recipe;
  Data data(draw.size());
  for (std::size_t i = 0; i < data.size(); ++i) {
    if (recipe == "below") data[i] = static_cast<double>(draw.below(i, draw.count(0)));
    if (recipe == "int8") data[i] = static_cast<double>(draw.below(i, 255)) - 127;
    if (recipe == "iota") data[i] = draw.number(0) + static_cast<double>(i);
    if (recipe == "constant") data[i] = draw.number(0);
    if (recipe == "row_end")
      data[i] = draw.number(0) - static_cast<double>(data.size()) + static_cast<double>(i) + 1;
    if (recipe == "late_begin") data[i] = static_cast<double>(std::min(i + 1, draw.count(0)));
    if (recipe == "labels")
      data[i] = draw.below(2 * i, 100) < draw.count(1)
                    ? -100.0
                    : static_cast<double>(draw.below(2 * i + 1, draw.count(0)));
  }
  return data;
}

// Rows of 2n completions, one after the other, each after a prompt of one row.
Data completions(const Draw& draw) {
  Data data(draw.size());
  const std::size_t count = 2 * draw.count(0);
  for (std::size_t i = 0; i < data.size(); ++i) {
    const std::size_t number = i * count / data.size();
    const bool is_first = i == 0 || (i - 1) * count / data.size() != number;
    data[i] = is_first || count == 0 ? -1 : static_cast<double>(number);
  }
  return data;
}

// The k largest of each row of an earlier input; ties to the lower index.
Data top_of(const Draw& draw) {
  const Values& from = draw.call.inputs[draw.count(0)];
  const auto width = static_cast<std::size_t>(from.type.dim(-1));
  const std::size_t top_k = draw.columns();
  Data data(draw.size());
  for (std::size_t t = 0; t * top_k < data.size(); ++t) {
    std::vector<std::size_t> order(width);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return from.data[t * width + a] > from.data[t * width + b];
    });
    for (std::size_t j = 0; j < top_k; ++j) data[t * top_k + j] = static_cast<double>(order[j]);
  }
  return data;
}

Data chosen(const Draw& draw) {
  const Values &from = draw.call.inputs[draw.count(0)], &picks = draw.call.inputs[draw.count(1)];
  const auto width = static_cast<std::size_t>(from.type.dim(-1));
  const std::size_t top_k = draw.columns();
  Data data(draw.size());
  for (std::size_t begin = 0; begin < data.size(); begin += top_k) {
    double sum = 0;
    for (std::size_t i = begin; i < begin + top_k; ++i)
      sum += data[i] = from.data[begin / top_k * width + static_cast<std::size_t>(picks.data[i])];
    for (std::size_t i = begin; draw.word(2) == "normalize" && i < begin + top_k; ++i)
      data[i] /= sum;
  }
  return data;
}

// Lists of key blocks for `groups` groups of `blocks` blocks of rows, as offsets and ids.
//   all    every block up to the row's own       own    that alone
//   some   about half of those before it, and it  few    about a quarter of all of them
//   first  the first block alone                 none   no block
struct DrawnLists {
  Data offsets, ids;

  DrawnLists(std::uint64_t seed, const std::string& kind, std::size_t groups, std::size_t blocks) {
    constexpr std::uint64_t kStream = 4000;
    for (std::size_t group = 0; group < groups; ++group)
      for (std::size_t block = 0; block <= blocks; ++block) {
        offsets.push_back(static_cast<double>(ids.size()));
        for (std::size_t id = 0; block < blocks && id <= block; ++id) {
          const auto quarter =
              random_below(seed, kStream, (group * blocks + block) * blocks + id, 4);
          if (kind == "all" || (kind == "own" && id == block) || (kind == "first" && id == 0) ||
              (kind == "some" && (id == block || quarter < 2)) || (kind == "few" && quarter == 0))
            ids.push_back(static_cast<double>(id));
        }
      }
  }
};

Data block_lists(const Draw& draw) {
  const bool is_offsets = draw.operand.recipe == "block_offsets";
  const TensorType& type = is_offsets ? draw.type : draw.call.inputs.back().type;
  const DrawnLists lists(draw.seed, draw.word(0), static_cast<std::size_t>(type.dim(0)),
                         static_cast<std::size_t>(type.dim(1)) - 1);
  if (is_offsets) return lists.offsets;
  ANABATIC_REQUIRE(lists.ids.size() <= draw.size(), "[recipe] expected {} ids or more, got {}",
                   lists.ids.size(), draw.size());
  Data ids = lists.ids;
  ids.resize(draw.size(), 0.0);
  return ids;
}

// So many distinct numbers below `bound`, ascending.
Data some_of(const Draw& draw, std::size_t first, std::size_t count, std::size_t bound) {
  Data order(bound);
  std::iota(order.begin(), order.end(), 0.0);
  for (std::size_t i = bound; i > 1; --i)
    std::swap(order[i - 1], order[draw.below(first * bound + i, i)]);
  order.resize(count);
  std::sort(order.begin(), order.end());
  return order;
}

// The index of matrices of so many panels and steps, as spec/sparse_layout.h has it.
Data sparse_index(const Draw& draw) {
  const std::size_t panels = draw.count(0), steps = draw.count(1), width = draw.columns(),
                    kept = width - panels - 1;
  Data data;
  for (std::size_t first = 0; first < draw.size(); first += width) {
    const Data blocks = some_of(draw, first, kept, panels * steps);
    for (std::size_t panel = 0; panel <= panels; ++panel)
      data.push_back(static_cast<double>(
          std::lower_bound(blocks.begin(), blocks.end(), static_cast<double>(panel * steps)) -
          blocks.begin()));
    for (const double block : blocks) data.push_back(std::fmod(block, static_cast<double>(steps)));
  }
  return data;
}

// A mask that keeps so many elements of each matrix.
Data mask(const Draw& draw) {
  const std::size_t matrix = draw.columns() * static_cast<std::size_t>(draw.type.dim(-2));
  Data data(draw.size(), 0.0);
  for (std::size_t first = 0; first < data.size(); first += matrix)
    for (const double place : some_of(draw, first, draw.count(0), matrix))
      data[first + static_cast<std::size_t>(place)] = 1;
  return data;
}

Data forward(const Draw& draw) {
  OpCall call = draw.call;
  const std::string op = draw.word(0);
  call.op = op;
  const auto output = draw.count(1);
  // The outputs before the wanted one have the types that this op gives them.
  if (op == "attention") {
    TensorType out = call.inputs[0].type;
    const std::int64_t heads = spec::get_int(call.attributes, "num_heads");
    const std::int64_t kv_heads = spec::get_int(call.attributes, "num_kv_heads");
    out.shape[1] = call.inputs[2].type.dim(1) / kv_heads * heads;
    call.inputs.resize(5);
    const auto& options = draw.operand.options;
    const auto drops = static_cast<std::size_t>(std::find(options.begin(), options.end(), "drops") -
                                                options.begin());
    const bool has_lists = draw.word(2) == "lists";
    const std::size_t sink = has_lists ? 6 : 2;
    if (drops > sink)
      call.inputs.push_back({tensor_type(DType::kFloat32, {heads}),
                             Data(static_cast<std::size_t>(heads), draw.number(sink))});
    if (drops < options.size()) {
      const double first = draw.number(drops + 1);
      call.inputs.push_back({tensor_type(DType::kInt32, {3}), {first, first + 1, first + 2}});
    }
    if (has_lists) {
      const std::size_t groups = draw.count(4), blocks = draw.count(5);
      DrawnLists lists(draw.seed, draw.word(3), groups, blocks);
      const auto count = static_cast<std::int64_t>(lists.ids.size());
      call.inputs.push_back({tensor_type(DType::kInt32, {static_cast<std::int64_t>(groups),
                                                         static_cast<std::int64_t>(blocks) + 1}),
                             std::move(lists.offsets)});
      call.inputs.push_back({tensor_type(DType::kInt32, {count}), std::move(lists.ids)});
    }
    call.outputs = {out, tensor_type(DType::kFloat32, {out.dim(0), heads})};
  } else {
    ANABATIC_REQUIRE(op == "cross_entropy", "[recipe] forward('{}') is not known", op);
    call.inputs.resize(3);
    call.outputs = {tensor_type(DType::kFloat32, {}),
                    tensor_type(DType::kFloat32, {call.inputs[1].type.dim(0)})};
  }
  return run_reference(call)[output].values().data;
}

Data draw_data(const Draw& draw);

// Elements of their whole range, with scales of a normal distribution for int8, small ones for
// MXFP4, else positive ones. Of `constant`, both.
Data quantized(const Draw& draw) {
  const auto part = [&](const TensorType& type, std::string recipe, std::string option,
                        std::uint64_t stream) {
    const CaseOperand operand{
        .type = "", .recipe = std::move(recipe), .options = {std::move(option)}};
    return draw_data({draw.call, operand, type, draw.regime, draw.seed, draw.stream + stream});
  };
  constexpr std::uint64_t kScales = 1000;
  const TensorType elements = tensor_type(draw.type.dtype, draw.type.shape),
                   scales = scales_type(draw.type);
  const std::string option = draw.word(0), &recipe = draw.operand.recipe;
  ANABATIC_REQUIRE(recipe == "constant" || recipe == "quantized",
                   "[recipe] '{}' is none of a quantised operand", recipe);
  const bool is_int8 = draw.type.dtype == DType::kInt8;
  if (draw.type.blocks->map == ElementMap::kFloat4 && recipe == "quantized") {
    constexpr double kSmallest = 118;
    Data data = part(elements, "below", "16", 0);
    for (const double scale : part(scales, "below", "6", kScales))
      data.push_back(kSmallest + scale);
    return data;
  }
  Data data = recipe == "constant" ? part(elements, "constant", option, 0)
              : is_int8            ? part(elements, "int8", "", 0)
                                   : part(elements, "below", "256", 0);
  const Data its_scales = recipe == "constant" ? part(scales, "constant", option, kScales)
                          : is_int8 ? part(scales, "normal", option.empty() ? "1" : option, kScales)
                                    : part(scales, "positive", "", kScales);
  data.insert(data.end(), its_scales.begin(), its_scales.end());
  return data;
}

Data draw_data(const Draw& draw) {
  if (draw.type.is_quantized()) return quantized(draw);
  const std::string& recipe = draw.operand.recipe;
  if (recipe.empty()) {
    ANABATIC_REQUIRE(is_float(draw.type.dtype), "[recipe] integers need a recipe");
    return plain(draw, 1.0);
  }
  if (recipe == "normal") return plain(draw, draw.number(0));
  if (recipe == "positive") return positive(draw);
  if (recipe == "softmax") return softmax(draw);
  if (recipe == "permutation") return permutation(draw);
  if (recipe == "experts") return experts(draw);
  if (recipe == "offsets") return offsets(draw);
  if (recipe == "document_begin") return document_begins(draw);
  if (recipe == "documents") return documents(draw);
  if (recipe == "completions") return completions(draw);
  if (recipe == "positions") {
    Data data = document_begins(draw);
    for (std::size_t t = 0; t < data.size(); ++t) data[t] = static_cast<double>(t) - data[t];
    return data;
  }
  if (recipe == "top_of") return top_of(draw);
  if (recipe == "chosen") return chosen(draw);
  if (recipe == "forward") return forward(draw);
  if (recipe == "sparse_index") return sparse_index(draw);
  if (recipe == "mask") return mask(draw);
  if (recipe == "block_offsets" || recipe == "block_ids") return block_lists(draw);
  for (const char* known : {"below", "int8", "iota", "constant", "row_end", "late_begin", "labels"})
    if (recipe == known) return integers(draw);
  throw InvalidArgument(fmt::format("[recipe] unknown recipe '{}'", recipe));
}

}  // namespace

OpCall call_without_data(const CaseFile& file, const CaseLine& line, const std::string& dtype) {
  OpCall call{.op = file.op, .attributes = parse_attributes(line.attributes, dtype)};
  for (const std::string& output : line.outputs)
    call.outputs.push_back(parse_tensor_type(replace_dtype(output, dtype)));
  for (const CaseOperand& operand : line.inputs)
    call.inputs.push_back({.type = parse_tensor_type(replace_dtype(operand.type, dtype))});
  return call;
}

OpCall make_call(const CaseFile& file, const CaseLine& line, const std::string& dtype,
                 Regime regime, std::uint64_t seed) {
  OpCall call = call_without_data(file, line, dtype);
  const std::vector<Values> inputs = std::exchange(call.inputs, {});
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const TensorType& type = inputs[i].type;
    const Draw draw{call, line.inputs[i], type, regime, seed, i};
    // Through a tensor, so that values are those that the dtype holds.
    call.inputs.push_back(HostTensor(Values{.type = type, .data = draw_data(draw)}).values());
  }
  return call;
}

Values random_values(const TensorType& type, Regime regime, std::uint64_t seed,
                     std::uint64_t stream) {
  const OpCall none{};
  const CaseOperand operand{};
  const Draw draw{none, operand, type, regime, seed, stream};
  return HostTensor(Values{.type = type, .data = plain(draw, 1.0)}).values();
}

}  // namespace anabatic::testing
