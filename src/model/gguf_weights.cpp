// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>

#include "io/checksums.h"
#include "model/gguf_model.h"
#include "model/gguf_source.h"

namespace anabatic::model {
namespace {

constexpr std::int64_t kReadElements = std::int64_t{1}
                                       << 18;  // a multiple of every block's elements

ImportedTensor imported(const io::GgufFiles& files, const io::GgufTensor& tensor,
                        FileTensor where) {
  return {std::move(where), std::string(tensor.type->name),
          io::checksum_of_mapped(files, tensor.data)};
}

}  // namespace

WeightMap import_gguf(const ModelConfig& config, const std::filesystem::path& file,
                      const StateWriter& write, ImportRecord& record) {
  const GgufSource source(config, file);
  std::set<std::string_view> used;
  std::vector<float> values;
  for (const FileTensor& tensor : source.map().tensors) {
    const io::GgufTensor& entry = *source.files().find(tensor.name);
    for_runs(tensor, [&](std::string_view state, std::int64_t in_state, std::int64_t at,
                         std::int64_t count) {
      for (std::int64_t done = 0; done < count; done += kReadElements) {
        values.resize(static_cast<std::size_t>(std::min(kReadElements, count - done)));
        source.read_tensor(entry, at + done, values);
        write(state, in_state + done, values);
      }
    });
    used.insert(tensor.name);
    record.used.push_back(imported(source.files(), entry, tensor));
  }
  for (const auto& [name, entry] : source.files().tensors())
    if (!used.contains(name))
      record.ignored.push_back(
          imported(source.files(), entry, {.name = name, .shape = entry.shape, .pieces = {}}));
  return make_weight_map(config);
}

}  // namespace anabatic::model
