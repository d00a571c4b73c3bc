// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <system_error>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "io/problems.h"

namespace anabatic::io {
namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit
constexpr std::int64_t kMaxIndexBytes = 100'000'000;
constexpr int kMaxDepth = 8;  // of values in a header

struct DTypeRow {
  std::string_view name;
  std::int64_t bytes;
  std::optional<DType> dtype;
};

constexpr DTypeRow kDTypes[] = {
    {"BF16", 2, DType::kBFloat16}, {"BOOL", 1, DType::kBool},    {"C64", 8, std::nullopt},
    {"F16", 2, DType::kFloat16},   {"F32", 4, DType::kFloat32},  {"F64", 8, DType::kFloat64},
    {"F8_E4M3", 1, std::nullopt},  {"F8_E5M2", 1, std::nullopt}, {"F8_E8M0", 1, std::nullopt},
    {"I16", 2, std::nullopt},      {"I32", 4, DType::kInt32},    {"I64", 8, DType::kInt64},
    {"I8", 1, DType::kInt8},       {"U16", 2, DType::kUInt16},   {"U32", 4, std::nullopt},
    {"U64", 8, std::nullopt},      {"U8", 1, DType::kUInt8},
};

const DTypeRow* find_dtype(std::string_view name) {
  const auto* row = std::ranges::find(kDTypes, name, &DTypeRow::name);
  return row == std::end(kDTypes) ? nullptr : row;
}

// As std::filesystem::is_regular_file, but false where that throws (such as a name that is too
// long).
bool is_file(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

// A non-negative integer that fits int64.
std::optional<std::int64_t> as_size(const Json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<std::int64_t>(number);
  }
  const auto number = value.get<std::int64_t>();
  return number < 0 ? std::nullopt : std::optional(number);
}

// Parses with the two checks that the JSON library leaves out: nesting and double keys.
Json parse_header_json(std::string_view text, std::vector<std::string>& problems) {
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    ANABATIC_REQUIRE(depth <= kMaxDepth, "nested more than {} deep", kMaxDepth);
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) {
        problems.push_back(fmt::format("the name {} appears twice", shown(key)));
      }
    }
    return true;
  };
  return parse_json(text, check);
}

// Fills `entry` from {"dtype": ..., "shape": ..., "data_offsets": [begin, end]}; empty text if
// good.
std::string read_entry(const Json& value, std::span<const std::byte> data, TensorEntry& entry) {
  if (!value.is_object()) return "expected an object";
  const auto dtype = value.find("dtype");
  const auto shape = value.find("shape");
  const auto offsets = value.find("data_offsets");
  if (dtype == value.end() || shape == value.end() || offsets == value.end()) {
    return "expected dtype, shape and data_offsets";
  }
  if (!dtype->is_string()) return "expected dtype to be a string";
  entry.dtype_name = dtype->get<std::string>();
  const DTypeRow* row = find_dtype(entry.dtype_name);
  if (row == nullptr) return fmt::format("unknown dtype {}", shown(entry.dtype_name));
  entry.dtype = row->dtype;
  if (!shape->is_array()) return "expected shape to be a list";
  std::int64_t bytes = row->bytes;
  for (const Json& element : *shape) {
    const auto extent = as_size(element);
    if (!extent) return "expected a shape of non-negative integers";
    if (__builtin_mul_overflow(bytes, *extent, &bytes)) return "the product of the shape overflows";
    entry.shape.push_back(*extent);
  }
  if (!offsets->is_array() || offsets->size() != 2) return "expected two data_offsets";
  const auto begin = as_size((*offsets)[0]);
  const auto end = as_size((*offsets)[1]);
  if (!begin || !end || *begin > *end) return "expected data_offsets [begin, end], begin <= end";
  if (*end > static_cast<std::int64_t>(data.size())) {
    return fmt::format("data_offsets end at {}, but the file holds {} data bytes", *end,
                       data.size());
  }
  if (*end - *begin != bytes) {
    return fmt::format("expected {} bytes for {} {}, got {}", bytes, entry.dtype_name, entry.shape,
                       *end - *begin);
  }
  entry.data =
      data.subspan(static_cast<std::size_t>(*begin), static_cast<std::size_t>(*end - *begin));
  return {};
}

void check_coverage(const std::vector<TensorEntry>& entries, std::span<const std::byte> data,
                    std::vector<std::string>& problems) {
  std::vector<const TensorEntry*> order;
  for (const TensorEntry& entry : entries) order.push_back(&entry);
  std::ranges::sort(order, [](const TensorEntry* a, const TensorEntry* b) {
    const auto* end_a = a->data.data() + a->data.size();
    const auto* end_b = b->data.data() + b->data.size();
    return std::tuple(a->data.data(), end_a) < std::tuple(b->data.data(), end_b);
  });
  const std::byte* expected = data.data();
  for (const TensorEntry* entry : order) {
    if (entry->data.data() != expected) {
      problems.push_back(fmt::format(
          "{}: expected its data at offset {}, got {}; data must lie "
          "without gap or overlap",
          shown(entry->name), expected - data.data(), entry->data.data() - data.data()));
    }
    expected = entry->data.data() + entry->data.size();
  }
  if (expected != data.data() + data.size()) {
    problems.push_back(fmt::format("tensors end at offset {}, but the file holds {} data bytes",
                                   expected - data.data(), data.size()));
  }
}

}  // namespace

std::int64_t TensorEntry::num_elements() const {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

std::string_view safetensors_name(DType dtype) {
  const auto* row = std::ranges::find(kDTypes, std::optional(dtype), &DTypeRow::dtype);
  ANABATIC_CHECK(row != std::end(kDTypes), "[safetensors] no name for {}", to_string(dtype));
  return row->name;
}

std::vector<TensorEntry> parse_safetensors(std::span<const std::byte> bytes,
                                           const std::filesystem::path& file) {
  const std::string where = file.string();
  ANABATIC_REQUIRE(bytes.size() >= 8, "[safetensors] {}: expected at least 8 bytes, got {}", where,
                   bytes.size());
  std::uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i)
    header_bytes = header_bytes << 8 | std::to_integer<unsigned>(bytes[i]);
  ANABATIC_REQUIRE(header_bytes <= kMaxHeaderBytes,
                   "[safetensors] {}: expected a header of at most {} bytes, got {}", where,
                   kMaxHeaderBytes, header_bytes);
  ANABATIC_REQUIRE(header_bytes <= bytes.size() - 8,
                   "[safetensors] {}: the header claims {} bytes, the file holds {} after it",
                   where, header_bytes, bytes.size() - 8);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, header_bytes);
  ANABATIC_REQUIRE(text.starts_with('{'),
                   "[safetensors] {}: expected a JSON object at byte 8; is it a safetensors file?",
                   where);
  std::vector<std::string> problems;
  std::vector<TensorEntry> entries;
  const auto shared_file = std::make_shared<const std::filesystem::path>(file);
  const std::span<const std::byte> data = bytes.subspan(8 + header_bytes);
  const auto add_member = [&](std::string name, const Json& value) {
    if (name == "__metadata__") {
      const bool strings = value.is_object() &&
                           std::ranges::all_of(value, [](const Json& v) { return v.is_string(); });
      if (!strings) problems.push_back("__metadata__: expected an object of strings");
      return;
    }
    TensorEntry entry;
    const std::string problem = read_entry(value, data, entry);
    if (!problem.empty()) problems.push_back(shown(name) + ": " + problem);
    entry.name = std::move(name);
    entry.file = shared_file;
    entries.push_back(std::move(entry));
  };
  try {
    visit_members(text, kMaxDepth,
                  {.member = add_member, .double_name = [&](const std::string& name) {
                     problems.push_back(fmt::format("the name {} appears twice", shown(name)));
                   }});
  } catch (const std::exception& error) {
    throw InvalidArgument(
        fmt::format("[safetensors] {}: bad JSON header: {}", where, shown(error.what())));
  }
  std::ranges::sort(entries, {}, &TensorEntry::name);
  for (std::size_t i = 1; i < entries.size(); ++i)
    if (entries[i].name == entries[i - 1].name)
      problems.push_back(fmt::format("the name {} appears twice", shown(entries[i].name)));
  if (problems.empty()) check_coverage(entries, data, problems);
  throw_if_any("safetensors", where, problems);
  return entries;
}

void SafetensorsDirectory::add_shard(const std::filesystem::path& path,
                                     std::vector<std::string>& problems) {
  std::vector<TensorEntry> entries;
  try {
    MappedFile file(path);
    entries = parse_safetensors(file.bytes(), path);
    files_.push_back(std::move(file));
  } catch (const Error& error) {
    problems.emplace_back(error.what());
    return;
  }
  for (TensorEntry& entry : entries) {
    const auto [place, added] = entries_.try_emplace(entry.name, std::move(entry));
    if (!added) {
      problems.push_back(fmt::format("{} is both in {} and in {}", shown(place->first),
                                     place->second.file->filename().string(),
                                     path.filename().string()));
    }
  }
}

void SafetensorsDirectory::open_index(const std::filesystem::path& index,
                                      std::vector<std::string>& problems) {
  Json json;
  try {
    json = parse_header_json(read_file(index, kMaxIndexBytes), problems);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw InvalidArgument(
        fmt::format("[safetensors] {}: bad JSON: {}", index.string(), shown(error.what())));
  }
  const bool has_map = json.is_object() && json.contains("weight_map");
  ANABATIC_REQUIRE(has_map && json["weight_map"].is_object(),
                   "[safetensors] {}: expected an object with weight_map", index.string());
  std::map<std::string, std::vector<std::string>> shards;
  for (const auto& [name, shard] : json["weight_map"].items()) {
    if (!shard.is_string()) {
      problems.push_back(fmt::format("{}: expected the name of a shard", shown(name)));
      continue;
    }
    shards[shard.get<std::string>()].push_back(name);
  }
  for (const auto& [shard, names] : shards) {
    const bool is_plain = !shard.empty() && shard.find('/') == std::string::npos &&
                          shard.find('\0') == std::string::npos && shard != "..";
    const std::filesystem::path path = index.parent_path() / shard;
    if (!is_plain || !is_file(path)) {
      problems.push_back(fmt::format("the shard {} is missing; the index places {} tensor{} there",
                                     shown(shard), names.size(), names.size() == 1 ? "" : "s"));
      continue;
    }
    const std::size_t before = problems.size();
    add_shard(path, problems);
    if (problems.size() != before) continue;
    for (const std::string& name : names) {
      const TensorEntry* entry = find(name);
      if (entry == nullptr || *entry->file != path) {
        problems.push_back(
            fmt::format("{} is not in {}, where the index places it", shown(name), shown(shard)));
      }
    }
  }
}

SafetensorsDirectory SafetensorsDirectory::open(const std::filesystem::path& path,
                                                const std::string& stem) {
  namespace fs = std::filesystem;
  SafetensorsDirectory result;
  std::vector<std::string> problems;
  const fs::path single = path / (stem + ".safetensors");
  const fs::path index = path / (stem + ".safetensors.index.json");
  if (is_file(path)) {
    result.add_shard(path, problems);
  } else if (is_file(single)) {
    result.add_shard(single, problems);
  } else if (is_file(index)) {
    result.open_index(index, problems);
  } else {
    throw ResourceError(fmt::format(
        "[safetensors] {}: expected a .safetensors file or a folder with {} or {}, found neither",
        path.string(), single.filename().string(), index.filename().string()));
  }
  throw_if_any("safetensors", path.string(), problems);
  return result;
}

std::vector<std::string> SafetensorsDirectory::names() const {
  std::vector<std::string> names;
  names.reserve(entries_.size());
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

const TensorEntry* SafetensorsDirectory::find(std::string_view name) const {
  const auto place = entries_.find(name);
  return place == entries_.end() ? nullptr : &place->second;
}

void SafetensorsDirectory::release(std::span<const std::byte> data) const {
  for (const MappedFile& file : files_) {
    const std::span<const std::byte> whole = file.bytes();
    if (whole.data() <= data.data() && data.data() + data.size() <= whole.data() + whole.size())
      return release_pages(data, whole);
  }
}

}  // namespace anabatic::io
