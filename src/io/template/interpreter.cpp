// SPDX-License-Identifier: Apache-2.0
#include "io/template/interpreter.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "io/template/python_text.h"

namespace anabatic::io::jinja {
namespace {

constexpr int kDeepestEvaluation = 3000;

Value from_context(const OrderedJson& context, std::string_view name, Arena& arena) {
  for (const auto& [key, json] : context.get_ref<const OrderedJson::object_t&>()) {
    if (key != name) continue;
    Origin* origin = nullptr;
    const bool is_messages = name == "messages" && json.is_array();
    if (!is_messages && !name.ends_with("_token")) {
      origin = arena.make<Origin>(1);
      origin->field = &key;
    }
    Value value = from_json(json, origin);
    value.is_messages = is_messages;
    return value;
  }
  if (const Builtin* builtin = find_function(name)) {
    Value value;
    value.kind = Kind::kFunction;
    value.function = builtin;
    return value;
  }
  return {};
}

}  // namespace

Interpreter::Interpreter(const Program& program, const OrderedJson& context, const RenderTime& time)
    : now(time), program_(program), context_(context), buffers_(kept_buffers()) {
  ANABATIC_REQUIRE(context.is_object(), "[chat template] {}: expected an object of variables",
                   program.source.name);
}

Interpreter::Buffer::Buffer(Interpreter& of)
    : interpreter(of),
      builder(of.num_buffers_ < of.buffers_.size() ? of.buffers_[of.num_buffers_]
                                                   : of.buffers_.emplace_back()) {
  ++of.num_buffers_;
  builder.clear();
}

std::deque<TextBuilder>& Interpreter::kept_buffers() {
  thread_local std::deque<TextBuilder> buffers;
  // Those of a huge text are not kept.
  std::erase_if(buffers, [](const TextBuilder& buffer) { return buffer.capacity() > (1 << 20); });
  return buffers;
}

Interpreter::Level::Level(Interpreter& of) : interpreter(of) {
  if (++of.depth_ > kDeepest) {
    --of.depth_;
    fail(fmt::format("calls or values nested more than {} deep", kDeepest));
  }
}

void Interpreter::count_steps(std::size_t steps) {
  steps_ += static_cast<std::int64_t>(steps);
  if (steps_ > kMostSteps) fail(fmt::format("the template takes more than {} steps", kMostSteps));
}

RenderedText Interpreter::run() {
  try {
    for (const std::string_view name : program_.globals)
      globals_.push_back(from_context(context_, name, arena));
    Frame frame{arena.make<Value>(program_.root.num_slots), nullptr, nullptr};
    frame_ = &frame;
    Buffer out(*this);
    out_ = &*out;
    run_loads(program_.root.loads);
    exec(program_.root.body);
    RenderedText result;
    result.spans.reserve(out->pieces().size());
    for (const Piece& piece : out->pieces()) {
      const Origin* origin = piece.origin;
      result.spans.push_back({piece.end, origin ? origin->field : nullptr,
                              origin ? origin->message : -1, piece.is_generated});
    }
    result.text = out->text();
    return result;
  } catch (const Failure& failure) {
    program_.source.fail(at_, failure.message, failure.is_unsupported);
  }
}

Value& Interpreter::slot(const Slot& slot) {
  if (slot.hops == kGlobal) return globals_[slot.index];
  Frame* frame = frame_;
  for (std::uint32_t i = 0; i < slot.hops; ++i) frame = frame->outer;
  return frame->slots[slot.index];
}

Value Interpreter::load(const Node& name) {
  const Value& value = slot(name.slot);
  return value.is_given() ? value : undefined(name.name);
}

void Interpreter::run_loads(const std::vector<Load>& loads) {
  for (const Load& load : loads)
    frame_->slots[load.slot] = load.is_missing ? Value() : slot(load.from);
}

Interpreter::Flow Interpreter::exec(const std::vector<Node*>& body) {
  count_steps(body.size() >> 3);
  for (const Node* node : body)
    if (const Flow flow = exec(*node); flow != Flow::kOn) return flow;
  return Flow::kOn;
}

Interpreter::Flow Interpreter::exec(const Node& node) {
  if (!node.kids.empty() && node.kids.back()) count_steps(node.kids.back()->height >> 4);
  switch (node.op) {
    case Op::kOutput: {
      const Node& kid = *node.kids[0];
      if (kid.op == Op::kConst && kid.value.is_string())
        out_->append(kid.value.view(), nullptr);
      else
        write(*out_, eval(kid));
      return Flow::kOn;
    }
    case Op::kSet:
      assign(*node.kids[0], eval(*node.kids[1]));
      return Flow::kOn;
    case Op::kSetBlock: {
      run_loads(node.loads);
      assign(*node.kids[0], apply_all(node.kids[1], capture(node.body)));
      return Flow::kOn;
    }
    case Op::kFilterBlock: {
      run_loads(node.loads);
      out_->append(expect_string(apply_all(node.kids[0], capture(node.body)),
                                 "what the filter of a block gives"));
      return Flow::kOn;
    }
    case Op::kGeneration: {
      run_loads(node.loads);
      Buffer buffer(*this);
      TextBuilder* const outer = std::exchange(out_, &*buffer);
      exec(node.body);
      out_ = outer;
      buffer->mark_generated();
      out_->append(buffer.take());
      return Flow::kOn;
    }
    case Op::kIf:
      return exec(truth(eval(*node.kids[0])) ? node.body : node.other);
    case Op::kFor:
      return exec_for(node);
    case Op::kMacro:
      slot(node.slot) = macro(node);
      return Flow::kOn;
    case Op::kCallBlock: {
      const Node& call_node = *node.kids[0];
      const Value callee = eval(*call_node.kids[0]);
      Arguments given = arguments(call_node, nullptr);
      Keyword* keywords = arena.make<Keyword>(given.keywords.size() + 1);
      std::copy(given.keywords.begin(), given.keywords.end(), keywords);
      keywords[given.keywords.size()] = {"caller", macro(node)};
      given.keywords = {keywords, given.keywords.size() + 1};
      at_ = node.at;
      write(*out_, call(callee, given));
      return Flow::kOn;
    }
    case Op::kBreak:
      return Flow::kBreak;
    default:
      return Flow::kContinue;
  }
}

Interpreter::Flow Interpreter::exec_for(const Node& node) {
  const Value over = eval(*node.kids[1]);
  at_ = node.at;
  std::span<const Value> items = iterate(over);
  if (node.kids[2] != nullptr) {
    Value* kept = arena.make<Value>(items.size());
    std::size_t count = 0;
    for (const Value& item : items) {
      count_steps(1);
      run_loads(node.loads);
      assign(*node.kids[0], item);
      if (truth(eval(*node.kids[2]))) kept[count++] = item;
    }
    items = {kept, count};
  }
  Object* loop = nullptr;
  if (node.uses_loop) {
    loop = arena.make<Object>(1);
    loop->items = items.data();
    loop->size = static_cast<std::uint32_t>(items.size());
    loop->depth = 1;
  }
  bool was_run = false;
  for (std::size_t i = 0; i < items.size(); ++i) {
    at_ = node.at;
    count_steps(1);
    was_run = true;
    if (loop) {
      loop->at = static_cast<std::uint32_t>(i);
      slot(node.loop) = object(Kind::kLoop, loop);
    }
    assign(*node.kids[0], items[i]);
    run_loads(node.loads);
    if (exec(node.body) == Flow::kBreak) break;
  }
  if (was_run || node.other.empty()) return Flow::kOn;
  run_loads(node.other_loads);
  return exec(node.other);
}

Value Interpreter::capture(const std::vector<Node*>& body) {
  Buffer buffer(*this);
  TextBuilder* const outer = std::exchange(out_, &*buffer);
  exec(body);
  out_ = outer;
  return buffer.take();
}

void Interpreter::assign(const Node& target, const Value& value) {
  if (target.op == Op::kName) {
    slot(target.slot) = value;
  } else if (target.op == Op::kTuple) {
    at_ = target.at;
    const auto items = iterate(value);
    if (items.size() != target.kids.size())
      fail(fmt::format("expected {} values to unpack, got {}", target.kids.size(), items.size()));
    for (std::size_t i = 0; i < items.size(); ++i) assign(*target.kids[i], items[i]);
  } else {
    const Value space = load(*target.kids[0]);
    at_ = target.at;
    if (!space.is(Kind::kNamespace)) fail("cannot assign an attribute of what is no namespace");
    set_namespace(*space.object, string(target.name), value);
  }
}

Value Interpreter::macro(const Node& node) {
  Object* data = arena.make<Object>(1);
  data->node = &node;
  data->name = node.op == Op::kMacro ? node.name : "";
  data->frame = frame_;
  return object(Kind::kMacro, data);
}

Value Interpreter::call_macro(const Object& macro, const Arguments& arguments) {
  const Node& node = *macro.node;
  const auto& parameters = node.op == Op::kMacro ? node.kids : node.other;
  const Level level(*this);
  Frame* frame = nullptr;
  const auto reusable =
      std::find_if(free_frames_.begin(), free_frames_.end(),
                   [&](const auto& entry) { return entry.first == &node && entry.second; });
  if (reusable != free_frames_.end()) {
    frame = reusable->second;
    reusable->second = frame->next_free;
    std::fill_n(frame->slots, node.num_slots, Value());
  } else {
    frame = arena.make<Frame>(1);
    frame->slots = arena.make<Value>(node.num_slots);
  }
  frame->outer = macro.frame;
  const std::size_t num_given = std::min(arguments.values.size(), parameters.size());
  for (std::size_t i = 0; i < num_given; ++i)
    frame->slots[parameters[i]->slot.index] = arguments.values[i];
  std::vector<Entry> more;
  for (const Keyword& keyword : arguments.keywords) {
    const auto named =
        std::find_if(parameters.begin() + static_cast<std::ptrdiff_t>(num_given), parameters.end(),
                     [&](const Node* parameter) { return parameter->name == keyword.name; });
    if (named != parameters.end())
      frame->slots[(*named)->slot.index] = keyword.value;
    else if (keyword.name == "caller" && node.uses_caller)
      frame->slots[node.caller.index] = keyword.value;
    else if (node.uses_kwargs)
      more.push_back({string(keyword.name), keyword.value});
    else
      fail(fmt::format("macro '{}' takes no keyword argument '{}'", node.name, keyword.name));
  }
  if (node.uses_kwargs) frame->slots[node.kwargs.index] = dict_of(more);
  if (node.uses_varargs)
    frame->slots[node.varargs.index] = list_of(arguments.values.subspan(num_given), Kind::kTuple);
  else if (arguments.values.size() > num_given)
    fail(fmt::format("macro '{}' takes not more than {} arguments", node.name, parameters.size()));
  Frame* const caller = std::exchange(frame_, frame);
  run_loads(node.loads);
  const std::size_t first_default = parameters.size() - node.keywords.size();
  for (std::size_t i = 0; i < node.keywords.size(); ++i) {
    Value& value = frame->slots[parameters[first_default + i]->slot.index];
    if (!value.is_given()) value = eval(*node.keywords[i].second);
  }
  const Value result = capture(node.body);
  frame_ = caller;
  if (!node.has_inner) {
    const auto list = std::find_if(free_frames_.begin(), free_frames_.end(),
                                   [&](const auto& entry) { return entry.first == &node; });
    frame->next_free = list != free_frames_.end() ? list->second : nullptr;
    if (list != free_frames_.end())
      list->second = frame;
    else
      free_frames_.emplace_back(&node, frame);
  }
  return result;
}

Arguments Interpreter::arguments(const Node& node, const Value* input) {
  std::size_t count = node.kids.size() - 1 + (input != nullptr);
  std::span<const Value> more;
  Value* values = arena.make<Value>(count);
  std::size_t at = 0;
  if (input) values[at++] = *input;
  for (std::size_t i = 1; i < node.kids.size(); ++i) values[at++] = eval(*node.kids[i]);
  if (node.star) {
    more = iterate(eval(*node.star));
    Value* longer = arena.make<Value>(count + more.size());
    std::copy(more.begin(), more.end(), std::copy(values, values + count, longer));
    values = longer;
    count += more.size();
  }
  Arguments result{{values, count}};
  if (node.keywords.empty() && !node.star_star) return result;
  std::vector<Keyword> keywords;
  for (const auto& [name, value] : node.keywords) keywords.push_back({name, eval(*value)});
  if (node.star_star) {
    const Value dict = eval(*node.star_star);
    if (!dict.is(Kind::kDict))
      fail(fmt::format("expected a dict after **, got {}", type_name(dict)));
    for_each_entry(arena, dict, [&](const Value& key, const Value& value) {
      const std::string_view name = expect_string(key, "a keyword").view();
      for (const Keyword& other : keywords)
        if (other.name == name) fail(fmt::format("multiple values for the argument '{}'", name));
      keywords.push_back({name, value});
      return true;
    });
  }
  Keyword* copy = arena.make<Keyword>(keywords.size());
  std::copy(keywords.begin(), keywords.end(), copy);
  result.keywords = {copy, keywords.size()};
  return result;
}

Value Interpreter::apply_all(const Node* filter, const Value& captured) {
  return filter ? apply(*filter, apply_all(filter->kids[0], captured)) : captured;
}

Value Interpreter::apply(const Node& node, const Value& input) {
  const std::string_view kind = node.op == Op::kFilter ? "filter" : "test";
  at_ = node.at;
  if (!node.builtin) {
    const bool is_known = is_known_to_jinja2(kind, node.name);
    const auto message =
        fmt::format("{} {} '{}'", is_known ? "unsupported" : "unknown", kind, node.name);
    if (is_known) refuse(message);
    fail(message);
  }
  const Arguments given = arguments(node, &input);
  at_ = node.at;
  return call_builtin(*node.builtin, given, kind);
}

Value Interpreter::eval_call(const Node& node) {
  const Node& target = *node.kids[0];
  if (target.op == Op::kAttribute) {
    const Value of = eval(*target.kids[0]);
    at_ = target.at;
    const Builtin* method = of.is_string()       ? target.of_string
                            : of.is(Kind::kDict) ? target.of_dict
                                                 : find_method(of.kind, target.name);
    if (method) {
      const Arguments given = arguments(node, &of);
      at_ = target.at;
      return call_builtin(*method, given, "method");
    }
    const Value callee = attribute(of, target.name);
    const Arguments given = arguments(node, nullptr);
    at_ = target.at;
    return call(callee, given);
  }
  const Value callee = eval(target);
  const Arguments given = arguments(node, nullptr);
  at_ = node.at;
  return call(callee, given);
}

Value Interpreter::call(const Value& callee, const Arguments& given) {
  count_steps(1);
  switch (callee.kind) {
    case Kind::kMacro:
      return call_macro(*callee.object, given);
    case Kind::kFunction:
      return call_builtin(*callee.function, given, "function");
    case Kind::kMethod: {
      const Object& method = *callee.object;
      if (!method.method)
        refuse(fmt::format("the method '{}' of {} is not supported", method.name,
                           type_name(method.value)));
      std::vector<Value> values{method.value};
      values.insert(values.end(), given.values.begin(), given.values.end());
      return call_builtin(*method.method, {values, given.keywords}, "method");
    }
    case Kind::kJoiner: {
      Object& joiner = *callee.object;
      return std::exchange(joiner.at, 1) == 0 ? string({}) : joiner.value;
    }
    case Kind::kUndefined:
      fail(fmt::format("'{}' is undefined", callee.view()));
    default:
      fail(fmt::format("'{}' object is not callable", type_name(callee)));
  }
}

Value Interpreter::call_builtin(const Builtin& builtin, const Arguments& given,
                                std::string_view kind) {
  const auto refuse_arguments = [&](std::string_view why) {
    fail(fmt::format("the {} '{}' {}", kind, builtin.name, why));
  };
  const std::size_t count = given.values.size();
  if (builtin.takes_more) {
    if (count < builtin.num_needed) refuse_arguments("lacks an argument");
    // Keywords follow as pairs; how many there are is the last argument.
    std::vector<Value> all(given.values.begin(), given.values.end());
    for (const Keyword& keyword : given.keywords)
      all.push_back(tuple_of(string(keyword.name), keyword.value));
    all.push_back(integer(static_cast<std::int64_t>(given.keywords.size())));
    return builtin.run(*this, all.data(), all.size());
  }
  const std::size_t num_parameters = builtin.num_parameters;
  if (count > num_parameters)
    refuse_arguments(fmt::format("takes no more than {} arguments", num_parameters));
  Value bound[8];
  std::copy(given.values.begin(), given.values.end(), bound);
  for (const Keyword& keyword : given.keywords) {
    std::size_t i = 0;
    for (std::string_view rest = builtin.parameters; i < num_parameters; ++i) {
      const std::size_t space = std::min(rest.find(' '), rest.size());
      std::string_view name = rest.substr(0, space);
      if (name.ends_with('?')) name.remove_suffix(1);
      if (name == keyword.name) break;
      rest.remove_prefix(std::min(space + 1, rest.size()));
    }
    if (i == num_parameters || bound[i].is_given())
      refuse_arguments(fmt::format("does not take the argument '{}'", keyword.name));
    bound[i] = keyword.value;
  }
  for (std::size_t i = 0; i < builtin.num_needed; ++i)
    if (!bound[i].is_given()) refuse_arguments(fmt::format("lacks its argument {}", i));
  return builtin.run(*this, bound, num_parameters);
}

bool Interpreter::compare(Comparison comparison, const Value& a, const Value& b) {
  switch (comparison) {
    case Comparison::kEqual:
      return equal(a, b);
    case Comparison::kUnequal:
      return !equal(a, b);
    case Comparison::kLess:
      return less(a, b, "<");
    case Comparison::kGreater:
      return less(b, a, ">");
    case Comparison::kLessEqual:
      return less(a, b, "<=");
    case Comparison::kGreaterEqual:
      return less(b, a, ">=");
    case Comparison::kIn:
      return contains(a, b);
    case Comparison::kNotIn:
      return !contains(a, b);
  }
  return false;
}

Value Interpreter::eval_compare(const Node& node) {
  Value left = eval(*node.kids[0]);
  for (std::size_t i = 0; i < node.comparisons.size(); ++i) {
    const Value right = eval(*node.kids[i + 1]);
    at_ = node.at;
    if (!compare(node.comparisons[i], left, right)) return boolean(false);
    left = right;
  }
  return boolean(true);
}

Value Interpreter::eval(const Node& node) {
  if (node.op == Op::kConst) return node.value;
  if (node.op == Op::kName) return load(node);
  struct Depth {
    explicit Depth(int& of) : depth(of) {
      if (++depth > kDeepestEvaluation) {
        --depth;
        fail("an evaluation that is nested too deep");
      }
    }
    ~Depth() { --depth; }
    int& depth;
  } depth(eval_depth_);
  const auto kid = [&](std::size_t i) { return eval(*node.kids[i]); };
  switch (node.op) {
    case Op::kList:
    case Op::kTuple: {
      Value* items = arena.make<Value>(node.kids.size());
      for (std::size_t i = 0; i < node.kids.size(); ++i) items[i] = kid(i);
      return sequence(node.op == Op::kList ? Kind::kList : Kind::kTuple, items, node.kids.size());
    }
    case Op::kDict: {
      std::vector<Entry> entries;
      for (std::size_t i = 0; i < node.kids.size(); i += 2) {
        const Value key = kid(i);
        entries.push_back({key, kid(i + 1)});
      }
      at_ = node.at;
      return dict_of(entries);
    }
    case Op::kAttribute: {
      const Value of = kid(0);
      at_ = node.at;
      if (of.is_json && of.is(Kind::kDict) && !node.of_dict) {
        for (const auto& [key, value] : of.json->get_ref<const OrderedJson::object_t&>())
          if (key == node.name) return from_json(value, member_origin(arena, of.origin, key));
      }
      return attribute(of, node.name);
    }
    case Op::kItem: {
      const Value of = kid(0);
      const Node& index = *node.kids[1];
      if (index.op == Op::kSlice) {
        const auto part = [&](std::size_t i) {
          return index.kids[i] ? eval(*index.kids[i]) : none();
        };
        const Value start = part(0), stop = part(1), step = part(2);
        at_ = node.at;
        return slice(of, start, stop, step);
      }
      const Value key = eval(index);
      at_ = node.at;
      return item(of, key);
    }
    case Op::kSlice:
      refuse("a slice among other indices");
    case Op::kCall:
      return eval_call(node);
    case Op::kFilter:
    case Op::kTest:
      return apply(node, kid(0));
    case Op::kNot:
      return boolean(!truth(kid(0)));
    case Op::kNegate:
    case Op::kPlus: {
      const Value value = kid(0);
      at_ = node.at;
      if (!value.is_number())
        fail(fmt::format("bad operand type for unary {}: '{}'", node.op == Op::kPlus ? '+' : '-',
                         type_name(value)));
      if (node.op == Op::kPlus) return binary(Op::kAdd, integer(0), value);
      return value.is(Kind::kFloat) ? real(-value.number)
                                    : binary(Op::kSubtract, integer(0), value);
    }
    case Op::kConcat: {
      Buffer buffer(*this);
      for (std::size_t i = 0; i < node.kids.size(); ++i) write(*buffer, kid(i));
      return buffer.take();
    }
    case Op::kCompare:
      return eval_compare(node);
    case Op::kAnd: {
      const Value left = kid(0);
      return truth(left) ? kid(1) : left;
    }
    case Op::kOr: {
      const Value left = kid(0);
      return truth(left) ? left : kid(1);
    }
    case Op::kCondition:
      if (truth(kid(0))) return kid(1);
      return node.kids[2] ? kid(2) : undefined("the inline if without else");
    default: {
      const Value left = kid(0), right = kid(1);
      at_ = node.at;
      return binary(node.op, left, right);
    }
  }
}

}  // namespace anabatic::io::jinja

namespace anabatic::io {

struct ChatTemplate::Impl {
  jinja::Program program;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

ChatTemplate ChatTemplate::parse(std::string_view source, std::string_view name) {
  auto impl = std::make_unique<Impl>(Impl{jinja::Program(source, name)});
  jinja::parse_program(impl->program);
  return ChatTemplate(std::move(impl));
}

RenderedText ChatTemplate::render(const OrderedJson& context, const RenderTime& now) const {
  return jinja::Interpreter(impl_->program, context, now).run();
}

bool ChatTemplate::has_generation_blocks() const { return impl_->program.has_generation; }

}  // namespace anabatic::io
