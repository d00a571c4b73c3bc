// SPDX-License-Identifier: Apache-2.0
// A tensor of weights as safetensors hold it: numbers, F8_E4M3 with a scale for each block of
// 128 x 128, or MXFP4. Whatever the storage, its elements are read as f32.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"
#include "io/safetensors_writer.h"

namespace anabatic::model {

// Spellings name MXFP4 tensors by their blocks, "X_blocks" [.., rows, columns / 32, 16]. Then
// "X_scales" [.., rows, columns / 32] has the scales, and the shape of a map is [.., rows,
// columns]. F8_E4M3 is told by its dtype: "X_scale_inv" has the scales of "X".
bool names_blocks(std::string_view tensor);
std::string scales_name(std::string_view tensor);  // of such blocks; "" of another tensor

struct StoredTensor {
  const io::TensorEntry* elements = nullptr;
  const io::TensorEntry* scales = nullptr;  // null where elements are numbers of a dtype of weights

  bool is_fp8() const;
  bool is_mxfp4() const;
  bool is_quantised() const { return is_fp8() || is_mxfp4(); }
  // That of the file, or bf16 where it is quantised.
  DType export_dtype() const;

  // Elements [first, first + values.size()), row-major.
  void read(std::int64_t first, std::span<float> values) const;
  // The bytes that hold so many elements; the scales lie elsewhere.
  std::span<const std::byte> bytes_of(std::int64_t first, std::int64_t count) const;
};

std::string shape_text(const std::vector<std::int64_t>& shape);  // "[2,3]"

// Looked up but not checked: a member is null where the files lack it.
StoredTensor find_stored(const io::SafetensorsDirectory& files, const std::string& name);
// What keeps it from being a tensor of weights of this shape, a line each.
std::vector<std::string> storage_problems(const StoredTensor& stored, const std::string& name,
                                          const std::vector<std::int64_t>& shape);
// What files hold of a tensor of weights: itself, or where its name says so blocks and their
// scales. InvalidArgument where MXFP4 cannot have the shape.
std::vector<io::TensorInfo> stored_infos(const std::string& name, DType dtype,
                                         const std::vector<std::int64_t>& shape);
// The bytes of values in those tensors; `scales` stays empty where there are none. In MXFP4 values
// are whole groups of kMxfp4Group elements.
inline constexpr std::int64_t kMxfp4Group = 32;
void to_stored(const std::string& name, DType dtype, std::span<const float> values,
               std::vector<std::byte>& elements, std::vector<std::byte>& scales);

// What is wrong about a tensor that holds scales of nothing; "" where it does not look like one.
std::string stray_scales_problem(const io::SafetensorsDirectory& files,
                                 const io::TensorEntry& entry);
// How many weights the bytes of an entry stand for, of whichever storage; 0: none.
std::int64_t num_weights(const io::TensorEntry& entry);

}  // namespace anabatic::model
