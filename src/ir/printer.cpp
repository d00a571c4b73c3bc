// SPDX-License-Identifier: Apache-2.0
#include <cctype>

#include "base/error.h"
#include "ir/graph.h"
#include "ir/op_schema.h"
#include "ir/text_form.h"

namespace anabatic::ir {
namespace {

class Printer {
 public:
  explicit Printer(const Graph& graph) : graph_(graph), numbers_(graph.values.size(), kUndefined) {}

  std::string run() {
    append("graph {}\n", quote(graph_.name));
    for (const ValueId id : graph_.batch) append("  batch {}\n", definition(id));
    for (const ValueId id : graph_.step_inputs) append("  step_input {}\n", definition(id));
    // Every value gets its number before a state refers to one that a node defines.
    for (const State& state : graph_.states) number(state.before);
    for (const Node& node : graph_.nodes)
      for (const ValueId id : node.outputs) number(id);
    for (const State& state : graph_.states) print_state(state);
    for (const Node& node : graph_.nodes) print_node(node);
    for (const ValueId id : graph_.outputs) append("  output {}\n", reference(id));
    if (graph_.objective) append("  objective {}\n", reference(*graph_.objective));
    return std::move(out_);
  }

 private:
  static constexpr std::uint32_t kUndefined = 0xFFFFFFFFu;

  template <class... Args>
  void append(fmt::format_string<Args...> format, Args&&... args) {
    out_ += fmt::format(format, std::forward<Args>(args)...);
  }

  void number(ValueId id) {
    if (index(id) < numbers_.size() && numbers_[index(id)] == kUndefined)
      numbers_[index(id)] = next_++;
  }

  // Broken graphs print too: a dump is most wanted when the verifier has refused one.
  std::string reference(ValueId id) const {
    if (index(id) >= numbers_.size() || numbers_[index(id)] == kUndefined) return "%undefined";
    return fmt::format("%{}", numbers_[index(id)]);
  }

  std::string definition(ValueId id, Name implied_name = {}) {
    number(id);
    if (index(id) >= graph_.values.size()) return "%undefined";
    const Value& value = graph_.value(id);
    const Name name = value.name == Name{} ? implied_name : value.name;
    const std::string label = name == Name{} ? "" : ' ' + quote(text(name));
    return fmt::format("{}{}: {}", reference(id), label, to_string(value.type));
  }

  void print_state(const State& state) {
    append("  state {}", definition(state.before, state.name));
    if (index(state.before) < graph_.values.size()) {
      const Name name = graph_.value(state.before).name;
      if (name != Name{} && name != state.name) append(" named {}", quote(text(state.name)));
    }
    append("  {}", to_string(state.role));
    if (state.owner != Name{}) append(" of {}", quote(text(state.owner)));
    if (const spec::Rows& rows = state.rows; !rows.is_whole())
      append(" rows {}+{}/{}", rows.first, rows.count, rows.total);
    if (!state.is_trainable) append(" frozen");
    if (state.grid) append(" grid {}", to_string(*state.grid));
    if (state.pattern) append(" pattern {}", quote(to_string(*state.pattern)));
    if (state.entry != 0) append(" entry {}", state.entry);
    print_init(state.init);
    if (state.after != state.before) append(" -> {}", reference(state.after));
    out_ += '\n';
  }

  void print_init(const spec::Init& init) {
    if (init.rule == spec::Init::Rule::kZeros) return;
    append(" init {}", to_string(init.rule));
    if (init.rule == spec::Init::Rule::kOnes) {
      if (init.deviation != 0) append(" times {}", spec::to_string(init.deviation));
      return;
    }
    append(" {}", spec::to_string(init.deviation));
    if (init.zero_row >= 0) append(" zero_row {}", init.zero_row);
  }

  void print_node(const Node& node) {
    out_ += "  ";
    for (std::size_t i = 0; i < node.outputs.size(); ++i)
      append("{}{}", i > 0 ? ", " : "", definition(node.outputs[i]));
    append(" = {}(", node.op != nullptr ? node.op->name : "undefined");
    for (std::size_t i = 0; i < node.inputs.size(); ++i)
      append("{}{}", i > 0 ? ", " : "", reference(node.inputs[i]));
    out_ += ')';
    if (!node.attributes.empty()) {
      const char* separator = "  {";
      for (const auto& [key, value] : node.attributes) {
        append("{}{}={}", separator, key, spec::to_string(value));
        separator = ", ";
      }
      out_ += '}';
    }
    append("  {}", to_string(node.tag.phase));
    if (node.tag.layer != -1) append(" layer={}", node.tag.layer);
    if (node.tag.segment != Name{}) {
      const std::string_view segment = text(node.tag.segment);
      append(" segment={}", is_word(segment) ? std::string(segment) : quote(segment));
    }
    out_ += '\n';
  }

  const Graph& graph_;
  std::vector<std::uint32_t> numbers_;  // by ValueId; kUndefined until defined
  std::uint32_t next_ = 0;
  std::string out_;
};

}  // namespace

bool is_word(std::string_view text) {
  if (text.empty()) return false;
  for (const char c : text)
    if (!is_word_character(c)) return false;
  return true;
}

std::string quote(std::string_view text) { return spec::to_string(std::string(text)); }

std::string print(const Graph& graph) { return Printer(graph).run(); }

}  // namespace anabatic::ir
