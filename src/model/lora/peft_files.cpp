// SPDX-License-Identifier: Apache-2.0
#include "model/lora/peft_files.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "io/safetensors_writer.h"
#include "model/float_conversion.h"
#include "model/stored_tensor.h"
#include "model/transpose.h"
#include "model/weight_files.h"

namespace anabatic::model {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostProblems = 10;     // that an error lists
constexpr const char* kA = ".lora_A.weight";  // of linears and stacks
constexpr const char* kB = ".lora_B.weight";
constexpr std::string_view kEndOfWeight = ".weight";

std::string_view parent_of(std::string_view name) { return name.substr(0, name.rfind('.')); }

bool is_of_experts(const AdaptableTensor& tensor) {
  return tensor.weights.front()->is_per_expert();
}

std::int64_t experts_of(const AdaptableTensor& tensor) {
  return is_of_experts(tensor) ? tensor.weights.front()->shape[0] : 1;
}

std::int64_t rows_of(const std::vector<const Parameter*>& weights) {
  std::int64_t rows = 0;
  for (const Parameter* weight : weights) rows += *(weight->shape.end() - 2);
  return rows;
}

// PEFT had in and out of stacks the other way round before 0.19.
bool is_before_swap(const std::string& version) {
  int major = 0, minor = 0;
  const char* end = version.data() + version.size();
  const auto [dot, error] = std::from_chars(version.data(), end, major);
  if (error != std::errc{} || dot == end) return false;
  std::from_chars(dot + 1, end, minor);
  return major == 0 && minor < 19;
}

void throw_problems(const fs::path& directory, const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  const std::size_t shown = std::min(problems.size(), kMostProblems);
  throw InvalidArgument(fmt::format(
      "[lora] {}: {} problem{}:\n  {}{}", directory.string(), problems.size(),
      problems.size() == 1 ? "" : "s",
      fmt::join(problems.begin(), problems.begin() + static_cast<std::ptrdiff_t>(shown), "\n  "),
      shown < problems.size() ? fmt::format("\n  and {} more", problems.size() - shown) : ""));
}

void write_floats(io::SafetensorsWriter& writer, const std::string& name,
                  std::span<const float> values) {
  writer.write(name, std::as_bytes(values));
}

io::SafetensorsWriter open_writer(const fs::path& directory, std::vector<io::TensorInfo> infos) {
  return io::SafetensorsWriter::single_file(directory / fmt::format("{}.safetensors", kAdapterStem),
                                            std::move(infos));
}

}  // namespace

PeftFiles::PeftFiles(const ModelConfig& config, const fs::path& directory, GateUp gate_up)
    : declared_(adaptable_parameters(config)),
      tensors_(adaptable_tensors(config, declared_)),
      module_spelling_(module_spelling(config)),
      maps_(config.spec.spellings.size()),
      peft_(read_peft_config(directory)),
      files_(io::SafetensorsDirectory::open(directory, kAdapterStem)) {
  std::vector<std::string> problems;
  maps_[module_spelling_] = module_map(config);
  for (const auto& [name, entry] : files_.entries()) used_[name] = false;
  for (std::size_t tensor = 0; tensor < tensors_.size(); ++tensor) take(config, tensor, problems);
  for (const auto& [name, is_used] : used_)
    if (!is_used)
      problems.push_back(fmt::format("{}: no weight of this {} has an adapter of that name", name,
                                     config.model_type));
  check_targets(config, problems);
  throw_problems(directory, problems);
  ANABATIC_REQUIRE(!adapter_.groups.empty(),
                   "[lora] {}: expected tensors of an adapter, found none", directory.string());
  for (const Source& source : sources_)
    if (maps_[source.spelling].tensors.empty())
      maps_[source.spelling] =
          map_of(declared_, config.spec.spellings[source.spelling], DType::kFloat32);
  if (gate_up != GateUp::kTogether) split_gate_up(gate_up == GateUp::kApart);
}

bool PeftFiles::has(const std::string& stem, AdapterKind kind) const {
  const PeftEnds ends = peft_ends(kind);
  return used_.contains(stem + ends.a) || used_.contains(stem + ends.b);
}

PeftFiles::Pair PeftFiles::use(const std::string& stem, std::vector<std::string>& problems,
                               AdapterKind kind) {
  const PeftEnds ends = peft_ends(kind);
  for (const char* end : {ends.a, ends.b}) {
    const auto found = used_.find(stem + end);
    if (found == used_.end())
      problems.push_back(fmt::format("{}{}: missing, the other half is there", stem, end));
    else
      found->second = true;
  }
  return {stem + ends.a, stem + ends.b};
}

bool PeftFiles::take(const ModelConfig& config, std::size_t tensor,
                     std::vector<std::string>& problems) {
  const AdaptableTensor& own = tensors_[tensor];
  const std::vector<Spelling>& spellings = config.spec.spellings;
  if (is_of_experts(own)) {
    bool is_found = take_stack(tensor, problems);
    for (std::size_t i = 0; i < spellings.size() && !is_found; ++i)
      if (has_tensor_per_expert(*own.weights.front(), spellings[i]))
        is_found = take_numbered(config, tensor, i, problems);
    return is_found;
  }
  for (std::size_t i = 0; i < spellings.size(); ++i) {
    const std::string file = file_tensor(*own.weights.front(), spellings[i], 0);
    const bool is_one = std::ranges::all_of(own.weights, [&](const Parameter* weight) {
      return file_tensor(*weight, spellings[i], 0) == file;
    });
    if (!is_one || !file.ends_with(kEndOfWeight)) continue;
    const std::string module(parent_of(file)), stem = kPeftPrefix + module;
    if (!has(stem, own.kind)) continue;
    if (own.kind == AdapterKind::kEmbedding || own.kind == AdapterKind::kHead)
      take_weight(config, own, stem, problems);
    const bool is_parameter = std::ranges::any_of(
        peft_.target_parameters, [&](const std::string& name) { return names_target(name, file); });
    add(own.weights, {.tensor = tensor, .spelling = i, .pairs = {use(stem, problems, own.kind)}},
        is_parameter ? file : module, problems);
    return true;
  }
  return false;
}

void PeftFiles::take_weight(const ModelConfig& config, const AdaptableTensor& own,
                            const std::string& stem, std::vector<std::string>& problems) {
  const std::string name = stem + ".base_layer.weight";
  const auto found = used_.find(name);
  if (found == used_.end()) return;
  found->second = true;
  const Parameter& weight = *own.weights.front();
  for (std::string& problem : storage_problems({.elements = files_.find(name)}, name, weight.shape))
    problems.push_back(std::move(problem));
  const bool is_tied_head = own.kind == AdapterKind::kHead && config.spec.head.is_tied;
  weights_[name] = is_tied_head ? "embedding.weight" : weight.name();
}

void PeftFiles::require_equal_weights(const ModelConfig& config, const StateReader& read) const {
  for (const auto& [name, parameter] : weights_) {
    const io::TensorEntry& entry = *files_.find(name);
    const StoredTensor stored{.elements = &entry};
    constexpr std::int64_t kBlock = std::int64_t{1} << 20;
    std::vector<float> found, expected;
    std::vector<std::byte> rounded;
    for (std::int64_t first = 0; first < entry.num_elements(); first += kBlock) {
      found.resize(static_cast<std::size_t>(std::min(kBlock, entry.num_elements() - first)));
      expected.resize(found.size());
      stored.read(first, found);
      read(parameter, first, expected);
      rounded.resize(found.size() * static_cast<std::size_t>(size_bytes(*entry.dtype)));
      from_floats(*entry.dtype, expected, rounded);
      to_floats(*entry.dtype, rounded, expected);
      const auto [at, other] = std::ranges::mismatch(found, expected);
      ANABATIC_REQUIRE(at == found.end(),
                       "[lora] {}: expected {} of this {}, found another value at element {}: {}, "
                       "the model has {}; the adapter is of another base",
                       name, parameter, config.model_type, first + (at - found.begin()), *at,
                       *other);
    }
  }
}

// The parameters of a module are wrapped one after the other, the first one innermost.
bool PeftFiles::take_stack(std::size_t tensor, std::vector<std::string>& problems) {
  const std::string module(parent_of(tensors_[tensor].file));
  const std::string stem = kPeftPrefix + module, inner = stem + ".base_layer";
  if (!has(stem) && !has(inner)) return false;
  std::vector<std::size_t> of_module;
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    if (is_of_experts(tensors_[i]) && parent_of(tensors_[i].file) == module) of_module.push_back(i);
  const auto is_named = [&](std::size_t i) {
    return std::ranges::any_of(peft_.target_parameters, [&](const std::string& name) {
      return names_target(name, tensors_[i].file);
    });
  };
  std::string own;
  if (has(inner)) {
    own = tensor == of_module.front() ? inner : stem;
  } else {
    // A single one has no other to be wrapped by.
    const auto num_named = std::ranges::count_if(of_module, is_named);
    if (num_named == 1 && !is_named(tensor)) return false;
    if (num_named != 1 && tensor != of_module.front()) return false;
    if (num_named != 1) {
      problems.push_back(fmt::format(
          "{}{}: expected target_parameters to name the one parameter of {} that it adapts", stem,
          kA, module));
      (void)use(stem, problems);
      return false;
    }
    own = stem;
  }
  add(tensors_[tensor].weights,
      {.tensor = tensor, .spelling = module_spelling_, .pairs = {use(own, problems)}},
      tensors_[tensor].file, problems);
  return true;
}

bool PeftFiles::take_numbered(const ModelConfig& config, std::size_t tensor, std::size_t spelling,
                              std::vector<std::string>& problems) {
  const Spelling& names = config.spec.spellings[spelling];
  bool is_found = false;
  for (const Parameter* weight : tensors_[tensor].weights) {
    const auto stem_of = [&](std::int64_t expert) {
      return kPeftPrefix + std::string(parent_of(file_tensor(*weight, names, expert)));
    };
    const std::int64_t experts = weight->shape[0];
    std::vector<std::int64_t> missing;
    for (std::int64_t e = 0; e < experts; ++e)
      if (!has(stem_of(e))) missing.push_back(e);
    if (std::ssize(missing) == experts) continue;
    is_found = true;
    if (!missing.empty()) {
      problems.push_back(
          fmt::format("{}: expected an adapter of each of {} experts, {} missing, "
                      "such as {}{}",
                      weight->name(), experts, missing.size(), stem_of(missing.front()), kA));
      for (std::int64_t e = 0; e < experts; ++e)
        if (has(stem_of(e))) (void)use(stem_of(e), problems);
      continue;
    }
    Source source{.tensor = tensor, .spelling = spelling, .pairs = {}, .is_numbered = true};
    const auto target_of = [&](std::int64_t e) {
      return std::string(parent_of(file_tensor(*weight, names, e)));
    };
    for (std::int64_t e = 0; e < experts; ++e) {
      source.pairs.push_back(use(stem_of(e), problems));
      if (peft_.alpha_of(target_of(e)) != peft_.alpha_of(target_of(0)))
        problems.push_back(fmt::format("{}: expected one alpha of all experts, got {} of {}",
                                       weight->name(), peft_.alpha_of(target_of(e)), target_of(e)));
    }
    add({weight}, std::move(source), target_of(0), problems);
  }
  return is_found;
}

bool PeftFiles::fits(const Pair& pair, const std::string& target, std::int64_t a_columns,
                     std::int64_t b_rows, std::int64_t width,
                     std::vector<std::string>& problems) const {
  bool is_right = true;
  const auto check = [&](const std::string& name, std::vector<std::int64_t> shape) {
    const io::TensorEntry* entry = files_.find(name);
    if (entry == nullptr) return void(is_right = false);
    const bool is_float = entry->dtype == DType::kFloat32 || entry->dtype == DType::kBFloat16 ||
                          entry->dtype == DType::kFloat16;
    if (entry->shape == shape && is_float) return;
    is_right = false;
    problems.push_back(fmt::format("{}: expected numbers {} by {} of {}, found {} {}", name,
                                   shape_text(shape), kAdapterConfig, target, entry->dtype_name,
                                   shape_text(entry->shape)));
  };
  check(pair.a, {width, a_columns});
  check(pair.b, {b_rows, width});
  return is_right;
}

void PeftFiles::add(const std::vector<const Parameter*>& weights, Source source,
                    const std::string& target, std::vector<std::string>& problems) {
  const AdaptableTensor& own = tensors_[source.tensor];
  targets_.push_back(target);
  AdapterGroup group = make_group(weights, own.kind, peft_.rank_of(target), peft_.alpha_of(target),
                                  peft_.divides_by_root);
  const std::int64_t rank = group.rank, columns = group.columns,
                     rows = group.is_table() ? group.parts.front().rows : rows_of(weights);
  const bool is_stack = is_of_experts(own) && !source.is_numbered;
  source.rank = rank;
  source.group = adapter_.groups.size();
  const std::int64_t width = is_stack ? rank * experts_of(own) : rank;
  if (is_stack) {
    const io::TensorEntry* a = files_.find(source.pairs.front().a);
    const bool may_be_swapped = a != nullptr && a->shape.size() == 2 && a->shape[1] == rows &&
                                !file_of(source).is_transposed;
    source.is_swapped = may_be_swapped && (rows != columns || is_before_swap(peft_.version));
  }
  bool is_right = true;
  for (const Pair& pair : source.pairs)
    is_right &= fits(pair, target, source.is_swapped ? rows : columns,
                     source.is_swapped ? columns : rows, width, problems);
  if (!is_right) return;
  adapter_.groups.push_back(std::move(group));
  sources_.push_back(std::move(source));
}

void PeftFiles::check_targets(const ModelConfig& config, std::vector<std::string>& problems) {
  const auto has_tensors = [&](const std::string& name) {
    return std::ranges::any_of(
        targets_, [&](const std::string& target) { return names_target(name, target); });
  };
  std::vector<std::string> names = peft_.target_parameters;
  if (peft_.lists_modules)
    names.insert(names.end(), peft_.target_modules.begin(), peft_.target_modules.end());
  for (const std::string& name : names)
    if (!has_tensors(name))
      problems.push_back(
          fmt::format("{}: targets {}, but no tensor of the file is of it", kAdapterConfig, name));
  if (!peft_.lists_modules || peft_.leaves_some_out) return;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const bool is_there =
        std::ranges::any_of(sources_, [&](const Source& source) { return source.tensor == i; });
    if (is_there) continue;
    for (const Spelling& spelling : config.spec.spellings) {
      const std::string module(parent_of(file_tensor(*tensors_[i].weights.front(), spelling, 0)));
      const bool is_meant = std::ranges::any_of(peft_.target_modules, [&](const std::string& name) {
        return names_target(name, module);
      });
      if (!is_meant) continue;
      left_out_.push_back(module);
      break;
    }
  }
}

std::vector<float> PeftFiles::values_of(const std::string& tensor) const {
  const io::TensorEntry& entry = *files_.find(tensor);
  std::vector<float> values(static_cast<std::size_t>(entry.num_elements()));
  StoredTensor{.elements = &entry}.read(0, values);
  return values;
}

const FileTensor& PeftFiles::file_of(const Source& source) const {
  const std::string first = tensors_[source.tensor].weights.front()->name();
  const std::vector<FileTensor>& files = maps_[source.spelling].tensors;
  const auto file = std::ranges::find_if(files, [&](const FileTensor& tensor) {
    return std::ranges::find(tensor.pieces, first, &WeightPiece::state) != tensor.pieces.end();
  });
  ANABATIC_CHECK(file != files.end(), "[lora] no tensor holds {}", first);
  return *file;
}

bool PeftFiles::is_block_diagonal(const Source& source) const {
  const AdaptableTensor& own = tensors_[source.tensor];
  if (own.weights.size() != 2 || source.rank % 2 != 0 || source.is_swapped) return false;
  const std::vector<AdapterRow> places = adapter_rows(file_of(source), own);
  const std::vector<float> b = values_of(source.pairs.front().b);
  const std::int64_t experts = experts_of(own), width = source.rank * experts,
                     rows = rows_of(own.weights);
  for (std::int64_t e = 0; e < experts; ++e)
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::size_t weight = places[static_cast<std::size_t>(e * rows + row)].weight;
      const std::int64_t other = weight == 0 ? source.rank / 2 : 0;
      for (std::int64_t j = other; j < other + source.rank / 2; ++j)
        if (b[static_cast<std::size_t>(row * width + j * experts + e)] != 0) return false;
    }
  return true;
}

void PeftFiles::split_gate_up(bool is_required) {
  std::vector<AdapterGroup> groups;
  std::vector<Source> sources;
  for (Source& source : sources_) {
    AdapterGroup& group = adapter_.groups[source.group];
    const bool is_pair = group.kind == AdapterKind::kExperts && group.parts.size() > 1,
               is_apart = is_pair && is_block_diagonal(source);
    ANABATIC_REQUIRE(is_apart || !is_pair || !is_required,
                     "[lora] lora.share_gate_up: expected true, as gate and up share A in the "
                     "adapter ({}), got false",
                     group.name);
    if (!is_apart) {
      source.group = groups.size();
      groups.push_back(std::move(group));
      sources.push_back(std::move(source));
      continue;
    }
    const std::vector<const Parameter*>& weights = tensors_[source.tensor].weights;
    const double alpha = group.alpha / (group.divides_by_root ? std::sqrt(2.0) : 2.0);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      Source half = source;
      half.first = static_cast<std::int64_t>(i) * source.rank / 2;
      half.group = groups.size();
      groups.push_back(
          make_group({weights[i]}, group.kind, source.rank / 2, alpha, group.divides_by_root));
      sources.push_back(std::move(half));
    }
  }
  adapter_.groups = std::move(groups);
  sources_ = std::move(sources);
}

void PeftFiles::load(const StateWriter& write) const {
  for (const Source& source : sources_) load_source(source, write);
}

// A of the file has rows e · rank + j, B columns j · experts + e.
void PeftFiles::load_source(const Source& source, const StateWriter& write) const {
  const AdapterGroup& group = adapter_.groups[source.group];
  const AdaptableTensor& own = tensors_[source.tensor];
  const std::int64_t experts = std::max(group.num_experts, std::int64_t{1}), r = group.rank,
                     columns = group.columns;
  if (group.is_table()) {
    std::vector<float> by_rows(static_cast<std::size_t>(r * columns));
    transpose(values_of(source.pairs.front().a), columns, by_rows, r);
    write(group.a(), 0, by_rows);
    write(group.parts.front().b(), 0, values_of(source.pairs.front().b));
    return;
  }
  if (source.is_numbered) {
    for (std::int64_t e = 0; e < experts; ++e) {
      const Pair& pair = source.pairs[static_cast<std::size_t>(e)];
      write(group.a(), e * r * columns, values_of(pair.a));
      write(group.parts.front().b(), e * group.parts.front().rows * r, values_of(pair.b));
    }
    return;
  }
  const std::vector<float> a = values_of(source.pairs.front().a),
                           b = values_of(source.pairs.front().b);
  const std::int64_t width = source.rank * experts;
  const auto file_a = [&](std::int64_t e, std::int64_t j, std::int64_t column) {
    return source.is_swapped
               ? b[static_cast<std::size_t>(column * width + j * experts + e)]
               : a[static_cast<std::size_t>((e * source.rank + j) * columns + column)];
  };
  const std::int64_t rows = rows_of(own.weights);
  const auto file_b = [&](std::int64_t e, std::int64_t row, std::int64_t j) {
    return source.is_swapped ? a[static_cast<std::size_t>((e * source.rank + j) * rows + row)]
                             : b[static_cast<std::size_t>(row * width + j * experts + e)];
  };
  std::vector<float> values(static_cast<std::size_t>(experts * r * columns));
  for (std::int64_t e = 0, i = 0; e < experts; ++e)
    for (std::int64_t j = 0; j < r; ++j)
      for (std::int64_t column = 0; column < columns; ++column, ++i)
        values[static_cast<std::size_t>(i)] = file_a(e, source.first + j, column);
  write(group.a(), 0, values);

  const std::vector<AdapterRow> places = adapter_rows(file_of(source), own);
  for (const AdapterPart& part : group.parts) {
    const auto weight = std::ranges::find_if(
        own.weights, [&](const Parameter* other) { return other->name() == part.parameter; });
    const auto index = static_cast<std::size_t>(weight - own.weights.begin());
    values.assign(static_cast<std::size_t>(experts * part.rows * r), 0.0f);
    for (std::int64_t e = 0; e < experts; ++e)
      for (std::int64_t row = 0; row < rows; ++row) {
        const AdapterRow& place = places[static_cast<std::size_t>(e * rows + row)];
        if (place.weight != index) continue;
        for (std::int64_t j = 0; j < r; ++j)
          values[static_cast<std::size_t>(place.row * r + j)] = file_b(e, row, source.first + j);
      }
    write(part.b(), 0, values);
  }
}

io::ChecksumManifest write_peft_files(const ModelConfig& config, const Adapter& adapter,
                                      const StateReader& read, const fs::path& directory,
                                      const std::string& base) {
  const Declarations declared = adaptable_parameters(config);
  const std::vector<AdaptableTensor> tensors = adaptable_tensors(config, declared);
  const std::vector<PeftModule> modules = peft_modules(config, adapter, tensors);
  const std::vector<PeftTensor> written = peft_tensors(modules);
  std::vector<io::TensorInfo> infos;
  for (const PeftTensor& tensor : written)
    infos.push_back({tensor.name, DType::kFloat32, tensor.shape});
  io::SafetensorsWriter writer = open_writer(directory, std::move(infos));
  const WeightMap map = module_map(config);
  for (const PeftTensor& tensor : written)
    write_floats(writer, tensor.name, peft_values(tensor, map, read));
  write_file_atomically(directory / kAdapterConfig,
                        peft_config_text(config, modules, tensors, base));
  return writer.finish();
}

io::ChecksumManifest write_numbered_peft_files(const ModelConfig& config, const Adapter& adapter,
                                               const StateReader& read, const fs::path& directory,
                                               const std::string& base) {
  const Declarations declared = adaptable_parameters(config);
  const std::vector<AdaptableTensor> tensors = adaptable_tensors(config, declared);
  std::size_t numbered = config.spec.spellings.size();
  for (const AdaptableTensor& tensor : tensors)
    for (std::size_t i = config.spec.spellings.size(); i-- > 0;)
      if (is_of_experts(tensor) &&
          has_tensor_per_expert(*tensor.weights.front(), config.spec.spellings[i]))
        numbered = i;
  if (numbered == config.spec.spellings.size())
    throw Unsupported(
        fmt::format("[lora] peft_per_expert: {} has no files with a tensor for each "
                    "expert",
                    config.model_type));
  const Spelling& names = config.spec.spellings[numbered];
  struct Written {
    std::string stem;
    const AdapterGroup* group;
    const AdapterPart* part;
    std::int64_t expert;
  };
  std::vector<Written> stacks;
  std::vector<std::string> lost;
  Adapter others;
  for (const AdapterGroup& group : adapter.groups) {
    if (group.kind != AdapterKind::kExperts) others.groups.push_back(group);
    if (group.kind == AdapterKind::kShared || group.kind == AdapterKind::kMlp)
      lost.push_back(group.name);
    if (group.kind != AdapterKind::kExperts) continue;
    for (const AdapterPart& part : group.parts) {
      const auto weight = std::ranges::find_if(
          declared.parameters,
          [&](const Parameter& parameter) { return parameter.name() == part.parameter; });
      for (std::int64_t e = 0; e < group.num_experts; ++e)
        stacks.push_back({kPeftPrefix + std::string(parent_of(file_tensor(*weight, names, e))),
                          &group, &part, e});
    }
  }
  if (!lost.empty())
    throw Unsupported(fmt::format(
        "[lora] peft_per_expert: PEFT 0.19 and later would leave out what is named as a projection "
        "of experts and is none: {}; --format peft keeps it",
        fmt::join(lost, ", ")));
  ANABATIC_REQUIRE(!stacks.empty(),
                   "[lora] peft_per_expert: expected an adapter of experts, got none");
  for (const Written& one : stacks)
    if (one.group->rank != stacks.front().group->rank ||
        one.group->alpha != stacks.front().group->alpha)
      throw Unsupported(
          fmt::format("[lora] peft_per_expert: expected one rank and alpha of all experts, got {} "
                      "and {}, {} and {}",
                      stacks.front().group->rank, one.group->rank, stacks.front().group->alpha,
                      one.group->alpha));
  const std::vector<PeftModule> modules = peft_modules(config, others, tensors);
  const std::vector<PeftTensor> plain = peft_tensors(modules);
  std::vector<io::TensorInfo> infos;
  for (const PeftTensor& tensor : plain)
    infos.push_back({tensor.name, DType::kFloat32, tensor.shape});
  for (const Written& one : stacks) {
    infos.push_back({one.stem + kA, DType::kFloat32, {one.group->rank, one.group->columns}});
    infos.push_back({one.stem + kB, DType::kFloat32, {one.part->rows, one.group->rank}});
  }
  io::SafetensorsWriter writer = open_writer(directory, std::move(infos));
  const WeightMap map = module_map(config);
  for (const PeftTensor& tensor : plain)
    write_floats(writer, tensor.name, peft_values(tensor, map, read));
  std::vector<std::string> expert_modules;
  std::vector<float> values;
  for (const Written& one : stacks) {
    const std::int64_t of_a = one.group->rank * one.group->columns,
                       of_b = one.part->rows * one.group->rank;
    values.resize(static_cast<std::size_t>(of_a));
    read(one.group->a(), one.expert * of_a, values);
    write_floats(writer, one.stem + kA, values);
    values.resize(static_cast<std::size_t>(of_b));
    read(one.part->b(), one.expert * of_b, values);
    write_floats(writer, one.stem + kB, values);
    std::string name = one.stem.substr(one.stem.rfind('.') + 1);
    if (std::ranges::find(expert_modules, name) == expert_modules.end())
      expert_modules.push_back(std::move(name));
  }
  write_file_atomically(
      directory / kAdapterConfig,
      peft_config_text(config, modules, tensors, base,
                       {.modules = std::move(expert_modules), .group = stacks.front().group}));
  return writer.finish();
}

}  // namespace anabatic::model
