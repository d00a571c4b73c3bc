// SPDX-License-Identifier: Apache-2.0
#include "layer/layer_builder.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "layer/layer_table.h"
#include "ops/table.h"
#include "spec/activation.h"

namespace anabatic::layer {

DType to_dtype(LayerDtype dtype) {
  switch (dtype) {
    case LayerDtype::kFloat32:
      return DType::kFloat32;
    case LayerDtype::kBFloat16:
      return DType::kBFloat16;
    case LayerDtype::kInt32:
      return DType::kInt32;
    case LayerDtype::kInt64:
      break;
  }
  return DType::kInt64;
}

LayerDtype to_layer_dtype(DType dtype) {
  for (const LayerDtype candidate :
       {LayerDtype::kFloat32, LayerDtype::kBFloat16, LayerDtype::kInt32, LayerDtype::kInt64})
    if (to_dtype(candidate) == dtype) return candidate;
  ANABATIC_CHECK(false, "[layer] no buffer of a caller is {}", to_string(dtype));
}

TensorType to_type(const LayerTensor& tensor) {
  return tensor_type(to_dtype(tensor.dtype), tensor.shape);
}

namespace {

template <class T>
bool parse(const std::string& text, T& value) {
  const char* const end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, value);
  return error == std::errc{} && last == end && !text.empty();
}

DType products_of(const LayerSignature& signature, bool in_double) {
  if (in_double) return DType::kFloat64;
  const auto found = signature.attributes.find(std::string(kProducts));
  if (found == signature.attributes.end()) return to_dtype(signature.inputs.front().dtype);
  ANABATIC_REQUIRE(found->second == "bf16" || found->second == "fp32",
                   "[{}] expected attribute '{}' to be bf16 or fp32, got '{}'", signature.layer,
                   kProducts, found->second);
  return found->second == "bf16" ? DType::kBFloat16 : DType::kFloat32;
}

}  // namespace

LayerBuilder::LayerBuilder(const LayerSignature& signature, bool in_double, ir::FindOp find_op)
    : signature_(signature),
      in_double_(in_double),
      builder_(result_.graph, find_op),
      products_(products_of(signature, in_double)),
      gradients_(signature.gradients),
      inputs_(signature.inputs.size(), ir::kNoValue) {
  result_.graph.name = signature.layer;
}

const LayerTensor* LayerBuilder::find(std::string_view operand) const {
  const auto found = std::ranges::find(signature().inputs, operand, &LayerTensor::name);
  return found == signature().inputs.end() ? nullptr : &*found;
}

ir::ValueId LayerBuilder::made_for(std::string_view operand) const {
  if (part_ == nullptr) return ir::kNoValue;
  return part_->operands[static_cast<std::size_t>(&at(operand) - signature().inputs.data())].value;
}

std::size_t LayerBuilder::index_of(std::string_view operand) const {
  const auto place = static_cast<std::size_t>(&at(operand) - signature().inputs.data());
  if (part_ == nullptr) return place;
  if (part_->operands[place].value != ir::kNoValue)
    fail(fmt::format("expected {} to be an operand of the region, got a value in it", operand));
  return part_->operands[place].input;
}

const LayerTensor& LayerBuilder::at(std::string_view operand) const {
  const LayerTensor* found = find(operand);
  ANABATIC_CHECK(found != nullptr, "[{}] no operand '{}'", signature().layer, operand);
  return *found;
}

std::int64_t LayerBuilder::dim(std::string_view operand, std::int64_t axis) const {
  const std::vector<std::int64_t>& shape = at(operand).shape;
  return shape.at(static_cast<std::size_t>(axis < 0 ? axis + std::ssize(shape) : axis));
}

LayerDtype LayerBuilder::dtype(std::string_view operand) const { return at(operand).dtype; }

void LayerBuilder::fail(const std::string& message) const {
  throw InvalidArgument(fmt::format("[{}] {}", signature().layer, message));
}

void LayerBuilder::same_dim(std::string_view a, std::int64_t axis_a, std::string_view b,
                            std::int64_t axis_b) const {
  const auto from_front = [&](std::string_view operand, std::int64_t axis) {
    return axis < 0 ? axis + std::ssize(at(operand).shape) : axis;
  };
  if (dim(a, axis_a) != dim(b, axis_b))
    fail(fmt::format("expected {} in dimension {} of {}, as in dimension {} of {} {}, got {}",
                     dim(b, axis_b), from_front(a, axis_a), a, from_front(b, axis_b), b,
                     to_string(to_type(at(b))), to_string(to_type(at(a)))));
}

void LayerBuilder::same_dtype(std::string_view a, std::string_view b) const {
  if (dtype(a) != dtype(b))
    fail(fmt::format("expected {} in the dtype of {} {}, got {}", a, b, to_string(to_type(at(b))),
                     to_string(to_type(at(a)))));
}

double LayerBuilder::number(std::string_view key, std::optional<double> fallback) const {
  const auto found = signature().attributes.find(std::string(key));
  if (found == signature().attributes.end()) {
    if (!fallback) fail(fmt::format("expected attribute '{}', got none", key));
    return *fallback;
  }
  double value = 0;
  if (!parse(found->second, value))
    fail(fmt::format("expected a number as attribute '{}', got '{}'", key, found->second));
  return value;
}

std::int64_t LayerBuilder::integer(std::string_view key,
                                   std::optional<std::int64_t> fallback) const {
  const auto found = signature().attributes.find(std::string(key));
  if (found == signature().attributes.end()) {
    if (!fallback) fail(fmt::format("expected attribute '{}', got none", key));
    return *fallback;
  }
  std::int64_t value = 0;
  if (!parse(found->second, value))
    fail(fmt::format("expected an integer as attribute '{}', got '{}'", key, found->second));
  return value;
}

std::string LayerBuilder::word(std::string_view key, const std::string& fallback) const {
  const auto found = signature().attributes.find(std::string(key));
  return found == signature().attributes.end() ? fallback : found->second;
}

spec::Attributes LayerBuilder::activation() const {
  spec::Attributes attributes{{"activation", word("activation", "swiglu")}};
  for (const char* key : {"alpha", "limit"})
    if (signature().attributes.contains(key)) attributes[key] = number(key);
  (void)spec::activation_of(attributes);
  return attributes;
}

spec::Attributes LayerBuilder::output_dtype(std::string_view operand) const {
  const bool is_given = part_ != nullptr && part_->result;
  const DType wanted = real(to_dtype(is_given ? *part_->result : dtype(operand)));
  if (wanted == products_) return {};
  return {{"output_dtype", std::string(to_string(wanted))}};
}

bool LayerBuilder::wants(std::string_view operand) const {
  return std::ranges::find(gradients_, signature_.inputs[index_of(operand)].name) !=
         gradients_.end();
}

DType LayerBuilder::real(DType dtype) const {
  return in_double_ && dtype != DType::kInt32 ? DType::kFloat64 : dtype;
}

ir::ValueId LayerBuilder::cast(ir::ValueId value, DType dtype) {
  if (builder_.type(value).dtype == dtype) return value;
  const auto [found, is_new] = casts_.try_emplace({value, dtype}, ir::kNoValue);
  if (is_new)
    found->second = builder_.add1(
        "cast", {value},
        {{"dtype", std::string(to_string(dtype))}, {"rounding", std::string("even")}});
  return found->second;
}

ir::ValueId LayerBuilder::input(std::string_view operand) {
  if (const ir::ValueId made = made_for(operand); made != ir::kNoValue) return made;
  ir::ValueId& value = inputs_[index_of(operand)];
  if (value != ir::kNoValue) return value;
  const LayerTensor& tensor = signature_.inputs[index_of(operand)];
  TensorType type = to_type(tensor);
  type.dtype = type.dtype == DType::kInt64 ? DType::kInt32 : real(type.dtype);
  value = builder_.batch_input(tensor.name, type);
  if (wants(operand)) result_.wanted_inputs.push_back(tensor.name);
  return value;
}

ir::ValueId LayerBuilder::precise(std::string_view operand) {
  return cast(input(operand), real(DType::kFloat32));
}

ir::ValueId LayerBuilder::rounded(std::string_view operand) {
  return cast(input(operand), products_);
}

ir::ValueId LayerBuilder::add_weight(std::string_view operand, std::string_view name,
                                     WeightPart part, TensorType type, bool in_products) {
  part.input = index_of(operand);
  if (part_ == nullptr) {
    part.state = intern(name);
  } else {
    const std::string& whole = signature_.inputs[part.input].name;
    part.state = intern(name == operand ? whole : fmt::format("{}.{}", whole, name));
    if (builder_.graph().find_state(part.state) != nullptr)
      fail(fmt::format("expected {} to be the weight of one layer of the region, got two", whole));
  }
  part.rows = type.ndim() > 1 ? type.dim(-2) : 1;
  part.of_rows = type.ndim() > 1 ? dim(operand, -2) : 1;
  result_.parts.push_back(part);
  type.dtype = real(DType::kFloat32);
  const ir::ValueId primary = builder_.state(text(part.state), type, ir::StateRole::kParameter);
  builder_.graph().find_state(part.state)->is_trainable = wants(operand);
  if (!in_products || products_ != DType::kBFloat16) return primary;
  type.dtype = DType::kBFloat16;
  return builder_.state_of(part.state, ir::StateRole::kCopy, type);
}

ir::ValueId LayerBuilder::weight(std::string_view operand) {
  return add_weight(operand, operand, {}, to_type(at(operand)), true);
}

ir::ValueId LayerBuilder::weight_rows(std::string_view operand, std::string_view part,
                                      std::int64_t first, std::int64_t rows) {
  TensorType type = to_type(at(operand));
  type.shape[type.shape.size() - 2] = rows;
  return add_weight(operand, part, {.first_row = first}, type, true);
}

ir::ValueId LayerBuilder::weight_columns(std::string_view operand, std::string_view part,
                                         std::int64_t first, std::int64_t step) {
  TensorType type = to_type(at(operand));
  std::swap(type.shape[type.shape.size() - 2], type.shape.back());
  type.shape[type.shape.size() - 2] /= step;
  return add_weight(operand, part, {.first_column = first, .column_step = step}, type, true);
}

ir::ValueId LayerBuilder::vector(std::string_view operand) {
  return add_weight(operand, operand, {}, to_type(at(operand)), false);
}

void LayerBuilder::limit(std::string_view operand, IntegerRange range) {
  if (made_for(operand) != ir::kNoValue) return;
  range.input = index_of(operand);
  result_.ranges.push_back(range);
}

void LayerBuilder::begin(std::string_view segment) {
  const bool is_given = part_ != nullptr && !part_->segment.empty();
  builder_.set_tag({.segment = intern(is_given ? part_->segment : segment)});
}

ir::ValueId LayerBuilder::op(std::string_view name, std::vector<ir::ValueId> inputs,
                             spec::Attributes attributes, std::string_view value_name) {
  return builder_.add1(name, std::move(inputs), std::move(attributes), value_name);
}

ir::ValueId LayerBuilder::in_dtype(ir::ValueId value, LayerDtype dtype) {
  return cast(value, real(to_dtype(dtype)));
}

void LayerBuilder::output(ir::ValueId value, std::string_view name, LayerDtype dtype) {
  if (part_ != nullptr) {
    if (part_->result) dtype = *part_->result;
    part_results_.push_back({in_dtype(value, dtype), dtype});
    return;
  }
  builder_.output(in_dtype(value, dtype), name);
  result_.outputs.emplace_back(name);
}

PartResult LayerBuilder::build_part(const LayerRow& row, const LayerPart& part) {
  part_ = &part;
  part_results_.clear();
  row.build(*this);
  if (part_results_.size() != 1)
    fail(fmt::format("expected a layer with one output, got {}", part_results_.size()));
  part_ = nullptr;
  return part_results_.front();
}

void LayerBuilder::objective(ir::ValueId value) {
  if (part_ != nullptr) fail("expected a layer without a loss in a region");
  result_.graph.objective = value;
}

void LayerBuilder::differentiate_with(std::string_view operand, std::string_view other) {
  ANABATIC_CHECK(result_.graph.batch.empty() && result_.graph.states.empty(),
                 "[{}] operands are read already", signature_.layer);
  if (wants(operand)) gradients_.emplace_back(other);
}

LayerGraph LayerBuilder::finish() { return std::move(result_); }

}  // namespace anabatic::layer
