// SPDX-License-Identifier: Apache-2.0
#include "passes/sparsity/sparse_products.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/error.h"
#include "ir/op_schema.h"
#include "ops/pack.h"
#include "ops/sparse/sparse_linear.h"
#include "passes/precision/product_units.h"
#include "tensor/panels.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::State;
using ir::StateRole;
using ir::ValueId;
using spec::ProductRole;
using spec::SparseLayout;

constexpr std::size_t kWeightInput = 1;

// The products of a weight, by role.
struct ProductsOf {
  std::array<std::vector<Node*>, 3> by_role{};

  std::vector<Node*>& of(ProductRole role) { return by_role[static_cast<std::size_t>(role)]; }
};

std::string_view name_of(ProductRole role) {
  constexpr std::array<std::string_view, 3> kNames{"forward", "input gradient", "weight gradient"};
  return kNames[static_cast<std::size_t>(role)];
}

class Sparsifier {
 public:
  Sparsifier(Graph& graph, const PassContext& context)
      : graph_(graph), context_(context), builder_(graph, context.find_op) {}

  bool run() {
    bool changed = false;
    std::vector<State> masks;  // a copy: states come and go below
    for (const State& state : graph_.states)
      if (state.role == StateRole::kMask) masks.push_back(state);
    for (const State& mask : masks) changed |= rewrite(mask);
    return changed;
  }

 private:
  // A weight with its mask and what reads it.
  struct Weight {
    Name name;
    TensorType type;  // of the parameter: f32 [N,K] or [E,N,K]
    ValueId value;    // what products read: the parameter or its copy
    spec::SparsityPattern pattern;
    double density, asked;  // of the mask as it is, and as the entry has it
    std::int64_t kept;
    bool packs_dense;  // the input gradient stays dense, whatever the forward is

    SparseLayout layout(bool transposed, std::int64_t blocks) const {
      return spec::sparse_layout(pattern, type.dim(-2), type.dim(-1), blocks, transposed);
    }
    std::int64_t num_blocks() const {
      return spec::num_blocks(pattern, type.dim(-2), type.dim(-1));
    }
  };

  bool rewrite(const State& mask) {
    const State& parameter = *graph_.find_state(mask.owner);
    const State* copy = graph_.find_state(StateRole::kCopy, mask.owner);
    const spec::SparseUnits& entry =
        context_.options.sparsity.entries.at(static_cast<std::size_t>(mask.entry));
    Weight weight{.name = mask.owner,
                  .type = graph_.value(parameter.before).type,
                  .value = copy != nullptr ? copy->before : parameter.before,
                  .pattern = *mask.pattern,
                  .density = 0,
                  .asked = entry.density,
                  .kept = 0,
                  .packs_dense = false};
    weight.kept =
        spec::kept_blocks(weight.pattern, weight.type.dim(-2), weight.type.dim(-1), entry.density);
    weight.density = static_cast<double>(weight.kept) / static_cast<double>(weight.num_blocks());
    ProductsOf products = products_of(weight);
    if (products.of(ProductRole::kForward).empty()) return false;
    unit_ = product_name(graph_, *products.of(ProductRole::kForward)[0]);
    if (const std::string refusal = refusal_of(weight, parameter); !refusal.empty()) {
      explain(fmt::format("dense products: {}", refusal));
      return false;
    }
    weight.packs_dense =
        std::ranges::any_of(products.of(ProductRole::kInputGradient), [&](const Node* node) {
          return !refusal_of(*node, ProductRole::kInputGradient, entry).empty();
        });
    bool changed = false;
    for (const ProductRole role :
         {ProductRole::kForward, ProductRole::kInputGradient, ProductRole::kWeightGradient}) {
      const std::vector<Node*>& nodes = products.of(role);
      if (nodes.empty() || !is_chosen(weight, entry, role, nodes)) continue;
      for (Node* node : nodes) make_sparse(weight, role, *node);
      changed = true;
    }
    if (changed && copy != nullptr) drop_unread(weight.value);
    return changed;
  }

  ProductsOf products_of(const Weight& weight) {
    ProductsOf products;
    for (Node& node : graph_.nodes) {
      const spec::ProductForm* form = ir::product_form(node);
      if (form != nullptr && form->is_plain() && form->role != ProductRole::kWeightGradient &&
          node.inputs[kWeightInput] == weight.value)
        products.of(form->role).push_back(&node);
    }
    const State* gradient = graph_.find_state(StateRole::kGradient, weight.name);
    if (gradient == nullptr) return products;
    const Node& sum = graph_.node(graph_.value(gradient->after).producer);
    for (std::size_t i = 1; i < sum.inputs.size(); ++i) {
      Node& node = graph_.node(graph_.value(sum.inputs[i]).producer);
      const spec::ProductForm* form = ir::product_form(node);
      if (form != nullptr && form->is_plain() && form->role == ProductRole::kWeightGradient)
        products.of(form->role).push_back(&node);
    }
    return products;
  }

  // Why all products of a weight stay dense; empty where they may be sparse.
  std::string refusal_of(const Weight& weight, const State& parameter) const {
    if (weight.pattern == spec::SparsityPattern::kTwoOfFour &&
        2 * weight.kept != weight.num_blocks())
      return fmt::format("some groups of 2:4 keep all four weights at density {:.4g}",
                         weight.density);
    if (weight.type.dtype != DType::kFloat32 || weight.type.layout != kRowMajor)
      return "the weight is not in f32 rows";
    if (parameter.grid) return "quantization rounds the weight";
    const DType dtype = graph_.value(weight.value).type.dtype;
    if (dtype != DType::kFloat32 && dtype != DType::kBFloat16)
      return fmt::format("they read {}", is_packed_in_int8(weight) ? "int8" : to_string(dtype));
    return {};
  }
  bool is_packed_in_int8(const Weight& weight) const {
    return graph_.value(weight.value).type.is_quantized();
  }
  // Why this product does; likewise.
  std::string refusal_of(const Node& node, ProductRole role, const spec::SparseUnits& entry) const {
    const auto type = [&](ValueId value) -> const TensorType& { return graph_.value(value).type; };
    const DType dtype = type(node.inputs[0]).dtype;
    if (node.attributes.contains("fallback")) return "it is an int8 product";
    if (role == ProductRole::kWeightGradient && !ops::has_sparse_gradient(entry.pattern))
      return "the update masks it";
    if (role == ProductRole::kInputGradient && entry.pattern == spec::SparsityPattern::kTwoOfFour &&
        !entry.is_transposable)
      return "the mask is not transposable";
    if (role == ProductRole::kWeightGradient)
      return type(node.inputs[1]).dtype != dtype ? "its operands have two dtypes" : "";
    if (type(node.outputs[0]).dtype != dtype)
      return fmt::format("its result is {}", to_string(type(node.outputs[0]).dtype));
    if (type(node.inputs[kWeightInput]).dtype != dtype) return "its operands have two dtypes";
    if (node.attributes.contains("bias")) return "experts have a bias";
    return {};
  }

  // The sparse op of a product, its attributes and inputs in terms of the dense one's.
  ir::Node sparse_node(const Weight& weight, ProductRole role, const Node& node, ValueId values,
                       ValueId index) const {
    const bool is_grouped = ir::product_form(node)->is_grouped;
    constexpr std::array<std::string_view, 3> kSuffixes{"", "_input_gradient", "_weight_gradient"};
    Node sparse = node;
    sparse.op = context_.find_op(fmt::format("{}sparse_linear{}", is_grouped ? "grouped_" : "",
                                             kSuffixes[static_cast<std::size_t>(role)]));
    ANABATIC_CHECK(sparse.op != nullptr, "[sparse_products] no op for a sparse '{}'",
                   node.op->name);
    sparse.attributes = {{"pattern", std::string(to_string(weight.pattern))}};
    if (role == ProductRole::kForward) sparse.attributes["out"] = weight.type.dim(-2);
    if (role == ProductRole::kInputGradient) sparse.attributes["in"] = weight.type.dim(-1);
    // A norm and an update by the mask read nothing else.
    if (role == ProductRole::kWeightGradient && context_.options.with_update)
      sparse.attributes["present_only"] = true;
    sparse.inputs = {node.inputs[0]};
    sparse.inputs.push_back(role == ProductRole::kWeightGradient ? node.inputs[1] : values);
    sparse.inputs.push_back(index);
    sparse.inputs.insert(sparse.inputs.end(), node.inputs.begin() + 2, node.inputs.end());
    return sparse;
  }

  // The price of the product with so many blocks: of that op, over values of a graph of its own.
  double sparse_seconds(const Weight& weight, ProductRole role, const Node& node,
                        std::int64_t blocks) const {
    Graph alone;
    ir::GraphBuilder builder(alone, context_.find_op);
    builder.set_tag(node.tag);
    const SparseLayout layout = weight.layout(role == ProductRole::kInputGradient, blocks);
    const auto copy_of = [&](ValueId value, int i) {
      return builder.batch_input(fmt::format("input.{}", i), graph_.value(value).type);
    };
    std::vector<ValueId> inputs{copy_of(node.inputs[0], 0)};
    if (role == ProductRole::kWeightGradient)
      inputs.push_back(copy_of(node.inputs[1], 1));
    else
      inputs.push_back(builder.state(
          "values",
          ops::sparse_values_type(weight.type, graph_.value(weight.value).type.dtype, layout),
          StateRole::kParameter));
    inputs.push_back(
        builder.state("index", ops::sparse_index_type(weight.type, layout), StateRole::kParameter));
    for (std::size_t i = 2; i < node.inputs.size(); ++i)
      inputs.push_back(copy_of(node.inputs[i], static_cast<int>(i)));
    const Node sparse = sparse_node(weight, role, node, ir::kNoValue, ir::kNoValue);
    (void)builder.add(sparse.op->name, std::move(inputs), sparse.attributes);
    return context_.seconds(alone, alone.nodes.back());
  }

  // That of the values that products of this role read, which follow each update. A dense product's
  // packing is written by the update itself.
  double packing_seconds(const Weight& weight, ProductRole role, std::int64_t blocks) const {
    if (role == ProductRole::kWeightGradient) return 0;
    return sparse_packing_seconds(weight, role, blocks) +
           (weight.packs_dense ? dense_packing_seconds(weight) : 0);
  }
  // That of panels for an input gradient which stays dense: an update of rows does not write them.
  double dense_packing_seconds(const Weight& weight) const {
    Graph alone;
    ir::GraphBuilder builder(alone, context_.find_op);
    TensorType packed = weight.type;
    packed.dtype = graph_.value(weight.value).type.dtype;
    packed.layout = panels_layout(true);
    (void)builder.add("pack", {builder.state("weight", weight.type, StateRole::kParameter)},
                      ops::packing_attributes(packed));
    return context_.seconds(alone, alone.nodes.back());
  }
  double sparse_packing_seconds(const Weight& weight, ProductRole role, std::int64_t blocks) const {
    Graph alone;
    ir::GraphBuilder builder(alone, context_.find_op);
    const bool transposed = role == ProductRole::kInputGradient;
    const SparseLayout layout = weight.layout(transposed, blocks);
    const ValueId parameter = builder.state("weight", weight.type, StateRole::kParameter);
    const ValueId index =
        builder.state("index", ops::sparse_index_type(weight.type, layout), StateRole::kParameter);
    (void)builder.add("pack_sparse", {parameter, index},
                      {{"dtype", std::string(to_string(graph_.value(weight.value).type.dtype))},
                       {"kept", layout.kept},
                       {"pattern", std::string(to_string(weight.pattern))},
                       {"transposed", transposed}});
    return context_.seconds(alone, alone.nodes.back());
  }

  // All that a role's products with so many blocks take.
  double sparse_seconds(const Weight& weight, ProductRole role, const std::vector<Node*>& nodes,
                        std::int64_t blocks) const {
    double seconds = packing_seconds(weight, role, blocks);
    for (const Node* node : nodes) seconds += sparse_seconds(weight, role, *node, blocks);
    return seconds;
  }

  // The largest density at which the sparse products are not slower than the dense ones: 0 where
  // they always are.
  double break_even(const Weight& weight, ProductRole role, const std::vector<Node*>& nodes,
                    double dense) const {
    const auto is_faster = [&](std::int64_t blocks) {
      return sparse_seconds(weight, role, nodes, blocks) <= dense;
    };
    std::int64_t least = 0, most = weight.num_blocks();  // faster, and not known to be
    if (!is_faster(1)) return 0;
    if (is_faster(most)) return 1;
    while (most - least > 1) {
      const std::int64_t middle = least + (most - least) / 2;
      (is_faster(middle) ? least : most) = middle;
    }
    return static_cast<double>(least) / static_cast<double>(weight.num_blocks());
  }

  bool is_chosen(const Weight& weight, const spec::SparseUnits& entry, ProductRole role,
                 const std::vector<Node*>& nodes) {
    for (const Node* node : nodes)
      if (const std::string refusal = refusal_of(*node, role, entry); !refusal.empty()) {
        explain(fmt::format("{}: dense: {}", name_of(role), refusal));
        return false;
      }
    const std::string shares = fmt::format("{} at density {:.4g}{}", to_string(weight.pattern),
                                           weight.density, shape_note(weight));
    if (context_.seconds == nullptr) {
      const bool is_sparse = !entry.threshold || 1 - weight.density >= *entry.threshold;
      explain(fmt::format("{}: {}, {}", name_of(role), is_sparse ? "sparse" : "dense", shares));
      return is_sparse;
    }
    double dense = 0;
    for (const Node* node : nodes) dense += context_.seconds(graph_, *node);
    const double sparse = sparse_seconds(weight, role, nodes, weight.kept);
    const bool is_cheaper = sparse < dense;
    const bool is_sparse = entry.threshold ? 1 - weight.density >= *entry.threshold : is_cheaper;
    if (context_.options.explanation != nullptr) {
      const std::string why = entry.threshold
                                  ? fmt::format("zeroes {} threshold {:.4g}; ",
                                                is_sparse ? "reach" : "are below", *entry.threshold)
                                  : std::string();
      // 2:4 has one density.
      const std::string limit =
          weight.pattern == spec::SparsityPattern::kTwoOfFour
              ? ""
              : fmt::format(", break-even {:.2f}", break_even(weight, role, nodes, dense));
      explain(fmt::format("{}: {}, {}: {}{:.3g} ms against {:.3g} ms dense{}", name_of(role),
                          is_sparse ? "sparse" : "dense", shares, why, 1e3 * sparse, 1e3 * dense,
                          limit));
    }
    return is_sparse;
  }
  static std::string shape_note(const Weight& weight) {
    const double step = 1.0 / static_cast<double>(weight.num_blocks());
    const bool is_rounded = std::abs(weight.density - weight.asked) > step / 1000;
    return is_rounded ? fmt::format(" ({:.4g} was asked for, of {} blocks)", weight.asked,
                                    weight.num_blocks())
                      : std::string();
  }

  void make_sparse(const Weight& weight, ProductRole role, Node& node) {
    const bool transposed = role == ProductRole::kInputGradient;
    const ValueId index = index_of(weight, transposed);
    const ValueId values =
        role == ProductRole::kWeightGradient ? ir::kNoValue : values_of(weight, transposed);
    node = sparse_node(weight, role, node, values, index);
  }

  ValueId index_of(const Weight& weight, bool transposed) {
    return state_of(weight,
                    transposed ? StateRole::kSparseIndexTransposed : StateRole::kSparseIndex,
                    ops::sparse_index_type(weight.type, weight.layout(transposed, weight.kept)));
  }
  ValueId values_of(const Weight& weight, bool transposed) {
    const DType dtype = graph_.value(weight.value).type.dtype;
    return state_of(
        weight, transposed ? StateRole::kSparseValuesTransposed : StateRole::kSparseValues,
        ops::sparse_values_type(weight.type, dtype, weight.layout(transposed, weight.kept)));
  }
  ValueId state_of(const Weight& weight, StateRole role, TensorType type) {
    if (const State* state = graph_.find_state(role, weight.name)) return state->before;
    const ValueId value = builder_.state_of(weight.name, role, std::move(type));
    graph_.states.back().pattern = weight.pattern;
    return value;
  }

  void drop_unread(ValueId copy) {
    const auto reads = [&](const Node& node) {
      return std::ranges::find(node.inputs, copy) != node.inputs.end();
    };
    if (std::ranges::any_of(graph_.nodes, reads) ||
        std::ranges::find(graph_.outputs, copy) != graph_.outputs.end())
      return;
    std::erase_if(graph_.states, [&](const State& state) { return state.before == copy; });
  }

  void explain(const std::string& line) const {
    if (context_.options.explanation != nullptr)
      context_.options.explanation->push_back(fmt::format("{}: {}", unit_, line));
  }

  Graph& graph_;
  const PassContext& context_;
  ir::GraphBuilder builder_;
  std::string unit_{};
};

bool sparse_products(Graph& graph, const PassContext& context) {
  return context.options.sparsity.is_final && Sparsifier(graph, context).run();
}

}  // namespace

bool has_mask(const Graph& graph, ValueId weight) {
  const auto found = std::ranges::find(graph.states, weight, &State::before);
  if (found == graph.states.end()) return false;
  const Name parameter = found->owner != Name{} ? found->owner : found->name;
  return graph.find_state(StateRole::kMask, parameter) != nullptr;
}

bool has_sparse_values(const Graph& graph, Name parameter) {
  return graph.find_state(StateRole::kSparseValues, parameter) != nullptr ||
         graph.find_state(StateRole::kSparseValuesTransposed, parameter) != nullptr;
}

const Pass kSparseProducts{
    .name = "sparse_products", .needs = {"precision_chosen"}, .run = sparse_products};

}  // namespace anabatic::passes
