// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "io/template/ast.h"
#include "io/template/python_text.h"

namespace anabatic::io::jinja {
namespace {

constexpr int kDeepest = 200;
constexpr std::uint32_t kHighest = 1000;

class Parser {
 public:
  explicit Parser(Program& program) : program_(program), tokens_(tokenize(program.source)) {}

  void run() {
    program_.root.op = Op::kMacro;
    program_.root.body = statements({});
  }

 private:
  using Words = std::initializer_list<std::string_view>;

  // Counts nesting, of which a template has little.
  struct Level {
    explicit Level(Parser& of) : parser(of) {
      if (++parser.depth_ > kDeepest)
        parser.fail(fmt::format("nested more than {} deep", kDeepest));
    }
    ~Level() { --parser.depth_; }
    Parser& parser;
  };

  const Token& now() const { return tokens_[at_]; }
  const Token& look() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool take_operator(std::string_view spelling) {
    if (!now().is_operator(spelling)) return false;
    take();
    return true;
  }
  bool take_name(std::string_view name) {
    if (!now().is_name(name)) return false;
    take();
    return true;
  }
  [[noreturn]] void fail(std::string_view message) const {
    program_.source.fail(now().at, message);
  }
  std::string shown(const Token& token) const {
    if (token.kind == Lexeme::kEnd) return "the end of the template";
    return fmt::format("'{:.40}'", token.text);
  }
  void expect_operator(std::string_view spelling) {
    if (!take_operator(spelling))
      fail(fmt::format("expected '{}', got {}", spelling, shown(now())));
  }
  std::string_view expect_identifier() {
    if (now().kind != Lexeme::kName) fail(fmt::format("expected a name, got {}", shown(now())));
    return take().text;
  }
  Node* make(Op op, std::size_t at, std::vector<Node*> kids = {}) {
    Node& node = program_.nodes.emplace_back();
    node.op = op;
    node.at = static_cast<std::uint32_t>(at);
    node.kids = std::move(kids);
    return &node;
  }
  Node* constant(const Value& value, std::size_t at) {
    Node* node = make(Op::kConst, at);
    node->value = value;
    return node;
  }

  // Statements until a tag that begins with one of `ends`, whose name stays the current token.
  std::vector<Node*> statements(Words ends) {
    const Level level(*this);
    std::vector<Node*> body;
    for (;;) {
      const Token token = now();
      if (token.kind == Lexeme::kEnd) {
        if (ends.size() > 0)
          fail(fmt::format("unexpected end of template, expected {{% {} %}}", *(ends.end() - 1)));
        return body;
      }
      take();
      if (token.kind == Lexeme::kData) {
        body.push_back(make(Op::kOutput, token.at, {constant(string(token.text), token.at)}));
      } else if (token.kind == Lexeme::kPrintBegin) {
        body.push_back(make(Op::kOutput, token.at, {tuple()}));
        expect(Lexeme::kPrintEnd, "}}");
      } else {
        if (now().kind != Lexeme::kName) fail("expected the name of a tag");
        if (std::find(ends.begin(), ends.end(), now().text) != ends.end()) return body;
        statement(body);
        expect(Lexeme::kBlockEnd, "%}");
      }
    }
  }
  void expect(Lexeme kind, std::string_view what) {
    if (now().kind != kind) fail(fmt::format("expected '{}', got {}", what, shown(now())));
    take();
  }
  // The body of a statement, up to the tag `end`, which is taken.
  std::vector<Node*> body_until(Words ends) {
    take_operator(":");
    expect(Lexeme::kBlockEnd, "%}");
    std::vector<Node*> body = statements(ends);
    return body;
  }
  std::vector<Node*> whole_body(std::string_view end) {
    std::vector<Node*> body = body_until({end});
    take();
    return body;
  }

  void statement(std::vector<Node*>& body) {
    const Token tag = take();
    const auto name = tag.text;
    if (name == "if") {
      body.push_back(parse_if(tag.at));
    } else if (name == "for") {
      body.push_back(parse_for(tag.at));
    } else if (name == "set") {
      body.push_back(parse_set(tag.at));
    } else if (name == "macro") {
      Node* node = make(Op::kMacro, tag.at);
      node->name = expect_identifier();
      signature(*node, node->kids);
      body_of_function(*node, "endmacro");
      body.push_back(node);
    } else if (name == "call") {
      Node* node = make(Op::kCallBlock, tag.at);
      node->name = "caller";
      if (now().is_operator("(")) signature(*node, node->other);
      const std::size_t at = now().at;
      node->kids = {expression()};
      if (node->kids[0]->op != Op::kCall) program_.source.fail(at, "expected a call");
      body_of_function(*node, "endcall");
      body.push_back(node);
    } else if (name == "filter") {
      Node* node = make(Op::kFilterBlock, tag.at);
      node->kids = {filters(nullptr, true)};
      const int loops = std::exchange(loops_, 0);
      node->body = whole_body("endfilter");
      loops_ = loops;
      body.push_back(node);
    } else if (name == "generation") {
      program_.has_generation = true;
      Node* node = make(Op::kGeneration, tag.at);
      const int loops = std::exchange(loops_, 0);
      node->body = whole_body("endgeneration");
      loops_ = loops;
      body.push_back(node);
    } else if (name == "break" || name == "continue") {
      if (loops_ == 0) program_.source.fail(tag.at, fmt::format("'{}' outside of a loop", name));
      body.push_back(make(name == "break" ? Op::kBreak : Op::kContinue, tag.at));
    } else if (name == "print") {
      do body.push_back(make(Op::kOutput, tag.at, {expression()}));
      while (take_operator(","));
    } else {
      for (const auto other :
           {"include", "import", "from", "extends", "block", "with", "autoescape"})
        if (name == other)
          program_.source.fail(tag.at, fmt::format("the tag '{}' is not supported", name), true);
      program_.source.fail(tag.at, fmt::format("unknown tag '{}'", name));
    }
  }

  void body_of_function(Node& node, std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    node.body = whole_body(end);
    loops_ = loops;
  }

  Node* parse_if(std::size_t at) {
    Node* node = make(Op::kIf, at, {tuple(false)});
    ++branches_;
    node->body = body_until({"elif", "else", "endif"});
    const Token next = take();
    if (next.text == "elif") {
      const Level level(*this);
      node->other = {parse_if(next.at)};
    } else if (next.text == "else") {
      node->other = whole_body("endif");
    }
    --branches_;
    return node;
  }

  Node* parse_for(std::size_t at) {
    Node* node = make(Op::kFor, at);
    Node* target = assign_target(false, "in");
    if (!take_name("in")) fail(fmt::format("expected 'in', got {}", shown(now())));
    Node* iterable = tuple(false, "recursive");
    Node* test = take_name("if") ? expression() : nullptr;
    if (now().is_name("recursive"))
      program_.source.fail(now().at, "'recursive' loops are not supported", true);
    node->kids = {target, iterable, test};
    ++loops_;
    node->body = body_until({"else", "endfor"});
    --loops_;
    if (take().text == "else") node->other = whole_body("endfor");
    return node;
  }

  Node* parse_set(std::size_t at) {
    Node* target = assign_target(true, "");
    if (take_operator("=")) return make(Op::kSet, at, {target, tuple()});
    Node* filter = now().is_operator("|") ? filters(nullptr, false) : nullptr;
    Node* node = make(Op::kSetBlock, at, {target, filter});
    const int loops = std::exchange(loops_, 0);
    node->body = whole_body("endset");
    loops_ = loops;
    return node;
  }

  void signature(Node& node, std::vector<Node*>& parameters) {
    expect_operator("(");
    while (!now().is_operator(")")) {
      if (!parameters.empty()) expect_operator(",");
      Node* parameter = make(Op::kName, now().at);
      parameter->name = expect_identifier();
      parameter->is_store = true;
      check_target(*parameter, true);
      parameters.push_back(parameter);
      if (take_operator("="))
        node.keywords.emplace_back(parameter->name, expression());
      else if (!node.keywords.empty())
        fail("a parameter without default follows one with a default");
    }
    take();
  }

  void check_target(Node& target, bool takes_namespace) {
    const bool is_reserved = target.op == Op::kConst;
    if (target.op == Op::kTuple) {
      for (Node* kid : target.kids) check_target(*kid, takes_namespace);
    } else if (target.op == Op::kName) {
      target.is_store = true;
    } else if (is_reserved || target.op != Op::kNamespaceTarget) {
      program_.source.fail(target.at, "expected a name that can be assigned to");
    }
  }
  Node* assign_target(bool takes_namespace, std::string_view end) {
    const std::size_t at = now().at;
    std::vector<Node*> targets;
    bool is_tuple = false;
    while (!ends_tuple(end)) {
      if (takes_namespace && now().kind == Lexeme::kName && look().is_operator(".")) {
        Node* of = make(Op::kName, now().at);
        of->name = take().text;
        take();
        Node* target = make(Op::kNamespaceTarget, of->at, {of});
        target->name = expect_identifier();
        targets.push_back(target);
      } else {
        targets.push_back(primary());
      }
      if (!take_operator(",")) break;
      is_tuple = true;
    }
    if (targets.empty()) fail(fmt::format("expected a name, got {}", shown(now())));
    Node* target = is_tuple ? make(Op::kTuple, at, std::move(targets)) : targets[0];
    check_target(*target, takes_namespace);
    return target;
  }

  bool ends_tuple(std::string_view end) const {
    return now().kind == Lexeme::kPrintEnd || now().kind == Lexeme::kBlockEnd ||
           now().is_operator(")") || (!end.empty() && now().is_name(end));
  }
  Node* tuple(bool takes_condition = true, std::string_view end = "",
              bool is_in_parentheses = false) {
    const std::size_t at = now().at;
    std::vector<Node*> items;
    bool is_tuple = false;
    for (;;) {
      if (ends_tuple(end)) break;
      items.push_back(takes_condition ? expression() : parse_or());
      if (!take_operator(",")) break;
      is_tuple = true;
    }
    if (!is_tuple && !items.empty()) return items[0];
    if (!is_tuple && !is_in_parentheses)
      fail(fmt::format("expected an expression, got {}", shown(now())));
    return make(Op::kTuple, at, std::move(items));
  }

  Node* expression() {
    const Level level(*this);
    const std::size_t at = now().at;
    Node* node = parse_or();
    while (take_name("if")) {
      Node* test = parse_or();
      Node* other = take_name("else") ? expression() : nullptr;
      node = make(Op::kCondition, at, {test, node, other});
    }
    return node;
  }
  Node* parse_or() {
    Node* left = parse_and();
    while (now().is_name("or")) {
      const std::size_t at = take().at;
      left = deeper(make(Op::kOr, at, {left, parse_and()}));
    }
    return left;
  }
  Node* parse_and() {
    Node* left = parse_not();
    while (now().is_name("and")) {
      const std::size_t at = take().at;
      left = deeper(make(Op::kAnd, at, {left, parse_not()}));
    }
    return left;
  }
  Node* parse_not() {
    if (!now().is_name("not")) return comparison();
    const Level level(*this);
    const std::size_t at = take().at;
    return make(Op::kNot, at, {parse_not()});
  }
  Node* comparison() {
    static constexpr std::pair<std::string_view, Comparison> kComparisons[] = {
        {"==", Comparison::kEqual},        {"!=", Comparison::kUnequal},
        {"<=", Comparison::kLessEqual},    {"<", Comparison::kLess},
        {">=", Comparison::kGreaterEqual}, {">", Comparison::kGreater}};
    const std::size_t at = now().at;
    Node* first = sum();
    Node* node = nullptr;
    for (;;) {
      std::optional<Comparison> comparison;
      for (const auto& [spelling, kind] : kComparisons)
        if (!comparison && take_operator(spelling)) comparison = kind;
      if (!comparison && take_name("in")) comparison = Comparison::kIn;
      if (!comparison && now().is_name("not") && look().is_name("in")) {
        take();
        take();
        comparison = Comparison::kNotIn;
      }
      if (!comparison) return node ? node : first;
      if (!node) node = make(Op::kCompare, at, {first});
      node->comparisons.push_back(*comparison);
      node->kids.push_back(sum());
    }
  }
  // Operators of one rank, from the left.
  template <class Next>
  Node* operators(std::initializer_list<std::pair<std::string_view, Op>> kinds, Next next) {
    Node* left = next();
    for (;;) {
      const Token token = now();
      const auto found = std::find_if(kinds.begin(), kinds.end(), [&](const auto& kind) {
        return token.is_operator(kind.first);
      });
      if (found == kinds.end()) return left;
      take();
      left = deeper(make(found->second, token.at, {left, next()}));
    }
  }
  // A chain of operators is as deep as it is long when it is evaluated.
  Node* deeper(Node* node) {
    for (const Node* kid : node->kids)
      if (kid) node->height = std::max(node->height, kid->height + 1);
    if (node->height > kHighest)
      fail(fmt::format("an expression of more than {} operators", kHighest));
    return node;
  }
  Node* sum() {
    return operators({{"+", Op::kAdd}, {"-", Op::kSubtract}}, [this] { return concat(); });
  }
  Node* concat() {
    const std::size_t at = now().at;
    std::vector<Node*> parts{product()};
    while (take_operator("~")) parts.push_back(product());
    return parts.size() == 1 ? parts[0] : make(Op::kConcat, at, std::move(parts));
  }
  Node* product() {
    return operators(
        {{"*", Op::kMultiply}, {"/", Op::kDivide}, {"//", Op::kFloorDivide}, {"%", Op::kModulo}},
        [this] {
          return operators({{"**", Op::kPower}}, [this] { return unary(true); });
        });
  }
  Node* unary(bool takes_filter) {
    const Level level(*this);
    const Token token = now();
    Node* node = nullptr;
    if (token.is_operator("-") || token.is_operator("+")) {
      take();
      node = make(token.text == "-" ? Op::kNegate : Op::kPlus, token.at, {unary(false)});
    } else {
      node = primary();
    }
    node = postfix(node);
    while (takes_filter) {
      if (now().is_operator("|"))
        node = filters(node, false);
      else if (now().is_name("is"))
        node = parse_test(node);
      else if (now().is_operator("("))
        node = call(node);
      else
        break;
    }
    return node;
  }

  Node* primary() {
    const Token token = take();
    if (token.kind == Lexeme::kName) {
      if (token.text == "true" || token.text == "True") return constant(boolean(true), token.at);
      if (token.text == "false" || token.text == "False") return constant(boolean(false), token.at);
      if (token.text == "none" || token.text == "None") return constant(none(), token.at);
      Node* node = make(Op::kName, token.at);
      node->name = token.text;
      return node;
    }
    if (token.kind == Lexeme::kString) {
      if (now().kind != Lexeme::kString) return constant(string(token.text), token.at);
      std::string joined(token.text);
      while (now().kind == Lexeme::kString) joined += take().text;
      program_.source.strings.push_back(std::move(joined));
      return constant(string(program_.source.strings.back()), token.at);
    }
    if (token.kind == Lexeme::kInteger) {
      const auto number = parse_integer(token.text, 0);
      if (!number) program_.source.fail(token.at, "an integer beyond 2^63", true);
      return constant(integer(*number), token.at);
    }
    if (token.kind == Lexeme::kFloat) return constant(real(*parse_number(token.text)), token.at);
    const Level level(*this);
    if (token.is_operator("(")) {
      Node* node = tuple(true, "", true);
      expect_operator(")");
      return node;
    }
    if (token.is_operator("[") || token.is_operator("{")) {
      const bool is_list = token.text == "[";
      const std::string_view end = is_list ? "]" : "}";
      Node* node = make(is_list ? Op::kList : Op::kDict, token.at);
      while (!now().is_operator(end)) {
        if (!node->kids.empty()) expect_operator(",");
        if (now().is_operator(end)) break;
        node->kids.push_back(expression());
        if (is_list) continue;
        expect_operator(":");
        node->kids.push_back(expression());
      }
      take();
      return node;
    }
    program_.source.fail(token.at, fmt::format("unexpected {}", shown(token)));
  }

  Node* postfix(Node* node) {
    for (;;) {
      if (now().is_operator("."))
        node = deeper(attribute(node));
      else if (now().is_operator("["))
        node = deeper(subscript(node));
      else if (now().is_operator("("))
        node = deeper(call(node));
      else
        return node;
    }
  }
  Node* attribute(Node* of) {
    const std::size_t at = take().at;
    const Token name = take();
    if (name.kind == Lexeme::kInteger)
      return make(Op::kItem, at,
                  {of, constant(integer(parse_integer(name.text, 10).value_or(0)), name.at)});
    if (name.kind != Lexeme::kName) program_.source.fail(name.at, "expected a name or a number");
    if (name.text.starts_with('_'))
      program_.source.fail(
          name.at, fmt::format("the attribute '{}' begins with '_', which is refused", name.text),
          true);
    Node* node = make(Op::kAttribute, at, {of});
    node->name = name.text;
    node->of_string = find_method(Kind::kString, name.text);
    node->of_dict = find_method(Kind::kDict, name.text);
    return node;
  }
  Node* subscript(Node* of) {
    const std::size_t at = take().at;
    std::vector<Node*> items;
    while (!now().is_operator("]")) {
      if (!items.empty()) expect_operator(",");
      items.push_back(subscript_part());
    }
    take();
    Node* index = items.size() == 1 ? items[0] : make(Op::kTuple, at, std::move(items));
    return make(Op::kItem, at, {of, index});
  }
  Node* subscript_part() {
    const std::size_t at = now().at;
    Node* first = now().is_operator(":") ? nullptr : expression();
    if (!take_operator(":")) return first;
    const auto part = [&]() -> Node* {
      const bool is_left_out =
          now().is_operator(":") || now().is_operator("]") || now().is_operator(",");
      return is_left_out ? nullptr : expression();
    };
    Node* stop = part();
    Node* step = take_operator(":") ? part() : nullptr;
    return make(Op::kSlice, at, {first, stop, step});
  }

  Node* call(Node* callee) {
    Node* node = make(Op::kCall, callee->at, {callee});
    arguments(*node);
    return node;
  }
  void arguments(Node& node) {
    const std::size_t at = now().at;
    expect_operator("(");
    bool is_first = true;
    const auto require = [&](bool holds) {
      if (!holds) program_.source.fail(at, "invalid syntax for the arguments of a call");
    };
    while (!now().is_operator(")")) {
      if (!std::exchange(is_first, false)) {
        expect_operator(",");
        if (now().is_operator(")")) break;
      }
      if (take_operator("*")) {
        require(!node.star && !node.star_star);
        node.star = expression();
      } else if (take_operator("**")) {
        require(!node.star_star);
        node.star_star = expression();
      } else if (now().kind == Lexeme::kName && look().is_operator("=")) {
        require(!node.star_star);
        const std::string_view name = take().text;
        take();
        for (const auto& [other, value] : node.keywords) require(other != name);
        node.keywords.emplace_back(name, expression());
      } else {
        require(!node.star && !node.star_star && node.keywords.empty());
        node.kids.push_back(expression());
      }
    }
    take();
  }

  std::string_view dotted_name() {
    const Token first = now();
    expect_identifier();
    if (!now().is_operator(".")) return first.text;
    std::string name(first.text);
    while (take_operator(".")) name.append(".").append(expect_identifier());
    program_.source.strings.push_back(std::move(name));
    return program_.source.strings.back();
  }
  // Within a branch of an `if` jinja2 refuses a name only when it is used.
  void require_known(Node& node, std::string_view kind) {
    if (node.builtin != nullptr) return;
    node.is_uncertain = true;
    if (branches_ > 0) return;
    program_.source.fail(
        node.at,
        fmt::format("{} {} '{}'", is_known_to_jinja2(kind, node.name) ? "unsupported" : "unknown",
                    kind, node.name),
        is_known_to_jinja2(kind, node.name));
  }
  Node* filters(Node* input, bool starts) {
    while (starts || take_operator("|")) {
      starts = false;
      Node* node = make(Op::kFilter, now().at, {input});
      node->name = dotted_name();
      if (now().is_operator("(")) arguments(*node);
      node->builtin = find_filter(node->name);
      require_known(*node, "filter");
      if (input) deeper(node);
      input = node;
    }
    return input;
  }
  Node* parse_test(Node* input) {
    const std::size_t at = take().at;
    const bool is_negated = take_name("not");
    Node* node = make(Op::kTest, now().at, {input});
    node->name = dotted_name();
    node->builtin = find_test(node->name);
    require_known(*node, "test");
    const Token& next = now();
    const bool has_operand =
        ((next.kind == Lexeme::kName && next.text != "else" && next.text != "or" &&
          next.text != "and") ||
         next.kind == Lexeme::kString || next.kind == Lexeme::kInteger ||
         next.kind == Lexeme::kFloat || next.is_operator("[") || next.is_operator("{"));
    if (next.is_operator("(")) {
      arguments(*node);
    } else if (has_operand) {
      if (next.is_name("is")) fail("tests cannot be chained with 'is'");
      node->kids.push_back(postfix(primary()));
    }
    deeper(node);
    return is_negated ? make(Op::kNot, at, {node}) : node;
  }

  Program& program_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0, loops_ = 0, branches_ = 0;
};

}  // namespace

void parse_program(Program& program) {
  Parser(program).run();
  resolve_names(program);
}

}  // namespace anabatic::io::jinja
