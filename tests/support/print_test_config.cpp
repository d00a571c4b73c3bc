// SPDX-License-Identifier: Apache-2.0
// usage: print_test_config [--names]: the settings that ANABATIC_TEST_CONFIG stands for, as
// KEY=VALUE, or the name of every configuration; one a line.
#include <cstdio>
#include <string_view>

#include "anabatic/error.h"
#include "support/test_config.h"

int main(int argc, char** argv) {
  using namespace anabatic::testing;
  if (argc > 2 || (argc == 2 && std::string_view(argv[1]) != "--names")) return 2;
  try {
    if (argc == 2)
      for (const TestConfig& config : test_configs()) std::puts(config.name.c_str());
    else
      for (const std::string& setting : test_config_settings()) std::puts(setting.c_str());
  } catch (const anabatic::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
