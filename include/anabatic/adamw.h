// SPDX-License-Identifier: Apache-2.0
// AdamW on parameters of a host program: the update of torch.optim.AdamW in one sweep over memory.
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "anabatic/export.h"
#include "anabatic/layers.h"

namespace anabatic {

// A parameter as a matrix of `rows` x `columns`, row-major; a stack of matrices or a vector is one
// too. None of the buffers overlaps another.
struct AdamWParameter {
  float* value = nullptr;
  const float* gradient = nullptr;
  void *first_moment = nullptr, *second_moment = nullptr;  // as AdamWNumbers::moments says
  std::int64_t rows = 0, columns = 0;
  std::int64_t stream = 0;  // of random numbers that round bf16 moments: another one a parameter
};

struct AdamWNumbers {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01;
  LayerDtype moments = LayerDtype::kFloat32;  // or kBFloat16, rounded stochastically
};

class ANABATIC_API AdamW {
 public:
  // On `threads` threads of its own or of `host`, as LayerOptions has them.
  explicit AdamW(int threads = 1, LayerHostRun host = nullptr);
  ~AdamW();
  AdamW(const AdamW&) = delete;
  AdamW& operator=(const AdamW&) = delete;

  // The sum of squares of all gradients. Equal bits for any number of threads.
  double sum_squares(std::span<const AdamWParameter> parameters);

  // The step of that number, 1 for the first. Gradients are multiplied by clip_factor. Where that
  // is not finite, nothing changes. InvalidArgument for a number that is out of range.
  void update(std::span<const AdamWParameter> parameters, const AdamWNumbers& numbers,
              double learning_rate, std::int64_t step, double clip_factor = 1);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace anabatic
