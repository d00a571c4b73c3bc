// SPDX-License-Identifier: Apache-2.0
#include "model/stored_tensor.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "base/rounding.h"
#include "io/block_types.h"
#include "model/compressed_tensors.h"
#include "model/float_conversion.h"

namespace anabatic::model {
namespace {

constexpr std::string_view kBlocks = "_blocks", kScales = "_scales", kScaleInv = "_scale_inv";
constexpr std::int64_t kGroup = kMxfp4Group;
constexpr std::int64_t kSquare = 128;  // rows and columns of an F8_E4M3 scale

using Shape = std::vector<std::int64_t>;

// `name` with another ending; "" where it does not end so.
std::string with_ending(std::string_view name, std::string_view from, std::string_view to) {
  if (!name.ends_with(from)) return "";
  return fmt::format("{}{}", name.substr(0, name.size() - from.size()), to);
}

bool holds_weights(const io::TensorEntry& entry) {
  return entry.dtype && is_weight_dtype(*entry.dtype);
}

// What the tensor of this role is expected to be, in files.
struct Expected {
  std::string name, dtype;
  Shape shape;
};

void compare(const Expected& expected, const io::TensorEntry& found, std::string_view role,
             std::vector<std::string>& problems) {
  const bool has_dtype = expected.dtype == "U8" ? found.dtype_name == "U8" : holds_weights(found);
  if (has_dtype && found.shape == expected.shape) return;
  problems.push_back(fmt::format("{}: expected {} of {} {}, got {} {} in {}", expected.name, role,
                                 expected.dtype, shape_text(expected.shape), found.dtype_name,
                                 shape_text(found.shape), found.file->string()));
}

// The scales next to `elements`, of which there may be none.
void compare_scales(const Expected& expected, const StoredTensor& stored,
                    std::vector<std::string>& problems) {
  if (stored.scales != nullptr) return compare(expected, *stored.scales, "scales", problems);
  problems.push_back(fmt::format("{}: expected scales of {} {} for {}, found none; {} is in {}",
                                 expected.name, expected.dtype, shape_text(expected.shape),
                                 stored.elements->name, stored.elements->dtype_name,
                                 stored.elements->file->string()));
}

Shape fp8_scales(Shape shape) {
  for (auto size = shape.end() - 2; size != shape.end(); ++size) *size = ceil_div(*size, kSquare);
  return shape;
}

void check_fp8(const StoredTensor& stored, const std::string& name, const Shape& shape,
               std::vector<std::string>& problems) {
  if (stored.elements->shape != shape || shape.size() < 2) {
    problems.push_back(fmt::format("{}: expected shape {}{}, got {} in {}", name, shape_text(shape),
                                   shape.size() < 2 ? ", which F8_E4M3 does not have" : "",
                                   shape_text(stored.elements->shape),
                                   stored.elements->file->string()));
    return;
  }
  compare_scales({name + std::string(kScaleInv), "F32, BF16 or F16", fp8_scales(shape)}, stored,
                 problems);
}

// "" where MXFP4 can have the shape.
std::string shape_problem(const std::string& name, const Shape& shape) {
  if (shape.size() >= 2 && shape.back() % kGroup == 0) return "";
  return fmt::format("{}: expected rows of a multiple of {} elements, got {}", name, kGroup,
                     shape_text(shape));
}

struct Mxfp4Shapes {
  explicit Mxfp4Shapes(const Shape& shape) : scales(shape) {
    scales.back() /= kGroup;
    blocks = scales;
    blocks.push_back(kGroup / 2);
  }

  Shape scales, blocks;
};

void check_mxfp4(const StoredTensor& stored, const std::string& name, const Shape& shape,
                 std::vector<std::string>& problems) {
  if (std::string problem = shape_problem(name, shape); !problem.empty())
    return problems.push_back(std::move(problem));
  const Mxfp4Shapes shapes(shape);
  compare({name, "U8", shapes.blocks}, *stored.elements, "blocks", problems);
  compare_scales({scales_name(name), "U8", shapes.scales}, stored, problems);
}

void read_mxfp4(const StoredTensor& stored, std::int64_t first, std::span<float> values) {
  const auto dequantise = [&](std::int64_t group, std::int64_t count, std::span<float> to) {
    io::dequantise_mxfp4_pairs(
        stored.elements->data.subspan(static_cast<std::size_t>(group * kGroup / 2),
                                      static_cast<std::size_t>(count * kGroup / 2)),
        stored.scales->data.subspan(static_cast<std::size_t>(group),
                                    static_cast<std::size_t>(count)),
        to);
  };
  std::array<float, kGroup> part;
  while (!values.empty()) {
    const std::int64_t group = first / kGroup, begin = first % kGroup;
    const auto left = static_cast<std::int64_t>(values.size());
    std::int64_t count = begin == 0 ? left / kGroup * kGroup : 0;
    if (count > 0) {
      dequantise(group, count / kGroup, values.first(static_cast<std::size_t>(count)));
    } else {
      count = std::min(kGroup - begin, left);
      dequantise(group, 1, part);
      std::copy_n(part.begin() + begin, count, values.begin());
    }
    values = values.subspan(static_cast<std::size_t>(count));
    first += count;
  }
}

// Rows of an F8_E4M3 tensor, whose matrices lie one after the other.
class Fp8Rows {
 public:
  explicit Fp8Rows(const StoredTensor& stored)
      : stored_(stored),
        columns_(stored.elements->shape.back()),
        rows_(*(stored.elements->shape.end() - 2)) {}

  std::int64_t columns() const { return columns_; }
  // Rows from `row` on that are of the same matrix.
  std::int64_t left_in_matrix(std::int64_t row) const { return rows_ - row % rows_; }

  // Whole rows of one matrix.
  void read(std::int64_t row, std::span<float> values) {
    const std::int64_t count = static_cast<std::int64_t>(values.size()) / columns_;
    const std::int64_t in_matrix = row % rows_, first = in_matrix / kSquare,
                       end = ceil_div(in_matrix + count, kSquare),
                       squares = ceil_div(columns_, kSquare),
                       begin = row / rows_ * ceil_div(rows_, kSquare) + first;
    const io::TensorEntry& entry = *stored_.scales;
    const auto size = static_cast<std::size_t>(size_bytes(*entry.dtype));
    scales_.resize(static_cast<std::size_t>((end - first) * squares));
    to_floats(
        *entry.dtype,
        entry.data.subspan(static_cast<std::size_t>(begin * squares) * size, scales_.size() * size),
        scales_);
    io::dequantise_f8_e4m3(
        stored_.elements->data.subspan(static_cast<std::size_t>(row * columns_), values.size()),
        columns_, in_matrix - first * kSquare, scales_, values);
  }

 private:
  const StoredTensor& stored_;
  std::int64_t columns_, rows_;
  std::vector<float> scales_;
};

// Rows of a packed matrix.
class PackedRows {
 public:
  explicit PackedRows(const StoredTensor& stored)
      : stored_(stored), bytes_(packed_row(*stored.grid, stored.columns)) {}

  std::int64_t columns() const { return stored_.columns; }
  std::int64_t left_in_matrix(std::int64_t row) const { return stored_.elements->shape[0] - row; }
  void read(std::int64_t row, std::span<float> values) {
    const std::int64_t rows = static_cast<std::int64_t>(values.size()) / columns();
    const auto of = [&](const io::TensorEntry& entry, std::int64_t row_bytes) {
      return entry.data.subspan(static_cast<std::size_t>(row * row_bytes),
                                static_cast<std::size_t>(rows * row_bytes));
    };
    unpack_rows(*stored_.grid, columns(), of(*stored_.elements, bytes_.elements),
                of(*stored_.scales, bytes_.scales), values);
  }

 private:
  const StoredTensor& stored_;
  PackedRow bytes_;
};

// Elements of rows that are read whole, from any element on.
template <class Rows>
void read_by_rows(Rows rows, std::int64_t first, std::span<float> values) {
  std::vector<float> whole;
  while (!values.empty()) {
    const std::int64_t row = first / rows.columns(), column = first % rows.columns();
    const auto left = static_cast<std::int64_t>(values.size());
    std::int64_t count =
        column == 0 ? std::min(left / rows.columns(), rows.left_in_matrix(row)) * rows.columns()
                    : 0;
    if (count > 0) {
      rows.read(row, values.first(static_cast<std::size_t>(count)));
    } else {
      count = std::min(rows.columns() - column, left);
      whole.resize(static_cast<std::size_t>(rows.columns()));
      rows.read(row, whole);
      std::copy_n(whole.begin() + column, count, values.begin());
    }
    values = values.subspan(static_cast<std::size_t>(count));
    first += count;
  }
}

void check_packed(const StoredTensor& stored, const std::string& name, const Shape& shape,
                  std::vector<std::string>& problems) {
  const bool fits = stored.grid && stored.scales != nullptr &&
                    shape == Shape{stored.elements->shape[0], stored.columns};
  if (fits) return;
  problems.push_back(fmt::format(
      "{}: expected {} in 4 or 8 bits with {} and {}, got {} {} in {}", name, shape_text(shape),
      packed_scales_name(name), packed_shape_name(name), stored.elements->dtype_name,
      shape_text(stored.elements->shape), stored.elements->file->string()));
}

// The columns that a packed matrix says it has; 0 where it does not.
std::int64_t packed_columns(const StoredTensor& stored) {
  if (stored.elements->dtype == DType::kUInt8) return 2 * stored.elements->shape.back();
  std::array<std::int64_t, 2> shape{};
  if (stored.shape == nullptr || stored.shape->dtype != DType::kInt64 ||
      stored.shape->data.size() != sizeof shape)
    return 0;
  std::memcpy(shape.data(), stored.shape->data.data(), sizeof shape);
  return shape[0] == stored.elements->shape[0] ? shape[1] : 0;
}

}  // namespace

std::string shape_text(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ",")); }

bool names_blocks(std::string_view tensor) { return tensor.ends_with(kBlocks); }
std::string scales_name(std::string_view tensor) { return with_ending(tensor, kBlocks, kScales); }

bool StoredTensor::is_fp8() const { return elements->dtype_name == "F8_E4M3"; }
bool StoredTensor::is_mxfp4() const { return names_blocks(elements->name); }
bool StoredTensor::is_packed() const { return elements->name.ends_with(packed_name("")); }

std::vector<const io::TensorEntry*> StoredTensor::entries() const {
  std::vector<const io::TensorEntry*> all{elements, scales, shape};
  std::erase(all, nullptr);
  return all;
}

DType StoredTensor::export_dtype() const {
  return is_quantised() ? DType::kBFloat16 : *elements->dtype;
}

void StoredTensor::read(std::int64_t first, std::span<float> values) const {
  if (is_fp8()) return read_by_rows(Fp8Rows(*this), first, values);
  if (is_packed()) return read_by_rows(PackedRows(*this), first, values);
  if (is_mxfp4()) return read_mxfp4(*this, first, values);
  to_floats(*elements->dtype, bytes_of(first, static_cast<std::int64_t>(values.size())), values);
}

std::span<const std::byte> StoredTensor::bytes_of(std::int64_t first, std::int64_t count) const {
  std::int64_t begin = first, end = first + count;
  if (is_mxfp4()) {
    begin /= 2;
    end = ceil_div(end, 2);
  } else if (is_packed()) {
    const std::int64_t row = packed_row(*grid, columns).elements;
    const auto byte_of = [&](std::int64_t i) {
      return i / columns * row + i % columns / (grid->format == GridFormat::kInt8Channel ? 1 : 2);
    };
    begin = byte_of(begin);
    end = byte_of(end);
  } else if (!is_fp8()) {
    begin *= size_bytes(*elements->dtype);
    end *= size_bytes(*elements->dtype);
  }
  return elements->data.subspan(static_cast<std::size_t>(begin),
                                static_cast<std::size_t>(end - begin));
}

StoredTensor find_stored(const io::SafetensorsDirectory& files, const std::string& name) {
  StoredTensor stored{.elements = files.find(name)};
  if (stored.elements == nullptr) {
    stored.elements = files.find(packed_name(name));
    if (stored.elements == nullptr || stored.elements->shape.size() != 2) return stored;
    stored.scales = files.find(packed_scales_name(name));
    stored.shape = files.find(packed_shape_name(name));
    stored.columns = packed_columns(stored);
    if (stored.scales != nullptr && stored.columns > 0)
      stored.grid = packed_grid(*stored.elements, *stored.scales, stored.columns);
    return stored;
  }
  if (stored.is_mxfp4()) stored.scales = files.find(scales_name(name));
  if (stored.is_fp8()) stored.scales = files.find(name + std::string(kScaleInv));
  return stored;
}

std::vector<std::string> storage_problems(const StoredTensor& stored, const std::string& name,
                                          const Shape& shape) {
  std::vector<std::string> problems;
  if (stored.elements == nullptr) {
    problems.push_back(fmt::format("{}: missing, expected shape {}", name, shape_text(shape)));
  } else if (stored.is_mxfp4()) {
    check_mxfp4(stored, name, shape, problems);
  } else if (stored.is_packed()) {
    check_packed(stored, name, shape, problems);
  } else if (stored.is_fp8()) {
    check_fp8(stored, name, shape, problems);
  } else {
    if (stored.elements->shape != shape)
      problems.push_back(fmt::format("{}: expected shape {}, got {}", name, shape_text(shape),
                                     shape_text(stored.elements->shape)));
    if (!holds_weights(*stored.elements))
      problems.push_back(fmt::format("{}: expected dtype F32, BF16, F16 or F64, got {}", name,
                                     stored.elements->dtype_name));
  }
  return problems;
}

StoredForm::StoredForm(const FileTensor& tensor, DType dtype) : tensor_(tensor), dtype_(dtype) {
  const std::string& name = tensor.name;
  if (tensor.grid) {
    infos_ = packed_infos(name, *tensor.grid, tensor.shape);
  } else if (names_blocks(name)) {
    const std::string problem = shape_problem(name, tensor.shape);
    ANABATIC_REQUIRE(problem.empty(), "[weights] {}", problem);
    const Mxfp4Shapes shapes(tensor.shape);
    infos_ = {{name, DType::kUInt8, shapes.blocks},
              {scales_name(name), DType::kUInt8, shapes.scales}};
  } else {
    infos_ = {{name, dtype, tensor.shape}};
  }
}

std::vector<std::byte> StoredForm::shape_bytes() const {
  return packed_shape(*tensor_.grid, tensor_.shape);
}

std::int64_t StoredForm::unit() const {
  if (tensor_.grid) return tensor_.shape.back();
  return names_blocks(tensor_.name) ? kGroup : 1;
}

void StoredForm::write(std::span<const float> values, std::vector<std::byte>& elements,
                       std::vector<std::byte>& scales) const {
  if (tensor_.grid) return pack_rows(*tensor_.grid, tensor_.shape.back(), values, elements, scales);
  if (names_blocks(tensor_.name)) {
    scales.resize(values.size() / kGroup);
    elements.resize(values.size() / 2);
    return io::quantise_mxfp4_pairs(values, elements, scales);
  }
  scales.clear();
  elements.resize(values.size() * static_cast<std::size_t>(size_bytes(dtype_)));
  from_floats(dtype_, values, elements);
}

std::string stray_scales_problem(const io::SafetensorsDirectory& files,
                                 const io::TensorEntry& entry) {
  const std::string blocks = with_ending(entry.name, kScales, kBlocks),
                    elements = with_ending(entry.name, kScaleInv, "");
  if (blocks.empty() && elements.empty()) return "";
  const std::string& of = blocks.empty() ? elements : blocks;
  const io::TensorEntry* found = files.find(of);
  return fmt::format("{}: scales of nothing in {}, expected {} of {}, found {}", entry.name,
                     entry.file->string(), of, blocks.empty() ? "F8_E4M3" : "U8",
                     found == nullptr ? "none" : found->dtype_name);
}

std::int64_t num_weights(const io::TensorEntry& entry) {
  if (entry.name.ends_with(packed_name("")))  // of 4 bits, or half as many of 8
    return 2 * static_cast<std::int64_t>(entry.data.size());
  if (names_blocks(entry.name) && entry.dtype_name == "U8") return 2 * entry.num_elements();
  return holds_weights(entry) || entry.dtype_name == "F8_E4M3" ? entry.num_elements() : 0;
}

}  // namespace anabatic::model
