// SPDX-License-Identifier: Apache-2.0
// The graph: an SSA DAG in id-indexed vectors. Nodes carry op, attributes and a tag; values carry a
// type and a stable name.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/function.h"
#include "base/name.h"
#include "base/strong_id.h"
#include "spec/attributes.h"
#include "spec/sparsity.h"
#include "spec/state.h"
#include "tensor/tensor_type.h"
#include "tensor/weight_grid.h"

namespace anabatic::ir {

enum class NodeId : std::uint32_t {};
enum class ValueId : std::uint32_t {};
inline constexpr NodeId kNoNode{0xFFFFFFFFu};  // producer of graph inputs and of states' `before`
inline constexpr ValueId kNoValue{0xFFFFFFFFu};

// kRecompute: a forward value recomputed during the backward.
enum class Phase : std::uint8_t { kForward, kRecompute, kBackwardInput, kBackwardWeight, kUpdate };
std::string_view to_string(Phase phase);  // "forward", "recompute", "backward_input", ...

// Describes a node by phase, layer and segment. Recompute, offload, overlap, the profiler and the
// trace all use these words.
struct Tag {
  Phase phase = Phase::kForward;
  std::int32_t layer = -1;  // -1 outside layers
  Name segment{};  // "attention", "router", "dispatch", "experts", "combine", "mlp", "embedding",
                   // "head", "loss", ...
  bool operator==(const Tag&) const = default;
};

struct OpSchema;

// The schema of an op by its name; null if there is none.
using FindOp = Function<const OpSchema*(std::string_view)>;

struct Node {
  const OpSchema* op = nullptr;
  spec::Attributes attributes{};
  std::vector<ValueId> inputs{}, outputs{};
  Tag tag{};

  // Whether it belongs to the update, which happens once a step. With updates in the backward that
  // is in the backward of the last micro-batch.
  bool is_of_update() const;
};

struct Value {
  TensorType type{};
  NodeId producer = kNoNode;
  Name name{};  // empty, or stable across passes that keep its meaning: "layers.3.experts.gate"
};

using spec::StateKind;
using spec::StateRole;

// A pair of the value that a step begins with and the one it ends with. Both are at one address, so
// every reader of `before` runs before the writer of `after`. In a graph that only reads the state,
// after == before.
struct State : spec::StatePart {
  Name name{};
  ValueId before = kNoValue, after = kNoValue;
  bool is_trainable = true;  // kParameter, kUpper; a frozen parameter gets no gradient
  // Of a parameter: products read these values alone. See derived_grid().
  std::optional<WeightGrid> grid{};
  // What a mask is of, and its place in SparsityOptions::entries.
  std::optional<spec::SparsityPattern> pattern{};
  std::int32_t entry = 0;
  spec::Init init{};

  // The grid of what is derived from a parameter, and so is rounded to it. A frozen parameter was
  // rounded itself, as it was loaded: what is derived from it has none.
  std::optional<WeightGrid> derived_grid() const {
    return is_trainable ? grid : std::optional<WeightGrid>{};
  }
};

class Graph {
 public:
  std::string name = "graph";
  std::vector<Node> nodes;  // in a topological order at every stage
  std::vector<Value> values;
  std::vector<ValueId>
      batch;  // inputs of one micro-batch: tokens, labels, positions, key_begin, key_end
  std::vector<ValueId>
      step_inputs;  // learning_rate, step, inverse_tokens: known before the first forward
  std::vector<ValueId> outputs;      // metrics and results, by value name: loss, aux_loss, logits,
                                     // grad_norm, expert_load...
  std::optional<ValueId> objective;  // the scalar that is differentiated
  std::vector<State> states;

  const Node& node(NodeId id) const { return nodes[index(id)]; }
  Node& node(NodeId id) { return nodes[index(id)]; }
  const Value& value(ValueId id) const { return values[index(id)]; }
  Value& value(ValueId id) { return values[index(id)]; }

  ValueId add_value(TensorType type, Name value_name = {}, NodeId producer = kNoNode);
  const State* find_state(Name state) const;  // null when absent
  State* find_state(Name state);
  // The whole state of that role and owner; null when absent or in slices.
  const State* find_state(StateRole role, Name owner) const;
  std::optional<ValueId> find_output(std::string_view output_name) const;  // by value name
};

// Hash of structure, types, attributes, tags, names and states. Equal for equal printed text,
// whatever the ids of dead values.
std::uint64_t hash(const Graph& graph);

// Throws InternalError naming node and rule: ids in range, SSA, topological, arity, types
// re-inferred, states paired. Every reader of `before` must be able to run before
// the writer of `after`: the graph is acyclic with those edges.
void verify(const Graph& graph);

// Byte-stable text, values renumbered in order of definition, and its inverse:
// print(parse(print(g))) == print(g). parse throws InvalidArgument with line and column.
std::string print(const Graph& graph);
Graph parse(std::string_view text, FindOp find_op);

}  // namespace anabatic::ir
