// SPDX-License-Identifier: Apache-2.0
// What loading a plugin says of a table that cannot be right.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "plugin/plugin.h"
#include "support/scoped_variable.h"

namespace anabatic::testing {
namespace {

const std::string kPlugins = ANABATIC_TEST_PLUGINS;

struct Broken {
  const char* table;  // of plugins/broken.c
  const char* message;
};

constexpr Broken kBroken[] = {
    {"abi", "it does not serve version 1 of the interface"},
    {"count", "anabatic_plugin gave the count -1"},
    {"size", "anabatic_plugin: expected rows that begin with their size, at least 96, got 24"},
    {"operand size", "op broken: expected operands of size 40, got 8"},
    {"no name", "expected op names of lower case letters, digits and _, got ''"},
    {"name", "expected op names of lower case letters, digits and _, got 'Relu2'"},
    {"taken name", "op rms_norm: the engine has an op of that name"},
    {"twice", "two ops are called broken"},
    {"operand name",
     "op broken: expected a name of lower case letters, digits and _ for each operand, got 'my x'"},
    {"same operand", "op broken: two operands are called x"},
    {"kind",
     "op broken: x: expected an activation, a weight, an index or a constant, got the kind 4"},
    {"output kind",
     "op broken: y: expected an activation or an index, as results are, got the kind 1"},
    {"no dtype", "op broken: x: expected dtypes among f32 or bf16 or f64, got the bits 0x0"},
    {"dtype", "op broken: x: expected dtypes among f32 or bf16 or f64, got the bits 0x8"},
    {"no shape", "op broken: x: expected a shape such as \"R,F\", got none"},
    {"shape", "op broken: x: expected names or numbers between commas in its shape, got \"R,,F\""},
    {"shape word",
     "op broken: x: expected names or numbers between commas in its shape, got \"R,2F\""},
    {"dimensions", "op broken: x: expected at most 8 dimensions, got 9"},
    {"unknown dimension", "op broken: y: without `infer`, expected dimensions of inputs, got 'G'"},
    {"below", "op broken: x: expected `below` of indices that are inputs alone"},
    {"unknown below", "op broken: x: expected `below` to be a dimension of an input, got 'E'"},
    {"no inputs", "op broken: expected 1 to 16 inputs, got 0"},
    {"outputs", "op broken: expected 1 to 8 outputs, got 9"},
    {"no operands", "op broken: expected tables of inputs and outputs"},
    {"forward", "op broken: expected a function `forward`, got none"},
    {"flags", "op broken: unknown flags 0x8"},
    {"attributes", "op broken: attributes: expected a JSON object, got [1.5]"},
    {"attribute",
     "op broken: attribute 'alpha': expected true, false, a number, a string or a list of "
     "integers, got {\"of\":1}"},
    {"reserved attribute", "op broken: attribute 'given' is the engine's"},
    {"kernel name", "expected a name and an op for each kernel"},
    {"kernel op", "kernel fast: the engine has no op 'rms_nrom'; did you mean 'rms_norm'?"},
    {"kernel run", "kernel fast: expected functions `supports` and `run`"},
};

template <class Error>
std::string message_of(const std::string& path) {
  try {
    const plugin::Plugin loaded(path);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

TEST(PluginLoad, NamesWhatIsWrongInATable) {
  for (const Broken& broken : kBroken) {
    const ScopedVariable table("ANABATIC_TEST_TABLE", broken.table);
    EXPECT_EQ(message_of<InvalidArgument>(kPlugins + "broken.so"),
              std::string("[plugin] broken.so: ") + broken.message)
        << broken.table;
  }
}

TEST(PluginLoad, TakesTheTableWithoutAFault) {
  const plugin::Plugin loaded(kPlugins + "broken.so");
  ASSERT_EQ(loaded.ops().size(), 1u);
  EXPECT_EQ(loaded.ops()[0].signature(), "(x [R,F]) -> y [R,F]");
  ASSERT_EQ(loaded.kernels().size(), 1u);
  EXPECT_EQ(loaded.kernels()[0].name(), "plugin:fast");
}

TEST(PluginLoad, NamesFilesThatAreNoPlugins) {
  const std::string nothing = kPlugins + "nothing.so", missing = kPlugins + "missing.so",
                    source = ANABATIC_SOURCE_DIR "/tests/plugin/plugins/good.c";
  EXPECT_EQ(message_of<InvalidArgument>(nothing),
            "[plugin] " + nothing +
                " is no plugin: it has neither anabatic_plugin nor anabatic_plugin_kernels "
                "(include/anabatic/plugin.h)");
  EXPECT_EQ(message_of<InvalidArgument>(missing),
            "[plugin] expected a shared library, found no file " + missing);
  EXPECT_EQ(message_of<ResourceError>(source),
            "[plugin] " + source + " cannot be loaded: " + source + ": invalid ELF header");
}

}  // namespace
}  // namespace anabatic::testing
