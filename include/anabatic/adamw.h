// SPDX-License-Identifier: Apache-2.0
// AdamW on parameters of a host program: the update of torch.optim.AdamW in one sweep over memory.
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "anabatic/export.h"
#include "anabatic/layers.h"

namespace anabatic {

enum class AdamWMoments : std::uint8_t {
  kFloat32,
  kBFloat16,  // rounded stochastically
  kInt8       // in blocks of 16 x 16 with a scale each
};

// A parameter as a matrix of `rows` x `columns`, row-major; a stack of matrices or a vector is one
// too. None of the buffers overlaps another.
struct AdamWParameter {
  float* value = nullptr;
  const float* gradient = nullptr;
  // As AdamWNumbers::moments says. Those in 8 bits begin at multiples of 64 bytes.
  void *first_moment = nullptr, *second_moment = nullptr;
  std::int64_t rows = 0, columns = 0;
  std::int64_t stream = 0;  // of random numbers that round bf16 moments: another one a parameter
};

struct AdamWNumbers {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01;
  AdamWMoments moments = AdamWMoments::kFloat32;
};

// The size of one moment of a parameter. All bytes zero stand for zeroes.
ANABATIC_API std::int64_t adamw_moment_bytes(AdamWMoments moments, std::int64_t rows,
                                             std::int64_t columns);

enum class AdamWMoment : std::uint8_t { kFirst, kSecond };
// Values of a moment in 8 bits, and the other way round, to the nearest value that it can have.
ANABATIC_API void decode_moment(AdamWMoment which, const void* moment, float* values,
                                std::int64_t rows, std::int64_t columns);
ANABATIC_API void encode_moment(AdamWMoment which, const float* values, void* moment,
                                std::int64_t rows, std::int64_t columns);

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
