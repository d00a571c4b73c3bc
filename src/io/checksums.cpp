// SPDX-License-Identifier: Apache-2.0
#include "io/checksums.h"

#include <xxhash.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "io/file.h"
#include "io/parallel.h"
#include "io/safetensors.h"

namespace anabatic::io {
namespace {

constexpr int kChecksumsFormat = 1;
constexpr const char* kHash = "xxh3_64";
constexpr std::int64_t kMostChecksumsBytes = std::int64_t{1} << 30;
constexpr std::int64_t kSummedBytes = std::int64_t{1} << 20;
constexpr std::uint64_t kMostHeaderBytes = 100'000'000;  // as in safetensors.cpp

void add_range(Checksum& sum, const File& file, std::int64_t begin, std::int64_t count) {
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(count, kSummedBytes)));
  for (std::int64_t done = 0; done < count;) {
    const auto part = std::span(buffer).first(
        static_cast<std::size_t>(std::min(count - done, static_cast<std::int64_t>(kSummedBytes))));
    file.read_at(begin + done, part);
    sum.add(part);
    done += static_cast<std::int64_t>(part.size());
  }
}

std::string hexadecimal(std::uint64_t value) { return fmt::format("{:016x}", value); }

std::uint64_t parse_hexadecimal(const Json& json, std::string_view place) {
  std::uint64_t value = 0;
  const std::string text = json.is_string() ? json.get<std::string>() : "";
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  ANABATIC_REQUIRE(text.size() == 16 && error == std::errc{} && stop == text.data() + text.size(),
                   "[checksums] {}: expected 16 hexadecimal digits, got {}", place,
                   show_json(json));
  return value;
}

bool is_safetensors(const FileChecksums& sums) { return !sums.tensors.empty(); }

// Damaged tensors of a complete and readable safetensors file.
std::vector<std::string> damaged_tensors(const std::filesystem::path& path,
                                         const FileChecksums& written, int threads) {
  const MappedFile mapped(path);
  const std::vector<TensorEntry> entries = parse_safetensors(mapped.bytes(), path);
  const File file = File::open(path);
  std::vector<std::string> found(entries.size());
  parallel_tasks(static_cast<std::int64_t>(entries.size()), threads, [&](std::int64_t i) {
    const TensorEntry& entry = entries[static_cast<std::size_t>(i)];
    const auto expected = written.tensors.find(entry.name);
    if (expected == written.tensors.end()) return;  // the header's checksum reports it
    Checksum sum;
    add_range(sum, file, entry.data.data() - mapped.bytes().data(),
              static_cast<std::int64_t>(entry.data.size()));
    if (sum.value() != expected->second)
      found[static_cast<std::size_t>(i)] =
          checksum_mismatch(entry.name, expected->second, sum.value());
  });
  std::erase(found, "");
  return found;
}

}  // namespace

struct Checksum::State {
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash{XXH3_createState(), XXH3_freeState};
};

Checksum::Checksum() : state_(std::make_unique<State>()) { XXH3_64bits_reset(state_->hash.get()); }
Checksum::~Checksum() = default;
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;

void Checksum::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_->hash.get(), bytes.data(), bytes.size());
}
std::uint64_t Checksum::value() const { return XXH3_64bits_digest(state_->hash.get()); }

std::string checksum_mismatch(std::string_view tensor, std::uint64_t expected,
                              std::uint64_t found) {
  return fmt::format("tensor {}: expected checksum {:016x}, found {:016x}", tensor, expected,
                     found);
}

FileChecksums checksums_of(const std::filesystem::path& path) {
  const File file = File::open(path);
  FileChecksums sums{.bytes = file.size()};
  Checksum sum;
  add_range(sum, file, 0, sums.bytes);
  sums.content = sum.value();
  return sums;
}

FileChecksums header_checksum(const std::filesystem::path& path) {
  const File file = File::open(path);
  FileChecksums sums{.bytes = file.size()};
  std::uint64_t header_bytes = 0;
  if (sums.bytes >= 8) file.read_at(0, std::as_writable_bytes(std::span(&header_bytes, 1)));
  const auto after = static_cast<std::uint64_t>(std::max<std::int64_t>(sums.bytes - 8, 0));
  Checksum sum;
  add_range(sum, file, 0,
            std::min<std::int64_t>(sums.bytes, 8 + static_cast<std::int64_t>(std::min(
                                                       {header_bytes, after, kMostHeaderBytes}))));
  sums.content = sum.value();
  return sums;
}

std::string to_text(const ChecksumManifest& manifest) {
  OrderedJson files = OrderedJson::object();
  for (const auto& [name, sums] : manifest) {
    OrderedJson& file = files[name];
    file["bytes"] = sums.bytes;
    file[is_safetensors(sums) ? "header" : "content"] = hexadecimal(sums.content);
    if (!is_safetensors(sums)) continue;
    // Names are unique: as of a list, without a search for each.
    file["tensors"] = OrderedJson::object();
    auto& members = file["tensors"].get_ref<OrderedJson::object_t&>();
    for (const auto& [tensor, sum] : sums.tensors)
      static_cast<OrderedJson::object_t::Container&>(members).emplace_back(tensor,
                                                                           hexadecimal(sum));
  }
  const OrderedJson json{
      {"format", kChecksumsFormat}, {"hash", kHash}, {"files", std::move(files)}};
  return dump_json(json, 1) + "\n";
}

ChecksumManifest parse_checksums(std::string_view text, std::string_view place) {
  const Json json = try_parse_json(text);
  ANABATIC_REQUIRE(json.is_object() && json.contains("files") && json["files"].is_object() &&
                       json.value("format", Json()) == kChecksumsFormat &&
                       json.value("hash", Json()) == kHash,
                   "[checksums] expected an object of format {} with {} of files in {}",
                   kChecksumsFormat, kHash, place);
  ChecksumManifest manifest;
  for (const auto& [name, of_file] : json["files"].items()) {
    ANABATIC_REQUIRE(
        of_file.is_object() && of_file.contains("bytes") && of_file["bytes"].is_number_integer() &&
            of_file.contains("header") != of_file.contains("content"),
        "[checksums] {}: {}: expected bytes and either header or content", place, name);
    FileChecksums& sums = manifest[name];
    sums.bytes = of_file["bytes"].get<std::int64_t>();
    sums.content = parse_hexadecimal(
        of_file.contains("header") ? of_file["header"] : of_file["content"], place);
    if (!of_file.contains("tensors")) continue;
    ANABATIC_REQUIRE(of_file["tensors"].is_object(), "[checksums] {}: {}: expected tensors", place,
                     name);
    for (const auto& [tensor, sum] : of_file["tensors"].items())
      sums.tensors[tensor] = parse_hexadecimal(sum, place);
  }
  return manifest;
}

void write_checksums(const std::filesystem::path& directory, const ChecksumManifest& manifest) {
  write_file_atomically(directory / kChecksumsFile, to_text(manifest));
}

std::optional<ChecksumManifest> read_checksums(const std::filesystem::path& directory) {
  const std::filesystem::path file = directory / kChecksumsFile;
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return std::nullopt;
  return parse_checksums(read_file(file, kMostChecksumsBytes), file.string());
}

std::vector<std::string> damage_of(const std::filesystem::path& path, const FileChecksums& written,
                                   int threads) {
  const std::string name = path.filename().string();
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return {fmt::format("{} is missing", name)};
  std::vector<std::string> problems;
  try {
    const FileChecksums found =
        is_safetensors(written) ? header_checksum(path) : checksums_of(path);
    if (found.bytes != written.bytes)
      return {fmt::format("{} holds {} bytes, {} were written", name, found.bytes, written.bytes)};
    if (found.content != written.content)
      return {fmt::format("{}: {}: expected checksum {:016x}, found {:016x}", name,
                          is_safetensors(written) ? "the header" : "the content", written.content,
                          found.content)};
    if (!is_safetensors(written)) return {};
    for (const std::string& tensor : damaged_tensors(path, written, threads))
      problems.push_back(fmt::format("{}: {}", name, tensor));
  } catch (const Error& error) {
    problems.emplace_back(error.what());
  }
  return problems;
}

}  // namespace anabatic::io
