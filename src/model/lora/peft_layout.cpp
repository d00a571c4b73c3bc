// SPDX-License-Identifier: Apache-2.0
#include "model/lora/peft_layout.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/transpose.h"
#include "model/weight_files.h"

namespace anabatic::model {
namespace {

constexpr std::string_view kWeightEnd = ".weight";

bool is_stack(const AdaptableTensor& tensor) { return tensor.weights.front()->is_per_expert(); }

std::string_view module_of(std::string_view tensor) { return tensor.substr(0, tensor.rfind('.')); }

const FileTensor& file_tensor_of(const WeightMap& map, const AdaptableTensor& tensor) {
  const auto found = std::ranges::find_if(
      map.tensors, [&](const FileTensor& file) { return file.name == tensor.file; });
  ANABATIC_CHECK(found != map.tensors.end(), "[lora] no tensor {}", tensor.file);
  return *found;
}

std::vector<float> values_of(const std::string& state, std::int64_t count,
                             const StateReader& read) {
  std::vector<float> values(static_cast<std::size_t>(count));
  read(state, 0, values);
  return values;
}

std::vector<float> values_of_a(const PeftModule& module, const StateReader& read) {
  if (const AdapterGroup& table = *module.groups.front(); table.is_table()) {
    const std::vector<float> by_rows = values_of(table.a(), table.columns * table.rank, read);
    std::vector<float> values(by_rows.size());
    transpose(by_rows, table.rank, values, table.columns);
    return values;
  }
  const std::int64_t columns = module.groups.front()->columns;
  std::vector<float> values(
      static_cast<std::size_t>(module.num_experts() * module.rank() * columns));
  std::size_t at = 0;
  for (std::int64_t expert = 0; expert < module.num_experts(); ++expert)
    for (const AdapterGroup* group : module.groups) {
      const std::int64_t count = group->rank * columns;
      read(group->a(), expert * count,
           std::span(values).subspan(at, static_cast<std::size_t>(count)));
      at += static_cast<std::size_t>(count);
    }
  return values;
}

// Column j · experts + e of a row is of element j of expert e. A group has columns of its own.
std::vector<float> values_of_b(const PeftModule& module, const FileTensor& file,
                               const StateReader& read) {
  if (const AdapterGroup& group = *module.groups.front(); group.is_table())
    return values_of(group.parts.front().b(), module.rows() * group.rank, read);
  struct Source {
    std::vector<float> values;
    std::int64_t rank = 0, first = 0;  // first: its column among those of an expert
  };
  std::vector<Source> sources;  // by weight
  for (const Parameter* weight : module.tensor->weights) {
    std::int64_t first = 0;
    for (const AdapterGroup* group : module.groups) {
      for (const AdapterPart& part : group->parts) {
        if (part.parameter != weight->name()) continue;
        Source source{.values = {}, .rank = group->rank, .first = first};
        source.values.resize(
            static_cast<std::size_t>(module.num_experts() * part.rows * group->rank));
        read(part.b(), 0, source.values);
        sources.push_back(std::move(source));
      }
      first += group->rank;
    }
  }
  const std::vector<AdapterRow> rows = adapter_rows(file, *module.tensor);
  const std::int64_t experts = module.num_experts(), width = module.rank() * experts;
  std::vector<float> values(static_cast<std::size_t>(module.rows() * width));
  for (std::int64_t expert = 0; expert < experts; ++expert)
    for (std::int64_t row = 0; row < module.rows(); ++row) {
      const AdapterRow& place = rows[static_cast<std::size_t>(expert * module.rows() + row)];
      const Source& source = sources[place.weight];
      for (std::int64_t j = 0; j < source.rank; ++j)
        values[static_cast<std::size_t>(row * width + (source.first + j) * experts + expert)] =
            source.values[static_cast<std::size_t>(place.row * source.rank + j)];
    }
  return values;
}

}  // namespace

PeftEnds peft_ends(AdapterKind kind) {
  if (kind == AdapterKind::kEmbedding) return {".lora_embedding_A", ".lora_embedding_B"};
  return {".lora_A.weight", ".lora_B.weight"};
}

WeightMap module_map(const ModelConfig& config) {
  return map_of(adaptable_parameters(config), config.spec.spellings.at(module_spelling(config)),
                DType::kFloat32);
}

std::vector<AdapterRow> adapter_rows(const FileTensor& tensor, const AdaptableTensor& weights) {
  FileTensor rows = tensor;
  std::int64_t total = 0;
  for (WeightPiece& piece : rows.pieces) {
    piece.offset /= piece.row_elements;
    piece.count /= piece.row_elements;
    piece.row_elements = 1;
    total += piece.count;
  }
  rows.shape = {total};
  std::vector<AdapterRow> result(static_cast<std::size_t>(total));
  for_runs(rows,
           [&](std::string_view state, std::int64_t in_state, std::int64_t at, std::int64_t count) {
             const auto weight = std::ranges::find_if(
                 weights.weights, [&](const Parameter* other) { return other->name() == state; });
             for (std::int64_t i = 0; i < count; ++i)
               result[static_cast<std::size_t>(at + i)] = {
                   static_cast<std::size_t>(weight - weights.weights.begin()), in_state + i};
           });
  return result;
}

std::int64_t PeftModule::rank() const {
  std::int64_t sum = 0;
  for (const AdapterGroup* group : groups) sum += group->rank;
  return sum;
}

double PeftModule::alpha() const {
  const auto ratio = static_cast<double>(rank()) / static_cast<double>(groups.front()->rank);
  return groups.front()->alpha * (groups.front()->divides_by_root ? std::sqrt(ratio) : ratio);
}

std::int64_t PeftModule::num_experts() const {
  return std::max(groups.front()->num_experts, std::int64_t{1});
}

std::int64_t PeftModule::rows() const {
  std::int64_t sum = 0;
  for (const AdapterGroup* group : groups)
    for (const AdapterPart& part : group->parts) sum += part.rows;
  return sum;
}

std::string peft_target(const ModelConfig& config, const AdaptableTensor& tensor,
                        bool& is_parameter) {
  const bool is_mlp = tensor.kind == AdapterKind::kMlp || tensor.kind == AdapterKind::kShared;
  is_parameter = is_stack(tensor) || tensor.kind == AdapterKind::kRouter ||
                 (is_mlp && num_experts(config.spec) > 0);
  return is_parameter ? tensor.file : std::string(module_of(tensor.file));
}

std::string peft_stem(const AdaptableTensor& tensor, bool is_inner) {
  ANABATIC_CHECK(is_stack(tensor) || tensor.file.ends_with(kWeightEnd),
                 "[lora] expected a weight of a module, got {}", tensor.file);
  return fmt::format("{}{}{}", kPeftPrefix, module_of(tensor.file), is_inner ? ".base_layer" : "");
}

std::vector<PeftModule> peft_modules(const ModelConfig& config, const Adapter& adapter,
                                     const std::vector<AdaptableTensor>& tensors) {
  std::vector<PeftModule> modules;
  for (const AdaptableTensor& tensor : tensors) {
    PeftModule module{.tensor = &tensor};
    for (const Parameter* weight : tensor.weights) {
      const AdapterGroup* group = adapter.find(weight->name());
      if (group != nullptr && std::ranges::find(module.groups, group) == module.groups.end())
        module.groups.push_back(group);
    }
    if (module.groups.empty()) continue;
    module.target = peft_target(config, tensor, module.is_parameter);
    modules.push_back(std::move(module));
  }
  for (PeftModule& module : modules) {
    // The parameter that the module declares first is wrapped first.
    const auto last = std::find_if(modules.rbegin(), modules.rend(), [&](const PeftModule& other) {
      return module_of(other.tensor->file) == module_of(module.tensor->file);
    });
    module.stem = peft_stem(*module.tensor, is_stack(*module.tensor) && &*last != &module);
  }
  return modules;
}

std::vector<PeftTensor> peft_tensors(const std::vector<PeftModule>& modules) {
  std::vector<PeftTensor> tensors;
  for (const PeftModule& module : modules) {
    const std::int64_t width = module.num_experts() * module.rank();
    const PeftEnds ends = peft_ends(module.tensor->kind);
    tensors.push_back({.name = module.stem + ends.a,
                       .shape = {width, module.groups.front()->columns},
                       .module = &module,
                       .is_a = true});
    tensors.push_back(
        {.name = module.stem + ends.b, .shape = {module.rows(), width}, .module = &module});
  }
  return tensors;
}

std::vector<float> peft_values(const PeftTensor& tensor, const WeightMap& map,
                               const StateReader& read) {
  const PeftModule& module = *tensor.module;
  return tensor.is_a ? values_of_a(module, read)
                     : values_of_b(module, file_tensor_of(map, *module.tensor), read);
}

}  // namespace anabatic::model
