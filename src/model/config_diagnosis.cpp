// SPDX-License-Identifier: Apache-2.0
#include "model/config_diagnosis.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <tuple>

#include "base/json.h"
#include "model/config_reading.h"

namespace anabatic::model {
namespace {

// Letters and digits of a name, in lower case: the class of a family has the same ones at its
// start.
std::string plain(std::string_view name) {
  std::string letters;
  for (const char c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return letters;
}

// How many characters a family's name has in common with the model's or its class's, at the start.
int likeness(const Family& family, const Json& json, const std::string& model_type) {
  constexpr std::ptrdiff_t kLeast = 4;  // fewer are chance
  std::vector<std::string> names{plain(model_type)};
  if (const auto classes = json.find("architectures"); classes != json.end() && classes->is_array())
    for (const Json& name : *classes)
      if (name.is_string()) names.push_back(plain(name.get<std::string>()));
  const std::string own = plain(family.model_type);
  std::ptrdiff_t most = 0;
  for (const std::string& name : names)
    most = std::max(most, std::ranges::mismatch(name, own).in1 - name.begin());
  return most < kLeast ? 0 : static_cast<int>(most);
}

struct Candidate {
  ConfigDiagnosis diagnosis;
  std::size_t num_assumed = 0;
  int likeness = 0;

  std::size_t num_hindrances() const {
    return diagnosis.problems.size() + diagnosis.unknown.size();
  }
  // Smaller is nearer.
  auto rank() const { return std::tuple(num_hindrances(), -likeness, num_assumed); }
};

Candidate candidate_of(const Family& family, const Json& json, const std::string& model_type) {
  const ConfigReading reading = read_config_as(family, json);
  Candidate candidate{.diagnosis = {.model_type = model_type,
                                    .family = std::string(family.model_type),
                                    .problems = reading.reader.invalid_problems(),
                                    .unknown = reading.ignored},
                      .num_assumed = reading.reader.num_absent_keys(),
                      .likeness = likeness(family, json, model_type)};
  const std::vector<std::string>& unsupported = reading.reader.unsupported_problems();
  std::vector<std::string>& problems = candidate.diagnosis.problems;
  problems.insert(problems.end(), unsupported.begin(), unsupported.end());
  return candidate;
}

}  // namespace

ConfigDiagnosis diagnose_config(const std::filesystem::path& directory_or_file) {
  const Json json = read_config_json(directory_or_file);
  const auto type = json.find("model_type");
  const std::string model_type =
      type != json.end() && type->is_string() ? type->get<std::string>() : "";
  if (const Family* family = family_of(json)) {
    ConfigDiagnosis diagnosis = candidate_of(*family, json, model_type).diagnosis;
    diagnosis.is_known = true;
    return diagnosis;
  }
  std::optional<Candidate> nearest;
  std::optional<std::vector<std::string>> unknown_to_all;
  for (const Family* family : families()) {
    Candidate candidate = candidate_of(*family, json, model_type);
    const std::vector<std::string>& unknown = candidate.diagnosis.unknown;
    if (!unknown_to_all) unknown_to_all = unknown;
    std::erase_if(*unknown_to_all, [&](const std::string& key) {
      return std::ranges::find(unknown, key) == unknown.end();
    });
    if (!nearest || candidate.rank() < nearest->rank()) nearest = std::move(candidate);
  }
  if (2 * nearest->num_hindrances() <= json.size()) return nearest->diagnosis;
  return {.model_type = model_type, .unknown = *unknown_to_all};
}

}  // namespace anabatic::model
