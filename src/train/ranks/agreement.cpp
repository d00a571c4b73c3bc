// SPDX-License-Identifier: Apache-2.0
#include "train/ranks/agreement.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "base/philox.h"
#include "base/text.h"
#include "comm/methods.h"
#include "train/checkpoint/run_lock.h"
#include "train/plan_file.h"

namespace anabatic::train {
namespace {

constexpr std::string_view kPlace = "[ranks] the first rank's decisions";

// The first line that differs, of both texts; empty where none does.
std::string first_difference(std::string_view expected, std::string_view found) {
  const auto take_line = [](std::string_view& text) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    return line.empty() ? std::string_view("nothing") : line;
  };
  while (!expected.empty() || !found.empty()) {
    const std::string_view of_first = take_line(expected), own = take_line(found);
    if (of_first != own) return fmt::format("expected {}, got {}", of_first, own);
  }
  return "";
}

}  // namespace

std::string exchanges_of(const lower::Compiled& training) {
  const runtime::Program& program = training.program;
  std::string text;
  for (const auto& [action, variants] : program.variants)
    for (const runtime::Variant& variant : variants)
      for (const runtime::ExchangePoint& point : variant.exchange_points) {
        const bool is_post = point.step == runtime::ExchangeStep::kPost;
        const runtime::Exchange& exchange =
            program.exchanges[static_cast<std::size_t>(point.exchange)];
        text +=
            fmt::format("{} {} {} {} {} by {} over {}, {}: {}\n", to_string(action),
                        to_string(variant.places), is_post ? "posts" : "awaits", point.exchange,
                        to_string(exchange.kind), comm::to_string(exchange.method),
                        to_string(exchange.group), to_string(exchange.buffer.type), exchange.label);
      }
  return text;
}

Agreement agreement_of(const RunConfig& run, const lower::Compiled& training) {
  return {.run = to_yaml(run),
          .decisions = training.memory.decisions,
          .exchanges = exchanges_of(training),
          .owner = owner_of(run.train.output)};
}

std::uint64_t hash_of(const lower::Compiled& training) { return stream_of(exchanges_of(training)); }

void tell(StepSums& sums, const Agreement& agreement) {
  const OrderedJson json{{"run", agreement.run},
                         {"decisions", to_json(agreement.decisions)},
                         {"exchanges", agreement.exchanges},
                         {"measured", to_json(agreement.measured)},
                         {"owner", agreement.owner},
                         {"checkpoint", agreement.checkpoint},
                         {"first_step", agreement.first_step}};
  std::string text = dump_json(json, -1);
  (void)sums.begin(0, 0, Verdict::kTellsAll);
  sums.broadcast(text);
}

Agreement hear(StepSums& sums) {
  std::string text;
  ANABATIC_CHECK(sums.begin(0, 0, Verdict::kTellsAll) == Verdict::kTellsAll,
                 "[ranks] the first rank decides nothing");
  sums.broadcast(text);
  const Json json = parse_json_object(text, kPlace);
  const JsonNode top(json, std::string(kPlace));
  return {.run = top.at("run").as_string(),
          .decisions = read_decisions(top.at("decisions")),
          .exchanges = top.at("exchanges").as_string(),
          .measured = read_measured(top.at("measured")),
          .owner = top.at("owner").as_string(),
          .checkpoint = top.at("checkpoint").as_string(),
          .first_step = top.at("first_step").as_integer(1)};
}

void require_same(const Agreement& agreement, const RunConfig& run, std::int32_t rank) {
  const std::string difference = first_difference(agreement.run, to_yaml(run));
  ANABATIC_REQUIRE(difference.empty(),
                   "[ranks] rank {}: expected the run config of the first rank: {}", rank,
                   difference);
  const std::string owner = owner_of(run.train.output);
  if (owner == agreement.owner) return;
  std::array<char, 256> host{};
  (void)::gethostname(host.data(), host.size() - 1);
  throw ResourceError(fmt::format(
      "[ranks] train.output: expected one directory that all ranks see, {} of {}; on host {} rank "
      "{} finds {} there",
      run.train.output, agreement.owner, host.data(), rank, owner.empty() ? "no run" : owner));
}

void require_same(const Agreement& agreement, const lower::Compiled& training, std::int32_t rank) {
  const std::string difference = first_difference(agreement.exchanges, exchanges_of(training));
  ANABATIC_REQUIRE(difference.empty(),
                   "[ranks] rank {}: expected the exchanges of the first rank: {}", rank,
                   difference);
}

}  // namespace anabatic::train
