// SPDX-License-Identifier: Apache-2.0
#include "anabatic/command_line.h"

int main(int argc, char** argv) {
  return anabatic::run_command_line({argv + (argc > 0), argv + argc});
}
