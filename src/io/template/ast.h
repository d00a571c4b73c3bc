// SPDX-License-Identifier: Apache-2.0
// A parsed template: nodes of one shape, with names resolved to slots.
#pragma once
#include <deque>
#include <string_view>
#include <utility>
#include <vector>

#include "io/template/lexer.h"
#include "io/template/value.h"

namespace anabatic::io::jinja {

enum class Op : std::uint8_t {
  // Expressions; `kids` are the operands in order, of kDict keys and values in turn.
  kConst,
  kName,
  kList,
  kTuple,
  kDict,
  kAttribute,  // .name
  kItem,
  kSlice,   // kids are null where left out
  kCall,    // kids[0] is called; the others, `keywords` and the stars are arguments
  kFilter,  // kids[0] is null in a filter block; the same of arguments
  kTest,
  kNot,
  kNegate,
  kPlus,
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kConcat,
  kCompare,  // `comparisons[i]` is between kids i and i + 1
  kAnd,
  kOr,
  kCondition,        // test, value, else or null
  kNamespaceTarget,  // kids[0].name as a target
  // Statements.
  kOutput,
  kSet,          // target, value
  kSetBlock,     // target, filter or null
  kFor,          // target, iterable, test or null
  kIf,           // test; `body`, then `other`, which may be an kIf again
  kMacro,        // parameters; their defaults are the last kids of `keywords`
  kCallBlock,    // the call; parameters in `other`
  kFilterBlock,  // the filter
  kGeneration,
  kBreak,
  kContinue,
};

enum class Comparison : std::uint8_t {
  kEqual,
  kUnequal,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn
};

inline constexpr std::uint32_t kGlobal = ~0u;

// Where a variable lives: `hops` functions outwards, or with kGlobal in the table of what the
// context has.
struct Slot {
  std::uint32_t hops = 0, index = 0;
};

// What a scope does when it is entered, in order.
struct Load {
  std::uint32_t slot = 0;
  bool is_missing = false;  // else a copy of `from`
  Slot from;
};

struct Node {
  Op op = Op::kConst;
  bool is_store = false;  // a name that is assigned to
  bool is_uncertain =
      false;             // a filter or test that is in a branch, so that only its use is an error
  std::uint32_t at = 0;  // byte of the source
  std::uint32_t height = 0;  // of the tree of operators
  std::string_view name;
  Value value;
  std::vector<Node*> kids, body, other;
  std::vector<Comparison> comparisons;
  std::vector<std::pair<std::string_view, Node*>> keywords;
  Node* star = nullptr;              // *arguments
  Node* star_star = nullptr;         // **arguments
  const Builtin* builtin = nullptr;  // filter or test
  // The methods of that name, if this is an attribute.
  const Builtin *of_string = nullptr, *of_dict = nullptr;
  Slot slot;
  // For statements with a scope of their own.
  std::vector<Load> loads, other_loads;
  std::uint32_t num_slots = 0;  // of a macro or call block
  Slot loop, caller, varargs, kwargs;
  bool uses_loop = false, uses_caller = false, uses_varargs = false, uses_kwargs = false;
  bool has_inner = false;  // functions are defined in it, so its frame may outlive a call
};

struct Program {
  Source source;
  std::deque<Node> nodes;
  Node root;                              // as a macro without parameters
  std::vector<std::string_view> globals;  // names that the context may give
  bool has_generation = false;

  Program(std::string_view text, std::string_view name) : source(text, name) {}
};

// Filters, tests, methods and functions. `parameters` are names with `?` where they may be left
// out, and a `/` in front where a keyword cannot give them. The last may be `*`, which takes all
// arguments that are left. The first is the input.
class Interpreter;
struct Builtin {
  using Run = Value (*)(Interpreter&, const Value* arguments, std::size_t count);

  std::string_view name, parameters;
  Run run;
  std::size_t num_parameters = 0, num_needed = 0;
  bool takes_more = false;

  constexpr Builtin(std::string_view of, std::string_view signature, Run function)
      : name(of), parameters(signature), run(function) {
    for (std::size_t at = 0; at < signature.size();) {
      std::size_t end = at;
      while (end < signature.size() && signature[end] != ' ') ++end;
      if (signature[at] == '*') {
        takes_more = true;
      } else {
        ++num_parameters;
        if (signature[end - 1] != '?') ++num_needed;
      }
      at = end + 1;
    }
  }
};
const Builtin* find_filter(std::string_view name);
const Builtin* find_test(std::string_view name);
const Builtin* find_method(Kind kind, std::string_view name);
const Builtin* find_function(std::string_view name);
bool is_known_to_jinja2(std::string_view kind, std::string_view name);

void parse_program(Program& program);
void resolve_names(Program& program);  // scopes of jinja2: what loops and macros assign stays there

}  // namespace anabatic::io::jinja
