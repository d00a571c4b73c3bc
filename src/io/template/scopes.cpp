// SPDX-License-Identifier: Apache-2.0
// Which slot a name means. As jinja2 has it, a scope knows all names that it assigns before its
// inner scopes are looked at, and begins with copies of the outer variables of those names.
#include <algorithm>
#include <map>

#include "io/template/ast.h"

namespace anabatic::io::jinja {
namespace {

struct Function {
  Node* node;
};

struct Scope {
  Scope* outer;
  Function* function;
  std::vector<Load>* loads;
  std::map<std::string_view, Slot> names{};  // hops 0, or kGlobal
};

template <class Visit>
void for_each_part(const Node& node, Visit visit) {
  for (const auto* list : {&node.kids, &node.body, &node.other})
    for (Node* part : *list)
      if (part) visit(*part);
  for (const auto& [name, part] : node.keywords) visit(*part);
  for (Node* part : {node.star, node.star_star})
    if (part) visit(*part);
}

bool mentions(const std::vector<Node*>& body, std::string_view name) {
  return std::any_of(body.begin(), body.end(), [&](const Node* node) {
    if (!node) return false;
    if (node->op == Op::kName && !node->is_store && node->name == name) return true;
    bool found = false;
    for_each_part(*node, [&](Node& part) { found = found || mentions({&part}, name); });
    return found;
  });
}

class Resolver {
 public:
  explicit Resolver(Program& program) : program_(program) {}

  void run() {
    Function function{&program_.root};
    Scope scope{nullptr, &function, &program_.root.loads};
    enter(scope, {&program_.root.body});
  }

 private:
  Slot global(std::string_view name) {
    auto& names = program_.globals;
    const auto found = std::find(names.begin(), names.end(), name);
    const auto index = static_cast<std::uint32_t>(found - names.begin());
    if (found == names.end()) names.push_back(name);
    return {kGlobal, index};
  }
  // As seen from `scope`; false when no scope knows the name.
  bool find(const Scope* scope, std::string_view name, Slot& slot) const {
    std::uint32_t hops = 0;
    for (; scope; scope = scope->outer) {
      if (const auto found = scope->names.find(name); found != scope->names.end()) {
        slot = found->second;
        if (slot.hops != kGlobal) slot.hops = hops;
        return true;
      }
      if (scope->outer && scope->outer->function != scope->function) ++hops;
    }
    return false;
  }
  Slot declare(Scope& scope, std::string_view name) {
    return scope.names[name] = {0, scope.function->node->num_slots++};
  }

  void load(Scope& scope, std::string_view name) {
    Slot slot;
    if (!find(&scope, name, slot)) scope.names[name] = global(name);
  }
  void store(Scope& scope, std::string_view name, bool is_branch) {
    const auto known = scope.names.find(name);
    if (known != scope.names.end() && known->second.hops != kGlobal) return;
    Slot outer;
    const bool is_outer = find(&scope, name, outer);
    if (!is_outer && is_branch) outer = global(name);
    const Slot slot = declare(scope, name);
    scope.loads->push_back({slot.index, !is_outer && !is_branch, outer});
  }

  // Notes the names of `node` that belong to `scope` itself.
  void collect(const Node& node, Scope& scope, bool is_branch) {
    const auto all = [&](const std::vector<Node*>& nodes, bool branch) {
      for (Node* part : nodes)
        if (part) collect(*part, scope, branch);
    };
    switch (node.op) {
      case Op::kName:
        return node.is_store ? store(scope, node.name, is_branch) : load(scope, node.name);
      case Op::kSet:
        collect(*node.kids[1], scope, is_branch);
        return collect(*node.kids[0], scope, is_branch);
      case Op::kSetBlock:
        return collect(*node.kids[0], scope, is_branch);
      case Op::kFor:
        return collect(*node.kids[1], scope, is_branch);
      case Op::kMacro:
        return store(scope, node.name, is_branch);
      case Op::kCallBlock:
        return collect(*node.kids[0], scope, is_branch);
      case Op::kFilterBlock:
      case Op::kGeneration:
        return;
      case Op::kIf:
        all(node.kids, is_branch);
        all(node.body, true);
        return all(node.other, true);
      default:
        for_each_part(node, [&](Node& part) { collect(part, scope, is_branch); });
    }
  }
  void declare_targets(const Node& target, Scope& scope) {
    if (target.op == Op::kName) declare(scope, target.name);
    for (const Node* kid : target.kids) declare_targets(*kid, scope);
  }
  void enter(Scope& scope, std::initializer_list<const std::vector<Node*>*> parts) {
    for (const auto* nodes : parts)
      for (Node* node : *nodes)
        if (node) collect(*node, scope, false);
    for (const auto* nodes : parts)
      for (Node* node : *nodes)
        if (node) bind(*node, scope);
  }

  void bind(Node& node, Scope& scope) {
    switch (node.op) {
      case Op::kName:
        find(&scope, node.name, node.slot);
        return;
      case Op::kSetBlock: {
        bind(*node.kids[0], scope);
        Scope inner{&scope, scope.function, &node.loads};
        const std::vector<Node*> filter{node.kids[1]};
        return enter(inner, {&filter, &node.body});
      }
      case Op::kFilterBlock:
      case Op::kGeneration: {
        Scope inner{&scope, scope.function, &node.loads};
        return enter(inner, {&node.body, &node.kids});
      }
      case Op::kFor: {
        bind(*node.kids[1], scope);
        Scope body{&scope, scope.function, &node.loads};
        node.uses_loop = mentions(node.body, "loop");
        if (node.uses_loop) node.loop = declare(body, "loop");
        declare_targets(*node.kids[0], body);
        const std::vector<Node*> head{node.kids[0], node.kids[2]};
        enter(body, {&head, &node.body});
        Scope other{&scope, scope.function, &node.other_loads};
        return enter(other, {&node.other});
      }
      case Op::kMacro:
        find(&scope, node.name, node.slot);
        return bind_function(node, node.kids, scope);
      case Op::kCallBlock:
        bind(*node.kids[0], scope);
        return bind_function(node, node.other, scope);
      default:
        for_each_part(node, [&](Node& part) { bind(part, scope); });
    }
  }
  void bind_function(Node& node, const std::vector<Node*>& parameters, Scope& outer) {
    outer.function->node->has_inner = true;
    Function function{&node};
    Scope scope{&outer, &function, &node.loads};
    for (const Node* parameter : parameters) declare_targets(*parameter, scope);
    const auto special = [&](std::string_view name, Slot& slot, bool& is_used) {
      is_used = mentions(node.body, name) && !scope.names.contains(name);
      if (is_used) slot = declare(scope, name);
    };
    special("caller", node.caller, node.uses_caller);
    special("varargs", node.varargs, node.uses_varargs);
    special("kwargs", node.kwargs, node.uses_kwargs);
    std::vector<Node*> defaults;
    for (const auto& [name, value] : node.keywords) defaults.push_back(value);
    enter(scope, {&parameters, &defaults, &node.body});
  }

  Program& program_;
};

}  // namespace

void resolve_names(Program& program) { Resolver(program).run(); }

}  // namespace anabatic::io::jinja
