// SPDX-License-Identifier: Apache-2.0
// The main function of every test program. Calibrations and other caches of the machine steer
// plans: a program begins with none and leaves none, so results do not depend on what ran before.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <system_error>

#include "support/sanitized.h"

#ifdef ANABATIC_IS_SANITIZED
const bool anabatic::testing::kIsSanitized = true;
#else
const bool anabatic::testing::kIsSanitized = false;
#endif

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  std::string cache = (std::filesystem::temp_directory_path() / "anabatic-cache-XXXXXX").string();
  if (::mkdtemp(cache.data()) == nullptr) {
    std::perror(cache.c_str());
    return 1;
  }
  ::setenv("XDG_CACHE_HOME", cache.c_str(), 1);
  const int failed = RUN_ALL_TESTS();
  std::error_code ignored;
  std::filesystem::remove_all(cache, ignored);
  return failed;
}
