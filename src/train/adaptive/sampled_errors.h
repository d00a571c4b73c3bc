// SPDX-License-Identifier: Apache-2.0
// How far products are off at each level of precision, of a sample of their elements. Eight rows of
// a result, drawn by counter, are computed once more while the step runs, in double from the
// operands ahead of quantising, and at each level by its definition (ARCHITECTURE.md, "Int8
// products"), whose bits every kernel has. Sixteen neighbouring columns of each row, one row in
// each eighth of them. No bit of the step changes.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/executor.h"
#include "runtime/state_store.h"
#include "train/adaptive/precision_controller.h"
#include "train/adaptive/product_calls.h"
#include "train/model_session.h"

namespace anabatic::device {
class ThreadTeam;
}

namespace anabatic::train {

class SampledErrors {
 public:
  static constexpr std::int64_t kRows = 8, kColumns = 8;

  // All of them outlive it. `fallback`: of int8 products. Draws are a function of (seed, step,
  // unit, product).
  SampledErrors(const BoundProgram& program, const ProductCalls& calls, runtime::StateStore& store,
                device::ThreadTeam& team, std::int64_t fallback, std::uint64_t seed);

  // Looks at the first micro-batch of the step that runs until end().
  void begin(std::int64_t step);
  void end();

  // Those of one product since begin(); nothing where it was not looked at: gradients in a head,
  // which stay within its kernel, and weights on disk.
  std::optional<LevelErrors> errors(std::size_t unit, spec::ProductRole role) const;

 private:
  // Σ (Y^ - Y)² by level, and Σ Y².
  struct Sums {
    LevelErrors errors{};
    double norm = 0;
    bool is_there = false;
  };
  static constexpr std::size_t kNumRoles = 3;

  static void before_call(void* context, const runtime::CallEvent& event);
  static void on_call(void*, const runtime::CallEvent&) {}
  void sample(const ProductCall& call, const ProductOperand& operand,
              const runtime::CallEvent& event, Sums& sums) const;
  Sums& sums_of(std::size_t unit, spec::ProductRole role) {
    return sums_[unit * kNumRoles + static_cast<std::size_t>(role)];
  }

  const BoundProgram& program_;
  const ProductCalls& calls_;
  runtime::StateStore& store_;
  device::ThreadTeam& team_;
  const int fallback_;
  const std::uint64_t seed_;
  std::vector<std::int32_t> by_call_;  // of Program::calls: into calls_.calls(); -1: none
  std::vector<Sums> sums_;             // [units, roles]
  std::int64_t step_ = 0;
};

}  // namespace anabatic::train
