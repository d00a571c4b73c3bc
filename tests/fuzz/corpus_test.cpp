// SPDX-License-Identifier: Apache-2.0
// Gives a fuzz target the files of its corpus, in builds without libFuzzer. Those of `accepted`
// have to be read, those of `refused` refused; either within the target's memory.
#include <filesystem>
#include <fstream>
#include <iterator>

#include "fuzz/fuzz_target.h"
#include "unit/io/allocations.h"

namespace anabatic::fuzz {
namespace {

bool behaves(const std::filesystem::path& path, bool is_to_be_accepted) {
  std::fprintf(stderr, "%s\n", path.c_str());  // a crash does not say which file it was
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  io::reset_largest_allocation();
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  const std::size_t largest = io::largest_allocation_bytes();
  const bool is_small = largest <= kLargestAllocation_bytes;
  if (!is_small)
    std::fprintf(stderr, "  expected allocations of at most %zu bytes, found %zu\n",
                 kLargestAllocation_bytes, largest);
  if (was_accepted != is_to_be_accepted)
    std::fprintf(stderr, "  expected %s, found the other\n",
                 is_to_be_accepted ? "to be read" : "a refusal");
  return is_small && was_accepted == is_to_be_accepted;
}

// False when a file of the folder misbehaves, or when there is none.
bool run_folder(const std::filesystem::path& folder, bool is_to_be_accepted) {
  int num_files = 0, num_good = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    ++num_files;
    num_good += behaves(entry.path(), is_to_be_accepted);
  }
  std::fprintf(stderr, "%s: %d of %d\n", folder.c_str(), num_good, num_files);
  return num_files > 0 && num_good == num_files;
}

}  // namespace
}  // namespace anabatic::fuzz

int main(int argc, char** argv) {
  using anabatic::fuzz::run_folder;
  anabatic::fuzz::require(argc == 2, "one argument, a corpus");
  const std::filesystem::path corpus = argv[1];
  const bool are_read = run_folder(corpus / "accepted", true);
  const bool are_refused = run_folder(corpus / "refused", false);
  return are_read && are_refused ? 0 : 1;
}
