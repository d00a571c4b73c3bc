// SPDX-License-Identifier: Apache-2.0
// Gives a fuzz target the files of its corpus, in builds without libFuzzer. Those of `accepted`
// have to be read, those of `refused` refused; either within the target's memory. The corpus has a
// line `FOLDER/NAME: TEXT` for each in files.txt. The text says what a file shows; that of a
// refused one is a part of its refusal.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "fuzz/fuzz_target.h"
#include "unit/io/allocations.h"

namespace anabatic::fuzz {
namespace {

using Texts = std::map<std::string, std::string, std::less<>>;

Texts read_texts(const std::filesystem::path& path) {
  Texts texts;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.front() == '#') continue;
    const std::size_t colon = line.find(": ");
    require(colon != std::string::npos, "lines `FOLDER/NAME: TEXT` in files.txt");
    texts[line.substr(0, colon)] = line.substr(colon + 2);
  }
  return texts;
}

bool behaves(const std::filesystem::path& path, bool is_to_be_accepted, const std::string& text) {
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
  if (was_accepted != is_to_be_accepted) {
    std::fprintf(stderr, "  expected %s, found the other\n",
                 is_to_be_accepted ? "to be read" : "a refusal");
    return false;
  }
  const bool is_for_its_fault = was_accepted || last_refusal.find(text) != std::string::npos;
  if (!is_for_its_fault)
    std::fprintf(stderr, "  expected a refusal with `%s`, found %s\n", text.c_str(),
                 last_refusal.c_str());
  return is_small && is_for_its_fault;
}

// Takes the texts of the folder's files. False when one misbehaves or has no text, or when there is
// none.
bool run_folder(const std::filesystem::path& folder, bool is_to_be_accepted, Texts& texts) {
  int num_files = 0, num_good = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    ++num_files;
    const auto text = texts.extract((folder.filename() / entry.path().filename()).string());
    if (text.empty())
      std::fprintf(stderr, "%s: expected a line in files.txt, found none\n", entry.path().c_str());
    else
      num_good += behaves(entry.path(), is_to_be_accepted, text.mapped());
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
  anabatic::fuzz::Texts texts = anabatic::fuzz::read_texts(corpus / "files.txt");
  const bool are_read = run_folder(corpus / "accepted", true, texts);
  const bool are_refused = run_folder(corpus / "refused", false, texts);
  for (const auto& [name, text] : texts)
    std::fprintf(stderr, "%s: expected a file of the corpus, found none\n", name.c_str());
  return are_read && are_refused && texts.empty() ? 0 : 1;
}
