// SPDX-License-Identifier: Apache-2.0
// Tensors that tests own: aligned bytes between guard zones, and plain values in double.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "tensor/tensor_type.h"

namespace anabatic::testing {

// The content of a tensor as doubles: exact for every dtype that kernels take. A quantised tensor
// has its elements, then its scales. What else a tensor holds follows from these.
struct Values {
  TensorType type;
  std::vector<double> data;
};

// A buffer of 64-byte aligned bytes with 64 guard bytes on both sides. Starts zeroed.
class GuardedBytes {
 public:
  explicit GuardedBytes(std::size_t size);
  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  void poison() const;  // all bits one: NaN in every float dtype, -1 in i32
  bool guards_intact() const;

 private:
  std::unique_ptr<std::byte[]> storage_;
  std::byte* data_;
  std::size_t size_;
};

class HostTensor {
 public:
  explicit HostTensor(TensorType type);
  explicit HostTensor(const Values& values);

  const TensorType& type() const { return *type_; }
  TensorView view() const { return {bytes_.data(), type_.get()}; }
  const GuardedBytes& bytes() const { return bytes_; }
  std::int64_t size() const;  // elements and scales
  double get(std::int64_t i) const;
  void set(std::int64_t i, double value);  // rounded to nearest even
  Values values() const;
  // Whether what lies beyond the sides of panels is zero.
  bool padding_is_zero() const;
  HostTensor clone() const;
  // Between the parts of a quantised tensor may be bytes of no value.
  bool same_bits(const HostTensor& other) const;
  std::span<const std::byte> value_bytes(std::int64_t i) const;

 private:
  struct Place {
    DType dtype;
    std::byte* data;
    int shift = -1;  // of an element of 4 bits: where it begins in its byte
  };
  Place place(std::int64_t i) const;
  // The compensations of int8 panels, which are zero before.
  void sum_lines() const;

  std::unique_ptr<TensorType> type_;
  std::int64_t num_elements_;
  GuardedBytes bytes_;
};

// The dtype of element or scale i.
DType dtype_at(const TensorType& type, std::size_t i);

bool is_float(DType dtype);
TensorType with_dtype(TensorType type, DType dtype);

}  // namespace anabatic::testing
