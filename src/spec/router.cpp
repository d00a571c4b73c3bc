// SPDX-License-Identifier: Apache-2.0
#include "spec/router.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/error.h"

namespace anabatic::spec {
namespace {

// In the order of their enums.
using Words = std::array<std::string_view, 2>;
constexpr Words kScores{"softmax", "sigmoid"}, kGroupScores{"max", "top2"},
    kBarred{"excluded", "zero"};

// What a weight follows from, then what only the choice does.
constexpr std::array<std::string_view, 9> kRouterKeys{
    "epsilon", "floor", "scale", "score", "barred", "bias", "group_score", "group_top_k", "groups"};
constexpr std::size_t kGradientKeys = 4;

template <class Enum>
void read_word(const Attributes& attributes, std::string_view key, const Words& words,
               Enum& value) {
  if (attributes.find(key) == attributes.end()) return;
  const std::string& word = get_string(attributes, key);
  const auto found = std::find(words.begin(), words.end(), word);
  ANABATIC_REQUIRE(found != words.end(), "[router] expected '{}' to be {} or {}, got '{}'", key,
                   words[0], words[1], word);
  value = static_cast<Enum>(found - words.begin());
}

template <class Enum>
std::string word_of(const Words& words, Enum value) {
  return std::string(words[static_cast<std::size_t>(value)]);
}

}  // namespace

RouterForm router_of(const Attributes& attributes) {
  RouterForm form;
  form.top_k = get_int_or(attributes, "top_k", form.top_k);
  form.has_bias = get_bool_or(attributes, "bias", form.has_bias);
  form.groups = get_int_or(attributes, "groups", form.groups);
  form.group_top_k = get_int_or(attributes, "group_top_k", form.group_top_k);
  form.normalizes = get_bool(attributes, "normalize");
  form.epsilon = get_double_or(attributes, "epsilon", form.epsilon);
  form.floor = get_double_or(attributes, "floor", form.floor);
  form.scale = get_double_or(attributes, "scale", form.scale);
  read_word(attributes, "score", kScores, form.score);
  read_word(attributes, "group_score", kGroupScores, form.group_score);
  read_word(attributes, "barred", kBarred, form.barred);
  return form;
}

Attributes gradient_attributes(const RouterForm& form) {
  Attributes attributes{{"normalize", form.normalizes}};
  if (form.score != RouterScore::kSoftmax) attributes["score"] = word_of(kScores, form.score);
  if (form.epsilon != 0) attributes["epsilon"] = form.epsilon;
  if (form.floor != 0) attributes["floor"] = form.floor;
  if (form.scale != 1) attributes["scale"] = form.scale;
  return attributes;
}

Attributes to_attributes(const RouterForm& form) {
  Attributes attributes = gradient_attributes(form);
  attributes["top_k"] = form.top_k;
  if (form.has_bias) attributes["bias"] = true;
  if (form.groups == 1) return attributes;
  attributes["groups"] = form.groups;
  attributes["group_top_k"] = form.group_top_k;
  if (form.group_score != GroupScore::kMax)
    attributes["group_score"] = word_of(kGroupScores, form.group_score);
  if (form.barred != BarredExperts::kExcluded) attributes["barred"] = word_of(kBarred, form.barred);
  return attributes;
}

std::span<const std::string_view> optional_router_keys() { return kRouterKeys; }
std::span<const std::string_view> optional_router_gradient_keys() {
  return std::span(kRouterKeys).first(kGradientKeys);
}

}  // namespace anabatic::spec
