// SPDX-License-Identifier: Apache-2.0
#include "plugin/plugin_op.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "ops/table.h"
#include "plugin/plugin_attributes.h"
#include "plugin/table_row.h"
#include "spec/activation.h"

namespace anabatic::plugin {
namespace {

// Attributes of a gradient's node in addition to the op's: the inputs whose gradients it makes, and
// the outputs whose gradients it reads.
constexpr std::string_view kWanted = "gradients_of", kGiven = "given";

constexpr std::int64_t kAlignment = 64;
std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

constexpr std::uint32_t kIndexBit = ANABATIC_DTYPE_BIT(ANABATIC_I32);

bool is_number(std::string_view text) {
  return !text.empty() && text.size() < 10 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::vector<std::string> split_shape(std::string_view text) {
  std::vector<std::string> dims;
  if (text.empty()) return dims;
  for (std::size_t begin = 0;;) {
    const std::size_t end = text.find(',', begin);
    std::string dim(text.substr(begin, end == std::string_view::npos ? end : end - begin));
    std::erase(dim, ' ');
    dims.push_back(std::move(dim));
    if (end == std::string_view::npos) return dims;
    begin = end + 1;
  }
}

std::string describe(const OperandSpec& operand) {
  std::string text = operand.name + " [";
  for (std::size_t i = 0; i < operand.shape.size(); ++i)
    text += (i > 0 ? "," : "") + operand.shape[i];
  return text + "]";
}

std::string dtypes_of(std::uint32_t bits) {
  std::string text;
  for (const DType dtype : kPluginDTypes)
    if ((bits >> *to_plugin_dtype(dtype) & 1) != 0)
      text += (text.empty() ? "" : " or ") + std::string(to_string(dtype));
  return text;
}

// What a kernel of a plugin computes once: the attributes as text, and the types of the outputs,
// which a backward may not read but whose gradients it sees.
struct Prepared {
  std::int64_t workspace_bytes = 0;  // of the plugin
  std::int32_t num_outputs = 0;
  std::array<anabatic_tensor, kMostOutputs> outputs{};
  const char* json() const { return reinterpret_cast<const char*>(this + 1); }
};

std::vector<std::byte> prepared_bytes(const std::vector<TensorType>& outputs,
                                      const spec::Attributes& attributes) {
  Prepared head;
  head.num_outputs = static_cast<std::int32_t>(outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) head.outputs[i] = to_tensor(outputs[i], nullptr);
  const std::string json = to_json(attributes);
  std::vector<std::byte> bytes(sizeof(Prepared) + json.size() + 1);
  std::memcpy(bytes.data(), &head, sizeof(head));
  std::memcpy(bytes.data() + sizeof(head), json.c_str(), json.size() + 1);
  return bytes;
}

std::span<const std::int64_t> list(const spec::Attributes& attributes, std::string_view key) {
  return std::get<std::vector<std::int64_t>>(attributes.find(key)->second);
}

ir::Cost bytes_of(ir::Types inputs, ir::Types outputs) {
  ir::Cost cost;
  for (const TensorType& type : inputs) cost.bytes_read += type.num_bytes();
  for (const TensorType& type : outputs) cost.bytes_written += type.num_bytes();
  return cost;
}

kernels::Support takes_rows(const spec::Problem& problem) {
  for (const auto types : {problem.inputs, problem.outputs})
    for (const TensorType& type : types)
      if (type.layout != kRowMajor || type.is_quantized() || !to_plugin_dtype(type.dtype))
        return kernels::no(
            fmt::format("plugins take row-major f32, bf16, f64 and i32, got {}", to_string(type)));
  return kernels::yes();
}

template <class T>
void add(T* into, const T* from, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) into[i] += from[i];
}

}  // namespace

bool is_plugin_name(std::string_view text) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !text.empty() && text.size() <= 64 && (text[0] < '0' || text[0] > '9') &&
         std::all_of(text.begin(), text.end(), fits);
}

std::string meaning_in_engine(std::string_view name) {
  if (ops::find_op(name) != nullptr) return fmt::format("the engine has an op {}", name);
  for (const spec::ActivationRow& row : spec::activation_rows())
    if (row.name == name) return fmt::format("the engine calls an activation {}", name);
  return "";
}

bool OperandSpec::takes(DType dtype) const {
  const auto of_plugin = to_plugin_dtype(dtype);
  return of_plugin && (dtypes >> *of_plugin & 1) != 0;
}

// Sizes of dimensions by their names, in a call.
struct PluginOp::Sizes {
  std::map<std::string, std::int64_t, std::less<>> of;
};

namespace {

OperandSpec read_operand(const anabatic_operand* operand, std::string_view place, bool is_output) {
  OperandSpec result;
  ANABATIC_REQUIRE(
      operand->name != nullptr && is_plugin_name(operand->name),
      "{}: expected a name of lower case letters, digits and _ for each operand, got '{}'", place,
      operand->name == nullptr ? "" : operand->name);
  result.name = operand->name;
  result.kind = operand->kind;
  result.dtypes = operand->dtypes;
  const bool is_known = operand->kind >= ANABATIC_ACTIVATION &&
                        operand->kind <= (is_output ? ANABATIC_INDEX : ANABATIC_CONSTANT) &&
                        !(is_output && operand->kind == ANABATIC_WEIGHT);
  ANABATIC_REQUIRE(is_known, "{}: {}: expected {}, got the kind {}", place, result.name,
                   is_output ? "an activation or an index, as results are"
                             : "an activation, a weight, an index or a constant",
                   operand->kind);
  const std::uint32_t allowed = operand->kind == ANABATIC_INDEX      ? kIndexBit
                                : operand->kind == ANABATIC_CONSTANT ? ANABATIC_FLOATS | kIndexBit
                                                                     : ANABATIC_FLOATS;
  ANABATIC_REQUIRE(result.dtypes != 0 && (result.dtypes & ~allowed) == 0,
                   "{}: {}: expected dtypes among {}, got the bits {:#x}; one dtype alone is "
                   "ANABATIC_DTYPE_BIT(ANABATIC_F32)",
                   place, result.name, dtypes_of(allowed), result.dtypes);
  ANABATIC_REQUIRE(operand->shape != nullptr, "{}: {}: expected a shape such as \"R,F\", got none",
                   place, result.name);
  result.shape = split_shape(operand->shape);
  ANABATIC_REQUIRE(result.shape.size() <= ANABATIC_MAX_NDIM,
                   "{}: {}: expected at most {} dimensions, got {}", place, result.name,
                   static_cast<int>(ANABATIC_MAX_NDIM), result.shape.size());
  for (const std::string& dim : result.shape)
    ANABATIC_REQUIRE(!dim.empty() && (is_number(dim) || dim[0] < '0' || dim[0] > '9'),
                     "{}: {}: expected names or numbers between commas in its shape, got \"{}\"",
                     place, result.name, operand->shape);
  if (operand->below != nullptr) {
    ANABATIC_REQUIRE(operand->kind == ANABATIC_INDEX && !is_output,
                     "{}: {}: expected `below` of indices that are inputs alone", place,
                     result.name);
    result.below = operand->below;
  }
  return result;
}

std::vector<OperandSpec> read_operands(const anabatic_operand* operands, std::int32_t count,
                                       std::string_view place, bool is_output) {
  const TableWords words{.place = place,
                         .rows = is_output ? "outputs" : "inputs",
                         .type = "anabatic_operand",
                         .count = is_output ? "num_outputs" : "num_inputs"};
  std::vector<OperandSpec> result;
  for (std::int32_t i = 0; i < count; ++i)
    result.push_back(read_operand(table_row(operands, i, count, words), place, is_output));
  return result;
}

}  // namespace

PluginOp::PluginOp(const anabatic_op* op, std::size_t bytes, std::string file)
    : file_(std::move(file)) {
  std::memcpy(&op_, op, std::min(bytes, sizeof(op_)));
  std::string place = fmt::format("[plugin] {}", file_);
  ANABATIC_REQUIRE(op_.name != nullptr && is_plugin_name(op_.name),
                   "{}: expected op names of lower case letters, digits and _, got '{}'", place,
                   op_.name == nullptr ? "" : op_.name);
  name_ = op_.name;
  place += ": op " + name_;
  const std::string meaning = meaning_in_engine(name_);
  ANABATIC_REQUIRE(meaning.empty(), "{}: expected a new name: {}", place, meaning);
  ANABATIC_REQUIRE(op_.num_inputs >= 1 && op_.num_inputs <= kMostInputs,
                   "{}: expected 1 to {} inputs, got {}", place, kMostInputs, op_.num_inputs);
  ANABATIC_REQUIRE(op_.num_outputs >= 1 && op_.num_outputs <= kMostOutputs,
                   "{}: expected 1 to {} outputs, got {}", place, kMostOutputs, op_.num_outputs);
  ANABATIC_REQUIRE(op_.inputs != nullptr && op_.outputs != nullptr,
                   "{}: expected tables of inputs and outputs", place);
  ANABATIC_REQUIRE(op_.forward != nullptr, "{}: expected a function `forward`, got none", place);
  ANABATIC_REQUIRE((op_.flags & ~std::uint32_t{ANABATIC_BACKWARD_READS_OUTPUTS}) == 0,
                   "{}: unknown flags {:#x}", place, op_.flags);
  inputs_ = read_operands(op_.inputs, op_.num_inputs, place, false);
  outputs_ = read_operands(op_.outputs, op_.num_outputs, place, true);
  std::set<std::string> names, dims;
  for (const auto* operands : {&inputs_, &outputs_})
    for (const OperandSpec& operand : *operands)
      ANABATIC_REQUIRE(names.insert(operand.name).second, "{}: two operands are called {}", place,
                       operand.name);
  for (const OperandSpec& input : inputs_) dims.insert(input.shape.begin(), input.shape.end());
  for (const OperandSpec& input : inputs_)
    ANABATIC_REQUIRE(input.below.empty() || dims.contains(input.below),
                     "{}: {}: expected `below` to be a dimension of an input, got '{}'", place,
                     input.name, input.below);
  if (op_.infer == nullptr)
    for (const OperandSpec& output : outputs_)
      for (const std::string& dim : output.shape)
        ANABATIC_REQUIRE(dims.contains(dim) || is_number(dim),
                         "{}: {}: without `infer`, expected dimensions of inputs, got '{}'", place,
                         output.name, dim);
  defaults_ = parse_attributes(op_.attributes, place);
  for (const std::string_view reserved : {kWanted, kGiven})
    ANABATIC_REQUIRE(!defaults_.contains(reserved), "{}: attribute '{}' is the engine's", place,
                     reserved);
  if (op_.summary != nullptr) summary_ = op_.summary;

  for (const OperandSpec& input : inputs_)
    signature_ += (signature_.empty() ? "(" : ", ") + describe(input);
  signature_ += ") -> ";
  for (const OperandSpec& output : outputs_)
    signature_ += (&output == outputs_.data() ? "" : ", ") + describe(output);
  gradient_name_ = name_ + "_gradient";
  gradient_signature_ = "the inputs of " + name_ + ", and gradients of its outputs";
  kernel_name_ = "plugin:" + name_;
  gradient_kernel_name_ = "plugin:" + gradient_name_;

  schema_ = {.name = name_,
             .min_inputs = op_.num_inputs,
             .max_inputs = op_.num_inputs,
             .num_outputs = op_.num_outputs,
             .signature = signature_};
  schema_.infer = decltype(schema_.infer)::bind<&PluginOp::infer>(*this);
  schema_.cost = decltype(schema_.cost)::bind<&PluginOp::cost>(*this);
  schema_.takes = decltype(schema_.takes)::bind<&PluginOp::takes>(*this);
  if (has_gradient())
    schema_.gradient = decltype(schema_.gradient)::bind<&PluginOp::gradient>(*this);
  gradient_schema_ = {.name = gradient_name_,
                      .min_inputs = op_.num_inputs + 1,
                      .max_inputs = op_.num_inputs + 2 * op_.num_outputs,
                      .num_outputs = ir::kAnyNumber,
                      .signature = gradient_signature_,
                      .can_accumulate = true};
  gradient_schema_.infer = decltype(gradient_schema_.infer)::bind<&PluginOp::infer_gradient>(*this);
  gradient_schema_.cost = decltype(gradient_schema_.cost)::bind<&PluginOp::gradient_cost>(*this);

  using Workspace = decltype(kernel_.workspace_bytes);
  using Prepare = decltype(kernel_.prepare);
  using Run = decltype(kernel_.run);
  kernel_.name = kernel_name_;
  kernel_.op = name_;
  kernel_.supports = takes_rows;
  kernel_.workspace_bytes = Workspace::bind<&PluginOp::forward_workspace>(*this);
  kernel_.prepare = Prepare::bind<&PluginOp::prepare>(*this);
  kernel_.run = Run::bind<&PluginOp::forward>(*this);
  gradient_kernel_ = kernel_;
  gradient_kernel_.name = gradient_kernel_name_;
  gradient_kernel_.op = gradient_name_;
  gradient_kernel_.workspace_bytes = Workspace::bind<&PluginOp::backward_workspace>(*this);
  gradient_kernel_.run = Run::bind<&PluginOp::backward>(*this);
}

void PluginOp::fail(const std::string& message) const {
  throw InvalidArgument(fmt::format("[{}] {}", name_, message));
}

void PluginOp::check_operand(const OperandSpec& operand, const TensorType& type,
                             Sizes& sizes) const {
  if (type.layout != kRowMajor || type.is_quantized() || !operand.takes(type.dtype))
    fail(fmt::format("expected {} row-major in {}, got {}", operand.name, dtypes_of(operand.dtypes),
                     to_string(type)));
  if (type.shape.size() != operand.shape.size())
    fail(fmt::format("expected {}, got {}", describe(operand), to_string(type)));
  for (std::size_t i = 0; i < operand.shape.size(); ++i) {
    const std::string& dim = operand.shape[i];
    const std::int64_t size = type.shape[i];
    const std::int64_t wanted =
        is_number(dim) ? std::stoll(dim) : sizes.of.try_emplace(dim, size).first->second;
    if (size != wanted)
      fail(fmt::format("expected {} with {} in dimension {}, got {}", describe(operand), wanted, i,
                       to_string(type)));
  }
}

TensorType PluginOp::output_type(const OperandSpec& output, DType dtype, const Sizes& sizes) const {
  TensorType type{.dtype = output.kind == ANABATIC_INDEX ? DType::kInt32 : dtype};
  for (const std::string& dim : output.shape)
    type.shape.push_back(is_number(dim) ? std::stoll(dim) : sizes.of.at(dim));
  return type;
}

std::vector<TensorType> PluginOp::infer(ir::Types inputs,
                                        const spec::Attributes& attributes) const {
  Sizes sizes;
  for (std::size_t i = 0; i < inputs_.size(); ++i) check_operand(inputs_[i], inputs[i], sizes);
  const spec::Attributes all = with_defaults(defaults_, attributes, fmt::format("[{}]", name_));
  std::vector<TensorType> outputs;
  if (op_.infer == nullptr) {
    DType dtype = DType::kFloat32;
    for (std::size_t i = inputs_.size(); i-- > 0;)
      if (inputs_[i].kind != ANABATIC_INDEX) dtype = inputs[i].dtype;
    for (const OperandSpec& output : outputs_) outputs.push_back(output_type(output, dtype, sizes));
  } else {
    const std::string json = to_json(all);
    PluginCall call(place("infer"), json.c_str(), nullptr);
    for (const TensorType& type : inputs) call.add_input(type, nullptr);
    for (std::size_t i = 0; i < outputs_.size(); ++i) call.add_untyped_output();
    call.require(op_.infer);
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      const anabatic_tensor& tensor = call.output(static_cast<int>(i));
      const auto dtype = from_plugin_dtype(tensor.dtype);
      if (!dtype || tensor.ndim < 0 || tensor.ndim > ANABATIC_MAX_NDIM)
        fail(fmt::format("infer of {} set dtype {} and {} dimensions for output {}", file_,
                         tensor.dtype, tensor.ndim, outputs_[i].name));
      outputs.push_back({.dtype = *dtype, .shape = {tensor.shape, tensor.shape + tensor.ndim}});
      for (const std::int64_t size : outputs.back().shape)
        if (size < 0)
          fail(fmt::format("infer of {} set the size {} in output {}", file_, size,
                           outputs_[i].name));
    }
  }
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    check_operand(outputs_[i], outputs[i], sizes);
    (void)outputs[i].num_bytes();  // refuses an overflow
  }
  return outputs;
}

TensorType PluginOp::gradient_type(std::size_t i, TensorType input) const {
  if (inputs_[i].kind == ANABATIC_WEIGHT && input.dtype != DType::kFloat64)
    input.dtype = DType::kFloat32;
  return input;
}

spec::Attributes PluginOp::own_attributes(const spec::Attributes& attributes) const {
  spec::Attributes own = attributes;
  own.erase(std::string(kWanted));
  own.erase(std::string(kGiven));
  return own;
}

std::vector<TensorType> PluginOp::infer_gradient(ir::Types inputs,
                                                 const spec::Attributes& attributes) const {
  const auto lists = [&](std::string_view key, std::size_t most) {
    const auto found = attributes.find(key);
    const auto* values = found == attributes.end()
                             ? nullptr
                             : std::get_if<std::vector<std::int64_t>>(&found->second);
    if (values == nullptr || std::any_of(values->begin(), values->end(), [&](std::int64_t value) {
          return value < 0 || value >= static_cast<std::int64_t>(most);
        }))
      throw InvalidArgument(fmt::format("[{}] expected '{}' as a list of numbers below {}",
                                        gradient_name_, key, most));
    return std::span<const std::int64_t>(*values);
  };
  const auto wanted = lists(kWanted, inputs_.size()), given = lists(kGiven, outputs_.size());
  const std::size_t num_read = reads_outputs() ? outputs_.size() : 0;
  if (inputs.size() != inputs_.size() + num_read + given.size())
    throw InvalidArgument(fmt::format("[{}] expected {} inputs, got {}", gradient_name_,
                                      inputs_.size() + num_read + given.size(), inputs.size()));
  const std::vector<TensorType> outputs =
      infer(inputs.first(inputs_.size()), own_attributes(attributes));
  const auto expect = [&](std::size_t at, std::size_t output) {
    if (inputs[at] != outputs[output])
      throw InvalidArgument(fmt::format("[{}] expected input {} to be {} as {} is, got {}",
                                        gradient_name_, at, to_string(outputs[output]),
                                        outputs_[output].name, to_string(inputs[at])));
  };
  for (std::size_t i = 0; i < num_read; ++i) expect(inputs_.size() + i, i);
  for (std::size_t i = 0; i < given.size(); ++i)
    expect(inputs_.size() + num_read + i, static_cast<std::size_t>(given[i]));
  std::vector<TensorType> types;
  for (const std::int64_t i : wanted) {
    const auto at = static_cast<std::size_t>(i);
    if (!inputs_[at].has_gradient())
      throw InvalidArgument(
          fmt::format("[{}] {} has no gradient", gradient_name_, inputs_[at].name));
    types.push_back(gradient_type(at, inputs[at]));
  }
  return types;
}

// Gradients of activations and of weights are nodes of their own: a plan may run the latter later,
// and drops those of frozen weights.
ir::Gradients PluginOp::gradient(ir::GraphBuilder& builder, const ir::Node& node,
                                 std::span<const std::optional<ir::ValueId>> of_outputs) const {
  ir::Gradients gradients(inputs_.size());
  std::vector<ir::ValueId> inputs = node.inputs;
  if (reads_outputs()) inputs.insert(inputs.end(), node.outputs.begin(), node.outputs.end());
  std::vector<std::int64_t> given;
  for (std::size_t i = 0; i < of_outputs.size(); ++i)
    if (of_outputs[i] && outputs_[i].kind != ANABATIC_INDEX) {
      given.push_back(static_cast<std::int64_t>(i));
      inputs.push_back(*of_outputs[i]);
    }
  if (given.empty()) return gradients;
  const ir::Tag before = builder.tag();
  for (const std::int32_t kind : {ANABATIC_ACTIVATION, ANABATIC_WEIGHT}) {
    std::vector<std::int64_t> wanted;
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      if (inputs_[i].kind == kind) wanted.push_back(static_cast<std::int64_t>(i));
    if (wanted.empty()) continue;
    ir::Tag tag = before;
    if (kind == ANABATIC_WEIGHT) tag.phase = ir::Phase::kBackwardWeight;
    builder.set_tag(tag);
    spec::Attributes attributes = node.attributes;
    attributes[std::string(kWanted)] = wanted;
    attributes[std::string(kGiven)] = given;
    const std::vector<ir::ValueId> made =
        builder.add(gradient_name_, inputs, std::move(attributes));
    for (std::size_t i = 0; i < wanted.size(); ++i)
      gradients[static_cast<std::size_t>(wanted[i])] = made[i];
  }
  builder.set_tag(before);
  return gradients;
}

ir::Cost PluginOp::cost(ir::Types inputs, ir::Types outputs,
                        const spec::Attributes& attributes) const {
  ir::Cost cost = bytes_of(inputs, outputs);
  if (op_.cost == nullptr) return cost;
  const std::string json = to_json(with_defaults(defaults_, attributes, name_));
  PluginCall call(place("cost"), json.c_str(), nullptr);
  for (const TensorType& type : inputs) call.add_input(type, nullptr);
  for (const TensorType& type : outputs) call.add_output(type, nullptr);
  anabatic_cost told{.size = sizeof(anabatic_cost),
                     .flops = 0,
                     .bytes_read = cost.bytes_read,
                     .bytes_written = cost.bytes_written};
  call.require(op_.cost, &told);
  if (told.flops < 0 || told.bytes_read < 0 || told.bytes_written < 0)
    fail(fmt::format("cost of {} gave a negative number", file_));
  return {.flops = told.flops, .bytes_read = told.bytes_read, .bytes_written = told.bytes_written};
}

ir::Cost PluginOp::gradient_cost(ir::Types inputs, ir::Types outputs,
                                 const spec::Attributes& attributes) const {
  const spec::Attributes own = own_attributes(attributes);
  const ir::Types of_forward = inputs.first(inputs_.size());
  ir::Cost result = bytes_of(inputs, outputs);
  result.flops = 2 * cost(of_forward, infer(of_forward, own), own).flops;
  return result;
}

// Weights stay in f32 where the op takes it.
bool PluginOp::takes(int input, DType dtype) const {
  const OperandSpec& operand = inputs_.at(static_cast<std::size_t>(input));
  if (operand.kind == ANABATIC_WEIGHT && operand.takes(DType::kFloat32))
    return dtype == DType::kFloat32;
  return operand.takes(dtype);
}

std::int64_t PluginOp::workspace_bytes(PluginCall& call, bool is_backward) const {
  if (op_.workspace_bytes == nullptr) return 0;
  const std::int64_t bytes = call.run(op_.workspace_bytes, is_backward ? 1 : 0);
  if (!call.failure().empty()) call.check(1);
  if (bytes < 0) fail(fmt::format("workspace_bytes of {} gave {}", file_, bytes));
  return bytes;
}

std::vector<std::byte> PluginOp::prepare(const spec::Problem& problem) const {
  const spec::Attributes own = own_attributes(*problem.attributes);
  std::vector<std::byte> bytes =
      prepared_bytes(infer(problem.inputs.first(inputs_.size()), own),
                     with_defaults(defaults_, own, fmt::format("[{}]", name_)));
  auto& prepared = *reinterpret_cast<Prepared*>(bytes.data());
  PluginCall call(place("workspace_bytes"), prepared.json(), nullptr);
  const bool is_backward = text(problem.op) == gradient_name_;
  std::vector<TensorView> inputs, outputs;
  for (const TensorType& type : problem.inputs) inputs.push_back({.type = &type});
  for (const TensorType& type : problem.outputs) outputs.push_back({.type = &type});
  if (is_backward)
    add_backward(call, inputs, outputs, *problem.attributes, &prepared, {});
  else
    add_forward(call, inputs, outputs);
  prepared.workspace_bytes = workspace_bytes(call, is_backward);
  return bytes;
}

std::int64_t PluginOp::forward_workspace(const spec::Problem& problem) const {
  const std::vector<std::byte> bytes = prepare(problem);
  return reinterpret_cast<const Prepared*>(bytes.data())->workspace_bytes;
}

// Where a call may add, its results come into the workspace first.
std::int64_t PluginOp::backward_workspace(const spec::Problem& problem) const {
  std::int64_t result = aligned(forward_workspace(problem));
  if (problem.may_add)
    for (const TensorType& type : problem.outputs) result += aligned(type.num_bytes());
  return result;
}

void PluginOp::add_forward(PluginCall& call, std::span<const TensorView> inputs,
                           std::span<const TensorView> outputs) {
  for (const TensorView& input : inputs) call.add_input(*input.type, input.data);
  for (const TensorView& output : outputs) call.add_output(*output.type, output.data);
}

void PluginOp::forward(const kernels::Arguments& arguments) const {
  const auto& prepared = *static_cast<const Prepared*>(arguments.prepared);
  PluginCall call(place("forward", arguments.label), prepared.json(), arguments.launch.team);
  add_forward(call, arguments.inputs, arguments.outputs);
  call.set_workspace(arguments.workspace, prepared.workspace_bytes);
  call.require(op_.forward);
}

void PluginOp::add_backward(PluginCall& call, std::span<const TensorView> inputs,
                            std::span<const TensorView> outputs, const spec::Attributes& attributes,
                            const void* prepared, std::span<std::byte* const> places) const {
  const auto& known = *static_cast<const Prepared*>(prepared);
  for (std::size_t i = 0; i < inputs_.size(); ++i) call.add_input(*inputs[i].type, inputs[i].data);
  std::size_t next = inputs_.size();
  if (reads_outputs())
    for (std::size_t i = 0; i < outputs_.size(); ++i, ++next)
      call.add_input(*inputs[next].type, inputs[next].data);
  const auto given = list(attributes, kGiven), wanted = list(attributes, kWanted);
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    anabatic_tensor gradient = known.outputs[i];
    if (std::find(given.begin(), given.end(), static_cast<std::int64_t>(i)) != given.end())
      gradient.data = inputs[next++].data;
    call.add_input(gradient);
  }
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const auto found = std::find(wanted.begin(), wanted.end(), static_cast<std::int64_t>(i));
    if (found == wanted.end()) {
      call.add_output(*inputs[i].type, nullptr);
      continue;
    }
    const auto at = static_cast<std::size_t>(found - wanted.begin());
    call.add_output(*outputs[at].type, places.empty() ? outputs[at].data : places[at]);
  }
}

void PluginOp::backward(const kernels::Arguments& arguments) const {
  const auto& prepared = *static_cast<const Prepared*>(arguments.prepared);
  std::array<std::byte*, kMostInputs> places{};
  const auto adds = [&](std::size_t i) {
    return i < arguments.accumulate.size() && arguments.accumulate[i];
  };
  std::byte* beyond = arguments.workspace + aligned(prepared.workspace_bytes);
  for (std::size_t i = 0; i < arguments.outputs.size(); ++i) {
    places[i] = adds(i) ? beyond : arguments.outputs[i].data;
    if (adds(i)) beyond += aligned(arguments.outputs[i].type->num_bytes());
  }
  PluginCall call(place("backward", arguments.label), prepared.json(), arguments.launch.team);
  add_backward(call, arguments.inputs, arguments.outputs, *arguments.attributes, &prepared,
               std::span(places.data(), arguments.outputs.size()));
  call.set_workspace(arguments.workspace, prepared.workspace_bytes);
  call.require(op_.backward);
  for (std::size_t i = 0; i < arguments.outputs.size(); ++i) {
    if (!adds(i)) continue;
    const TensorView& output = arguments.outputs[i];
    const std::int64_t count = output.type->num_elements();
    if (output.type->dtype == DType::kFloat32)
      add(output.as<float>(), reinterpret_cast<const float*>(places[i]), count);
    else
      ANABATIC_CHECK(false, "[{}] adds to {}", gradient_name_, to_string(*output.type));
  }
}

}  // namespace anabatic::plugin
