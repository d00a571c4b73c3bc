// SPDX-License-Identifier: Apache-2.0
#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "io/file.h"
#include "io/parallel.h"
#include "model/float_conversion.h"
#include "model/gguf_model.h"
#include "model/import_record.h"
#include "model/mtp.h"
#include "model/read_elements.h"
#include "model/stored_tensor.h"
#include "model/transpose.h"
#include "model/weight_files.h"

namespace anabatic::model {
namespace {

constexpr std::int64_t kCachedElements = std::int64_t{1} << 16;  // stays in a cache

DType saved_dtype(const FileTensor& tensor, SaveDType dtype) {
  return dtype == SaveDType::kFloat32 ? DType::kFloat32 : tensor.dtype;
}

DType most_of(const std::map<DType, std::int64_t>& elements) {
  return std::max_element(elements.begin(), elements.end(),
                          [](const auto& a, const auto& b) {
                            return std::pair(a.second, size_bytes(a.first)) <
                                   std::pair(b.second, size_bytes(b.first));
                          })
      ->first;
}

// Contiguous parts of states, in the order of a tensor's elements before any transposition.
class Runs {
 public:
  // body(state, its first element, the first of `values`, count) for the tensor's elements from
  // `first` on that correspond to `count` values.
  using Body = std::function<void(std::string_view state, std::int64_t in_state, std::int64_t at,
                                  std::int64_t count)>;

  Runs(const FileTensor& tensor, Body body) : tensor_(tensor), body_(std::move(body)) {}

  void visit(std::int64_t first, std::int64_t count) {
    at_ = 0;
    std::int64_t begin = 0;  // of a group of pieces
    const std::span<const WeightPiece> pieces(tensor_.pieces);
    for (std::size_t p = 0; p < pieces.size() && at_ < count; p += tensor_.num_alternating) {
      const auto group = pieces.subspan(p, tensor_.num_alternating);
      std::int64_t size = 0;
      for (const WeightPiece& piece : group) size += piece.count;
      const std::int64_t from = first + at_ - begin;
      if (from < size) visit_group(group, from, std::min(size - from, count - at_));
      begin += size;
    }
  }

 private:
  void visit_group(std::span<const WeightPiece> group, std::int64_t first, std::int64_t count) {
    if (group.size() == 1) return visit_piece(group[0], first, count);
    std::int64_t of_all = 0;
    for (const WeightPiece& piece : group) of_all += piece.rows_in_turn * piece.row_elements;
    for (const std::int64_t end = first + count; first < end;) {
      const std::int64_t turn = first / of_all;
      std::int64_t place = first % of_all;
      std::size_t p = 0;
      for (; place >= group[p].rows_in_turn * group[p].row_elements; ++p)
        place -= group[p].rows_in_turn * group[p].row_elements;
      const std::int64_t own = group[p].rows_in_turn * group[p].row_elements,
                         length = std::min(own - place, end - first);
      visit_piece(group[p], turn * own + place, length);
      first += length;
    }
  }

  void visit_piece(const WeightPiece& piece, std::int64_t first, std::int64_t count) {
    if (piece.heads.rows == 0) return emit(piece, first, count);
    const std::int64_t width = piece.row_elements;
    for (const std::int64_t end = first + count; first < end;) {
      const std::int64_t row = first / width, column = first % width,
                         length = std::min(width - column, end - first);
      emit(piece, piece.heads.own_row(row) * width + column, length);
      first += length;
    }
  }

  void emit(const WeightPiece& piece, std::int64_t first, std::int64_t count) {
    body_(piece.state, piece.offset + first, at_, count);
    at_ += count;
  }

  const FileTensor& tensor_;
  Body body_;
  std::int64_t at_ = 0;
};

std::span<float> part(std::span<float> values, std::int64_t at, std::int64_t count) {
  return values.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count));
}

void write_elements(const FileTensor& tensor, std::int64_t first, std::span<float> values,
                    const StateWriter& write) {
  Runs(tensor, [&](std::string_view state, std::int64_t in_state, std::int64_t at,
                   std::int64_t count) {
    write(state, in_state, part(values, at, count));
  }).visit(first, static_cast<std::int64_t>(values.size()));
}

// What is converted at a time: a block, whole rows of a packed matrix, or a matrix of a tensor
// that is transposed.
std::int64_t elements_at_once(const FileTensor& tensor) {
  if (tensor.grid)
    return std::max<std::int64_t>(kCachedElements / tensor.shape.back(), 1) * tensor.shape.back();
  return tensor.is_transposed ? tensor.shape.back() * *(tensor.shape.end() - 2) : kCachedElements;
}

// Elements [first, first + count) of an MXFP4 tensor, which are whole groups.
void import_mxfp4(const FileTensor& tensor, const StoredTensor& stored, std::int64_t first,
                  std::int64_t count, const StateWriter& write, const Mxfp4Writer& write_mxfp4) {
  std::vector<float> values;
  Runs(tensor, [&](std::string_view state, std::int64_t in_state, std::int64_t at,
                   std::int64_t length) {
    const auto scales =
        stored.scales->data.subspan(static_cast<std::size_t>((first + at) / kMxfp4Group),
                                    static_cast<std::size_t>(length / kMxfp4Group));
    if (write_mxfp4(state, in_state, stored.bytes_of(first + at, length), scales)) return;
    values.resize(static_cast<std::size_t>(length));
    stored.read(first + at, values);
    write(state, in_state, values);
  }).visit(first, count);
}

// Reads blocks and releases their pages, so that little memory is needed in addition to the states.
// Returns the checksum of the bytes.
std::uint64_t import_tensor(const io::SafetensorsDirectory& files, const FileTensor& tensor,
                            const StoredTensor& stored, const StateWriter& write,
                            const Mxfp4Writer& write_mxfp4) {
  io::Checksum sum;
  std::vector<float> values, turned;
  const std::int64_t total = tensor.num_elements(), step = elements_at_once(tensor);
  for (std::int64_t done = 0; done < total; done += step) {
    const std::int64_t count = std::min(step, total - done);
    const auto block = stored.bytes_of(done, count);
    sum.add(block);
    if (stored.is_mxfp4() && write_mxfp4) {
      import_mxfp4(tensor, stored, done, count, write, write_mxfp4);
      files.release(block);
      continue;
    }
    values.resize(static_cast<std::size_t>(count));
    stored.read(done, values);
    if (tensor.is_transposed) {
      turned.resize(values.size());
      transpose(values, tensor.shape.back(), turned, *(tensor.shape.end() - 2));
    }
    write_elements(tensor, done, tensor.is_transposed ? turned : values, write);
    files.release(block);
  }
  return sum.value();
}

// The checksums of a checkpoint's files, which are stored next to them.
class WrittenChecksums {
 public:
  explicit WrittenChecksums(const std::filesystem::path& directory) {
    if (std::filesystem::is_directory(directory)) manifest_ = io::read_checksums(directory);
  }

  void compare(const io::TensorEntry& entry, std::uint64_t found) {
    const io::FileChecksums* file = file_of(*entry.file);
    if (file == nullptr) return;
    const auto written = file->tensors.find(entry.name);
    ANABATIC_REQUIRE(written == file->tensors.end() || written->second == found,
                     "[weights] {}: {}; the file is damaged. If it was changed on purpose, remove "
                     "{} next to it",
                     entry.file->string(),
                     io::checksum_mismatch(entry.name, written->second, found), io::kChecksumsFile);
  }

 private:
  // Null without checksums, or where they are for another file.
  const io::FileChecksums* file_of(const std::filesystem::path& path) {
    if (!manifest_) return nullptr;
    const auto [known, is_new] = files_.try_emplace(path, nullptr);
    if (!is_new) return known->second;
    const auto written = manifest_->find(path.filename().string());
    const io::FileChecksums header = io::header_checksum(path);
    if (written != manifest_->end() && written->second.bytes == header.bytes &&
        written->second.content == header.content) {
      known->second = &written->second;
    } else {
      log_warning(
          "[weights] {} is not the file that {} was written for: its tensors are not checked",
          path.string(), io::kChecksumsFile);
    }
    return known->second;
  }

  std::optional<io::ChecksumManifest> manifest_;
  std::map<std::filesystem::path, const io::FileChecksums*> files_;
};

}  // namespace

std::int64_t FileTensor::num_elements() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

void for_runs(const FileTensor& tensor,
              const std::function<void(std::string_view state, std::int64_t in_state,
                                       std::int64_t at, std::int64_t count)>& body) {
  Runs(tensor, body).visit(0, tensor.num_elements());
}

void read_elements(const FileTensor& tensor, std::int64_t first, std::span<float> values,
                   const StateReader& read) {
  Runs(tensor, [&](std::string_view state, std::int64_t in_state, std::int64_t at,
                   std::int64_t count) {
    read(state, in_state, part(values, at, count));
  }).visit(first, static_cast<std::int64_t>(values.size()));
}

// Blocks, so that little memory is needed in addition to the states.
void read_in_file_order(const FileTensor& tensor, const StateReader& read,
                        const std::function<void(std::span<const float>)>& take) {
  std::vector<float> values, turned;
  const std::int64_t total = tensor.num_elements(), step = elements_at_once(tensor);
  for (std::int64_t done = 0; done < total; done += step) {
    values.resize(static_cast<std::size_t>(std::min(step, total - done)));
    read_elements(tensor, done, values, read);
    if (tensor.is_transposed) {
      turned.resize(values.size());
      transpose(values, *(tensor.shape.end() - 2), turned, tensor.shape.back());
    }
    take(tensor.is_transposed ? turned : values);
  }
}

namespace {

// A bias that is not finite would silently bar experts, or choose one for every token.
void require_finite_biases(const FileTensor& tensor, const std::filesystem::path& directory,
                           std::span<const float> values) {
  if (!tensor.pieces.front().state.ends_with(kCorrectionBias)) return;
  const auto bad =
      std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  ANABATIC_REQUIRE(bad == values.end(),
                   "[weights] {}: {}: expected finite biases of experts, found {} for expert {}",
                   directory.string(), tensor.name, *bad, bad - values.begin());
}

// Tensors that no parameter is read from. One that is repeated has the bytes of its twin, which
// require_equal_repeats has compared.
void record_others(const ModelConfig& config, const io::SafetensorsDirectory& files,
                   ImportRecord& record) {
  std::map<std::string_view, const ImportedTensor*> used;
  for (const ImportedTensor& imported : record.used) used.emplace(imported.tensor.name, &imported);
  const Declarations declared = declare(config.spec);
  for (const auto& [name, entry] : files.entries()) {
    if (used.contains(name)) continue;
    ImportedTensor other{{.name = name, .shape = entry.shape, .pieces = {}}, entry.dtype_name};
    const auto repeated = std::ranges::find(declared.repeated, name, &RepeatedTensor::tensor);
    if (repeated == declared.repeated.end()) {
      other.checksum = io::checksum_of_mapped(files, entry.data);
      (left_out_layer(config, name) >= 0 ? record.dropped : record.ignored)
          .push_back(std::move(other));
      continue;
    }
    const auto twin = std::ranges::find_if(record.used, [&](const ImportedTensor& imported) {
      return !imported.tensor.pieces.empty() &&  // those of scales have none
             imported.tensor.pieces.front().state == repeated->parameter;
    });
    ANABATIC_CHECK(twin != record.used.end(), "[weights] expected a tensor of {}, got none",
                   repeated->parameter);
    other.checksum = twin->checksum;
    record.repeated.push_back(std::move(other));
  }
}

}  // namespace

WeightMap import_weights(const ModelConfig& config, const std::filesystem::path& directory,
                         const StateWriter& write) {
  ImportRecord unread;
  return import_weights(config, directory, write, unread);
}

WeightMap import_weights(const ModelConfig& config, const std::filesystem::path& directory,
                         const StateWriter& write, ImportRecord& record, int threads,
                         const Mxfp4Writer& write_mxfp4) {
  if (io::is_gguf(directory)) return import_gguf(config, directory, write, record);
  const io::SafetensorsDirectory files = io::SafetensorsDirectory::open(directory);
  WeightMap map = match_weight_map(config, files, directory);
  require_equal_repeats(config, map, files, directory);
  std::vector<std::uint64_t> sums(map.tensors.size());
  io::parallel_tasks(std::ssize(map.tensors), threads, [&](std::int64_t task) {
    const auto place = static_cast<std::size_t>(task);
    const FileTensor& tensor = map.tensors[place];
    const auto checked = [&](std::string_view state, std::int64_t first,
                             std::span<const float> values) {
      require_finite_biases(tensor, directory, values);
      write(state, first, values);
    };
    sums[place] =
        import_tensor(files, tensor, find_stored(files, tensor.name), checked, write_mxfp4);
  });
  WrittenChecksums checksums(directory);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const FileTensor& tensor = map.tensors[i];
    const StoredTensor stored = find_stored(files, tensor.name);
    checksums.compare(*stored.elements, sums[i]);
    record.used.push_back({tensor, stored.elements->dtype_name, sums[i]});
    record.used.back().tensor.name = stored.elements->name;
    for (const io::TensorEntry* entry : stored.entries()) {
      if (entry == stored.elements) continue;
      const std::uint64_t sum = io::checksum_of_mapped(files, entry->data);
      checksums.compare(*entry, sum);
      record.used.push_back(
          {{.name = entry->name, .shape = entry->shape, .pieces = {}}, entry->dtype_name, sum});
    }
  }
  record_others(config, files, record);
  const std::size_t spelling = export_spelling(map);
  return spelling == map.spelling ? map : respelled(config, map, spelling);
}

DType dominant_dtype(const WeightMap& map, SaveDType dtype) {
  std::map<DType, std::int64_t> elements;
  for (const FileTensor& tensor : map.tensors)
    if (!names_blocks(tensor.name) && !tensor.grid)
      elements[saved_dtype(tensor, dtype)] += tensor.num_elements();
  return most_of(elements);
}

std::optional<DType> stored_dtype(const std::filesystem::path& directory) {
  if (!std::filesystem::exists(directory / "model.safetensors") &&
      !std::filesystem::exists(directory / "model.safetensors.index.json"))
    return std::nullopt;
  std::map<DType, std::int64_t> elements;
  const io::SafetensorsDirectory files = io::SafetensorsDirectory::open(directory);
  for (const auto& [name, entry] : files.entries())
    if (const std::int64_t count = num_weights(entry); count > 0)
      elements[StoredTensor{.elements = &entry}.export_dtype()] += count;
  return elements.empty() ? std::nullopt : std::optional(most_of(elements));
}

std::string_view config_name(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
    case DType::kFloat64:
      return "float64";
    default:
      return "float32";
  }
}

io::ChecksumManifest export_weights(const WeightMap& map, const std::filesystem::path& directory,
                                    SaveDType dtype, const StateReader& read,
                                    const io::SafetensorsWriterOptions& options,
                                    std::span<const io::TensorEntry* const> others, int threads) {
  std::vector<io::TensorInfo> infos;
  for (const FileTensor& tensor : map.tensors)
    std::ranges::copy(StoredForm(tensor, saved_dtype(tensor, dtype)).infos(),
                      std::back_inserter(infos));
  for (const io::TensorEntry* entry : others)
    infos.push_back({entry->name, *entry->dtype, entry->shape});
  io::SafetensorsWriter writer(directory, std::move(infos), options);
  io::parallel_tasks(std::ssize(map.tensors), threads, [&](std::int64_t task) {
    const FileTensor& tensor = map.tensors[static_cast<std::size_t>(task)];
    const DType saved = saved_dtype(tensor, dtype);
    const StoredForm form(tensor, saved);
    const auto& infos_of = form.infos();
    std::vector<std::byte> bytes, scales;
    read_in_file_order(tensor, read, [&](std::span<const float> values) {
      if (saved == DType::kFloat32 && infos_of[0].dtype == DType::kFloat32)
        return writer.write(tensor.name, std::as_bytes(values));
      form.write(values, bytes, scales);
      writer.write(infos_of[0].name, bytes);
      if (form.has_scales()) writer.write(infos_of[1].name, scales);
    });
    if (infos_of.size() > 2) writer.write(infos_of[2].name, form.shape_bytes());
  });
  for (const io::TensorEntry* entry : others) writer.write(entry->name, entry->data);
  return writer.finish();
}

}  // namespace anabatic::model
