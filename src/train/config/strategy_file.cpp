// SPDX-License-Identifier: Apache-2.0
#include "train/config/strategy_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json.h"
#include "base/json_node.h"
#include "base/text.h"
#include "train/config/parallel_keys.h"

namespace anabatic::train {
namespace {

struct SizeKey {
  std::string_view name, key;
};
constexpr std::array kSizes{SizeKey{"data_parallel", "parallel.data"},
                            SizeKey{"tensor_parallel", "parallel.tensor"},
                            SizeKey{"model_parallel", "parallel.tensor"},
                            SizeKey{"pipeline_parallel", "parallel.pipeline"},
                            SizeKey{"expert_parallel", "parallel.expert"},
                            SizeKey{"context_parallel", "parallel.context"}};
constexpr std::string_view kMode = "tensor_parallel_mode";
constexpr std::string_view kRowSplit = "row_split";

class StrategyReader {
 public:
  StrategyReader(const std::filesystem::path& file, std::vector<std::string>& problems)
      : file_(file.string()), problems_(problems) {}

  void add(const std::string& name, const Json& value) {
    if (std::ranges::count(seen_, name) != 0) return refuse(name + ": given twice");
    seen_.push_back(name);
    const JsonNode node(value, file_, name);
    const auto known = std::ranges::find(kSizes, name, &SizeKey::name);
    try {
      if (known != kSizes.end())
        add_size({name, std::string(known->key), node.as_integer(1, kMostRanks)});
      else if (name == kMode)
        check_mode(node);
      else
        refuse(unknown(name));
    } catch (const InvalidArgument& error) {
      problems_.push_back(fmt::format("parallel.strategy: {}", error.what()));
    }
  }

  void refuse(const std::string& what) {
    problems_.push_back(fmt::format("parallel.strategy: {}: {}", file_, what));
  }

  std::vector<StrategySize> sizes;

 private:
  // Two names may stand for one key.
  void add_size(const StrategySize& size) {
    const auto other = std::ranges::find(sizes, size.key, &StrategySize::key);
    if (other == sizes.end())
      sizes.push_back(size);
    else if (other->size != size.size)
      refuse(fmt::format("{}: expected {} as {} has it, got {}", size.name, other->size,
                         other->name, size.size));
  }

  // The one form in which matrices are cut.
  static void check_mode(const JsonNode& node) {
    if (node.as_string() != kRowSplit) node.refuse(fmt::format("\"{}\"", kRowSplit));
  }

  static std::string unknown(const std::string& name) {
    std::vector<std::string> names{std::string(kMode)};
    for (const SizeKey& size : kSizes) names.emplace_back(size.name);
    const auto nearest = nearest_word(name, names);
    return nearest ? fmt::format("{}: unknown key; did you mean {}?", name, *nearest)
                   : fmt::format("{}: unknown key", name);
  }

  std::string file_;
  std::vector<std::string>& problems_;
  std::vector<std::string> seen_;
};

}  // namespace

std::vector<StrategySize> read_strategy(const std::filesystem::path& file,
                                        std::vector<std::string>& problems) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 20;
  constexpr int kMostDeep = 16;
  StrategyReader reader(file, problems);
  try {
    const bool is_object = visit_members(
        read_file(file, kMostBytes), kMostDeep,
        {.member = [&](const std::string& name, const Json& value) { reader.add(name, value); },
         .double_name = [](const std::string&) {}});
    if (!is_object) reader.refuse("expected a JSON object");
  } catch (const Json::parse_error& error) {
    reader.refuse(error.what());
  } catch (const Error& error) {
    reader.refuse(error.what());
  }
  return reader.sizes;
}

}  // namespace anabatic::train
