// SPDX-License-Identifier: Apache-2.0
#include "model/lora/gguf_adapter.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "io/gguf_writer.h"
#include "model/gguf_export.h"
#include "model/lora/peft_layout.h"

namespace anabatic::model {
namespace {

// A weight with its adapter and its tensor in a GGUF file.
struct AdaptedTensor {
  const AdapterGroup* group = nullptr;
  const AdapterPart* part = nullptr;
  const FileTensor* file = nullptr;

  std::string a() const { return file->name + ".lora_a"; }
  std::string b() const { return file->name + ".lora_b"; }
};

// llama.cpp would take the adapter of an embedding for that of a head that is the same tensor.
std::vector<AdaptedTensor> adapted_tensors(const ModelConfig& config, const Adapter& adapter,
                                           const WeightMap& map) {
  if (const std::string reason = why_not_merged(config, adapter); !reason.empty())
    throw Unsupported(fmt::format("[lora] gguf: {}, as it would be in llama.cpp", reason));
  std::vector<AdaptedTensor> tensors;
  std::vector<std::string> without;
  for (const AdapterGroup& group : adapter.groups)
    for (const AdapterPart& part : group.parts) {
      const auto file = std::ranges::find_if(map.tensors, [&](const FileTensor& tensor) {
        return !tensor.name.empty() && tensor.pieces.front().state == part.parameter;
      });
      if (file == map.tensors.end())
        without.push_back(part.parameter);
      else
        tensors.push_back({&group, &part, &*file});
    }
  if (!without.empty())
    throw Unsupported(fmt::format("[lora] gguf: llama.cpp has no tensor for the adapted {}",
                                  fmt::join(without, ", ")));
  return tensors;
}

// What the file's alpha / rank has to be multiplied by is in B.
double alpha_of(const AdapterGroup& group) {
  return group.scale() * static_cast<double>(group.rank);
}

// B with rows in the order of the file's weight.
std::vector<float> values_of_b(const AdaptedTensor& tensor, const Declarations& declared,
                               const StateReader& read, double alpha) {
  const auto weight = std::ranges::find_if(declared.parameters, [&](const Parameter& parameter) {
    return parameter.name() == tensor.part->parameter;
  });
  const double factor = alpha_of(*tensor.group) / alpha;
  const AdaptableTensor alone{
      .file = tensor.file->name, .kind = tensor.group->kind, .weights = {&*weight}};
  const std::int64_t rank = tensor.group->rank;
  if (tensor.group->is_table()) {
    std::vector<float> values(static_cast<std::size_t>(tensor.part->rows * rank));
    read(tensor.part->b(), 0, values);
    for (float& value : values) value = static_cast<float>(factor * value);
    return values;
  }
  const std::vector<AdapterRow> rows = adapter_rows(*tensor.file, alone);
  std::vector<float> values(rows.size() * static_cast<std::size_t>(rank)), in_order(values.size());
  read(tensor.part->b(), 0, values);
  for (std::size_t i = 0; i < rows.size(); ++i)
    for (std::int64_t j = 0; j < rank; ++j)
      in_order[i * static_cast<std::size_t>(rank) + static_cast<std::size_t>(j)] =
          static_cast<float>(factor * values[static_cast<std::size_t>(rows[i].row * rank + j)]);
  return in_order;
}

}  // namespace

void write_gguf_adapter(const ModelConfig& config, const Adapter& adapter, const StateReader& read,
                        const std::filesystem::path& file) {
  const GgufArchitecture& architecture = require_gguf_architecture(config);
  const Declarations declared = adaptable_parameters(config);
  const WeightMap map = gguf_weight_map(config, architecture.has_pairs);
  const std::vector<AdaptedTensor> tensors = adapted_tensors(config, adapter, map);
  ANABATIC_REQUIRE(!tensors.empty(), "[lora] gguf: expected an adapter of a weight, got none");
  const double alpha = alpha_of(*tensors.front().group);
  io::GgufKeys keys;
  keys.add_text("general.architecture", architecture.name);
  keys.add_text("general.type", "adapter");
  keys.add_text("adapter.type", "lora");
  keys.add_float("adapter.lora.alpha", static_cast<float>(alpha));
  const io::BlockType* const f32 = io::find_block_type("F32");
  std::vector<io::GgufTensorInfo> infos;
  for (const AdaptedTensor& tensor : tensors) {
    infos.push_back({tensor.a(), f32, tensor.group->a_shape()});
    infos.push_back({tensor.b(), f32, tensor.group->b_shape(*tensor.part)});
  }
  io::GgufWriter writer(file, std::move(keys), std::move(infos));
  for (const AdaptedTensor& tensor : tensors) {
    std::int64_t count = 1;
    for (const std::int64_t size : tensor.group->a_shape()) count *= size;
    std::vector<float> a(static_cast<std::size_t>(count));
    read(tensor.group->a(), 0, a);
    writer.write(tensor.a(), std::as_bytes(std::span(a)));
    const std::vector<float> b = values_of_b(tensor, declared, read, alpha);
    writer.write(tensor.b(), std::as_bytes(std::span(b)));
  }
  writer.finish();
}

}  // namespace anabatic::model
