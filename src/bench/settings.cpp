// SPDX-License-Identifier: Apache-2.0
#include "bench/settings.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"
#include "base/text.h"

namespace anabatic::bench {
namespace {

constexpr std::array<SettingHelp, 31> kSettings{
    {{"batch", "attention, step: number of sequences"},
     {"blocks", "attention: keys of a block, of which rows see some; 0: rows see all keys"},
     {"density",
      "attention: with --blocks, about what share of the pairs rows see, in a causal sequence; "
      "sparse: share of the weights that are present"},
     {"documents", "attention: mean length of packed documents; 0 is one document a sequence"},
     {"dropout", "attention: the rate of dropout of its probabilities"},
     {"experts", "moe: number of experts; sparse: likewise, 0 for one weight of all rows"},
     {"head_dim", "attention, norm: width of a head of queries and keys"},
     {"heads", "attention: number of query heads"},
     {"hidden", "moe, loss: width of a token"},
     {"ignored", "loss: share of labels that are ignored"},
     {"in", "gemm, optimizer, quantize, sparse: columns of the weight"},
     {"intermediate", "moe: width of an expert's intermediate activation"},
     {"kv_heads", "attention: number of key and value heads; 0 is that of heads"},
     {"matrices", "optimizer: number of weights"},
     {"mib", "exchange: its size in MiB; 0 is 1, 16 and 64 in turn"},
     {"op",
      "norm: the op, one of rms_norm, residual, rope, swiglu, dropout, gather, norm_linear and "
      "dropout_linear"},
     {"out",
      "gemm, optimizer, quantize, sparse, norm (norm_linear, dropout_linear): rows of the weight"},
     {"outliers",
      "gemm: share of the blocks of 128 of the activation that have an element 1000 times as "
      "large"},
     {"pattern", "sparse: block32, block16, 2:4 or unstructured"},
     {"ranks", "exchange: number of ranks, as threads; under mpirun that of its processes"},
     {"rows", "gemm, norm, quantize, sparse: rows of the activation"},
     {"sequence", "attention, step: tokens of a sequence"},
     {"sinks", "attention: 1 for a sink a head; 0 for none"},
     {"tokens", "moe, loss: number of tokens"},
     {"top_k", "moe, norm (gather): experts for each token"},
     {"update_tokens", "optimizer: tokens of the batch that the gradient is of"},
     {"v_head_dim", "attention: width of a head of values; 0 is that of head_dim"},
     {"vocabulary", "loss: rows of the head"},
     {"width", "norm: columns of the activation"},
     {"window", "attention: number of keys that a query attends to; 0 is all"},
     {"zipf", "moe: exponent of the Zipf law of how often experts are chosen; 0 is uniform"}}};

template <class T>
T parse(std::string_view name, const std::string& text, const char* kind) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  ANABATIC_REQUIRE(error == std::errc{} && stop == end && !text.empty(),
                   "[bench] --{}: expected {}, got '{}'", name, kind, text);
  return value;
}

}  // namespace

std::span<const SettingHelp> all_settings() { return kSettings; }

const std::string* Settings::find(std::string_view name) const {
  ANABATIC_CHECK(std::any_of(kSettings.begin(), kSettings.end(),
                             [&](const SettingHelp& known) { return known.name == name; }),
                 "[bench] setting {} is not in the table", name);
  const auto found = given_.find(name);
  return found == given_.end() ? nullptr : &found->second;
}

std::int64_t Settings::integer(std::string_view name, std::int64_t fallback, std::int64_t least) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;  // products of two stay in 64 bits
  const std::string* text = find(name);
  const auto value = text ? parse<std::int64_t>(name, *text, "an integer") : fallback;
  ANABATIC_REQUIRE(value >= least && value < kMost,
                   "[bench] --{}: expected an integer in [{}, {}), got {}", name, least, kMost,
                   value);
  read_[std::string(name)] = std::to_string(value);
  return value;
}

double Settings::number(std::string_view name, double fallback, double least, double most) {
  const std::string* text = find(name);
  const auto value = text ? parse<double>(name, *text, "a number") : fallback;
  ANABATIC_REQUIRE(value >= least && value <= most,
                   "[bench] --{}: expected a number in [{}, {}], got {}", name, least, most, value);
  read_[std::string(name)] = fmt::format("{}", value);
  return value;
}

std::string Settings::word(std::string_view name, const std::vector<std::string>& choices) {
  const std::string* text = find(name);
  const std::string value = text ? *text : choices.front();
  std::string list;
  for (const std::string& choice : choices) list += (list.empty() ? "" : ", ") + choice;
  ANABATIC_REQUIRE(std::find(choices.begin(), choices.end(), value) != choices.end(),
                   "[bench] --{}: expected one of {}, got '{}'", name, list, value);
  return read_[std::string(name)] = value;
}

void Settings::require_all_read(std::string_view benchmark) const {
  std::vector<std::string> known;
  for (const auto& [name, value] : read_) known.push_back(name);
  for (const auto& [name, value] : given_) {
    const auto nearest = nearest_word(name, known);
    ANABATIC_REQUIRE(read_.contains(name), "[bench] {} has no setting --{}{}", benchmark, name,
                     nearest ? fmt::format("; did you mean --{}?", *nearest) : "");
  }
}

}  // namespace anabatic::bench
