// SPDX-License-Identifier: Apache-2.0
#include "train/ranks/shared_save.h"

#include <future>
#include <string_view>

#include "base/json.h"
#include "base/json_node.h"
#include "train/checkpoint/state_files.h"
#include "train/ranks/peer_reads.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSavePlace = "[ranks] what the ranks tell each other of a save";

// This rank's file, written by a thread of its own: weights are read meanwhile.
std::future<io::ChecksumManifest> write_own(const StepSums& sums, ModelSession& session,
                                            const fs::path& directory, const BoxMap& boxes) {
  return std::async(std::launch::async, [&, file = states_file(sums.rank(), sums.num_ranks())] {
    return write_boxes(directory, session.store(), session.saved_states(), boxes, file);
  });
}

}  // namespace

io::ChecksumManifest lead_save(StepSums& sums, ModelSession& session, const fs::path& directory,
                               const BoxMap& boxes) {
  std::string text =
      dump_json(Json{{"directory", directory.string()}, {"tensors", to_json(boxes)}});
  sums.broadcast(text);
  std::future<io::ChecksumManifest> own = write_own(sums, session, directory, boxes);
  io::ChecksumManifest files;
  {
    const PeerReads peers(sums, session.store());
    files = session.export_model(directory);
  }
  files.merge(own.get());
  for (std::int32_t rank = 1; rank < sums.num_ranks(); ++rank)
    files.merge(io::parse_checksums(sums.bring_text(rank, {}), kSavePlace));
  return files;
}

void join_save(StepSums& sums, ModelSession& session) {
  std::string text;
  sums.broadcast(text);
  const Json json = parse_json_object(text, kSavePlace);
  const JsonNode top(json, std::string(kSavePlace));
  const fs::path directory = top.at("directory").as_string();
  const BoxMap boxes = read_boxes(top.at("tensors"));
  std::future<io::ChecksumManifest> own = write_own(sums, session, directory, boxes);
  answer_reads(sums, session.store());
  const std::string written = io::to_text(own.get());
  for (std::int32_t rank = 1; rank < sums.num_ranks(); ++rank)
    (void)sums.bring_text(rank, rank == sums.rank() ? written : "");
}

}  // namespace anabatic::train
