// SPDX-License-Identifier: Apache-2.0
#include <xxhash.h>

#include <cstring>
#include <type_traits>

#include "ir/graph.h"
#include "ir/op_schema.h"

namespace anabatic::ir {
namespace {

// The content of the printed text as bytes, in its order and with its numbers of values. Every list
// and every text follows its length.
class Bytes {
 public:
  explicit Bytes(const Graph& graph) : graph_(graph), numbers_(graph.values.size(), kUndefined) {
    bytes_.reserve(256 * (graph.nodes.size() + graph.states.size() + 1));
  }

  const std::vector<char>& run() {
    add(std::string_view(graph_.name));
    for (const auto* list : {&graph_.batch, &graph_.step_inputs}) {
      add(list->size());
      for (const ValueId id : *list) define(id);
    }
    for (const State& state : graph_.states) number(state.before);
    for (const Node& node : graph_.nodes)
      for (const ValueId id : node.outputs) number(id);
    add(graph_.states.size());
    for (const State& state : graph_.states) add(state);
    add(graph_.nodes.size());
    for (const Node& node : graph_.nodes) add(node);
    add(graph_.outputs.size());
    for (const ValueId id : graph_.outputs) refer(id);
    add(graph_.objective.has_value());
    if (graph_.objective) refer(*graph_.objective);
    return bytes_;
  }

 private:
  static constexpr std::uint32_t kUndefined = 0xFFFFFFFFu;

  template <class T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void add(T value) {
    const std::size_t end = bytes_.size();
    bytes_.resize(end + sizeof value);
    std::memcpy(bytes_.data() + end, &value, sizeof value);
  }
  void add(std::string_view text) {
    add(text.size());
    bytes_.insert(bytes_.end(), text.begin(), text.end());
  }
  void add(Name name) { add(text(name)); }

  void add(const TensorType& type) {
    add(type.dtype);
    add(type.is_quantized());
    add(type.shape.size());
    for (const std::int64_t dim : type.shape) add(dim);
    add(type.layout);
    if (!type.is_quantized()) return;
    add(type.blocks->map);
    add(type.blocks->scale);
    add(type.blocks->rows);
    add(type.blocks->columns);
  }

  void add(const spec::Attribute& attribute) {
    add(attribute.index());
    std::visit(
        [&](const auto& value) {
          using T = std::decay_t<decltype(value)>;
          if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) {
            add(value.size());
            for (const std::int64_t item : value) add(item);
          } else if constexpr (std::is_same_v<T, std::string>) {
            add(std::string_view(value));
          } else {
            add(value);
          }
        },
        attribute);
  }

  void add(const State& state) {
    define(state.before, state.name);
    add(state.name);
    add(state.role);
    add(state.owner);
    add(state.rows.first);
    add(state.rows.count);
    add(state.rows.total);
    add(state.is_trainable);
    if (state.grid) add(std::string_view(to_string(*state.grid)));
    if (state.pattern) add(to_string(*state.pattern));
    add(state.entry);
    add(state.init.rule);
    add(state.init.deviation);
    add(state.init.zero_row);
    refer(state.after);
  }

  void add(const Node& node) {
    add(node.outputs.size());
    for (const ValueId id : node.outputs) define(id);
    add(node.op != nullptr ? node.op->name : std::string_view{});
    add(node.inputs.size());
    for (const ValueId id : node.inputs) refer(id);
    add(node.attributes.size());
    for (const auto& [key, value] : node.attributes) {
      add(std::string_view(key));
      add(value);
    }
    add(node.tag.phase);
    add(node.tag.layer);
    add(node.tag.segment);
  }

  void number(ValueId id) {
    if (index(id) < numbers_.size() && numbers_[index(id)] == kUndefined)
      numbers_[index(id)] = next_++;
  }
  void refer(ValueId id) { add(index(id) < numbers_.size() ? numbers_[index(id)] : kUndefined); }
  void define(ValueId id, Name implied_name = {}) {
    number(id);
    refer(id);
    if (index(id) >= graph_.values.size()) return;
    const Value& value = graph_.value(id);
    add(value.name == Name{} ? implied_name : value.name);
    add(value.type);
  }

  const Graph& graph_;
  std::vector<std::uint32_t> numbers_;  // by ValueId; kUndefined until defined
  std::uint32_t next_ = 0;
  std::vector<char> bytes_;
};

}  // namespace

std::uint64_t hash(const Graph& graph) {
  Bytes graph_bytes(graph);
  const std::vector<char>& bytes = graph_bytes.run();
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace anabatic::ir
