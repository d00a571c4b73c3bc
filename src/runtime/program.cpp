// SPDX-License-Identifier: Apache-2.0
#include "runtime/program.h"

#include <fmt/core.h>

#include <algorithm>

namespace anabatic::runtime {
namespace {

std::string print(const Program& program, const Operand& operand) {
  std::string place;
  switch (operand.arena) {
    case Arena::kPersistent:
      place = text(program.states[static_cast<std::size_t>(operand.state)].name);
      break;
    case Arena::kFrame:
      place = fmt::format("frame+{}", operand.offset);
      break;
    case Arena::kGradient:
      place = fmt::format("gradient+{}", operand.offset);
      break;
    case Arena::kInput:
      place = fmt::format("input+{}", operand.offset);
      break;
    case Arena::kExternal:
      place = fmt::format("external+{}", operand.offset);
      break;
  }
  return place + " " + to_string(operand.type);
}

std::string print(const Program& program, const Call& call) {
  std::string line = fmt::format("    {} | {} (", call.label, call.kernel->name);
  for (std::size_t i = 0; i < call.inputs.size(); ++i)
    line += (i ? ", " : "") + print(program, call.inputs[i]);
  line += ") ->";
  for (std::size_t i = 0; i < call.outputs.size(); ++i)
    line += fmt::format("{} {} {}", i ? "," : "", call.adds[i] ? "+=" : "=",
                        print(program, call.outputs[i]));
  for (const auto& [key, value] : call.attributes)
    line += fmt::format(" {}={}", key, spec::to_string(value));
  if (call.workspace_bytes > 0)
    line += fmt::format(" workspace {}+{} {} bytes",
                        call.workspace_arena == Arena::kGradient ? "gradient" : "frame",
                        call.workspace_offset, call.workspace_bytes);
  return line;
}

std::string print(const Program& program, const SwapPoint& point) {
  constexpr std::string_view kSteps[] = {"write", "read", "await write of", "await read of"};
  const SwapWindow& window = program.windows[static_cast<std::size_t>(point.window)];
  const std::string_view name =
      window.state >= 0 ? text(program.states[static_cast<std::size_t>(window.state)].name)
                        : program.regions[static_cast<std::size_t>(window.region)].name;
  return fmt::format("    {} {} frame+{}", kSteps[static_cast<std::size_t>(point.step)], name,
                     window.offset);
}

std::string print(const Program& program, const ExchangePoint& point) {
  const Exchange& exchange = program.exchanges[static_cast<std::size_t>(point.exchange)];
  return fmt::format("    {} exchange {} {} | {} over {}",
                     point.step == ExchangeStep::kPost ? "post" : "await", point.exchange,
                     exchange.label, print(program, exchange.buffer),
                     spec::to_string(exchange.group));
}

std::string where(spec::Places places) { return fmt::format(" in {{{}}}", to_string(places)); }

// A line for each call of an action in a layout, and for each transfer before it.
class Listing {
 public:
  Listing(const Program& program, const std::vector<Variant>& variants, std::int32_t layout)
      : program_(program), moves_(program.calls.size() + 1) {
    for (const Variant& variant : variants) {
      if (variant.layout != layout) continue;
      all_ = all_ | variant.places;
      for (const std::int32_t call : variant.calls) calls_[call] = calls_[call] | variant.places;
      // As the executor: exchanges, then windows.
      for (const ExchangePoint& point : variant.exchange_points)
        add(variant, point.call, print(program, point));
      for (const SwapPoint& point : variant.swap_points)
        add(variant, point.call, print(program, point));
    }
  }

  spec::Places places() const { return all_; }

  std::string text() const {
    std::string result;
    for (const auto& [call, places] : calls_)
      result += moves_ahead_of(static_cast<std::size_t>(call)) +
                line(print(program_, program_.calls[static_cast<std::size_t>(call)]), places);
    return result + moves_ahead_of(program_.calls.size());
  }

 private:
  struct Move {
    std::string text;
    spec::Places places;
  };

  void add(const Variant& variant, std::int32_t call, std::string text) {
    const auto at = static_cast<std::size_t>(call);
    const bool is_behind = at == variant.calls.size();
    std::vector<Move>& moves =
        moves_[is_behind ? program_.calls.size() : static_cast<std::size_t>(variant.calls[at])];
    const auto known = std::ranges::find(moves, text, &Move::text);
    if (known == moves.end())
      moves.push_back({std::move(text), variant.places});
    else
      known->places = known->places | variant.places;
  }

  std::string moves_ahead_of(std::size_t call) const {
    std::string result;
    for (const Move& move : moves_[call]) result += line(move.text, move.places);
    return result;
  }

  std::string line(const std::string& text, spec::Places places) const {
    return text + (places == all_ ? "" : where(places)) + "\n";
  }

  const Program& program_;
  spec::Places all_{};
  std::map<std::int32_t, spec::Places> calls_{};  // by index into Program::calls
  std::vector<std::vector<Move>> moves_;          // before each call; the last: after all
};

std::string print_layout(const Program& program, std::size_t layout) {
  const std::string suffix = layout == 0 ? "" : fmt::format(" of layout {}", layout);
  std::string result;
  for (const NamedOperand& output : program.layouts[layout].outputs)
    result +=
        fmt::format("  output {} {}{}\n", output.name, print(program, output.operand), suffix);
  for (const auto& [action, variants] : program.variants) {
    const Listing listing(program, variants, static_cast<std::int32_t>(layout));
    if (listing.places().is_empty()) continue;
    const bool is_everywhere = program.layouts.size() == 1 || action == Action::kUpdate;
    result += fmt::format("  {}{}{} {{\n{}  }}\n", spec::to_string(action), suffix,
                          is_everywhere ? "" : where(listing.places()), listing.text());
  }
  return result;
}

}  // namespace

spec::VariantPlaces variant_places(const Program& program) {
  spec::VariantPlaces result;
  for (const auto& [action, variants] : program.variants)
    for (const Variant& variant : variants) result[action].push_back(variant.places);
  return result;
}

StepEntry lone_entry(const Program& program, Action action) {
  return spec::step_entry(variant_places(program), action, 0, 1);
}

std::string print(const Program& program) {
  std::string result =
      fmt::format("program {{\n  bytes frame {} gradient {} input {}\n", program.frame_bytes,
                  program.gradient_bytes, program.input_bytes);
  for (const StateSlot& state : program.states)
    result += fmt::format("  state {} {}{}\n", text(state.name), to_string(state.type),
                          state.is_on_disk ? " on disk" : "");
  for (const SwapRegion& region : program.regions)
    result += fmt::format("  offloaded {} {} bytes\n", region.name, region.bytes);
  for (const NamedOperand& input : program.inputs)
    result += fmt::format("  input {} {}\n", input.name, print(program, input.operand));
  for (std::size_t layout = 0; layout < program.layouts.size(); ++layout)
    result += print_layout(program, layout);
  return result + "}\n";
}

}  // namespace anabatic::runtime
