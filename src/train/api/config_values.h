// SPDX-License-Identifier: Apache-2.0
// Fields of anabatic::Config as the text that their keys take, one overload a type. For to_settings
// and its tests alone.
#pragma once
#include <initializer_list>

#include "anabatic/config.h"

namespace anabatic::train {

// Every key with its value, a default or not. tools/print_config writes the definition.
Settings all_settings(const Config& config);

using Texts = std::vector<std::string>;
using Words = std::initializer_list<const char*>;

Texts values(std::int64_t value);
Texts values(double value);
Texts values(bool value);
Texts values(const std::string& value);
Texts values(const std::vector<std::string>& value);
Texts values(const std::vector<double>& value);
Texts values(const std::map<std::string, std::string>& value);

template <class T>
Texts values(const std::optional<T>& value, const char* word_of_nothing) {
  return value ? values(*value) : Texts{word_of_nothing};
}

// The word at a place; beyond them the place itself, which the key refuses by name.
Texts word_at(std::size_t place, Words words);

template <class Enum>
Texts values(Enum value, Words words) {
  return word_at(static_cast<std::size_t>(value), words);
}

template <class Enum, class Number>
Texts values(const std::variant<Enum, Number>& value, Words words) {
  const Enum* word = std::get_if<Enum>(&value);
  return word != nullptr ? values(*word, words) : values(std::get<Number>(value));
}

}  // namespace anabatic::train
