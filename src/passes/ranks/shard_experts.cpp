// SPDX-License-Identifier: Apache-2.0
#include "passes/ranks/shard_experts.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/error.h"
#include "ir/op_schema.h"
#include "ir/rewrite.h"
#include "ops/ranks/exchange.h"
#include "passes/readers.h"
#include "spec/product_bias.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

// What one layer has besides its nodes, once its tokens are sorted.
struct SortedTokens {
  ValueId weights{};  // of the router
  std::int64_t top_k = 1, num_rows = 0;
  std::int64_t room = 0;  // for received rows
  bool is_always_enough = true;
  ValueId slots{};                                                 // the sender's own
  ValueId row_map{}, local_slots{}, offsets{}, send{}, receive{};  // dispatch_map
  ValueId received_weights{};
};

class ExpertSharder {
 public:
  ExpertSharder(Graph& graph, const PassContext& context)
      : graph_(graph),
        mesh_(context.options.mesh),
        member_(spec::coordinates_of(mesh_, context.options.rank)[spec::Axis::kExpert]),
        capacity_(context.options.expert_capacity),
        readers_(graph),
        builder_(graph, context.find_op) {}

  bool run() {
    find_layers();
    if (layers_.empty()) return false;
    for (const auto& [sort, layer] : layers_) cut_parameters(graph_.nodes[sort].outputs[2]);
    std::vector<Node> nodes = std::exchange(graph_.nodes, {});
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      builder_.set_tag(nodes[i].tag);
      add(i, std::move(nodes[i]));
    }
    for (ValueId& output : graph_.outputs) output = now(output);
    if (graph_.objective) graph_.objective = now(*graph_.objective);
    ir::drop_undefined_values(graph_);  // producers have moved
    return true;
  }

 private:
  bool is_op(NodeId id, std::string_view name) const { return graph_.node(id).op->name == name; }

  bool is_product_of_experts(NodeId id) const {
    const spec::ProductForm* form = ir::product_form(graph_.node(id));
    return form != nullptr && form->is_grouped && form->is_plain() &&
           form->role == spec::ProductRole::kForward;
  }

  // The layers whose experts are not cut yet.
  void find_layers() {
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& sort = graph_.nodes[i];
      if (sort.op->name != "route_sort" || readers_.of(sort.outputs[2]).empty() ||
          !is_product_of_experts(readers_.of(sort.outputs[2]).front()))
        continue;
      const std::int64_t experts = spec::get_int(sort.attributes, "num_experts"),
                         local = experts / mesh_.expert;
      ANABATIC_REQUIRE(experts % mesh_.expert == 0,
                       "[shard_experts] expected the experts of layer {} to divide among {} ranks, "
                       "got {}",
                       sort.tag.layer, mesh_.expert, experts);
      const TensorType& chosen = graph_.value(sort.inputs[0]).type;
      const std::int64_t most = std::min(chosen.dim(1), local) * chosen.dim(0) * mesh_.expert,
                         room = room_for(chosen.num_elements(), most);
      SortedTokens layer{.weights = weights_of(sort),
                         .top_k = chosen.dim(1),
                         .num_rows = chosen.num_elements(),
                         .room = room,
                         .is_always_enough = room == most,
                         .slots = sort.outputs[1]};
      layer_of_value_[sort.outputs[0]] = layer_of_value_[sort.outputs[1]] =
          layer_of_value_[sort.outputs[2]] = i;
      layers_.emplace(i, layer);
    }
  }

  // For received rows, of an even share and the most that can come. Shares that are even but for a
  // row of each rank always fit.
  std::int64_t room_for(std::int64_t share, std::int64_t most) const {
    if (capacity_ == 0) return most;
    const auto room = static_cast<std::int64_t>(std::ceil(capacity_ * static_cast<double>(share)));
    return std::min(std::max(room, share + mesh_.expert), most);
  }

  // Checks that the sort's other readers are those of a layer.
  ValueId weights_of(const Node& sort) const {
    for (const NodeId id : readers_.of(sort.outputs[0]))
      ANABATIC_CHECK(is_op(id, "permute"), "[shard_experts] {} reads a row map",
                     graph_.node(id).op->name);
    for (const NodeId id : readers_.of(sort.outputs[2]))
      ANABATIC_CHECK(is_product_of_experts(id), "[shard_experts] {} reads offsets",
                     graph_.node(id).op->name);
    const auto combines = readers_.of(sort.outputs[1]);
    ANABATIC_CHECK(combines.size() == 1 && is_op(combines.front(), "unpermute"),
                   "[shard_experts] expected one combine of layer {}, got {}", sort.tag.layer,
                   combines.size());
    return graph_.node(combines.front()).inputs[1];
  }

  // The weights and biases that products with these offsets read.
  void cut_parameters(ValueId offsets) {
    for (const NodeId id : readers_.of(offsets)) {
      const Node& product = graph_.node(id);
      cut(product.inputs[1]);
      for (const ValueId bias : spec::biases_of(product.inputs, product.attributes)) cut(bias);
    }
  }

  void cut(ValueId value) {
    const auto state = std::ranges::find(graph_.states, value, &ir::State::before);
    ANABATIC_CHECK(state != graph_.states.end(), "[shard_experts] value {} of experts is no state",
                   index(value));
    if (!state->rows.is_whole()) return;
    TensorType& type = graph_.value(value).type;
    const std::int64_t total = type.num_elements() / type.dim(-1), count = total / mesh_.expert;
    state->rows = {.first = member_ * count, .count = count, .total = total};
    type.shape[0] /= mesh_.expert;
  }

  // The value that is read in place of one of the graph as it was.
  ValueId now(ValueId value) const {
    const auto found = now_.find(value);
    return found == now_.end() ? value : found->second;
  }

  void add(std::size_t place, Node node) {
    const std::string_view op = node.op->name;
    const std::vector<ValueId> inputs = node.inputs;
    for (ValueId& input : node.inputs) input = now(input);
    if (op == "route_sort" && layers_.contains(place)) {
      const std::vector<ValueId> sorted = node.outputs;
      append(std::move(node));
      return dispatch(sorted, layers_.at(place));
    }
    const SortedTokens* layer = layer_that_sorts(inputs);
    if (layer == nullptr) return append(std::move(node));
    if (op == "permute") return send(std::move(node), *layer);
    if (op == "unpermute") return combine(node, *layer);
    append(std::move(node));
  }

  // The layer whose sort gives one of the values.
  const SortedTokens* layer_that_sorts(const std::vector<ValueId>& values) const {
    for (const ValueId value : values)
      if (const auto found = layer_of_value_.find(value); found != layer_of_value_.end())
        return &layers_.at(found->second);
    return nullptr;
  }

  // With types of what it reads now.
  void append(Node node) {
    std::vector<TensorType> inputs;
    for (const ValueId input : node.inputs) inputs.push_back(graph_.value(input).type);
    const std::vector<TensorType> types = node.op->infer(inputs, node.attributes);
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      graph_.value(node.outputs[i]).type = types[i];
      graph_.value(node.outputs[i]).producer =
          NodeId{static_cast<std::uint32_t>(graph_.nodes.size())};
    }
    graph_.nodes.push_back(std::move(node));
  }

  ValueId numbers(double value) {
    return builder_.add1(
        "fill", {},
        {{"type", to_string(tensor_type(DType::kInt32, {mesh_.expert}))}, {"value", value}});
  }

  ValueId exchange(std::vector<ValueId> inputs, std::int64_t rows,
                   spec::Attributes attributes = {}) {
    attributes["group"] = ops::group_attribute({spec::Axis::kExpert});
    attributes["rows"] = rows;
    return builder_.add1("exchange_rows", std::move(inputs), std::move(attributes));
  }

  // `sorted`: row map, slots, offsets.
  void dispatch(const std::vector<ValueId>& sorted, SortedTokens& layer) {
    const ValueId offsets =
        builder_.add1("reshape", {sorted[2]}, {{"width", graph_.value(sorted[2]).type.dim(0)}});
    // Each member gets the one row of every other.
    const ValueId one = numbers(1);
    const ValueId routes = exchange({offsets, one, one, numbers(0)}, mesh_.expert, {{"top_k", 1}});
    const std::vector<ValueId> maps = builder_.add(
        "dispatch_map", {routes},
        {{"member", std::int64_t{member_}}, {"rows", layer.room}, {"expected", layer.num_rows}});
    layer.row_map = maps[0];
    layer.local_slots = maps[1];
    layer.offsets = maps[2];
    layer.send = maps[3];
    layer.receive = maps[4];
    if (!layer.is_always_enough)
      builder_.output(maps[5], fmt::format("{}{}", kNeededRows, builder_.tag().layer));
    const ValueId weights = builder_.add1("reshape", {now(layer.weights)}, {{"width", 1}});
    const ValueId rows = builder_.add1("permute", {weights, sorted[0]}, {{"top_k", 1}});
    layer.received_weights = exchange({rows, layer.send, layer.receive}, layer.room);
    now_[sorted[2]] = layer.offsets;
  }

  // The rows of tokens in the order of local experts, in place of `permute`.
  void send(Node permute, const SortedTokens& layer) {
    const ValueId sent = permute.outputs[0];
    const Name name = std::exchange(graph_.value(sent).name, Name{});
    append(std::move(permute));
    const ValueId received = exchange({sent, layer.send, layer.receive}, layer.room);
    if (name != Name{})
      graph_.value(received).name = intern(fmt::format("{}.received", text(name)));
    now_[sent] = builder_.add1("permute", {received, layer.row_map}, {{"top_k", 1}}, text(name));
  }

  // In place of `unpermute`.
  void combine(const Node& unpermute, const SortedTokens& layer) {
    const ValueId output = unpermute.outputs[0];
    const Name name = std::exchange(graph_.value(output).name, Name{});
    const ValueId rows = builder_.add1(
        "unpermute", {unpermute.inputs[0], layer.received_weights, layer.local_slots});
    const ValueId back = exchange({rows, layer.receive, layer.send}, layer.num_rows);
    now_[output] = builder_.add1("permute_gradient", {back, layer.slots}, {{"top_k", layer.top_k}},
                                 text(name));
  }

  Graph& graph_;
  spec::Mesh mesh_;
  std::int32_t member_;  // this rank's place among those that share the experts
  double capacity_;
  Readers readers_;
  ir::GraphBuilder builder_;
  std::map<std::size_t, SortedTokens> layers_;     // by the place of the sort among the old nodes
  std::map<ValueId, std::size_t> layer_of_value_;  // of the sort's outputs
  std::map<ValueId, ValueId> now_;
};

bool shard_experts(Graph& graph, const PassContext& context) {
  if (context.options.mesh.expert == 1) return false;
  return ExpertSharder(graph, context).run();
}

}  // namespace

const Pass kShardExperts{.name = "shard_experts", .required = true, .run = shard_experts};

}  // namespace anabatic::passes
