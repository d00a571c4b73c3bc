// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "base/error.h"
#include "ir/graph.h"
#include "ir/op_schema.h"
#include "ir/text_form.h"

namespace anabatic::ir {
namespace {

// Far above any tensor, and far enough below 2^63 for sums and small multiples of dimensions.
constexpr std::int64_t kMaxDim = std::int64_t{1} << 48;
constexpr std::size_t kUndefined = ~std::size_t{0};
constexpr std::size_t kGraphInput = kUndefined - 1;

class Verifier {
 public:
  explicit Verifier(const Graph& graph)
      : graph_(graph), definer_(graph.values.size(), kUndefined), readers_(graph.values.size()) {}

  void run() {
    check_inputs();
    check_nodes();
    check_states();
    check_results();
    check_overwrites();
  }

 private:
  // [verify] rule 'RULE' at PLACE: MESSAGE
  template <class... Args>
  static void check(bool holds, const char* rule, const std::string& place,
                    fmt::format_string<Args...> format, Args&&... args) {
    if (holds) return;
    throw InternalError(fmt::format("[verify] rule '{}' at {}: {}", rule, place,
                                    fmt::format(format, std::forward<Args>(args)...)));
  }

  std::string place(const Node& node) const {
    const std::string op(node.op != nullptr ? node.op->name : "undefined");
    const auto position = &node - graph_.nodes.data();
    for (const ValueId id : node.outputs)
      if (index(id) < graph_.values.size() && graph_.value(id).name != Name{})
        return fmt::format("node {} ({}, \"{}\")", position, op, text(graph_.value(id).name));
    return fmt::format("node {} ({})", position, op);
  }
  static std::string place(const State& state) {
    return fmt::format("state \"{}\"", text(state.name));
  }

  void check_range(ValueId id, const std::string& where) const {
    check(index(id) < graph_.values.size(), "ids in range", where, "value {} of {}", index(id),
          graph_.values.size());
  }

  void define(ValueId id, std::size_t definer, const std::string& where) {
    check_range(id, where);
    check(definer_[index(id)] == kUndefined, "defined once", where, "value {} has two definitions",
          index(id));
    definer_[index(id)] = definer;
    const NodeId producer =
        definer == kGraphInput ? kNoNode : NodeId{static_cast<std::uint32_t>(definer)};
    check(graph_.value(id).producer == producer, "producers match", where,
          "value {} names node {} as its producer", index(id), index(graph_.value(id).producer));
    check_type(graph_.value(id).type, where);
  }

  void check_type(const TensorType& type, const std::string& where) const {
    for (const std::int64_t dim : type.shape)
      check(dim >= 0 && dim <= kMaxDim, "types are sound", where,
            "a dimension is {}, outside of [0, 2^48]", dim);
    check(type.layout == kRowMajor || is_word(text(type.layout)), "types are sound", where,
          "layout '{}' is not a word", text(type.layout));
    try {
      (void)type.num_bytes();
    } catch (const InvalidArgument& error) {
      check(false, "types are sound", where, "{}", error.what());
    }
  }

  void check_inputs() {
    std::set<Name> names;
    const auto check_input = [&](ValueId id, const std::string& where) {
      define(id, kGraphInput, where);
      const Name name = graph_.value(id).name;
      check(name != Name{} && names.insert(name).second, "inputs named", where,
            "expected a name of its own, got \"{}\"", text(name));
    };
    for (const ValueId id : graph_.batch) check_input(id, "batch inputs");
    for (const ValueId id : graph_.step_inputs) check_input(id, "step inputs");
    for (const State& state : graph_.states) define(state.before, kGraphInput, place(state));
  }

  void check_nodes() {
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      const std::string where = place(node);
      check(node.op != nullptr, "ops known", where, "the op is null");
      check(node.tag.layer >= -1, "tags are sound", where, "layer {}", node.tag.layer);
      check(node.tag.phase <= Phase::kUpdate, "tags are sound", where, "phase code {}",
            static_cast<int>(node.tag.phase));
      check_arity(node, where);
      for (const ValueId id : node.inputs) {
        check_range(id, where);
        check(definer_[index(id)] != kUndefined, "topological order", where,
              "input value {} is not defined before it", index(id));
        check_phase(node, id, where);
        readers_[index(id)].push_back(i);
      }
      for (const auto& [key, value] : node.attributes)
        check(is_word(key), "attributes are sound", where, "key '{}' is not a word", key);
      for (const ValueId id : node.outputs) define(id, i, where);
      check_types(node, where);
    }
  }

  void check_arity(const Node& node, const std::string& where) const {
    const auto num_inputs = static_cast<std::int64_t>(node.inputs.size());
    check(num_inputs >= node.op->min_inputs &&
              (node.op->max_inputs < 0 || num_inputs <= node.op->max_inputs),
          "arity", where, "{} inputs for {}", num_inputs, node.op->signature);
    check(!node.outputs.empty() &&
              (node.op->num_outputs == kAnyNumber ||
               node.outputs.size() == static_cast<std::size_t>(node.op->num_outputs)),
          "arity", where, "{} outputs, expected {}", node.outputs.size(), node.op->num_outputs);
  }

  // Forward runs before backward and backward before update, so no node reads from a later one.
  void check_phase(const Node& node, ValueId input, const std::string& where) const {
    static constexpr int kAction[] = {0, 1, 1, 1, 2};
    const std::size_t definer = definer_[index(input)];
    if (definer == kGraphInput) return;
    const Phase theirs = graph_.nodes[definer].tag.phase, ours = node.tag.phase;
    check(kAction[static_cast<int>(theirs)] <= kAction[static_cast<int>(ours)], "phases in order",
          where, "a {} node reads value {} of phase {}", to_string(ours), index(input),
          to_string(theirs));
  }

  void check_types(const Node& node, const std::string& where) const {
    std::vector<TensorType> inputs, inferred;
    for (const ValueId id : node.inputs) inputs.push_back(graph_.value(id).type);
    try {
      inferred = node.op->infer(inputs, node.attributes);
    } catch (const InvalidArgument& error) {
      check(false, "types inferred", where, "{}", error.what());
    }
    check(inferred.size() == node.outputs.size(), "types inferred", where,
          "{} types for {} outputs", inferred.size(), node.outputs.size());
    for (std::size_t i = 0; i < inferred.size(); ++i) {
      const TensorType& type = graph_.value(node.outputs[i]).type;
      check(type == inferred[i], "types inferred", where, "output {} is {}, its inputs give {}", i,
            to_string(type), to_string(inferred[i]));
    }
  }

  void check_states() {
    std::set<Name> names, parameters;
    for (const State& state : graph_.states)
      if (state.kind() == StateKind::kParameter) parameters.insert(state.name);
    std::set<ValueId> ends;
    for (const State& state : graph_.states) {
      const std::string where = place(state);
      check(state.name != Name{} && names.insert(state.name).second, "states named", where,
            "expected a name of its own");
      check_used(state.after, where);
      check(ends.insert(state.after).second, "states paired", where,
            "value {} ends another state too", index(state.after));
      check(state.after == state.before || definer_[index(state.after)] != kGraphInput,
            "states paired", where, "value {} is a graph input, no node writes it",
            index(state.after));
      check(graph_.value(state.before).type == graph_.value(state.after).type, "states paired",
            where, "begins as {}, ends as {}", to_string(graph_.value(state.before).type),
            to_string(graph_.value(state.after).type));
      check_part(state, parameters, where);
    }
  }

  void check_part(const State& state, const std::set<Name>& parameters,
                  const std::string& where) const {
    const std::string_view role = to_string(state.role);
    check((state.owner != Name{}) == spec::has_owner(state.role), "states owned", where,
          "a {} {} an owner", role, state.owner != Name{} ? "has" : "lacks");
    check(state.owner == Name{} || parameters.contains(state.owner), "states owned", where,
          "its owner \"{}\" is no parameter", text(state.owner));
    const spec::Rows& rows = state.rows;
    check(rows == spec::Rows{} || (rows.first >= 0 && rows.count > 0 && rows.first < rows.total &&
                                   rows.count < rows.total - rows.first + 1),
          "states' rows", where, "it has {} rows from {} on, of {}", rows.count, rows.first,
          rows.total);
    const State* owner =
        state.kind() == StateKind::kDerived ? graph_.find_state(state.owner) : nullptr;
    check(owner != nullptr ? state.grid == owner->derived_grid()
                           : !state.grid || state.kind() == StateKind::kParameter,
          "states' grids", where, "its grid is not that of its parameter");
    check(state.is_trainable || state.kind() == StateKind::kParameter, "states owned", where,
          "a {} is frozen", role);
    check(state.pattern.has_value() == spec::has_pattern(state.role), "states' patterns", where,
          "a {} {} a pattern", role, state.pattern ? "has" : "lacks");
  }

  void check_used(ValueId id, const std::string& where) const {
    check_range(id, where);
    check(definer_[index(id)] != kUndefined, "reads are defined", where, "value {} is undefined",
          index(id));
  }

  void check_results() {
    std::set<Name> names;
    for (const ValueId id : graph_.outputs) {
      check_used(id, "outputs");
      const Name name = graph_.value(id).name;
      check(name != Name{} && names.insert(name).second, "outputs named", "outputs",
            "value {}: expected a name of its own, got \"{}\"", index(id), text(name));
    }
    if (!graph_.objective) return;
    check_used(*graph_.objective, "objective");
    const TensorType& type = graph_.value(*graph_.objective).type;
    check(type.ndim() == 0 && (type.dtype == DType::kFloat32 || type.dtype == DType::kFloat64),
          "objective is a scalar", "objective", "it is {}", to_string(type));
  }

  // An overwritten value: the writer, which may also read it, runs after every other reader.
  void overwrite(std::vector<std::vector<std::size_t>>& edges, ValueId old_value,
                 std::size_t writer) const {
    for (const std::size_t reader : readers_[index(old_value)])
      if (reader != writer) edges[reader].push_back(writer);
  }

  void check_overwrites() {
    std::vector<std::vector<std::size_t>> edges(graph_.nodes.size());
    std::set<ValueId> ends(graph_.outputs.begin(), graph_.outputs.end());
    for (const State& state : graph_.states) {
      ends.insert(state.after);
      if (state.after != state.before) overwrite(edges, state.before, definer_[index(state.after)]);
    }
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      for (const ValueId id : node.inputs)
        if (definer_[index(id)] != kGraphInput) edges[definer_[index(id)]].push_back(i);
      const Aliases aliases = must_alias(node);
      for (std::size_t out = 0; out < aliases.size(); ++out) {
        const int in = aliases[out];
        if (in < 0) continue;
        const std::string where = place(node);
        check(static_cast<std::size_t>(in) < node.inputs.size(), "overwrites", where,
              "no pair for must_alias output {}", out);
        const ValueId old_value = node.inputs[static_cast<std::size_t>(in)];
        check(ends.count(old_value) == 0, "overwrites", where,
              "it overwrites value {}, which is read when the step ends", index(old_value));
        check(graph_.value(old_value).type == graph_.value(node.outputs[out]).type, "overwrites",
              where, "value {} and its overwritten form differ in type", index(old_value));
        overwrite(edges, old_value, i);
      }
    }
    check_acyclic(edges);
  }

  void check_acyclic(const std::vector<std::vector<std::size_t>>& edges) const {
    std::vector<std::size_t> waiting(edges.size(), 0), ready;
    for (const auto& targets : edges)
      for (const std::size_t target : targets) ++waiting[target];
    for (std::size_t i = 0; i < edges.size(); ++i)
      if (waiting[i] == 0) ready.push_back(i);
    std::size_t done = 0;
    while (!ready.empty()) {
      const std::size_t i = ready.back();
      ready.pop_back();
      ++done;
      for (const std::size_t target : edges[i])
        if (--waiting[target] == 0) ready.push_back(target);
    }
    if (done == edges.size()) return;
    std::size_t stuck = 0;
    while (waiting[stuck] == 0) ++stuck;
    check(false, "readers before writers", place(graph_.nodes[stuck]),
          "{} nodes depend on each other in a cycle: an old value is read after it is overwritten",
          edges.size() - done);
  }

  const Graph& graph_;
  std::vector<std::size_t> definer_;  // by ValueId: node position, kGraphInput or kUndefined
  std::vector<std::vector<std::size_t>> readers_;  // by ValueId: node positions
};

}  // namespace

void verify(const Graph& graph) { Verifier(graph).run(); }

}  // namespace anabatic::ir
