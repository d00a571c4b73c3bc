// SPDX-License-Identifier: Apache-2.0
// TensorBoard event files with scalars: TFRecord frames (u64 length, masked CRC, data, masked CRC)
// around Event messages.
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "io/file.h"

namespace anabatic::io {

struct Scalar {
  std::string tag;  // such as "train/loss"
  double value = 0.0;
};

class EventWriter {
 public:
  // Creates DIRECTORY (if needed) and a new events.out.tfevents.TIME.HOST in it.
  explicit EventWriter(const std::filesystem::path& directory);

  // One event at this step and the present time; written through to the file at once.
  void write(std::int64_t step, std::span<const Scalar> scalars);

  void sync() const { file_.sync(); }
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  void write_record(const std::string& data);

  File file_;
};

struct ScalarEvent {
  double wall_time = 0.0;
  std::int64_t step = 0;
  std::string tag;
  float value = 0.0f;
};

// The scalars of one event file; InvalidArgument for a broken frame, CRC or message.
std::vector<ScalarEvent> read_events(const std::filesystem::path& path);

}  // namespace anabatic::io
