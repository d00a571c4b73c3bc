// SPDX-License-Identifier: Apache-2.0
#include "io/tensorboard.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/error.h"
#include "base/text.h"
#include "io/crc32c.h"
#include "io/proto/event.pb.h"

namespace anabatic::io {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

// A new name: a counter is added if another writer took this second's.
File create_event_file(const std::filesystem::path& directory) {
  std::filesystem::create_directories(directory);
  const std::string base = fmt::format("events.out.tfevents.{:010}.{}",
                                       static_cast<std::int64_t>(seconds_now()), host_name());
  for (int i = 0;; ++i) {
    const auto path = directory / (i == 0 ? base : fmt::format("{}.{}", base, i));
    if (std::filesystem::exists(path)) continue;
    try {
      return File::create_exclusive(path);
    } catch (const ResourceError&) {
      if (!std::filesystem::exists(path)) throw;
    }
  }
}

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

template <class T>
T take(std::string_view text, std::size_t offset) {
  T value;
  std::memcpy(&value, text.data() + offset, sizeof(T));
  return value;
}

std::uint32_t masked(std::string_view text) {
  return masked_crc32c(std::as_bytes(std::span(text)));
}

}  // namespace

EventWriter::EventWriter(const std::filesystem::path& directory)
    : file_(create_event_file(directory)) {
  proto::Event event;
  event.set_wall_time(seconds_now());
  event.set_file_version("brain.Event:2");
  write_record(event.SerializeAsString());
}

void EventWriter::write(std::int64_t step, std::span<const Scalar> scalars) {
  proto::Event event;
  event.set_wall_time(seconds_now());
  event.set_step(step);
  for (const Scalar& scalar : scalars) {
    proto::Summary::Value& value = *event.mutable_summary()->add_value();
    value.set_tag(scalar.tag);
    value.set_simple_value(static_cast<float>(scalar.value));
  }
  write_record(event.SerializeAsString());
}

void EventWriter::write_record(const std::string& data) {
  std::string record;
  put(record, static_cast<std::uint64_t>(data.size()));
  put(record, masked(record));
  record += data;
  put(record, masked(data));
  file_.write(std::as_bytes(std::span(record)));
}

std::vector<ScalarEvent> read_events(const std::filesystem::path& path) {
  const std::string content = read_file(path);
  const std::string_view text = content;
  std::vector<ScalarEvent> events;
  std::size_t offset = 0;
  while (offset < text.size()) {
    const auto require = [&](bool condition, const char* what) {
      ANABATIC_REQUIRE(condition, "[tensorboard] {}: {} at byte {}", path.string(), what, offset);
    };
    require(text.size() - offset >= 16, "a record is cut off");
    const auto length = take<std::uint64_t>(text, offset);
    require(take<std::uint32_t>(text, offset + 8) == masked(text.substr(offset, 8)),
            "the CRC of a length does not match");
    require(length <= text.size() - offset - 16, "a record is cut off");
    const std::string_view data = text.substr(offset + 12, length);
    require(take<std::uint32_t>(text, offset + 12 + length) == masked(data),
            "the CRC of a record does not match");
    proto::Event event;
    require(length <= INT32_MAX && event.ParseFromArray(data.data(), static_cast<int>(length)),
            "a record is no Event");
    for (const proto::Summary::Value& value : event.summary().value()) {
      events.push_back({event.wall_time(), event.step(), value.tag(), value.simple_value()});
    }
    offset += 16 + length;
  }
  return events;
}

}  // namespace anabatic::io
