// SPDX-License-Identifier: Apache-2.0
#include "cli/adapter_base.h"

#include <filesystem>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "model/lora/peft_config.h"

namespace anabatic::cli {

std::string adapter_base(const Invocation& invocation, const std::string& adapter) {
  if (const auto given = invocation.overrides.find("model.path");
      given != invocation.overrides.end())
    return given->second.at(0);
  const std::string place = fmt::format("[lora] {}", adapter);
  const Json json = parse_json_object(
      read_file(std::filesystem::path(adapter) / model::kAdapterConfig, std::int64_t{1} << 24),
      place);
  const auto base = json.find("base_model_name_or_path");
  std::error_code ignored;
  ANABATIC_REQUIRE(base != json.end() && base->is_string() &&
                       std::filesystem::exists(base->get<std::string>(), ignored),
                   "[lora] --model.path: expected the model below {}, got none, and {} names no "
                   "directory that is there",
                   adapter, model::kAdapterConfig);
  return base->get<std::string>();
}

}  // namespace anabatic::cli
