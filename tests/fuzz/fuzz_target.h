// SPDX-License-Identifier: Apache-2.0
// What the fuzz targets share. A target reads bytes as one kind of file: our InvalidArgument or
// Unsupported refuses them, or what was read keeps the target's claims. Anything else is a crash.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "anabatic/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace anabatic::fuzz {

// The most that one allocation may take for an input of some KiB.
inline constexpr std::size_t kLargestAllocation_bytes = std::size_t{32} << 20;

// Whether the last input was read rather than refused, and the message of the last refusal.
inline bool was_accepted = false;
inline std::string last_refusal;

inline void require(bool holds, const char* claim) {
  if (holds) return;
  std::fprintf(stderr, "expected: %s\n", claim);
  std::abort();
}

inline void take_refusal(std::string_view message, std::string_view input) {
  last_refusal = message;
  require(message.starts_with("[") && message.size() > 20, "an error that names its place");
  require(message.size() < 10000 + 64 * input.size(), "a short error");
}

inline std::string_view view(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// `read` gives a value or refuses `input`; `check` takes the value and throws nothing.
template <class Read, class Check>
int read_or_refuse(std::string_view input, Read&& read, Check&& check) {
  std::optional<decltype(read())> value;
  try {
    value.emplace(read());
  } catch (const InvalidArgument& error) {
    take_refusal(error.what(), input);
  } catch (const Unsupported& error) {
    take_refusal(error.what(), input);
  }
  if (value) check(*value);
  was_accepted = value.has_value();
  return 0;
}

// A file that exists in memory alone.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    require(descriptor_ >= 0, "a file in memory");
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }
  // Zeros, which take no memory.
  void resize(std::int64_t num_bytes) {
    require(::ftruncate(descriptor_, num_bytes) == 0, "room for a file in memory");
  }
  void write(std::string_view content) {
    resize(0);
    const ssize_t written = ::pwrite(descriptor_, content.data(), content.size(), 0);
    require(written == static_cast<ssize_t>(content.size()), "room for a file in memory");
  }

 private:
  int descriptor_;
};

// The same of a file with these bytes: read(path).
template <class Read, class Check>
int read_file_or_refuse(const std::uint8_t* data, std::size_t size, Read&& read, Check&& check) {
  static MemoryFile file;
  const std::string_view bytes = view(data, size);
  file.write(bytes);
  return read_or_refuse(
      bytes, [&] { return read(file.path()); }, check);
}

}  // namespace anabatic::fuzz
