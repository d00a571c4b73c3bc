// SPDX-License-Identifier: Apache-2.0
#include "train/convert/manifest.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>

#include "anabatic/version.h"
#include "base/error.h"
#include "base/json.h"
#include "base/json_node.h"
#include "base/text.h"
#include "model/stored_tensor.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;

constexpr int kManifestFormat = 1;
constexpr std::int64_t kLargestManifest = std::int64_t{1} << 30;

std::string op_of(const model::FileTensor& tensor, const model::WeightPiece& piece,
                  bool is_quantised, Direction direction) {
  const bool reorders = piece.heads.rows > 0 || tensor.num_alternating > 1;
  const std::string move = tensor.is_transposed ? "transpose" : reorders ? "reorder rows" : "copy";
  if (!is_quantised) return move;
  const std::string op = direction == Direction::kRead ? "dequantise" : "quantise";
  return move == "copy" ? op : op + ", " + move;
}

// Without its hash.
ManifestTensor describe_entry(const io::TensorEntry& entry) {
  return {.name = entry.name,
          .dtype = entry.dtype_name,
          .shape = entry.shape,
          .checksum = 0,
          .parts = {},
          .bytes = static_cast<std::int64_t>(entry.data.size())};
}

OrderedJson tensor_json(const ManifestTensor& tensor) {
  OrderedJson json{{"name", tensor.name},
                   {"dtype", tensor.dtype},
                   {"shape", tensor.shape},
                   {"xxh3", fmt::format("{:016x}", tensor.checksum)}};
  if (tensor.bytes > 0) json["bytes"] = tensor.bytes;
  if (!tensor.format.empty()) json["format"] = tensor.format;
  if (tensor.largest_error) json["largest_error"] = *tensor.largest_error;
  for (const ManifestPart& part : tensor.parts)
    json["parts"].push_back({{"parameter", part.parameter},
                             {"offset", part.offset},
                             {"count", part.count},
                             {"op", part.op}});
  return json;
}

// A member of an object, with a line a tensor. Only one of them is JSON at a time: a large model
// has tens of thousands.
void append_member(std::string& text, std::string_view name,
                   const std::vector<ManifestTensor>& tensors) {
  text += fmt::format(",\n \"{}\": [", name);
  for (const ManifestTensor& tensor : tensors)
    text += fmt::format("{}\n  {}", &tensor == &tensors.front() ? "" : ",",
                        dump_json(tensor_json(tensor)));
  text += tensors.empty() ? "]" : "\n ]";
}

std::uint64_t parse_checksum(const JsonNode& node) {
  const std::string text = node.as_string();
  std::size_t used = 0;
  std::uint64_t value = 0;
  if (text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string::npos)
    value = std::stoull(text, &used, 16);
  if (used != 16) node.refuse("16 hexadecimal digits");
  return value;
}

ManifestTensor parse_tensor(const JsonNode& node) {
  ManifestTensor tensor{.name = node.at("name").as_string(),
                        .dtype = node.at("dtype").as_string(),
                        .shape = {},
                        .checksum = parse_checksum(node.at("xxh3")),
                        .parts = {}};
  if (const auto bytes = node.find("bytes")) tensor.bytes = bytes->as_integer(0);
  if (const auto format = node.find("format")) tensor.format = format->as_string();
  if (const auto error = node.find("largest_error")) tensor.largest_error = error->as_number();
  for (const JsonNode& size : node.at("shape").items())
    tensor.shape.push_back(size.as_integer(0, std::int64_t{1} << 40));
  if (const auto parts = node.find("parts"))
    for (const JsonNode& part : parts->items()) {
      tensor.parts.push_back({part.at("parameter").as_string(), part.at("offset").as_integer(0),
                              part.at("count").as_integer(0), part.at("op").as_string()});
    }
  return tensor;
}

std::vector<ManifestTensor> parse_tensors(const JsonNode& node) {
  std::vector<ManifestTensor> tensors;
  for (const JsonNode& tensor : node.items()) tensors.push_back(parse_tensor(tensor));
  return tensors;
}

// The names of ManifestKind, in its order. A manifest without one is of a conversion.
constexpr std::string_view kManifestKinds[] = {"conversion", "import", "checkpoint"};

ManifestKind parse_kind(const JsonNode& node) {
  const auto* found = std::ranges::find(kManifestKinds, node.as_string());
  if (found == std::end(kManifestKinds))
    node.refuse(fmt::format("one of {}", fmt::join(kManifestKinds, ", ")));
  return static_cast<ManifestKind>(found - std::begin(kManifestKinds));
}

bool are_equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

// Compares what files hold of a tensor with what its values are there: elements, or the groups that
// share a scale.
class TensorComparison {
 public:
  TensorComparison(const model::FileTensor& tensor, const model::StoredTensor& stored)
      : tensor_(tensor),
        stored_(stored),
        form_(tensor, tensor.dtype),
        unit_(form_.unit()),
        size_(static_cast<std::size_t>(stored.bytes_of(0, unit_).size())) {}

  // The next values of the tensor; whole groups. Returns the bytes that were compared.
  std::span<const std::byte> compare(std::span<const float> values) {
    form_.write(values, elements_, scales_);
    const auto count = static_cast<std::int64_t>(values.size());
    const auto found = stored_.bytes_of(at_, count);
    std::span<const std::byte> scales;
    if (!scales_.empty()) {
      size_of_scales_ = scales_.size() / static_cast<std::size_t>(count / unit_);
      scales = stored_.scales->data.subspan(static_cast<std::size_t>(at_ / unit_) * size_of_scales_,
                                            scales_.size());
    }
    if (!are_equal(found, elements_) || !are_equal(scales, scales_))
      compare_each(values, found, scales);
    if (stored_.is_quantised()) add_errors(values);
    at_ += count;
    return found;
  }

  // "" where there is none.
  std::string difference() const {
    if (num_different_ == 0) return "";
    return fmt::format("{}: {} of {} {} differ from the source, first {}", tensor_.name,
                       num_different_, at_ / unit_, unit_ == 1 ? "elements" : "groups", first_);
  }

  // What the files hold differs by so much; nothing where they hold numbers.
  std::optional<double> largest_error() const { return largest_error_; }

 private:
  void compare_each(std::span<const float> values, std::span<const std::byte> found,
                    std::span<const std::byte> scales) {
    for (std::size_t i = 0; i < elements_.size() / size_; ++i) {
      const auto is_equal = [&](std::span<const std::byte> a, std::span<const std::byte> b,
                                std::size_t size) {
        return are_equal(a.subspan(i * size, size), b.subspan(i * size, size));
      };
      if (is_equal(found, elements_, size_) &&
          (scales.empty() || is_equal(scales, scales_, size_of_scales_)))
        continue;
      if (num_different_++ == 0)
        note_first(
            values.subspan(i * static_cast<std::size_t>(unit_), static_cast<std::size_t>(unit_)),
            at_ + static_cast<std::int64_t>(i) * unit_);
    }
  }

  // Where several share a scale, the element that is farthest from its value.
  void note_first(std::span<const float> values, std::int64_t at) {
    std::vector<float> found(values.size());
    stored_.read(at, found);
    std::size_t worst = 0;
    for (std::size_t i = 1; i < values.size(); ++i)
      if (std::abs(found[i] - values[i]) > std::abs(found[worst] - values[worst])) worst = i;
    first_ = fmt::format("element {}: expected {}, found {}", at + static_cast<std::int64_t>(worst),
                         values[worst], found[worst]);
  }

  void add_errors(std::span<const float> values) {
    read_.resize(values.size());
    stored_.read(at_, read_);
    double largest = largest_error_.value_or(0.0);
    for (std::size_t i = 0; i < values.size(); ++i)
      largest = std::max(largest, std::abs(double{read_[i]} - double{values[i]}));
    largest_error_ = largest;
  }

  const model::FileTensor& tensor_;
  const model::StoredTensor& stored_;
  model::StoredForm form_;
  std::int64_t unit_, at_ = 0;
  std::size_t size_, size_of_scales_ = 0, num_different_ = 0;
  std::string first_;
  std::optional<double> largest_error_;
  std::vector<std::byte> elements_, scales_;
  std::vector<float> read_;
};

std::string type_text(const ManifestTensor& tensor) {
  return fmt::format("{} [{}]", tensor.dtype, fmt::join(tensor.shape, ","));
}

}  // namespace

std::int64_t ManifestTensor::num_elements() const {
  std::int64_t count = parts.empty() ? 1 : 0;
  for (const ManifestPart& part : parts) count += part.count;
  if (parts.empty())
    for (const std::int64_t size : shape) count *= size;
  return count;
}

std::int64_t num_elements(const std::vector<ManifestTensor>& tensors) {
  std::int64_t count = 0;
  for (const ManifestTensor& tensor : tensors) count += tensor.num_elements();
  return count;
}

std::vector<ManifestPart> parts_of(const model::FileTensor& tensor, bool is_quantised,
                                   Direction direction) {
  std::vector<ManifestPart> parts;
  std::map<std::string_view, std::size_t> places;
  for (const model::WeightPiece& piece : tensor.pieces) {
    const auto [place, is_new] = places.try_emplace(piece.state, parts.size());
    if (is_new)
      parts.push_back(
          {piece.state, piece.offset, piece.count, op_of(tensor, piece, is_quantised, direction)});
    else
      parts[place->second].count += piece.count;
  }
  return parts;
}

std::vector<ManifestTensor> describe(const model::WeightSource& source, Direction direction,
                                     std::vector<ManifestTensor>& others) {
  std::vector<ManifestTensor> tensors;
  std::set<std::string_view> used;
  for (const model::FileTensor& tensor : source.map().tensors) {
    const model::StoredTensor& stored = source.stored(tensor.name);
    const std::vector<ManifestPart> parts = parts_of(tensor, stored.is_quantised(), direction);
    for (const io::TensorEntry* entry : stored.entries()) {
      used.insert(entry->name);
      tensors.push_back(describe_entry(*entry));
      if (entry == stored.elements) {
        tensors.back().parts = parts;
        if (stored.is_mxfp4()) tensors.back().format = to_string(GridFormat::kMxfp4);
        if (stored.grid) tensors.back().format = to_string(*stored.grid);
        continue;
      }
      for (const ManifestPart& part : parts)
        tensors.back().parts.push_back(
            {part.parameter, part.offset, 0, entry == stored.scales ? "scale" : "shape"});
    }
  }
  for (const auto& [name, entry] : source.files().entries())
    if (used.count(name) == 0) others.push_back(describe_entry(entry));
  hash_tensors(source.files(), tensors);
  hash_tensors(source.files(), others);
  return tensors;
}

fs::path manifest_path(const fs::path& model) {
  std::error_code ignored;
  return fs::is_directory(model, ignored) ? model / kManifestFile
                                          : fs::path(model.string() + ".manifest.json");
}

void write_manifest(const fs::path& directory, const Manifest& manifest) {
  write_manifest_file(directory / kManifestFile, manifest);
}

void write_manifest_file(const fs::path& file, const Manifest& manifest) {
  OrderedJson json{{"format", kManifestFormat},
                   {"kind", kManifestKinds[static_cast<std::size_t>(manifest.kind)]},
                   {"written_by", fmt::format("anabatic {}", kVersion)},
                   {"source", manifest.source},
                   {"elements",
                    {{"read", num_elements(manifest.read)},
                     {"written", num_elements(manifest.written)},
                     {"repeated", num_elements(manifest.repeated)},
                     {"ignored", num_elements(manifest.ignored)},
                     {"dropped", num_elements(manifest.dropped)}}}};
  if (const auto& logits = manifest.logits)
    json["logits"] = {{"tokens", logits->tokens},
                      {"largest_difference", logits->largest_difference},
                      {"same_next_token", logits->agreeing}};
  if (manifest.upcycle) json["upcycle"] = to_text(*manifest.upcycle);
  if (!manifest.adapter.empty()) json["adapter"] = manifest.adapter;
  std::string text = dump_json(json, 1);
  text.resize(text.size() - std::string_view("\n}").size());
  append_member(text, "read", manifest.read);
  append_member(text, "repeated", manifest.repeated);
  append_member(text, "ignored", manifest.ignored);
  append_member(text, "dropped", manifest.dropped);
  append_member(text, "written", manifest.written);
  write_file_atomically(file, text + "\n}\n");
}

Manifest read_manifest(const fs::path& model) {
  const fs::path file = manifest_path(model);
  ANABATIC_REQUIRE(fs::exists(file),
                   "[manifest] {}: expected {}, which convert and train write, found none",
                   model.string(), file.filename().string());
  const std::string place = fmt::format("[manifest] {}", file.string());
  const Json json = parse_json_object(read_file(file, kLargestManifest), place);
  const JsonNode top(json, place);
  if (const JsonNode format = top.at("format"); format.as_integer() != kManifestFormat)
    format.refuse(std::to_string(kManifestFormat));
  const auto kind = top.find("kind");
  Manifest manifest{.kind = kind ? parse_kind(*kind) : ManifestKind::kConversion,
                    .source = top.at("source").as_string(),
                    .read = parse_tensors(top.at("read")),
                    .written = parse_tensors(top.at("written")),
                    .repeated = parse_tensors(top.at("repeated")),
                    .ignored = parse_tensors(top.at("ignored"))};
  if (const auto dropped = top.find("dropped")) manifest.dropped = parse_tensors(*dropped);
  if (const auto upcycle = top.find("upcycle"))
    manifest.upcycle = parse_upcycle(upcycle->as_string());
  if (const auto adapter = top.find("adapter")) manifest.adapter = adapter->as_string();
  if (const auto logits = top.find("logits")) {
    const auto difference = logits->find("largest_difference");  // null: not finite
    manifest.logits = {.tokens = logits->at("tokens").as_integer(0),
                       .largest_difference = difference ? difference->as_number()
                                                        : std::numeric_limits<double>::quiet_NaN(),
                       .agreeing = logits->at("same_next_token").as_integer(0)};
  }
  return manifest;
}

std::vector<ManifestTensor> tensors_of_source(const Manifest& manifest) {
  std::vector<ManifestTensor> tensors = manifest.read;
  for (const auto* more : {&manifest.repeated, &manifest.ignored, &manifest.dropped})
    tensors.insert(tensors.end(), more->begin(), more->end());
  return tensors;
}

std::vector<std::string> differences(const std::vector<ManifestTensor>& expected,
                                     const std::vector<ManifestTensor>& found) {
  std::map<std::string_view, const ManifestTensor*> by_name;
  for (const ManifestTensor& tensor : found) by_name[tensor.name] = &tensor;
  std::vector<std::string> lines;
  for (const ManifestTensor& tensor : expected) {
    const auto other = by_name.find(tensor.name);
    if (other == by_name.end()) {
      lines.push_back(fmt::format("{}: missing", tensor.name));
      continue;
    }
    const ManifestTensor& now = *other->second;
    if (now.dtype != tensor.dtype || now.shape != tensor.shape)
      lines.push_back(
          fmt::format("{}: expected {}, found {}", tensor.name, type_text(tensor), type_text(now)));
    else if (now.checksum != tensor.checksum)
      lines.push_back(io::checksum_mismatch(tensor.name, tensor.checksum, now.checksum));
    by_name.erase(other);
  }
  for (const auto& [name, tensor] : by_name)
    lines.push_back(fmt::format("{}: surplus, {}", name, type_text(*tensor)));
  return lines;
}

model::ValueComparison compare_values(const model::StateReader& read,
                                      const model::WeightSource& result) {
  const auto count = result.map().tensors.size();
  std::vector<std::string> lines(count);
  std::vector<std::optional<double>> errors(count);
  io::parallel_tasks(std::ssize(lines), io::threads_for_files(), [&](std::int64_t task) {
    const auto place = static_cast<std::size_t>(task);
    model::FileTensor tensor = result.map().tensors[place];
    const model::StoredTensor& stored = result.stored(tensor.name);
    tensor.grid = stored.grid;
    TensorComparison comparison(tensor, stored);
    model::read_in_file_order(tensor, read, [&](std::span<const float> values) {
      result.files().release(comparison.compare(values));
    });
    lines[place] = comparison.difference();
    errors[place] = comparison.largest_error();
  });
  model::ValueComparison comparison;
  for (std::size_t i = 0; i < count; ++i) {
    if (!lines[i].empty()) comparison.differences.push_back(lines[i]);
    if (errors[i])
      comparison.largest_errors[result.stored(result.map().tensors[i].name).elements->name] =
          *errors[i];
  }
  return comparison;
}

}  // namespace anabatic::train
