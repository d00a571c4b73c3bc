// SPDX-License-Identifier: Apache-2.0
#include "io/gguf_writer.h"

#include <fmt/ranges.h>

#include <bit>
#include <type_traits>

#include "base/error.h"
#include "base/rounding.h"
#include "base/text.h"

namespace anabatic::io {
namespace {

template <class T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

void append_string(std::string& bytes, std::string_view text) {
  append(bytes, std::uint64_t{text.size()});
  bytes += text;
}

template <class T>
bool append_as(std::string& bytes, std::int64_t value) {
  const bool fits = std::is_same_v<T, std::uint64_t>
                        ? value >= 0
                        : static_cast<std::int64_t>(static_cast<T>(value)) == value;
  append(bytes, static_cast<T>(value));
  return fits;
}

// False where the type cannot hold the value.
bool append_integer(std::string& bytes, GgufType type, std::int64_t value) {
  switch (type) {
    case GgufType::kUInt8:
      return append_as<std::uint8_t>(bytes, value);
    case GgufType::kInt8:
      return append_as<std::int8_t>(bytes, value);
    case GgufType::kUInt16:
      return append_as<std::uint16_t>(bytes, value);
    case GgufType::kInt16:
      return append_as<std::int16_t>(bytes, value);
    case GgufType::kUInt32:
      return append_as<std::uint32_t>(bytes, value);
    case GgufType::kInt32:
      return append_as<std::int32_t>(bytes, value);
    case GgufType::kUInt64:
      return append_as<std::uint64_t>(bytes, value);
    case GgufType::kInt64:
      return append_as<std::int64_t>(bytes, value);
    default:
      return false;
  }
}

void require_integer(bool fits, std::string_view key, GgufType type, std::int64_t value) {
  ANABATIC_REQUIRE(fits, "[gguf] key {}: {} is no {}", key, value, to_string(type));
}

std::int64_t checked_bytes(const GgufTensorInfo& info) {
  ANABATIC_REQUIRE(info.shape.size() <= kMaxGgufDimensions,
                   "[gguf] tensor {}: expected at most {} dimensions, got {}", info.name,
                   kMaxGgufDimensions, info.shape);
  const std::int64_t row = info.shape.empty() ? 1 : info.shape.back();
  ANABATIC_REQUIRE(row >= 0 && row % info.type->elements == 0,
                   "[gguf] tensor {}: expected rows of whole blocks of {} elements of {}, got {}",
                   info.name, info.type->elements, info.type->name, info.shape);
  std::int64_t bytes = 0;
  bool fits = !__builtin_mul_overflow(row / info.type->elements, info.type->bytes, &bytes);
  for (std::size_t i = 0; i + 1 < info.shape.size(); ++i)
    fits = fits && info.shape[i] >= 0 && !__builtin_mul_overflow(bytes, info.shape[i], &bytes);
  ANABATIC_REQUIRE(fits && bytes <= std::int64_t{1} << 62,
                   "[gguf] tensor {}: expected a shape whose bytes fit 62 bits, got {}", info.name,
                   info.shape);
  return bytes;
}

}  // namespace

// `count`: of an array, null for a single value.
void GgufKeys::begin(std::string_view key, GgufType type, const std::int64_t* count) {
  ANABATIC_REQUIRE(keys_.emplace(key).second, "[gguf] key {}: is declared twice", key);
  append_string(bytes_, key);
  if (count != nullptr) append(bytes_, GgufType::kArray);
  append(bytes_, type);
  if (count != nullptr) append(bytes_, *count);
}

void GgufKeys::add_integer(std::string_view key, GgufType type, std::int64_t value) {
  begin(key, type, nullptr);
  require_integer(append_integer(bytes_, type, value), key, type, value);
}

void GgufKeys::add_float(std::string_view key, float value) {
  begin(key, GgufType::kFloat32, nullptr);
  append(bytes_, value);
}

void GgufKeys::add_bool(std::string_view key, bool value) {
  begin(key, GgufType::kBool, nullptr);
  append(bytes_, static_cast<char>(value));
}

void GgufKeys::add_text(std::string_view key, std::string_view value) {
  begin(key, GgufType::kString, nullptr);
  append_string(bytes_, value);
}

void GgufKeys::add_integers(std::string_view key, GgufType type,
                            std::span<const std::int64_t> values) {
  const auto count = static_cast<std::int64_t>(values.size());
  begin(key, type, &count);
  for (const std::int64_t value : values)
    require_integer(append_integer(bytes_, type, value), key, type, value);
}

void GgufKeys::add_floats(std::string_view key, std::span<const float> values) {
  const auto count = static_cast<std::int64_t>(values.size());
  begin(key, GgufType::kFloat32, &count);
  for (const float value : values) append(bytes_, value);
}

void GgufKeys::add_texts(std::string_view key, std::span<const std::string_view> values) {
  const auto count = static_cast<std::int64_t>(values.size());
  begin(key, GgufType::kString, &count);
  for (const std::string_view value : values) append_string(bytes_, value);
}

void GgufKeys::add(std::string_view key, const GgufValue& value) {
  begin(key, value.type, value.is_array ? &value.count : nullptr);
  bytes_.append(reinterpret_cast<const char*>(value.bytes.data()), value.bytes.size());
}

GgufWriter::~GgufWriter() {
  std::error_code ignored;
  if (!file_.path().empty()) std::filesystem::remove(file_.path(), ignored);
}

GgufWriter::GgufWriter(const std::filesystem::path& path, GgufKeys keys,
                       std::vector<GgufTensorInfo> tensors, std::int64_t alignment)
    : GgufWriter() {  // so that the destructor runs when this throws
  ANABATIC_REQUIRE(alignment > 0 && std::has_single_bit(static_cast<std::uint64_t>(alignment)),
                   "[gguf] expected an alignment that is a power of two, got {}", alignment);
  ANABATIC_REQUIRE(!keys.has("general.alignment"),
                   "[gguf] key general.alignment: is the writer's to add");
  if (alignment != 32) keys.add_integer("general.alignment", GgufType::kUInt32, alignment);
  std::string header = "GGUF";
  append(header, std::uint32_t{3});
  append(header, std::uint64_t{tensors.size()});
  append(header, std::uint64_t{keys.count()});
  header += keys.bytes();
  std::int64_t end = 0;  // of the data so far
  for (const GgufTensorInfo& info : tensors) {
    const std::int64_t bytes = checked_bytes(info);
    const std::int64_t begin = round_up(end, alignment);
    ANABATIC_REQUIRE(tensors_.try_emplace(info.name, Tensor{begin, bytes, 0}).second,
                     "[gguf] tensor {}: is declared twice", info.name);
    ANABATIC_REQUIRE(!__builtin_add_overflow(begin, bytes, &end) && end <= std::int64_t{1} << 62,
                     "[gguf] the sum of all tensors overflows at {}", info.name);
    append_string(header, info.name);
    append(header, static_cast<std::uint32_t>(info.shape.size()));
    for (auto size = info.shape.rbegin(); size != info.shape.rend(); ++size) append(header, *size);
    append(header, info.type->id);
    append(header, begin);
  }
  header.resize(round_up(header.size(), static_cast<std::size_t>(alignment)), '\0');
  const auto data_begin = static_cast<std::int64_t>(header.size());
  for (auto& [name, tensor] : tensors_) tensor.offset += data_begin;
  file_bytes_ = data_begin + round_up(end, alignment);
  path_ = replaceable_file(path);
  file_ = File::create(path_.string() + ".partial");
  file_.resize(file_bytes_);
  file_.write_at(0, std::as_bytes(std::span(header)));
}

void GgufWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  const auto place = tensors_.find(name);
  ANABATIC_REQUIRE(place != tensors_.end(), "[gguf] tensor {}: was not declared", name);
  Tensor& tensor = place->second;
  const auto count = static_cast<std::int64_t>(bytes.size());
  ANABATIC_REQUIRE(count <= tensor.size_bytes - tensor.written_bytes,
                   "[gguf] tensor {}: expected {} bytes in all, got {} after {}", name,
                   tensor.size_bytes, count, tensor.written_bytes);
  file_.write_at(tensor.offset + tensor.written_bytes, bytes);
  tensor.written_bytes += count;
}

void GgufWriter::finish() {
  std::string missing;
  for (const auto& [name, tensor] : tensors_) {
    if (tensor.written_bytes == tensor.size_bytes) continue;
    missing += fmt::format("\n  {}: {} of {} bytes written", name, tensor.written_bytes,
                           tensor.size_bytes);
  }
  ANABATIC_REQUIRE(missing.empty(), "[gguf] {}: incomplete tensors{}", path_.string(), missing);
  file_.sync();
  file_.close();
  rename_file(file_.path(), path_);
  file_ = File();
  sync_directory(path_.has_parent_path() ? path_.parent_path() : ".");
}

}  // namespace anabatic::io
