// SPDX-License-Identifier: Apache-2.0
#include "io/gguf.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <tuple>

#include "base/error.h"
#include "base/rounding.h"
#include "io/problems.h"

namespace anabatic::io {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr std::int64_t kMaxAlignment = std::int64_t{1} << 30;
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 62;  // so that sums of two fit 63 bits

struct TypeRow {
  std::string_view name;
  std::int64_t bytes;
};
constexpr TypeRow kTypes[] = {{"u8", 1},  {"i8", 1},  {"u16", 2},  {"i16", 2},    {"u32", 4},
                              {"i32", 4}, {"f32", 4}, {"bool", 1}, {"string", 0}, {"array", 0},
                              {"u64", 8}, {"i64", 8}, {"f64", 8}};

bool is_integer(GgufType type) {
  return type <= GgufType::kInt32 || type == GgufType::kUInt64 || type == GgufType::kInt64;
}
bool is_number(GgufType type) {
  return is_integer(type) || type == GgufType::kFloat32 || type == GgufType::kFloat64;
}
bool is_bool(GgufType type) { return type == GgufType::kBool; }
bool is_string(GgufType type) { return type == GgufType::kString; }

template <class T>
T load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// Nothing for a u64 beyond 63 bits.
std::optional<std::int64_t> integer_at(GgufType type, const std::byte* bytes) {
  switch (type) {
    case GgufType::kUInt8:
      return load<std::uint8_t>(bytes);
    case GgufType::kInt8:
      return load<std::int8_t>(bytes);
    case GgufType::kUInt16:
      return load<std::uint16_t>(bytes);
    case GgufType::kInt16:
      return load<std::int16_t>(bytes);
    case GgufType::kUInt32:
      return load<std::uint32_t>(bytes);
    case GgufType::kInt32:
      return load<std::int32_t>(bytes);
    case GgufType::kUInt64:
      if (const auto value = load<std::int64_t>(bytes); value >= 0) return value;
      return std::nullopt;
    default:
      return load<std::int64_t>(bytes);
  }
}

double number_at(GgufType type, const std::byte* bytes) {
  if (type == GgufType::kFloat32) return static_cast<double>(load<float>(bytes));
  if (type == GgufType::kFloat64) return load<double>(bytes);
  if (type == GgufType::kUInt64) return static_cast<double>(load<std::uint64_t>(bytes));
  return static_cast<double>(*integer_at(type, bytes));
}

std::string_view string_at(const std::byte* bytes) {
  return {reinterpret_cast<const char*>(bytes) + 8, load<std::uint64_t>(bytes)};
}

// Reads a file from begin to end. Nothing is allocated before it is known to be in the file.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::filesystem::path& file)
      : bytes_(bytes), file_(file.string()) {}

  std::size_t position() const { return position_; }
  std::size_t left() const { return bytes_.size() - position_; }
  const std::string& file() const { return file_; }

  // What the next bytes belong to, for errors: "key" or "tensor", its number, and its name once it
  // is known.
  void begin(std::string_view kind, std::uint64_t number) {
    kind_ = kind;
    number_ = number;
    name_ = {};
  }
  void name(std::string_view name) { name_ = name; }
  std::string place() const {
    if (kind_.empty()) return "header";
    return name_.empty() ? fmt::format("{} {}", kind_, number_)
                         : fmt::format("{} {}", kind_, shown(name_));
  }

  std::span<const std::byte> take(std::uint64_t count, std::string_view what) {
    ANABATIC_REQUIRE(count <= left(),
                     "[gguf] {}: {}: cut short at byte {}: expected {} bytes of {}, got {}", file_,
                     place(), position_, count, what, left());
    const auto taken = bytes_.subspan(position_, count);
    position_ += taken.size();
    return taken;
  }
  template <class T>
  T number(std::string_view what) {
    return load<T>(take(sizeof(T), what).data());
  }
  std::string_view string(std::string_view what) {
    const auto length = number<std::uint64_t>(what);
    const auto bytes = take(length, what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  // `least`: bytes that each of `count` takes at least.
  void require_room(std::uint64_t count, std::uint64_t least, std::string_view what) {
    ANABATIC_REQUIRE(count <= left() / least,
                     "[gguf] {}: {}: expected {} {}, but the file holds {} bytes after byte {}",
                     file_, place(), count, what, left(), position_);
  }

 private:
  std::span<const std::byte> bytes_;
  std::string file_;
  std::size_t position_ = 0;
  std::string_view kind_, name_;
  std::uint64_t number_ = 0;
};

GgufType read_type(Reader& reader) {
  const auto type = reader.number<std::uint32_t>("a type");
  ANABATIC_REQUIRE(type < std::size(kTypes),
                   "[gguf] {}: {}: expected a type of values from 0 to {}, got {}", reader.file(),
                   reader.place(), std::size(kTypes) - 1, type);
  return static_cast<GgufType>(type);
}

void check_bools(const Reader& reader, const GgufValue& value) {
  for (const std::byte byte : value.bytes)
    ANABATIC_REQUIRE(std::to_integer<int>(byte) <= 1, "[gguf] {}: {}: expected bool 0 or 1, got {}",
                     reader.file(), reader.place(), std::to_integer<int>(byte));
}

GgufValue read_value(Reader& reader) {
  GgufValue value;
  value.type = read_type(reader);
  std::uint64_t count = 1;
  if (value.type == GgufType::kArray) {
    value.is_array = true;
    value.type = read_type(reader);
    ANABATIC_REQUIRE(value.type != GgufType::kArray,
                     "[gguf] {}: {}: expected an array of numbers or strings, got one of arrays",
                     reader.file(), reader.place());
    count = reader.number<std::uint64_t>("a count");
  }
  const auto element_bytes = static_cast<std::uint64_t>(size_bytes(value.type));
  reader.require_room(count, element_bytes == 0 ? 8 : element_bytes, "elements");
  value.count = static_cast<std::int64_t>(count);
  if (element_bytes > 0) {
    value.bytes = reader.take(count * element_bytes, "a value");
  } else {
    const std::size_t begin = reader.position();
    const std::span<const std::byte> whole = reader.take(0, "a string");
    for (std::uint64_t i = 0; i < count; ++i) reader.string("a string");
    value.bytes = {whole.data(), reader.position() - begin};
  }
  if (value.type == GgufType::kBool) check_bools(reader, value);
  return value;
}

std::vector<GgufMetadata::Entry> read_entries(Reader& reader, std::uint64_t count) {
  constexpr std::uint64_t kLeastBytes = 13;  // length of the key, type, a byte
  reader.require_room(count, kLeastBytes, "keys");
  std::vector<GgufMetadata::Entry> entries;
  for (std::uint64_t i = 0; i < count; ++i) {
    reader.begin("key", i);
    const std::string_view key = reader.string("a key");
    reader.name(key);
    entries.emplace_back(key, read_value(reader));
  }
  return entries;
}

// Bytes of the tensor; problems are added instead where there are any.
std::int64_t bytes_of(const GgufTensor& tensor, std::vector<std::string>& problems) {
  const auto add = [&](const std::string& text) {
    problems.push_back(fmt::format("tensor {}: {}", shown(tensor.name), text));
    return 0;
  };
  const std::int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
  if (row % tensor.type->elements != 0)
    return add(fmt::format("expected rows of whole blocks of {} elements of {}, got shape {}",
                           tensor.type->elements, tensor.type->name, tensor.shape));
  std::int64_t bytes = row / tensor.type->elements, elements = row;
  if (__builtin_mul_overflow(bytes, tensor.type->bytes, &bytes))
    return add("the bytes of a row overflow");
  for (std::size_t i = 0; i + 1 < tensor.shape.size(); ++i)
    if (__builtin_mul_overflow(bytes, tensor.shape[i], &bytes) ||
        __builtin_mul_overflow(elements, tensor.shape[i], &elements))
      return add(fmt::format("the product of its shape {} overflows", tensor.shape));
  return bytes;
}

// A tensor as the table has it: `offset` is from the begin of the data still.
GgufTensor read_tensor(Reader& reader, std::uint64_t number, std::vector<std::string>& problems) {
  reader.begin("tensor", number);
  GgufTensor tensor;
  const std::string_view name = reader.string("a name");
  reader.name(name);
  tensor.name = name;
  const auto num_dimensions = reader.number<std::uint32_t>("a count of dimensions");
  ANABATIC_REQUIRE(num_dimensions <= kMaxGgufDimensions,
                   "[gguf] {}: {}: expected at most {} dimensions, got {}", reader.file(),
                   reader.place(), kMaxGgufDimensions, num_dimensions);
  for (std::uint32_t i = 0; i < num_dimensions; ++i) {
    const auto size = reader.number<std::uint64_t>("a dimension");
    ANABATIC_REQUIRE(size <= kMaxBytes, "[gguf] {}: {}: expected a size below 2^62, got {}",
                     reader.file(), reader.place(), size);
    tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(size));
  }
  const auto type = reader.number<std::uint32_t>("a type");
  tensor.type = find_block_type(type);
  if (tensor.type == nullptr)
    problems.push_back(fmt::format("{}: unknown type {}", reader.place(), type));
  const auto offset = reader.number<std::uint64_t>("an offset");
  ANABATIC_REQUIRE(offset <= kMaxBytes, "[gguf] {}: {}: expected an offset below 2^62, got {}",
                   reader.file(), reader.place(), offset);
  tensor.offset = static_cast<std::int64_t>(offset);
  return tensor;
}

// Gives the tensors their places in the file, which has to hold them one after the other. Their
// types are known.
void place_tensors(std::span<const std::byte> bytes, std::int64_t data_begin,
                   std::int64_t alignment, std::vector<GgufTensor>& tensors,
                   std::vector<std::string>& problems) {
  const auto file_bytes = static_cast<std::int64_t>(bytes.size());
  std::vector<std::pair<std::int64_t, GgufTensor*>> order;  // with their bytes
  for (GgufTensor& tensor : tensors) order.emplace_back(bytes_of(tensor, problems), &tensor);
  if (!problems.empty()) return;
  std::ranges::stable_sort(
      order, {}, [](const auto& entry) { return std::tuple(entry.second->offset, entry.first); });
  std::int64_t expected = 0, end = data_begin;
  for (const auto& [size, tensor] : order) {
    const std::int64_t begin = data_begin + tensor->offset;
    const auto add = [&, name = &tensor->name](const std::string& text) {
      problems.push_back(fmt::format("tensor {}: {}", shown(*name), text));
    };
    if (tensor->offset % alignment != 0)
      add(fmt::format("offset {} is not a multiple of the alignment, {}", tensor->offset,
                      alignment));
    else if (tensor->offset < expected)
      add(fmt::format("offset {} overlaps the tensor before it, which ends at {}", tensor->offset,
                      expected));
    else if (tensor->offset > expected)
      add(fmt::format("expected offset {}, where the tensor before it ends, got {}", expected,
                      tensor->offset));
    if (begin > file_bytes || size > file_bytes - begin) {
      add(fmt::format("cut short: expected {} bytes from byte {} on, but the file holds {}", size,
                      begin, file_bytes));
      return;
    }
    tensor->offset = begin;
    tensor->data = bytes.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size));
    end = begin + size;
    expected = round_up(end - data_begin, alignment);
  }
  if (const std::int64_t last = round_up(end, alignment); problems.empty() && last < file_bytes)
    problems.push_back(fmt::format("the last tensor ends at byte {}, but the file holds {} bytes",
                                   end, file_bytes));
}

void check_names(const std::vector<GgufTensor>& tensors, std::vector<std::string>& problems) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const GgufTensor& tensor : tensors) names.push_back(tensor.name);
  std::ranges::sort(names);
  for (std::size_t i = 1; i < names.size(); ++i)
    if (names[i] == names[i - 1])
      problems.push_back(fmt::format("tensor {}: appears twice", shown(names[i])));
}

std::int64_t read_alignment(const GgufMetadata& metadata) {
  const std::int64_t alignment = metadata.integer("general.alignment").value_or(32);
  ANABATIC_REQUIRE(alignment > 0 && alignment <= kMaxAlignment &&
                       std::has_single_bit(static_cast<std::uint64_t>(alignment)),
                   "[gguf] {}: key general.alignment: expected a power of two up to {}, got {}",
                   metadata.file().string(), kMaxAlignment, alignment);
  return alignment;
}

std::uint32_t read_version(Reader& reader) {
  const auto magic = reader.take(kMagic.size(), "the magic");
  ANABATIC_REQUIRE(std::memcmp(magic.data(), kMagic.data(), kMagic.size()) == 0,
                   "[gguf] {}: expected GGUF at its begin; is it a GGUF file?", reader.file());
  const auto version = reader.number<std::uint32_t>("the version");
  ANABATIC_REQUIRE(version == 0 || (version & 0xFFFFu) != 0,
                   "[gguf] {}: expected a little-endian file, got a big-endian one", reader.file());
  ANABATIC_REQUIRE(version == 2 || version == 3, "[gguf] {}: expected version 2 or 3, got {}",
                   reader.file(), version);
  return version;
}

// NAME-00002-of-00005.gguf in parts.
struct PartName {
  std::string stem;
  std::int64_t part = 0, num_parts = 0;  // the first part is 0
};

std::optional<PartName> part_name(const std::filesystem::path& path) {
  constexpr std::string_view kPattern = "-NNNNN-of-NNNNN.gguf";
  const std::string name = path.filename().string();
  if (name.size() < kPattern.size()) return std::nullopt;
  const std::string_view end = std::string_view(name).substr(name.size() - kPattern.size());
  std::array<std::int64_t, 2> numbers{};
  std::size_t digits = 0;
  for (std::size_t i = 0; i < kPattern.size(); ++i) {
    if (kPattern[i] != 'N' && end[i] != kPattern[i]) return std::nullopt;
    if (kPattern[i] != 'N') continue;
    if (end[i] < '0' || end[i] > '9') return std::nullopt;
    std::int64_t& number = numbers[digits++ / 5];
    number = number * 10 + (end[i] - '0');
  }
  const auto [number, count] = numbers;
  if (number < 1 || number > count) return std::nullopt;
  return PartName{name.substr(0, name.size() - kPattern.size()), number - 1, count};
}

std::filesystem::path path_of_part(const std::filesystem::path& directory, const PartName& name,
                                   std::int64_t part) {
  return directory / fmt::format("{}-{:05}-of-{:05}.gguf", name.stem, part + 1, name.num_parts);
}

}  // namespace

std::string_view to_string(GgufType type) { return kTypes[static_cast<std::size_t>(type)].name; }

std::int64_t size_bytes(GgufType type) { return kTypes[static_cast<std::size_t>(type)].bytes; }

GgufMetadata::GgufMetadata(std::shared_ptr<const std::filesystem::path> file,
                           std::vector<Entry> entries)
    : file_(std::move(file)), entries_(std::move(entries)) {
  std::vector<std::string> problems;
  for (std::size_t i = 0; i < entries_.size(); ++i)
    if (!places_.try_emplace(entries_[i].first, i).second)
      problems.push_back(fmt::format("key {}: appears twice", shown(entries_[i].first)));
  throw_if_any("gguf", file_->string(), problems);
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto place = places_.find(key);
  return place == places_.end() ? nullptr : &entries_[place->second].second;
}

const GgufValue* GgufMetadata::find(std::string_view key, bool is_array, bool (*accepts)(GgufType),
                                    std::string_view expected) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return nullptr;
  ANABATIC_REQUIRE(value->is_array == is_array && accepts(value->type),
                   "[gguf] {}: key {}: expected {}, got {}{}", file_->string(), shown(key),
                   expected, value->is_array ? "an array of " : "", to_string(value->type));
  return value;
}

std::optional<std::int64_t> GgufMetadata::integer(std::string_view key) const {
  const GgufValue* value = find(key, false, is_integer, "an integer");
  if (value == nullptr) return std::nullopt;
  const auto integer = integer_at(value->type, value->bytes.data());
  ANABATIC_REQUIRE(integer, "[gguf] {}: key {}: expected an integer below 2^63", file_->string(),
                   shown(key));
  return integer;
}

std::optional<double> GgufMetadata::number(std::string_view key) const {
  const GgufValue* value = find(key, false, is_number, "a number");
  if (value == nullptr) return std::nullopt;
  return number_at(value->type, value->bytes.data());
}

std::optional<bool> GgufMetadata::boolean(std::string_view key) const {
  const GgufValue* value = find(key, false, is_bool, "a bool");
  if (value == nullptr) return std::nullopt;
  return value->bytes.front() != std::byte{0};
}

std::optional<std::string_view> GgufMetadata::text(std::string_view key) const {
  const GgufValue* value = find(key, false, is_string, "a string");
  if (value == nullptr) return std::nullopt;
  return string_at(value->bytes.data());
}

std::optional<std::vector<std::int64_t>> GgufMetadata::integers(std::string_view key) const {
  const GgufValue* value = find(key, true, is_integer, "an array of integers");
  if (value == nullptr) return std::nullopt;
  std::vector<std::int64_t> integers;
  integers.reserve(static_cast<std::size_t>(value->count));
  for (std::int64_t i = 0; i < value->count; ++i) {
    const auto integer = integer_at(value->type, value->bytes.data() + i * size_bytes(value->type));
    ANABATIC_REQUIRE(integer, "[gguf] {}: key {}: expected integers below 2^63", file_->string(),
                     shown(key));
    integers.push_back(*integer);
  }
  return integers;
}

std::optional<std::vector<double>> GgufMetadata::numbers(std::string_view key) const {
  const GgufValue* value = find(key, true, is_number, "an array of numbers");
  if (value == nullptr) return std::nullopt;
  std::vector<double> numbers;
  numbers.reserve(static_cast<std::size_t>(value->count));
  for (std::int64_t i = 0; i < value->count; ++i)
    numbers.push_back(number_at(value->type, value->bytes.data() + i * size_bytes(value->type)));
  return numbers;
}

std::optional<std::vector<std::string_view>> GgufMetadata::texts(std::string_view key) const {
  const GgufValue* value = find(key, true, is_string, "an array of strings");
  if (value == nullptr) return std::nullopt;
  std::vector<std::string_view> texts;
  texts.reserve(static_cast<std::size_t>(value->count));
  const std::byte* next = value->bytes.data();
  for (std::int64_t i = 0; i < value->count; ++i) {
    texts.push_back(string_at(next));
    next += 8 + texts.back().size();
  }
  return texts;
}

std::int64_t GgufTensor::num_elements() const {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

GgufContents parse_gguf(std::span<const std::byte> bytes, const std::filesystem::path& file) {
  const auto shared_file = std::make_shared<const std::filesystem::path>(file);
  Reader reader(bytes, file);
  GgufContents contents;
  contents.version = read_version(reader);
  const auto num_tensors = reader.number<std::uint64_t>("the count of tensors");
  const auto num_keys = reader.number<std::uint64_t>("the count of keys");
  contents.metadata = GgufMetadata(shared_file, read_entries(reader, num_keys));
  contents.alignment = read_alignment(contents.metadata);
  constexpr std::uint64_t kLeastBytes = 24;  // length of the name, dimensions, type, offset
  reader.begin({}, 0);
  reader.require_room(num_tensors, kLeastBytes, "tensors");
  std::vector<std::string> problems;
  for (std::uint64_t i = 0; i < num_tensors; ++i) {
    contents.tensors.push_back(read_tensor(reader, i, problems));
    contents.tensors.back().file = shared_file;
  }
  const auto data_begin =
      round_up(static_cast<std::int64_t>(reader.position()), contents.alignment);
  check_names(contents.tensors, problems);
  if (problems.empty())
    place_tensors(bytes, data_begin, contents.alignment, contents.tensors, problems);
  throw_if_any("gguf", file.string(), problems);
  return contents;
}

bool is_gguf(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  std::array<std::byte, kMagic.size()> magic{};
  const std::size_t count = File::open(path).read_some_at(0, magic);
  return count == kMagic.size() && std::memcmp(magic.data(), kMagic.data(), kMagic.size()) == 0;
}

void GgufFiles::add(const std::filesystem::path& path, std::int64_t part, std::int64_t num_parts,
                    std::vector<std::string>& problems) {
  MappedFile file(path);
  GgufContents contents = parse_gguf(file.bytes(), path);
  const std::int64_t found_part = contents.metadata.integer("split.no").value_or(0);
  const std::int64_t found_parts = contents.metadata.integer("split.count").value_or(1);
  const bool is_alone = num_parts == 1 && found_parts <= 1;
  if (!is_alone && (found_part != part || found_parts != num_parts))
    problems.push_back(
        fmt::format("{}: expected part {} of {} by its name, got split.no {} and split.count {}",
                    path.filename().string(), part, num_parts, found_part, found_parts));
  for (GgufTensor& tensor : contents.tensors) {
    const auto [place, is_new] = tensors_.try_emplace(tensor.name, std::move(tensor));
    if (!is_new)
      problems.push_back(fmt::format("tensor {}: is both in {} and in {}", shown(place->first),
                                     place->second.file->filename().string(),
                                     path.filename().string()));
  }
  if (part == 0) metadata_ = std::move(contents.metadata);
  files_.push_back(std::move(file));
}

GgufFiles GgufFiles::open(const std::filesystem::path& path) {
  const std::optional<PartName> name = part_name(path);
  const std::int64_t num_parts = name ? name->num_parts : 1;
  GgufFiles result;
  std::vector<std::string> problems;
  for (std::int64_t part = 0; part < num_parts; ++part) {
    const auto part_path = name ? path_of_part(path.parent_path(), *name, part) : path;
    try {
      result.add(part_path, part, num_parts, problems);
    } catch (const Error& error) {
      if (!name) throw;
      problems.emplace_back(error.what());
    }
  }
  const auto num_tensors = static_cast<std::int64_t>(result.tensors_.size());
  const auto expected = result.metadata_.integer("split.tensors.count");
  if (problems.empty() && num_parts > 1 && expected.value_or(num_tensors) != num_tensors)
    problems.push_back(fmt::format("expected {} tensors in all by key split.tensors.count, got {}",
                                   *expected, num_tensors));
  throw_if_any("gguf", path.string(), problems);
  return result;
}

const GgufTensor* GgufFiles::find(std::string_view name) const {
  const auto place = tensors_.find(name);
  return place == tensors_.end() ? nullptr : &place->second;
}

std::vector<std::filesystem::path> GgufFiles::paths() const {
  std::vector<std::filesystem::path> paths;
  for (const MappedFile& file : files_) paths.push_back(file.path());
  return paths;
}

std::int64_t GgufFiles::num_bytes() const {
  std::int64_t bytes = 0;
  for (const MappedFile& file : files_) bytes += static_cast<std::int64_t>(file.bytes().size());
  return bytes;
}

void GgufFiles::release(std::span<const std::byte> data) const {
  for (const MappedFile& file : files_) {
    const std::span<const std::byte> whole = file.bytes();
    if (whole.data() <= data.data() && data.data() + data.size() <= whole.data() + whole.size())
      return release_pages(data, whole);
  }
}

}  // namespace anabatic::io
