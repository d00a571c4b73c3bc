// SPDX-License-Identifier: Apache-2.0
// A plain function, or one with a context that it is called with first. Unlike std::function it is
// a constant, so that tables of our own functions stay constants.
#pragma once
#include <concepts>
#include <cstddef>
#include <functional>
#include <utility>

namespace anabatic {

template <class Signature>
class Function;

template <class Result, class... Arguments>
class Function<Result(Arguments...)> {
 public:
  using Plain = Result (*)(Arguments...);

  constexpr Function() = default;
  constexpr Function(std::nullptr_t) {}
  constexpr Function(Plain function) : plain_(function) {}
  // A lambda that captures nothing.
  template <std::convertible_to<Plain> Callable>
  constexpr Function(Callable callable) : plain_(callable) {}

  // Calls `callable`, a function of the context or a member of it. The context must outlive every
  // copy.
  template <auto callable, class Context>
  static Function bind(const Context& context) {
    Function result;
    result.context_ = &context;
    result.bound_ = [](const void* of, Arguments... arguments) -> Result {
      return std::invoke(callable, *static_cast<const Context*>(of),
                         std::forward<Arguments>(arguments)...);
    };
    return result;
  }

  Result operator()(Arguments... arguments) const {
    return bound_ != nullptr ? bound_(context_, std::forward<Arguments>(arguments)...)
                             : plain_(std::forward<Arguments>(arguments)...);
  }

  explicit constexpr operator bool() const { return plain_ != nullptr || bound_ != nullptr; }
  friend constexpr bool operator==(const Function& function, std::nullptr_t) {
    return !static_cast<bool>(function);
  }

 private:
  Plain plain_ = nullptr;
  Result (*bound_)(const void* context, Arguments...) = nullptr;
  const void* context_ = nullptr;
};

}  // namespace anabatic
