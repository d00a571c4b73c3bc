// SPDX-License-Identifier: Apache-2.0
// A tensor of weights as safetensors hold it: numbers, F8_E4M3 with a scale for each block of
// 128 x 128, or MXFP4. Whatever the storage, its elements are read as f32.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "model/weights.h"
#include "tensor/weight_grid.h"

namespace anabatic::model {

// Spellings name MXFP4 tensors by their blocks, "X_blocks" [.., rows, columns / 32, 16]. Then
// "X_scales" [.., rows, columns / 32] has the scales, and the shape of a map is [.., rows,
// columns]. F8_E4M3 is told by its dtype: "X_scale_inv" has the scales of "X". A packed matrix is
// told by "X_packed" in place of "X".
bool names_blocks(std::string_view tensor);
std::string scales_name(std::string_view tensor);  // of such blocks; "" of another tensor

struct StoredTensor {
  const io::TensorEntry* elements = nullptr;
  const io::TensorEntry* scales = nullptr;  // null where elements are numbers of a dtype of weights
  const io::TensorEntry* shape = nullptr;   // of a packed matrix, where it has one
  // Of a packed matrix (model/compressed_tensors.h), and its columns.
  std::optional<WeightGrid> grid{};
  std::int64_t columns = 0;

  bool is_fp8() const;
  bool is_mxfp4() const;
  bool is_packed() const;
  bool is_quantised() const { return is_fp8() || is_mxfp4() || is_packed(); }
  // Those that there are.
  std::vector<const io::TensorEntry*> entries() const;
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
inline constexpr std::int64_t kMxfp4Group = 32;

// What files hold of a tensor of weights: itself, blocks and their scales where its name says so,
// or a packed matrix where it has a grid.
class StoredForm {
 public:
  // InvalidArgument where MXFP4 cannot have the shape.
  StoredForm(const FileTensor& tensor, DType dtype);

  // The tensors that hold elements and, where there are any, scales; then others, with their bytes.
  const std::vector<io::TensorInfo>& infos() const { return infos_; }
  bool has_scales() const { return infos_.size() > 1; }
  std::vector<std::byte> shape_bytes() const;  // of a third tensor

  // Elements that share a scale: values are whole runs of so many.
  std::int64_t unit() const;
  // The bytes of values; `scales` stays empty where there are none.
  void write(std::span<const float> values, std::vector<std::byte>& elements,
             std::vector<std::byte>& scales) const;

 private:
  const FileTensor& tensor_;
  DType dtype_;
  std::vector<io::TensorInfo> infos_;
};

// What is wrong about a tensor that holds scales of nothing; "" where it does not look like one.
std::string stray_scales_problem(const io::SafetensorsDirectory& files,
                                 const io::TensorEntry& entry);
// How many weights the bytes of an entry stand for, of whichever storage; 0: none.
std::int64_t num_weights(const io::TensorEntry& entry);

}  // namespace anabatic::model
