// SPDX-License-Identifier: Apache-2.0
// Changes tensors of a model directory, whose manifest does not know of it.
#pragma once
#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "io/checksums.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"

namespace anabatic::model {

using TensorBytes = std::map<std::string, std::vector<std::byte>>;

// Writes the tensors again as `change` leaves them; one that it erases is gone.
inline void plant(const std::filesystem::path& directory,
                  const std::function<void(TensorBytes&)>& change) {
  std::vector<io::TensorInfo> infos;
  TensorBytes bytes;
  {
    const io::SafetensorsDirectory files = io::SafetensorsDirectory::open(directory);
    for (const auto& [name, entry] : files.entries()) {
      infos.push_back({name, *entry.dtype, entry.shape});
      bytes[name].assign(entry.data.begin(), entry.data.end());
    }
  }
  change(bytes);
  std::erase_if(infos, [&](const io::TensorInfo& info) { return !bytes.contains(info.name); });
  io::SafetensorsWriter writer(directory, infos);
  for (const auto& [name, data] : bytes) writer.write(name, data);
  writer.finish();
  std::filesystem::remove(directory / io::kChecksumsFile);  // as one who knows of it would
}

}  // namespace anabatic::model
