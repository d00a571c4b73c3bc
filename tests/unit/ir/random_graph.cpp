// SPDX-License-Identifier: Apache-2.0
#include "unit/ir/random_graph.h"

#include <limits>

#include "base/philox.h"
#include "ir/op_schema.h"
#include "unit/ir/fake_ops.h"

namespace anabatic::ir {
namespace {

class Generator {
 public:
  Generator(std::uint64_t seed, int num_nodes)
      : seed_(seed), num_nodes_(num_nodes), builder_(graph_, find_fake_op) {}

  Graph run() {
    graph_.name = below(4) == 0 ? "quotes \" and \\ and\nlines # too" : "random";
    matrices_.push_back(builder_.batch_input("tokens", matrix()));
    offsets_ = builder_.batch_input("offsets", tensor_type(DType::kInt32, {5}));
    builder_.step_input("learning_rate", tensor_type(DType::kFloat32, {}));
    const auto num_states = 1 + below(4);
    for (std::uint64_t i = 0; i < num_states; ++i) add_state(i);
    for (int i = 0; i < num_nodes_; ++i) {
      builder_.set_tag({.phase = phase(i),
                        .layer = static_cast<std::int32_t>(below(4)) - 1,
                        .segment = below(2) == 0 ? Name{} : intern("an odd segment")});
      add_node(i);
    }
    builder_.set_tag({.phase = Phase::kUpdate});
    // A state ends by overwriting itself; nothing after reads its old value.
    for (State& state : graph_.states)
      if (below(2) == 0) state.after = builder_.add1("overwrite", {state.before});
    builder_.output(builder_.add1("sum", {matrices_.back()}), "loss");
    graph_.objective = graph_.outputs[0];
    graph_.add_value(matrix(), intern("dead"));
    return std::move(graph_);
  }

 private:
  std::uint64_t below(std::uint64_t bound) { return random_below(seed_, 0, draws_++, bound); }
  static TensorType matrix() { return tensor_type(DType::kBFloat16, {12, 3}); }

  // Phases never go down, as in a real step.
  Phase phase(int i) const {
    if (3 * i < num_nodes_) return Phase::kForward;
    return 3 * i < 2 * num_nodes_ ? Phase::kBackwardInput : Phase::kBackwardWeight;
  }

  void add_state(std::uint64_t i) {
    const std::string name = "layers." + std::to_string(i) + ".weight";
    using enum StateRole;
    const StateRole role = std::array{kParameter, kUpper, kCache, kPreviousNorm}[below(4)];
    matrices_.push_back(builder_.state(name, matrix(), role));
    if (spec::kind_of(role) != StateKind::kParameter) return;
    State& parameter = graph_.states.back();
    parameter.is_trainable = below(2) == 0;
    parameter.init = {.rule = static_cast<spec::Init::Rule>(below(3))};
    if (parameter.init.rule == spec::Init::Rule::kOnes && below(2) == 0)
      parameter.init.deviation = 1.0 / static_cast<double>(2 + below(97));
    if (parameter.init.rule == spec::Init::Rule::kNormal)
      parameter.init = {.rule = spec::Init::Rule::kNormal,
                        .deviation = 1.0 / static_cast<double>(1 + below(97)),
                        .zero_row = static_cast<std::int64_t>(below(4)) - 1};
    if (below(2) == 0) return;
    const Name owner = intern(name);
    builder_.state_of(owner, kPacking, parse_tensor_type("bf16[12,3]@panel16x2"));
    builder_.state_of(owner, below(2) == 0 ? kCopy : kFirstMoment, matrix());
    if (below(2) == 0) graph_.states.back().rows = {.first = 12, .count = 12, .total = 36};
  }

  ValueId pick() { return matrices_[below(matrices_.size())]; }

  void add_node(int i) {
    switch (below(5)) {
      case 0:
        matrices_.push_back(
            builder_.add1("add", {pick(), pick()}, {}, "value." + std::to_string(i)));
        break;
      case 1:
        for (const ValueId id : builder_.add("split", {pick()}, attributes()))
          matrices_.push_back(id);
        break;
      case 2:
        builder_.add1("sum", {pick(), pick(), pick()}, attributes());
        break;
      case 3:
        builder_.add1("grouped", {pick(), offsets_});
        break;
      default:
        matrices_.push_back(builder_.add1("make", {}, {{"type", to_string(matrix())}}));
    }
  }

  spec::Attributes attributes() {
    static const spec::Attribute kValues[] = {true,
                                              std::int64_t{-7},
                                              std::numeric_limits<std::int64_t>::min(),
                                              0.1,
                                              -0.0,
                                              1e300,
                                              std::numeric_limits<double>::infinity(),
                                              std::numeric_limits<double>::quiet_NaN(),
                                              std::string("plain"),
                                              std::string("a \"quoted\\\" # text\nof two lines"),
                                              std::vector<std::int64_t>{},
                                              std::vector<std::int64_t>{1, -2, 3}};
    spec::Attributes result;
    const auto count = below(4);
    for (std::uint64_t i = 0; i < count; ++i)
      result["key_" + std::to_string(i)] = kValues[below(std::size(kValues))];
    return result;
  }

  std::uint64_t seed_, draws_ = 0;
  int num_nodes_;
  Graph graph_;
  GraphBuilder builder_;
  std::vector<ValueId> matrices_;  // values of the one type that `add` takes
  ValueId offsets_{};
};

}  // namespace

Graph random_graph(std::uint64_t seed, int num_nodes) { return Generator(seed, num_nodes).run(); }

}  // namespace anabatic::ir
