// SPDX-License-Identifier: Apache-2.0
// Which calls of a training program are products of which weights.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lower/call_info.h"
#include "lower/compile.h"

namespace anabatic::train {

inline constexpr std::array kProductRoles{spec::ProductRole::kForward,
                                          spec::ProductRole::kInputGradient,
                                          spec::ProductRole::kWeightGradient};

// A weight with its products, by which precision is chosen, counted and printed.
struct ProductUnit {
  std::string name;                 // the weight's, without ".weight": "layers.3.experts.down"
  Name parameter{};                 // the state
  std::int64_t rows = 0;            // of its forward: tokens, or tokens times the experts of each
  std::int64_t elements_a_row = 0;  // that multiply a row: of one expert's matrix
  std::size_t group = 0;            // the first unit whose forward multiplies the same x
  bool is_head = false;             // with its loss: one call computes all products, as kForward
  struct Product {
    bool is_there = false, is_int8 = false;
  };
  std::array<Product, kProductRoles.size()> products{};  // by role

  Product& product(spec::ProductRole role) { return products[static_cast<std::size_t>(role)]; }
  const Product& product(spec::ProductRole role) const {
    return products[static_cast<std::size_t>(role)];
  }
};

struct ProductOperand {
  std::size_t unit = 0;
  // Where the weight is among the inputs, or in a weight gradient dy; and what multiplies it.
  std::size_t input = 0, rows_input = 0;
};

struct ProductCall {
  std::int32_t call = 0;  // into Program::calls
  spec::Action action{};
  spec::ProductRole role{};
  bool is_grouped = false, is_head = false, is_int8 = false;
  std::vector<ProductOperand> operands;
};

class ProductCalls {
 public:
  explicit ProductCalls(const lower::Compiled& compiled);

  // In the order of the forward.
  const std::vector<ProductUnit>& units() const { return units_; }
  // In the order of Program::calls. Those of recomputed nodes too.
  const std::vector<ProductCall>& calls() const { return calls_; }

 private:
  std::vector<ProductUnit> units_;
  std::vector<ProductCall> calls_;
};

}  // namespace anabatic::train
