// SPDX-License-Identifier: Apache-2.0
// What io_parity.py drives: copies files through our readers and writers.
#include <fmt/core.h>

#include <cstring>
#include <exception>
#include <fstream>
#include <sstream>
#include <string>

#include "base/error.h"
#include "io/data/chunks.h"
#include "io/data/indexed_file.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "io/tensorboard.h"

namespace anabatic::io {
namespace {

void copy_safetensors(const std::string& from, const std::string& to, std::int64_t shard_bytes) {
  const SafetensorsDirectory source = SafetensorsDirectory::open(from);
  std::vector<TensorInfo> tensors;
  for (const auto& [name, entry] : source.entries()) {
    ANABATIC_REQUIRE(entry.dtype.has_value(), "{}: no dtype for {}", name, entry.dtype_name);
    tensors.push_back({name, *entry.dtype, entry.shape});
  }
  SafetensorsWriter writer(to, tensors, {.max_shard_bytes = shard_bytes});
  for (const auto& [name, entry] : source.entries()) {
    const std::size_t half = entry.data.size() / 2;
    writer.write(name, entry.data.first(half));
    writer.write(name, entry.data.subspan(half));
  }
  writer.finish();
}

// One document a line of `text`, ids separated by spaces.
void write_indexed(const std::string& text, const std::string& prefix, std::int64_t vocab_size) {
  IndexedFileWriter writer(prefix, token_type_for(vocab_size));
  std::ifstream file(text);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    for (std::int32_t id; words >> id;) writer.append(std::span(&id, 1));
    writer.end_document();
  }
  writer.finish();
}

void print_indexed(const std::string& prefix) {
  const IndexedFile file(prefix);
  for (std::int64_t d = 0; d < file.num_documents(); ++d) {
    const std::int64_t begin = file.document_begin(d);
    std::vector<std::int64_t> ids(static_cast<std::size_t>(file.document_begin(d + 1) - begin));
    std::vector<std::byte> scratch(ids.size() * 8);
    file.read(begin, ids, scratch);
    for (std::size_t i = 0; i < ids.size(); ++i) fmt::print("{}{}", i == 0 ? "" : " ", ids[i]);
    fmt::print("\n");
  }
}

// The length of each chunk that the file is cut into.
void print_chunks(const std::string& path) {
  TextChunkReader reader(path);
  for (std::string chunk; reader.next(chunk);) fmt::print("{}\n", chunk.size());
}

void write_events(const std::string& directory) {
  EventWriter writer(directory);
  for (std::int64_t step = 0; step < 100; ++step) {
    const std::vector<Scalar> scalars = {{"train/loss", 8.0 / static_cast<double>(step + 1)},
                                         {"train/zero", 0.0}};
    writer.write(step, scalars);
  }
}

int run(int argc, char** argv) {
  const std::string verb = argc > 1 ? argv[1] : "";
  if (verb == "copy_safetensors" && argc == 5) {
    copy_safetensors(argv[2], argv[3], std::stoll(argv[4]));
  } else if (verb == "write_indexed" && argc == 5) {
    write_indexed(argv[2], argv[3], std::stoll(argv[4]));
  } else if (verb == "print_indexed" && argc == 3) {
    print_indexed(argv[2]);
  } else if (verb == "print_chunks" && argc == 3) {
    print_chunks(argv[2]);
  } else if (verb == "write_events" && argc == 3) {
    write_events(argv[2]);
  } else {
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace anabatic::io

int main(int argc, char** argv) {
  try {
    return anabatic::io::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
