// SPDX-License-Identifier: Apache-2.0
#include "passes/support/pass_file.h"

#include <map>
#include <sstream>

#include "base/error.h"
#include "base/text.h"
#include "ops/table.h"
#include "passes/pass_runner.h"
#include "passes/support/line_diff.h"
#include "spec/product_prologue.h"
#include "tensor/panels.h"

namespace anabatic::passes {
namespace {

bool yes_or_no(const std::string& value) {
  ANABATIC_REQUIRE(value == "yes" || value == "no", "expected yes or no, got '{}'", value);
  return value == "yes";
}

// The FLOPs of a node: twice as many of a sparse one, kOfNorm times as many of a product with a
// norm, and an element of what pack_sparse makes.
template <int kOfNorm>
double flops_of(const ir::Graph& graph, const ir::Node& node) {
  std::vector<TensorType> inputs, outputs;
  for (const ir::ValueId operand : node.inputs) inputs.push_back(graph.value(operand).type);
  for (const ir::ValueId operand : node.outputs) outputs.push_back(graph.value(operand).type);
  if (node.op->name == "pack_sparse") return static_cast<double>(outputs[0].num_elements());
  const bool is_sparse = node.op->name.find("sparse") != node.op->name.npos;
  return (is_sparse ? 2 : 1) * (spec::num_prologue_inputs(node.attributes) > 0 ? kOfNorm : 1) *
         static_cast<double>(node.op->cost(inputs, outputs, node.attributes).flops);
}

void set_option(PassFile& file, const std::string& key, const std::string& value) {
  PassOptions& options = file.context.options;
  if (key == "idempotent") {
    file.is_idempotent = yes_or_no(value);
  } else if (key == "with_update") {
    options.with_update = yes_or_no(value);
  } else if (key == "pack_transposed") {
    options.pack_transposed = yes_or_no(value);
  } else if (key == "keep_packings") {
    options.keep_packings = yes_or_no(value);
  } else if (key == "frozen_format") {
    options.frozen_format = block_format_from_string(value);
  } else if (key == "decay_norms_and_biases") {
    options.optimizer.decay_norms_and_biases = yes_or_no(value);
  } else if (key == "moments") {
    using enum spec::MomentPrecision;
    const bool is_int8 = value == "int8";
    ANABATIC_REQUIRE(is_int8 || value == "bf16", "[pass file] expected bf16 or int8, got '{}'",
                     value);
    options.optimizer.moments = is_int8 ? kInt8 : kBf16;
  } else if (key == "scales_loss") {
    options.optimizer.scales_loss = yes_or_no(value);
  } else if (key == "in_backward") {
    options.optimizer.in_backward = yes_or_no(value);
  } else if (key == "slice_bytes") {
    options.slice_bytes = std::stoll(value);
  } else if (key == "expert_cuts") {  // of this stack, at these experts: NAME:2,5
    const std::size_t colon = value.find(':');
    ANABATIC_REQUIRE(colon != std::string::npos, "expected NAME:EXPERTS, got '{}'", value);
    std::istringstream experts(value.substr(colon + 1));
    for (std::string expert; std::getline(experts, expert, ',');)
      (*file.expert_cuts)[value.substr(0, colon)].insert(std::stoll(expert));
    options.expert_cuts = file.expert_cuts.get();
  } else if (key == "clip_grad_norm") {
    options.optimizer.clip_grad_norm = std::stod(value);
  } else if (key == "weight_decay") {
    options.optimizer.weight_decay = std::stod(value);
  } else if (key == "panels") {  // of this state, which another program holds
    (*file.held_states)[value].layout = panels_layout(false);
    options.held_states = file.held_states.get();
  } else if (key == "rows") {
    (*file.held_states)[value].layout = kRowMajor;
    options.held_states = file.held_states.get();
  } else if (key == "int8_panels") {  // likewise, a packing in int8
    (*file.held_states)[value] = {spec::StateRole::kPacking, panels_layout(false),
                                  int8_tile_format()};
    options.held_states = file.held_states.get();
  } else if (key == "packing") {  // likewise, as it is
    (*file.held_states)[value] = {spec::StateRole::kPacking, panels_layout(false), {}};
    options.held_states = file.held_states.get();
  } else if (key == "norms_in_products") {
    options.norms_in_products = yes_or_no(value);
  } else if (key == "streams_weights") {
    options.streams_weights = value == "yes";
  } else if (key == "upper") {  // likewise, only the upper bits of this parameter
    (*file.held_states)[value].role = spec::StateRole::kUpper;
    options.held_states = file.held_states.get();
  } else if (key == "on_disk") {  // this parameter
    file.on_disk->insert(value);
    options.on_disk = file.on_disk.get();
  } else if (key == "seed") {  // the gradient of this output is given
    file.gradients->outputs.push_back(value);
    options.gradients = file.gradients.get();
  } else if (key == "gradient_of") {  // this input
    file.gradients->inputs.push_back(value);
    options.gradients = file.gradients.get();
  } else if (key == "recompute") {  // this value
    file.decisions->recompute.insert(value);
  } else if (key == "slices") {  // these calls, into so many: KEY:8
    const std::size_t colon = value.find(':');
    ANABATIC_REQUIRE(colon != std::string::npos, "expected KEY:COUNT, got '{}'", value);
    file.decisions->slices[value.substr(0, colon)] = std::stoll(value.substr(colon + 1));
  } else if (key == "bf16" || key == "int8" || key == "disk") {  // this value in this form
    file.decisions->saved_as[value] = key == "bf16"   ? spec::SavedForm::kBFloat16
                                      : key == "int8" ? spec::SavedForm::kInt8
                                                      : spec::SavedForm::kDisk;
  } else if (key == "data") {  // ranks along this axis of the mesh
    options.mesh.data = std::stoi(value);
  } else if (key == "leaves") {
    options.leaves = std::stoll(value);
  } else if (key == "expert") {
    options.mesh.expert = std::stoi(value);
  } else if (key == "shards_optimizer") {
    options.shards_optimizer = yes_or_no(value);
  } else if (key == "rank") {
    options.rank = std::stoi(value);
  } else if (key == "precision") {
    using enum spec::Precision;
    static const std::map<std::string, spec::Precision> words{
        {"fp32", kFp32}, {"bf16", kBf16}, {"int8", kInt8}, {"fp16", kFp16}, {"mixed", kMixed}};
    const auto found = words.find(value);
    ANABATIC_REQUIRE(found != words.end(), "expected fp32, bf16, int8, fp16 or mixed, got '{}'",
                     value);
    options.precision = found->second;
  } else if (key == "fallback") {
    options.products.fallback = std::stoll(value);
  } else if (key == "grid") {
    options.quantization.grid = weight_grid_from_string(value);
  } else if (key == "unit") {  // of weights in that grid
    options.quantization.units.push_back(value);
  } else if (key == "sparse") {  // UNIT PATTERN[ transposable]
    std::istringstream words(value);
    std::string unit, pattern, word;
    words >> unit >> pattern >> word;
    options.sparsity.entries.push_back({.units = {unit},
                                        .pattern = *spec::sparsity_pattern_from_string(pattern),
                                        .density = 0.5,
                                        .is_transposable = word == "transposable"});
  } else if (key == "masks") {  // PATTERN DENSITY[ THRESHOLD| transposable] of final masks, each
    std::istringstream words(value);
    std::string pattern, word;
    double density = 1;
    words >> pattern >> density >> word;
    spec::SparseUnits entry{.pattern = *spec::sparsity_pattern_from_string(pattern),
                            .density = density};
    if (word == "transposable")
      entry.is_transposable = true;
    else if (!word.empty())
      entry.threshold = std::stod(word);
    options.sparsity.entries.push_back(std::move(entry));
    options.sparsity.is_final = true;
  } else if (key == "seconds") {  // "flops": see flops_of; "dear_norms": with a norm twice
    if (value == "dear_norms")
      file.context.seconds = flops_of<2>;
    else
      file.context.seconds = flops_of<1>;
  } else if (key == "rounds_activations") {
    options.quantization.rounds_activations = yes_or_no(value);
  } else if (key == "delay") {
    options.quantization.delay = std::stoll(value);
  } else if (key == "keep") {  // UNIT:PRECISION
    const std::size_t colon = value.find(':');
    ANABATIC_REQUIRE(colon != std::string::npos, "expected UNIT:PRECISION, got '{}'", value);
    const std::string word = value.substr(colon + 1);
    options.products.keep.emplace_back(value.substr(0, colon),
                                       word == "fp32"   ? spec::Precision::kFp32
                                       : word == "int8" ? spec::Precision::kInt8
                                                        : spec::Precision::kBf16);
  } else if (key == "raised") {  // PRECISION:UNIT:ROLE
    const std::size_t first = value.find(':'), second = value.rfind(':');
    ANABATIC_REQUIRE(first < second && second != value.npos,
                     "expected PRECISION:UNIT:ROLE, got '{}'", value);
    using enum spec::ProductRole;
    const std::string role = value.substr(second + 1);
    options.products.raised.push_back(
        {.weight = value.substr(first + 1, second - first - 1),
         .role = role == "forward"          ? kForward
                 : role == "input_gradient" ? kInputGradient
                                            : kWeightGradient,
         .precision = value.starts_with("fp32") ? spec::Precision::kFp32 : spec::Precision::kBf16});
  } else if (key == "critical") {  // a unit
    options.products.critical.push_back(value);
  } else {
    throw InvalidArgument(fmt::format("unknown option '{}'", key));
  }
}

void parse_lines(PassFile& file, const std::string& content) {
  static constexpr std::string_view kOption = "# option ";
  std::string* section = nullptr;
  std::istringstream lines(content);
  for (std::string line; std::getline(lines, line);) {
    if (line == "# ---- input") {
      section = &file.input;
    } else if (line == "# ---- expected" || line == "# ---- expected error") {
      section = &file.expected;
      file.expects_error = line.size() > 16;
    } else if (section != nullptr) {
      *section += line + '\n';
    } else if (line.compare(0, kOption.size(), kOption) == 0) {
      const std::size_t equals = line.find('=');
      ANABATIC_REQUIRE(equals != std::string::npos, "expected KEY=VALUE in '{}'", line);
      set_option(file, line.substr(kOption.size(), equals - kOption.size()),
                 line.substr(equals + 1));
    }
  }
  ANABATIC_REQUIRE(!file.input.empty() && !file.expected.empty(),
                   "expected the sections '# ---- input' and '# ---- expected'");
}

std::string check_error(const Pass& pass, const PassFile& file, ir::Graph graph) {
  std::string fragment = file.expected;
  fragment.erase(fragment.find_last_not_of("\n ") + 1);
  try {
    pass.run(graph, file.context);
  } catch (const Error& error) {
    if (std::string(error.what()).find(fragment) != std::string::npos) return {};
    return fmt::format("expected an error with '{}', got '{}'", fragment, error.what());
  }
  return fmt::format("expected an error with '{}', got none", fragment);
}

}  // namespace

PassFile read_pass_file(const std::filesystem::path& path) {
  PassFile file;
  file.context.find_op = ops::find_op;
  file.context.options.decisions = file.decisions.get();
  try {
    parse_lines(file, read_file(path));
  } catch (const std::exception& error) {
    throw InvalidArgument(fmt::format("[{}] {}", path.string(), error.what()));
  }
  return file;
}

std::string check_pass_file(const Pass& pass, const PassFile& file) {
  ir::Graph graph = ir::parse(file.input, ops::find_op);
  if (file.expects_error) return check_error(pass, file, std::move(graph));
  const RunnerOptions options{.facts = {pass.needs.begin(), pass.needs.end()}};
  run_passes(graph, {&pass, 1}, file.context, options);
  const std::string got = ir::print(graph);
  const std::string want = ir::print(ir::parse(file.expected, ops::find_op));
  if (got != want) return "(- expected, + got)\n" + line_diff(want, got);
  if (!file.is_idempotent) return {};
  run_passes(graph, {&pass, 1}, file.context, options);
  const std::string again = ir::print(graph);
  if (again != got) return "a second run changes it again (+)\n" + line_diff(got, again);
  return {};
}

}  // namespace anabatic::passes
