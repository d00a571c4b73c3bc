// SPDX-License-Identifier: Apache-2.0
#include "runtime/verify_schedule.h"

#include <algorithm>
#include <functional>

#include "base/error.h"

namespace anabatic::runtime {
namespace {

#define ANABATIC_RULE(condition, rule, ...) \
  ANABATIC_CHECK(condition, "[schedule verifier] " rule ": {}", ::fmt::format(__VA_ARGS__))

class ScheduleVerifier {
 public:
  explicit ScheduleVerifier(const Program& program)
      : program_(program),
        is_assigned_(program.gradients.size(), false),
        is_summed_(program.gradients.size(), false),
        is_exchanged_(program.gradients.size(), false),
        is_under_way_(program.exchanges.size(), false),
        is_done_(program.exchanges.size(), false),
        holds_sum_(program.states.size(), false),
        windows_(program.windows.size()) {}

  void take(const StepEntry& entry) {
    const Variant& variant = variant_of(entry);
    ANABATIC_RULE(!is_updated_, "nothing follows the update", "{}", describe(entry));
    check_order(entry, variant);
    begin_exchanges(entry);
    std::size_t next = 0, next_exchange = 0;
    const auto move_up_to = [&](std::size_t call) {
      const std::vector<ExchangePoint>& exchanges = variant.exchange_points;
      for (; next_exchange < exchanges.size() &&
             static_cast<std::size_t>(exchanges[next_exchange].call) <= call;
           ++next_exchange)
        exchange(entry, exchanges[next_exchange]);
      const std::vector<SwapPoint>& points = variant.swap_points;
      for (; next < points.size() && static_cast<std::size_t>(points[next].call) <= call; ++next)
        move(entry, points[next]);
    };
    for (std::size_t i = 0; i < variant.calls.size(); ++i) {
      move_up_to(i);
      check_gradients(entry, program_.calls[static_cast<std::size_t>(variant.calls[i])]);
    }
    move_up_to(variant.calls.size());
    is_updated_ = variant.updates;
    if (entry.action == Action::kSumLeaf) end_leaf(entry);
  }

  void end() const {
    ANABATIC_RULE(
        num_forwards_ == num_backwards_ || !has(Action::kBackward) || !has(Action::kForward),
        "each forward is followed by its backward", "of micro-batch {} there is none",
        num_backwards_);
    check_awaited("the step ends");
    ANABATIC_RULE(is_updated_ || !has_update(), "a step ends with its update", "there is none");
    for (std::size_t i = 0; i < windows_.size(); ++i)
      ANABATIC_RULE(!windows_[i].is_read || windows_[i].is_written || !is_of_state(i),
                    "states on disk are written after their update", "{} is not", name_of(i));
    for (std::size_t i = 0; i < holds_sum_.size(); ++i)
      ANABATIC_RULE(!holds_sum_[i], "every leaf is part of the step", "{} holds some that are not",
                    text(program_.states[i].name));
  }

 private:
  struct Window {
    bool is_read = false, is_here = false, is_written = false;
  };

  bool has(Action action) const { return program_.variants.contains(action); }
  bool has_update() const {
    for (const auto& [action, variants] : program_.variants)
      if (std::any_of(variants.begin(), variants.end(),
                      [](const Variant& variant) { return variant.updates; }))
        return true;
    return false;
  }

  static std::string describe(const StepEntry& entry) { return spec::to_string({entry}); }

  const Variant& variant_of(const StepEntry& entry) const {
    const auto found = program_.variants.find(entry.action);
    const std::size_t count = found == program_.variants.end() ? 0 : found->second.size();
    ANABATIC_RULE(static_cast<std::size_t>(entry.variant) < count, "every entry has its variant",
                  "{} is one of {}", describe(entry), count);
    return found->second[static_cast<std::size_t>(entry.variant)];
  }

  void check_order(const StepEntry& entry, const Variant& variant) {
    switch (entry.action) {
      case Action::kForward:
        ANABATIC_RULE(!has(Action::kBackward) || num_forwards_ == num_backwards_,
                      "each forward is followed by its backward", "{} comes between",
                      describe(entry));
        ANABATIC_RULE(entry.micro_batch == num_forwards_, "micro-batches in their order",
                      "{} comes as number {}", describe(entry), num_forwards_);
        ++num_forwards_;
        layout_ = variant.layout;
        break;
      case Action::kBackward:
        ANABATIC_RULE(entry.micro_batch == num_backwards_ &&
                          (num_forwards_ > num_backwards_ || !has(Action::kForward)),
                      "each forward is followed by its backward", "{} comes after {} forwards",
                      describe(entry), num_forwards_);
        ANABATIC_RULE(variant.layout == layout_ || !has(Action::kForward),
                      "a backward of its forward's layout", "{} is of {}, its forward of {}",
                      describe(entry), variant.layout, layout_);
        ++num_backwards_;
        break;
      case Action::kUpdate:
        ANABATIC_RULE(num_forwards_ == num_backwards_ || !has(Action::kBackward),
                      "the update after all micro-batches", "micro-batch {} has no backward",
                      num_backwards_);
        ANABATIC_RULE(entry.micro_batch + 1 == std::max(num_forwards_, num_backwards_) ||
                          (!has(Action::kForward) && !has(Action::kBackward)),
                      "the update after all micro-batches", "it is that of micro-batch {} of {}",
                      entry.micro_batch, num_forwards_);
        break;
      case Action::kSumLeaf:
        ANABATIC_RULE(num_forwards_ == num_backwards_ && entry.micro_batch + 1 == num_backwards_,
                      "a leaf is summed after its last micro-batch", "{} comes after {} backwards",
                      describe(entry), num_backwards_);
        break;
    }
  }

  // The leaf is in the sums: the next one assigns gradients again.
  void end_leaf(const StepEntry& entry) {
    for (std::size_t i = 0; i < is_assigned_.size(); ++i) {
      ANABATIC_RULE(is_assigned_[i] && is_summed_[i], "every gradient of a leaf is summed",
                    "{} in {}", text(program_.gradients[i]), describe(entry));
      is_assigned_[i] = is_summed_[i] = false;
    }
  }

  // A sum takes part in the next level, or in the update, once.
  void check_sums(const StepEntry& entry, const Call& call) {
    const auto sum_of = [&](const Operand& operand) -> std::int32_t {
      const bool is_sum = operand.arena == Arena::kPersistent && operand.state >= 0 &&
                          program_.states[static_cast<std::size_t>(operand.state)].part.role ==
                              spec::StateRole::kLeafSum;
      return is_sum ? operand.state : -1;
    };
    const auto name = [&](std::int32_t sum) {
      return text(program_.states[static_cast<std::size_t>(sum)].name);
    };
    for (const Operand& input : call.inputs)
      if (const std::int32_t sum = sum_of(input); sum >= 0) {
        ANABATIC_RULE(holds_sum_[static_cast<std::size_t>(sum)],
                      "sums of leaves taken once, after they are written", "{} in {}", name(sum),
                      describe(entry));
        holds_sum_[static_cast<std::size_t>(sum)] = false;
      }
    for (const Operand& output : call.outputs)
      if (const std::int32_t sum = sum_of(output); sum >= 0) {
        ANABATIC_RULE(!holds_sum_[static_cast<std::size_t>(sum)],
                      "sums of leaves written after they are taken", "{} in {}", name(sum),
                      describe(entry));
        holds_sum_[static_cast<std::size_t>(sum)] = true;
      }
  }

  // Index into Program::gradients; -1: not of a gradient.
  static std::int32_t gradient_of(const Operand& operand) {
    return operand.arena == Arena::kPersistent ? -1 : operand.state;
  }

  // A micro-batch begins with no exchange under way: its values take the bytes of the last one's.
  void begin_exchanges(const StepEntry& entry) {
    last_post_ = -1;
    if (entry.action == (has(Action::kForward) ? Action::kForward : Action::kBackward))
      check_awaited(describe(entry) + " begins");
  }

  void check_awaited(const std::string& when) const {
    for (std::size_t i = 0; i < is_under_way_.size(); ++i)
      ANABATIC_RULE(!is_under_way_[i], "every exchange is awaited", "{} is under way when {}",
                    program_.exchanges[i].label, when);
  }

  // Gradients are whole when ranks exchange them, in one order for all ranks; no call comes
  // between.
  void exchange(const StepEntry& entry, const ExchangePoint& point) {
    const auto index = static_cast<std::size_t>(point.exchange);
    ANABATIC_RULE(index < program_.exchanges.size(), "exchanges of the program", "{}: {} of {}",
                  describe(entry), index, program_.exchanges.size());
    const Exchange& exchange = program_.exchanges[index];
    const bool is_post = point.step == ExchangeStep::kPost;
    ANABATIC_RULE(!is_post || (point.exchange > last_post_ && !is_under_way_[index]),
                  "exchanges posted in one order", "{} comes after number {} in {}", exchange.label,
                  last_post_, describe(entry));
    ANABATIC_RULE(is_post || is_under_way_[index], "exchanges awaited after their post", "{} in {}",
                  exchange.label, describe(entry));
    if (is_post) last_post_ = point.exchange;
    is_under_way_[index] = is_post;
    const std::int32_t gradient = gradient_of(exchange.buffer);
    if (gradient < 0) return;
    ANABATIC_RULE(!is_post || !is_done_[index], "gradients exchanged once", "{} in {} again",
                  exchange.label, describe(entry));
    is_done_[index] = true;
    const auto at = static_cast<std::size_t>(gradient);
    ANABATIC_RULE(is_assigned_[at], "gradients assigned before they are exchanged", "{} in {}",
                  text(program_.gradients[at]), describe(entry));
    ANABATIC_RULE(is_exchanged_[at] != is_post, "gradients exchanged once", "{} in {}",
                  text(program_.gradients[at]), describe(entry));
    is_exchanged_[at] = is_post;
  }

  void check_exchanges(const StepEntry& entry, const Call& call) const {
    for (const std::vector<Operand>* operands : {&call.inputs, &call.outputs})
      for (const Operand& operand : *operands)
        if (const std::int32_t gradient = gradient_of(operand); gradient >= 0)
          ANABATIC_RULE(!is_exchanged_[static_cast<std::size_t>(gradient)],
                        "no call uses what ranks exchange", "{}: {} in {}",
                        text(program_.gradients[static_cast<std::size_t>(gradient)]), call.label,
                        describe(entry));
  }

  void check_gradients(const StepEntry& entry, const Call& call) {
    check_exchanges(entry, call);
    check_sums(entry, call);
    const auto name = [&](std::int32_t gradient) {
      return text(program_.gradients[static_cast<std::size_t>(gradient)]);
    };
    for (const Operand& input : call.inputs)
      if (const std::int32_t gradient = gradient_of(input); gradient >= 0)
        ANABATIC_RULE(is_assigned_[static_cast<std::size_t>(gradient)],
                      "gradients assigned before they are read", "{}: {} in {}", name(gradient),
                      call.label, describe(entry));
    if (entry.action == Action::kSumLeaf)
      for (const Operand& input : call.inputs)
        if (const std::int32_t gradient = gradient_of(input); gradient >= 0)
          is_summed_[static_cast<std::size_t>(gradient)] = true;
    for (std::size_t i = 0; i < call.outputs.size(); ++i) {
      const std::int32_t gradient = gradient_of(call.outputs[i]);
      if (gradient < 0) continue;
      const auto at = static_cast<std::size_t>(gradient);
      ANABATIC_RULE(is_assigned_[at] || !call.adds[i],
                    "gradients assigned before they are added to", "{}: {} in {}", name(gradient),
                    call.label, describe(entry));
      const bool is_in_place =
          std::any_of(call.inputs.begin(), call.inputs.end(),
                      [&](const Operand& input) { return gradient_of(input) == gradient; });
      ANABATIC_RULE(!is_assigned_[at] || call.adds[i] || is_in_place, "gradients assigned once",
                    "{}: {} in {} overwrites what was added", name(gradient), call.label,
                    describe(entry));
      is_assigned_[at] = true;
    }
  }

  bool is_of_state(std::size_t window) const {
    return program_.windows[window].state >= 0 && !program_.windows[window].is_copy;
  }
  std::string_view name_of(std::size_t window) const {
    return text(program_.states[static_cast<std::size_t>(program_.windows[window].state)].name);
  }

  void move(const StepEntry& entry, const SwapPoint& point) {
    const auto index = static_cast<std::size_t>(point.window);
    ANABATIC_RULE(index < windows_.size(), "moves of windows", "{}: window {} of {}",
                  describe(entry), point.window, windows_.size());
    if (!is_of_state(index)) return;
    Window& window = windows_[index];
    switch (point.step) {
      case SwapStep::kRead:
        ANABATIC_RULE(!window.is_read, "states on disk are read once", "{} in {} again",
                      name_of(index), describe(entry));
        window.is_read = true;
        break;
      case SwapStep::kAwaitRead:
        ANABATIC_RULE(window.is_read && !window.is_written, "states on disk are read before use",
                      "{} in {}", name_of(index), describe(entry));
        window.is_here = true;
        break;
      case SwapStep::kWrite:
        ANABATIC_RULE(window.is_here, "states on disk are written after their update",
                      "{} in {} is not in memory", name_of(index), describe(entry));
        window.is_written = true;
        break;
      case SwapStep::kAwaitWrite:  // of this step, or of the one before
        break;
    }
  }

  const Program& program_;
  std::vector<bool> is_assigned_;             // by gradient, in this leaf
  std::vector<bool> is_summed_;               // likewise: added to the sums of leaves
  std::vector<bool> is_exchanged_;            // likewise: posted and not awaited
  std::vector<bool> is_under_way_, is_done_;  // by exchange; done: one of a gradient was posted
  std::vector<bool> holds_sum_;               // by state: a sum of leaves that nobody has taken
  std::vector<Window> windows_;
  std::int32_t num_forwards_ = 0, num_backwards_ = 0, layout_ = 0;
  bool is_updated_ = false;
  std::int32_t last_post_ = -1;  // in this entry
};

}  // namespace

void verify_schedule(const Program& program, std::span<const StepEntry> schedule) {
  ScheduleVerifier verifier(program);
  for (const StepEntry& entry : schedule) verifier.take(entry);
  verifier.end();
}

std::vector<StepEntry> schedule_of(const Program& program, std::int64_t num_micro_batches) {
  std::vector<StepEntry> schedule =
      spec::step_schedule(variant_places(program), num_micro_batches, program.leaves);
  verify_schedule(program, schedule);
  return schedule;
}

}  // namespace anabatic::runtime
