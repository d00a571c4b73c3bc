// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <unordered_map>

#include "base/error.h"
#include "ir/graph.h"
#include "ir/lexer.h"
#include "ir/op_schema.h"

namespace anabatic::ir {
namespace {

class Parser {
 public:
  Parser(std::string_view text, FindOp find_op) : lexer_(text), find_op_(find_op) {}

  Graph run() {
    lexer_.expect("graph");
    graph_.name = lexer_.string("the graph's name in quotes");
    while (!lexer_.at_end()) item();
    for (const Pending& pending : pending_) resolve(pending);
    return std::move(graph_);
  }

 private:
  // A reference that may come before its definition: the end of a state.
  struct Pending {
    std::size_t position;
    std::uint64_t number;
    std::size_t state;  // index into graph_.states
  };

  void item() {
    if (lexer_.peek() == '%') return node();
    if (lexer_.accept("batch")) {
      graph_.batch.push_back(definition(kNoNode));
    } else if (lexer_.accept("step_input")) {
      graph_.step_inputs.push_back(definition(kNoNode));
    } else if (lexer_.accept("state")) {
      state();
    } else if (lexer_.accept("output")) {
      graph_.outputs.push_back(reference());
    } else if (const std::size_t at = lexer_.position(); lexer_.accept("objective")) {
      if (graph_.objective) lexer_.fail(at, "expected one objective, got a second");
      graph_.objective = reference();
    } else {
      lexer_.fail_expected("'batch', 'step_input', 'state', 'output', 'objective' or a node");
    }
  }

  std::uint64_t value_number() {
    lexer_.expect("%");
    return lexer_.number("a value's number");
  }

  ValueId reference() {
    const std::size_t at = lexer_.position();
    return find(value_number(), at);
  }

  ValueId find(std::uint64_t number, std::size_t at) const {
    const auto found = ids_.find(number);
    if (found == ids_.end())
      lexer_.fail(at, fmt::format("expected a defined value, got %{}", number));
    return found->second;
  }

  ValueId definition(NodeId producer) {
    const std::size_t at = lexer_.position();
    const std::uint64_t number = value_number();
    Name name{};
    if (lexer_.peek() == '"') name = intern(lexer_.string("a name"));
    lexer_.expect(":");
    const ValueId id = graph_.add_value(type(), name, producer);
    if (!ids_.emplace(number, id).second)
      lexer_.fail(at, fmt::format("expected a new value, got %{} again", number));
    return id;
  }

  TensorType type() {
    const std::size_t at = lexer_.position();
    const std::string_view written = lexer_.type();
    return located(at, [&] { return parse_tensor_type(written); });
  }

  // Gives the place to errors of parsers that know no place.
  template <class Parse>
  auto located(std::size_t at, Parse&& parse_it) -> decltype(parse_it()) {
    try {
      return parse_it();
    } catch (const InvalidArgument& error) {
      lexer_.fail(at, error.what());
    }
  }

  void state() {
    State parsed;
    const std::size_t at = lexer_.position();
    parsed.before = parsed.after = definition(kNoNode);
    parsed.name = graph_.value(parsed.before).name;
    if (lexer_.accept("named")) parsed.name = intern(lexer_.string("the state's name in quotes"));
    if (parsed.name == Name{}) lexer_.fail(at, "expected a name for the state, got none");
    parsed.role = state_role();
    if (lexer_.accept("of")) parsed.owner = intern(lexer_.string("a parameter's name in quotes"));
    if (lexer_.accept("rows")) parsed.rows = rows();
    if (lexer_.accept("frozen")) parsed.is_trainable = false;
    if (lexer_.accept("grid")) parsed.grid = grid();
    if (lexer_.accept("pattern")) parsed.pattern = pattern();
    if (lexer_.accept("entry"))
      parsed.entry = static_cast<std::int32_t>(count("the entry of a mask"));
    if (lexer_.accept("init")) parsed.init = init();
    if (lexer_.accept("->")) {
      const std::size_t position = lexer_.position();
      pending_.push_back({position, value_number(), graph_.states.size()});
    }
    graph_.states.push_back(parsed);
  }

  StateRole state_role() {
    for (const StateRole role : spec::kStateRoles)
      if (lexer_.accept(to_string(role))) return role;
    lexer_.fail_expected("a state's role");
  }

  std::int64_t count(const char* what) { return static_cast<std::int64_t>(lexer_.number(what)); }

  spec::Rows rows() {
    spec::Rows parsed;
    parsed.first = count("the first row");
    lexer_.expect("+");
    parsed.count = count("a number of rows");
    lexer_.expect("/");
    parsed.total = count("the whole's number of rows");
    return parsed;
  }

  WeightGrid grid() {
    if (const auto known = weight_grid_from_string(lexer_.word("the grid of weights")))
      return *known;
    lexer_.fail_expected("a grid of weights, such as q8_0");
  }

  spec::SparsityPattern pattern() {
    const std::size_t at = lexer_.position();
    if (const auto known = spec::sparsity_pattern_from_string(lexer_.string("a pattern in quotes")))
      return *known;
    lexer_.fail(at, "expected the pattern of a mask, such as \"block32\"");
  }

  spec::Init init() {
    using enum spec::Init::Rule;
    spec::Init parsed;
    const auto number = [&] {
      const std::size_t at = lexer_.position();
      const std::string_view written = lexer_.attribute();
      return located(at, [&] {
        return spec::get_double({{"deviation", spec::parse_attribute(written)}}, "deviation");
      });
    };
    if (lexer_.accept(to_string(kOnes))) {
      parsed.rule = kOnes;
      if (lexer_.accept("times")) parsed.deviation = number();
    } else if (lexer_.accept(to_string(kNormal))) {
      parsed.rule = kNormal;
      parsed.deviation = number();
      if (lexer_.accept("zero_row")) parsed.zero_row = count("a row");
    } else if (lexer_.accept(to_string(kUniform))) {
      parsed.rule = kUniform;
      parsed.deviation = number();
    } else {
      lexer_.fail_expected("'ones', 'normal' or 'uniform'");
    }
    return parsed;
  }

  void resolve(const Pending& pending) {
    graph_.states[pending.state].after = find(pending.number, pending.position);
  }

  void node() {
    const NodeId id{static_cast<std::uint32_t>(graph_.nodes.size())};
    Node parsed;
    do parsed.outputs.push_back(definition(id));
    while (lexer_.accept(","));
    lexer_.expect("=");
    const std::size_t at = lexer_.position();
    const std::string_view op = lexer_.word("an op");
    parsed.op = find_op_(op);
    if (parsed.op == nullptr) lexer_.fail(at, fmt::format("expected a known op, got '{}'", op));
    lexer_.expect("(");
    if (!lexer_.accept(")")) {
      do {
        const std::size_t input_at = lexer_.position();
        parsed.inputs.push_back(reference());
        if (graph_.value(parsed.inputs.back()).producer == id)
          lexer_.fail(input_at, "expected an earlier value, got one of this node");
      } while (lexer_.accept(","));
      lexer_.expect(")");
    }
    if (lexer_.accept("{")) attributes(parsed.attributes);
    parsed.tag = tag();
    graph_.nodes.push_back(std::move(parsed));
  }

  void attributes(spec::Attributes& parsed) {
    do {
      const std::size_t at = lexer_.position();
      const std::string key(lexer_.word("an attribute's name"));
      lexer_.expect("=");
      const std::size_t value_at = lexer_.position();
      const std::string_view written = lexer_.attribute();
      spec::Attribute value = located(value_at, [&] { return spec::parse_attribute(written); });
      if (!parsed.emplace(key, std::move(value)).second)
        lexer_.fail(at, fmt::format("expected each attribute once, got '{}' again", key));
    } while (lexer_.accept(","));
    lexer_.expect("}");
  }

  Tag tag() {
    static constexpr std::array kPhases{Phase::kForward, Phase::kRecompute, Phase::kBackwardInput,
                                        Phase::kBackwardWeight, Phase::kUpdate};
    Tag parsed;
    const auto* phase = kPhases.begin();
    while (phase != kPhases.end() && !lexer_.accept(to_string(*phase))) ++phase;
    if (phase == kPhases.end()) lexer_.fail_expected("a phase");
    parsed.phase = *phase;
    if (lexer_.accept("layer")) {
      lexer_.expect("=");
      const std::size_t at = lexer_.position();
      const std::uint64_t layer = lexer_.number("a layer");
      if (layer > 0x7FFFFFFFu) lexer_.fail(at, fmt::format("expected a layer, got {}", layer));
      parsed.layer = static_cast<std::int32_t>(layer);
    }
    if (lexer_.accept("segment")) {
      lexer_.expect("=");
      parsed.segment = lexer_.peek() == '"' ? intern(lexer_.string("a segment"))
                                            : intern(lexer_.word("a segment"));
    }
    return parsed;
  }

  Lexer lexer_;
  FindOp find_op_;
  Graph graph_;
  std::unordered_map<std::uint64_t, ValueId> ids_;  // by the number as written
  std::vector<Pending> pending_;
};

}  // namespace

Graph parse(std::string_view text, FindOp find_op) {
  Graph graph = Parser(text, find_op).run();
  // The verifier speaks of our own graphs; a text that it refuses is the writer's fault.
  try {
    verify(graph);
  } catch (const InternalError& error) {
    throw InvalidArgument(fmt::format("[graph text] {}", error.what()));
  }
  return graph;
}

}  // namespace anabatic::ir
