// SPDX-License-Identifier: Apache-2.0
#include "cli/verb.h"

#include <fmt/ranges.h>

#include <charconv>

#include "base/error.h"
#include "base/text.h"

namespace anabatic::cli {

const std::vector<const Verb*>& all_verbs() {
  static const std::vector<const Verb*> verbs{
      &data_verb(),   &tokenize_verb(), &train_verb(), &evaluate_verb(), &generate_verb(),
      &report_verb(), &plan_verb(),     &info_verb(),  &profile_verb(),  &bench_verb(),
      &doctor_verb(), &convert_verb(),  &lora_verb(),  &check_verb(),    &gradients_verb(),
      &new_op_verb(), &check_op_verb(), &help_verb()};
  return verbs;
}

const Verb& find_verb(std::string_view name) {
  std::vector<std::string> names;
  for (const Verb* verb : all_verbs()) {
    if (verb->name == name) return *verb;
    names.emplace_back(verb->name);
  }
  const auto nearest = nearest_word(name, names);
  throw InvalidArgument(fmt::format("[anabatic] expected one of the verbs {}, got '{}'{}",
                                    fmt::join(names, ", "), name,
                                    nearest ? fmt::format("; did you mean {}?", *nearest) : ""));
}

std::int64_t Invocation::integer(std::string_view option, std::int64_t fallback) const {
  if (!has(option)) return fallback;
  const std::string text = value(option);
  std::int64_t number = -1;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  ANABATIC_REQUIRE(error == std::errc{} && stop == text.data() + text.size() && number >= 0,
                   "[arguments] {}: expected an integer >= 0, got '{}'", option, text);
  return number;
}

}  // namespace anabatic::cli
