// SPDX-License-Identifier: Apache-2.0
// One rendering: walks the nodes of a program, and does what Python does with values.
#pragma once
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/template/ast.h"
#include "io/template/template.h"
#include "io/template/value.h"

namespace anabatic::io::jinja {

struct Frame {
  Value* slots = nullptr;
  Frame* outer = nullptr;  // of the function around it
  Frame* next_free = nullptr;
};

struct Keyword {
  std::string_view name;
  Value value;
};
struct Arguments {
  std::span<const Value> values;  // the input of a filter, test or method first
  std::span<const Keyword> keywords{};
};

class Interpreter {
 public:
  static constexpr std::int64_t kMostSteps = 1'000'000;
  static constexpr int kDeepest = 200;

  Interpreter(const Program& program, const OrderedJson& context, const RenderTime& now);
  RenderedText run();

  Arena arena;
  const RenderTime& now;

  // A builder for the time of a function.
  struct Buffer {
    explicit Buffer(Interpreter& of);
    ~Buffer() { --interpreter.num_buffers_; }
    TextBuilder* operator->() const { return &builder; }
    TextBuilder& operator*() const { return builder; }
    Value take() { return builder.take(interpreter.arena); }
    Interpreter& interpreter;
    TextBuilder& builder;
  };
  // Counts iterations, calls and work on long texts.
  void count_steps(std::size_t steps);
  void count_bytes(std::size_t bytes) { count_steps(bytes >> 12); }
  struct Level {
    explicit Level(Interpreter& of);
    ~Level() { --interpreter.depth_; }
    Interpreter& interpreter;
  };

  // operations.cpp
  bool truth(const Value& value) const;
  bool equal(const Value& a, const Value& b);
  bool less(const Value& a, const Value& b, std::string_view sign = "<");
  bool contains(const Value& needle, const Value& haystack);
  bool is_hashable(const Value& key) const;
  bool find_key(const Value& dict, const Value& key, Value& found);
  Value binary(Op op, const Value& a, const Value& b);
  std::size_t length(const Value& value);  // len()
  Value list_of(std::span<const Value> items, Kind kind = Kind::kList);
  Value iterator_over(std::span<const Value> items);
  Value tuple_of(const Value& first, const Value& second);
  Value text(std::string_view text, const Origin* origin = nullptr);  // copied
  Value dict_of(std::span<const Entry> entries);
  std::span<const Value> iterate(const Value& value);  // consumes an iterator
  std::span<const Value> view_items(const Value& view);
  Value element(const Value& sequence, std::size_t i);
  Value item(const Value& of, const Value& key);
  Value slice(const Value& of, const Value& start, const Value& stop, const Value& step);
  Value attribute(const Value& of, std::string_view name);
  void write(TextBuilder& builder, const Value& value);  // str()
  void write_repr(TextBuilder& builder, const Value& value);
  Value str(const Value& value);  // a string as it is
  const Value& expect_string(const Value& value, std::string_view what);
  std::int64_t expect_integer(const Value& value, std::string_view what);

  Value call(const Value& callee, const Arguments& arguments);
  Value call_builtin(const Builtin& builtin, const Arguments& arguments, std::string_view kind);
  void set_namespace(Object& space, const Value& key, const Value& value);

 private:
  enum class Flow { kOn, kBreak, kContinue };

  // They are this thread's, so that one rendering after the other finds memory.
  static std::deque<TextBuilder>& kept_buffers();

  Value eval(const Node& node);
  Value eval_call(const Node& node);
  Value eval_compare(const Node& node);
  Arguments arguments(const Node& node, const Value* input);
  Value apply(const Node& node, const Value& input);           // filter or test
  Value apply_all(const Node* filter, const Value& captured);  // the filters of a block
  Value& slot(const Slot& slot);
  Value load(const Node& name);
  void run_loads(const std::vector<Load>& loads);
  Flow exec(const std::vector<Node*>& body);
  Flow exec(const Node& node);
  Flow exec_for(const Node& node);
  Value capture(const std::vector<Node*>& body);
  void assign(const Node& target, const Value& value);
  Value call_macro(const Object& macro, const Arguments& arguments);
  Value macro(const Node& node);
  bool compare(Comparison comparison, const Value& a, const Value& b);

  const Program& program_;
  const OrderedJson& context_;
  std::vector<Value> globals_;
  std::deque<TextBuilder>& buffers_;
  std::size_t num_buffers_ = 0;
  TextBuilder* out_ = nullptr;
  Frame* frame_ = nullptr;
  std::vector<std::pair<const Node*, Frame*>> free_frames_;
  std::uint32_t at_ = 0;  // of what is evaluated, for errors
  std::int64_t steps_ = 0;
  int depth_ = 0, eval_depth_ = 0;
};

}  // namespace anabatic::io::jinja
