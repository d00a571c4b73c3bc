// SPDX-License-Identifier: Apache-2.0
// The files of the training state in a checkpoint: parameters in fp32 and moments, under the
// engine's names. One rank writes one file of whole tensors; several ranks write one each, of boxes
// (train/checkpoint/boxes.h). Both are read alike, by any rank of any layout.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/checksums.h"
#include "io/safetensors.h"
#include "runtime/state_store.h"
#include "train/checkpoint/boxes.h"
#include "train/state_tiers.h"

namespace anabatic::train {

// Which rank writes which rows. Of the ranks that hold them it is the one with the least to write,
// the largest first; the first rank begins with `bytes_of_first`.
BoxMap share_out(const std::vector<SavedState>& states, std::int64_t num_ranks,
                 std::int64_t bytes_of_first);

// The states whole, in training_state.safetensors. Returns the checksums of the file, which is
// durable then, here and below.
io::ChecksumManifest write_states(const std::filesystem::path& checkpoint,
                                  runtime::StateStore& store,
                                  const std::vector<SavedState>& states);
// The boxes of one file of the map.
io::ChecksumManifest write_boxes(const std::filesystem::path& checkpoint,
                                 runtime::StateStore& store, const std::vector<SavedState>& states,
                                 const BoxMap& map, const std::string& file);

class StateFiles {
 public:
  // Maps the files of a checkpoint with this box map; empty: of one rank. InvalidArgument lists
  // what of the map is not in the files or in them in another way.
  StateFiles(const std::filesystem::path& checkpoint, BoxMap map);

  const std::filesystem::path& checkpoint() const { return checkpoint_; }
  const BoxMap& tensors() const { return map_; }
  // Elements of a tensor from `first` on, row-major. Their pages are released.
  void read(std::string_view tensor, std::int64_t first, std::span<std::byte> bytes) const;

 private:
  std::filesystem::path checkpoint_;
  BoxMap map_;
  std::map<std::string, io::SafetensorsDirectory, std::less<>> files_;
};

// Fills the states of this rank. InvalidArgument listing every state that is missing, surplus, or
// of another dtype or shape.
void read_states(const StateFiles& files, runtime::StateStore& store,
                 const std::vector<SavedState>& states);

}  // namespace anabatic::train
