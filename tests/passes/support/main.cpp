// SPDX-License-Identifier: Apache-2.0
// pass_files PASS FOLDER: one GoogleTest test for every FOLDER/*.ir; no file is a failure.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <vector>

#include "passes/pipelines.h"
#include "passes/support/pass_file.h"

namespace {

class PassFileTest : public testing::Test {
 public:
  PassFileTest(const anabatic::passes::Pass& pass, std::filesystem::path path)
      : pass_(pass), path_(std::move(path)) {}
  void TestBody() override {
    const auto file = anabatic::passes::read_pass_file(path_);
    const std::string wrong = anabatic::passes::check_pass_file(pass_, file);
    EXPECT_TRUE(wrong.empty()) << path_.string() << ": " << wrong;
  }

 private:
  const anabatic::passes::Pass& pass_;
  std::filesystem::path path_;
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const auto* pass = argc == 3 ? anabatic::passes::find_pass(argv[1]) : nullptr;
  if (pass == nullptr) {
    std::cerr << "usage: pass_files PASS FOLDER, where PASS is in a pipeline\n";
    return 2;
  }
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(argv[2]))
    if (entry.path().extension() == ".ir") paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  if (paths.empty()) {
    std::cerr << "no test files (*.ir) in " << argv[2] << '\n';
    return 1;
  }
  for (const auto& path : paths) {
    testing::RegisterTest(
        argv[1], path.stem().c_str(), nullptr, nullptr, __FILE__, __LINE__,
        [pass, path]() -> testing::Test* { return new PassFileTest(*pass, path); });
  }
  return RUN_ALL_TESTS();
}
