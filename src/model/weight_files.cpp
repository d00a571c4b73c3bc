// SPDX-License-Identifier: Apache-2.0
#include "model/weight_files.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "model/mtp.h"
#include "model/stored_tensor.h"

namespace anabatic::model {
namespace {

// The spelling in which the files have the most parameters, the first of equal ones. Of experts,
// only the first one's tensor is looked up.
std::size_t detect_spelling(const Declarations& declared, const std::vector<Spelling>& spellings,
                            const io::SafetensorsDirectory& files) {
  const auto num_found = [&](const Spelling& names) {
    return std::count_if(
        declared.parameters.begin(), declared.parameters.end(), [&](const Parameter& parameter) {
          return find_stored(files, file_tensor(parameter, names, 0)).elements != nullptr;
        });
  };
  const auto best = std::max_element(
      spellings.begin(), spellings.end(),
      [&](const Spelling& a, const Spelling& b) { return num_found(a) < num_found(b); });
  return static_cast<std::size_t>(best - spellings.begin());
}

// The file tensor that holds only this parameter.
template <class Map>
auto& tensor_of(Map& map, std::string_view parameter) {
  const auto found = std::find_if(
      map.tensors.begin(), map.tensors.end(),
      [&](const FileTensor& tensor) { return tensor.pieces.front().state == parameter; });
  ANABATIC_CHECK(found != map.tensors.end(), "[weights] expected a tensor of {}, got none",
                 parameter);
  return *found;
}

// A buffer of older versions that holds nothing trained.
bool is_ignorable(std::string_view name) { return name.ends_with(".rotary_emb.inv_freq"); }

bool is_unused(const ModelSpec& spec, std::string_view name) {
  return std::any_of(spec.unused_tensors.begin(), spec.unused_tensors.end(),
                     [&](const std::string& end) { return name.ends_with(end); });
}

// Names the first few.
void tell_unused(const std::filesystem::path& directory, const std::vector<std::string>& names) {
  constexpr std::ptrdiff_t kMost = 4;
  if (names.empty()) return;
  log_info("[weights] {}: {} tensors are ignored, because the model does not use them: {}{}",
           directory.string(), names.size(),
           fmt::join(names.begin(),
                     names.begin() + std::min<std::ptrdiff_t>(kMost, std::ssize(names)), ", "),
           std::ssize(names) > kMost ? ", ..." : "");
}

// Collects "NAME: expected ..., got ..." lines, at most a hundred: a checkpoint of another model
// has thousands.
class Problems {
 public:
  void add(const std::string& line) {
    constexpr std::size_t kMost = 100;
    if (++count_ <= kMost) text_ += "\n  " + line;
  }
  void require_none(const std::filesystem::path& directory) const {
    if (count_ == 0) return;
    throw InvalidArgument(fmt::format("[weights] {}: {} tensors do not fit the config:{}{}",
                                      directory.string(), count_, text_,
                                      count_ > 100 ? "\n  ..." : ""));
  }

 private:
  std::size_t count_ = 0;
  std::string text_;
};

void check_tensor(FileTensor& tensor, const StoredTensor& stored, Problems& problems) {
  const std::vector<std::string> found = storage_problems(stored, tensor.name, tensor.shape);
  for (const std::string& problem : found) problems.add(problem);
  if (found.empty()) tensor.dtype = stored.export_dtype();
}

// Checks tensors of files that are not in the map.
void check_others(const io::SafetensorsDirectory& files, const ModelConfig& config,
                  const Declarations& declared, const WeightMap& map,
                  const std::filesystem::path& directory, Problems& problems) {
  std::vector<std::string> unused;
  std::set<std::string_view> expected;
  for (const FileTensor& tensor : map.tensors) {
    for (const io::TensorEntry* entry : find_stored(files, tensor.name).entries())
      expected.insert(entry->name);
  }
  for (const auto& [name, entry] : files.entries()) {
    if (expected.count(name) != 0 || is_ignorable(name)) continue;
    if (is_unused(config.spec, name)) {
      unused.push_back(name);
      continue;
    }
    if (left_out_layer(config, name) >= 0) continue;
    const auto repeated = std::find_if(
        declared.repeated.begin(), declared.repeated.end(),
        [&, &name = name](const RepeatedTensor& tensor) { return tensor.tensor == name; });
    if (repeated != declared.repeated.end()) {
      FileTensor same{name, DType::kFloat32, tensor_of(map, repeated->parameter).shape, {}};
      check_tensor(same, {.elements = &entry}, problems);
      continue;
    }
    if (const std::string stray = stray_scales_problem(files, entry); !stray.empty())
      problems.add(stray);
    else
      problems.add(fmt::format("{}: surplus, shape {}", name, shape_text(entry.shape)));
  }
  tell_unused(directory, unused);
}

// Says which layers of the files the model does not have.
void name_left_out(const ModelConfig& config, const io::SafetensorsDirectory& files,
                   const std::filesystem::path& directory) {
  std::set<std::int64_t> layers;
  for (const auto& [name, entry] : files.entries())
    if (const std::int64_t layer = left_out_layer(config, name); layer >= 0) layers.insert(layer);
  std::string names;
  for (const std::int64_t layer : layers)
    names += fmt::format("{}model.layers.{}", names.empty() ? "" : ", ", layer);
  if (!names.empty())
    log_info("[weights] {}: layers of multi-token prediction are left out: {}", directory.string(),
             names);
}

}  // namespace

WeightMap match_weight_map(const ModelConfig& config, const io::SafetensorsDirectory& files,
                           const std::filesystem::path& directory) {
  const Declarations declared = declare(config.spec);
  const std::size_t spelling = detect_spelling(declared, config.spec.spellings, files);
  WeightMap map = map_of(declared, config.spec.spellings[spelling], DType::kFloat32);
  map.spelling = spelling;
  // Where files hold only the repeated tensor, the parameter is read from it.
  for (const RepeatedTensor& repeated : declared.repeated)
    if (FileTensor& tensor = tensor_of(map, repeated.parameter);
        repeated.may_replace && files.find(tensor.name) == nullptr &&
        files.find(repeated.tensor) != nullptr)
      tensor.name = repeated.tensor;
  Problems problems;
  for (FileTensor& tensor : map.tensors)
    check_tensor(tensor, find_stored(files, tensor.name), problems);
  check_others(files, config, declared, map, directory, problems);
  problems.require_none(directory);
  name_left_out(config, files, directory);
  return map;
}

WeightMap respelled(const ModelConfig& config, const WeightMap& map, std::size_t spelling) {
  WeightMap result = make_weight_map(config, spelling, DType::kFloat32);
  std::map<std::string_view, DType> of_parameters;
  for (const FileTensor& tensor : map.tensors)
    for (const WeightPiece& piece : tensor.pieces) of_parameters.emplace(piece.state, tensor.dtype);
  for (FileTensor& tensor : result.tensors)
    tensor.dtype = of_parameters.at(tensor.pieces.front().state);
  return result;
}

std::size_t export_spelling(const WeightMap& map) {
  const bool has_blocks =
      std::any_of(map.tensors.begin(), map.tensors.end(),
                  [](const FileTensor& tensor) { return names_blocks(tensor.name); });
  return has_blocks ? 0 : map.spelling;
}

std::optional<std::size_t> mxfp4_spelling(const ModelConfig& config) {
  const std::vector<Spelling>& all = config.spec.spellings;
  const auto found = std::ranges::find_if(all, [](const Spelling& names) {
    return std::ranges::any_of(names,
                               [](const Renamed& name) { return names_blocks(name.file.tensor); });
  });
  if (found == all.end()) return std::nullopt;
  return static_cast<std::size_t>(found - all.begin());
}

WeightMap read_weight_map(const ModelConfig& config, const std::filesystem::path& directory) {
  return match_weight_map(config, io::SafetensorsDirectory::open(directory), directory);
}

void use_own_names(const ModelConfig& config, WeightMap& map) {
  const Declarations declared = declare(config.spec);
  for (const RepeatedTensor& repeated : declared.repeated)
    for (const Parameter& parameter : declared.parameters)
      if (parameter.key == repeated.parameter && parameter.layer < 0)
        tensor_of(map, repeated.parameter).name =
            file_tensor(parameter, config.spec.spellings.at(map.spelling), 0);
}

void require_equal_repeats(const ModelConfig& config, const WeightMap& map,
                           const io::SafetensorsDirectory& files,
                           const std::filesystem::path& directory) {
  for (const RepeatedTensor& repeated : declare(config.spec).repeated) {
    const std::string& name = tensor_of(map, repeated.parameter).name;
    const io::TensorEntry *one = files.find(name), *other = files.find(repeated.tensor);
    if (one == nullptr || other == nullptr || one == other) continue;
    const bool is_equal =
        one->dtype == other->dtype &&
        std::equal(one->data.begin(), one->data.end(), other->data.begin(), other->data.end());
    ANABATIC_REQUIRE(is_equal, "[weights] {}: expected {} to equal {}, because {}",
                     directory.string(), repeated.tensor, name,
                     repeated.may_replace
                         ? "tie_word_embeddings is true; set it to false to train both"
                         : "layers of multi-token prediction share the model's own");
  }
}

}  // namespace anabatic::model
