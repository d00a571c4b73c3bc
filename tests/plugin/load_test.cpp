// SPDX-License-Identifier: Apache-2.0
// What loading a plugin says of a table that cannot be right.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "kernels/kernel.h"
#include "ops/table.h"
#include "plugin/check/kernel_forms.h"
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
    {"size",
     "ops[0] has the size 24, expected at least 96: is `.size = sizeof(anabatic_op)` missing, or "
     "the count 1 too large?"},
    {"kernel size",
     "kernels[0] has the size 0, expected at least 48: is `.size = sizeof(anabatic_kernel)` "
     "missing, or the count 1 too large?"},
    {"operand size",
     "op broken: inputs[0] has the size 8, expected at least 40: is `.size = "
     "sizeof(anabatic_operand)` missing, or num_inputs 1 too large?"},
    {"operand count",
     "op broken: outputs[1] has the size 1, expected 40: is `.size = sizeof(anabatic_operand)` "
     "missing, or num_outputs 2 too large?"},
    {"no name", "expected op names of lower case letters, digits and _, got ''"},
    {"name", "expected op names of lower case letters, digits and _, got 'Relu2'"},
    {"taken name", "op rms_norm: expected a new name: the engine has an op rms_norm"},
    {"activation", "op swiglu: expected a new name: the engine calls an activation swiglu"},
    {"twice", "two ops are called broken"},
    {"operand name",
     "op broken: expected a name of lower case letters, digits and _ for each operand, got 'my x'"},
    {"same operand", "op broken: two operands are called x"},
    {"kind",
     "op broken: x: expected an activation, a weight, an index or a constant, got the kind 4"},
    {"output kind",
     "op broken: y: expected an activation or an index, as results are, got the kind 1"},
    {"no dtype",
     "op broken: x: expected dtypes among f32 or bf16 or f64, got the bits 0x0; one dtype alone is "
     "ANABATIC_DTYPE_BIT(ANABATIC_F32)"},
    {"dtype",
     "op broken: x: expected dtypes among f32 or bf16 or f64, got the bits 0x8; one dtype alone is "
     "ANABATIC_DTYPE_BIT(ANABATIC_F32)"},
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
    {"kernel activation",
     "kernel fast: the engine has no op 'swiglu': it is the op activation with the attribute "
     "activation = \"swiglu\""},
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
            "[plugin] " + source + " cannot be loaded: invalid ELF header");
}

// Every form is a call of its op, in row-major operands, which ref computes.
TEST(KernelForms, AreCallsOfTheEnginesOps) {
  using namespace plugin::check;
  int num_forms = 0, num_ops = 0;
  for (const ir::OpSchema* schema : ops::all_ops()) {
    const std::vector<KernelForm> forms = forms_of(schema->name);
    num_ops += forms.empty() ? 0 : 1;
    for (const KernelForm& form : forms) {
      ++num_forms;
      const Case one = cases_of(form.inputs).front();
      const auto inputs = inputs_of(form, one, 0);
      ASSERT_TRUE(inputs) << schema->name;
      const spec::Attributes attributes = attributes_of(form, one);
      const std::vector<TensorType> types = input_types(form.inputs, one);
      const std::vector<TensorType> outputs = schema->infer(types, attributes);
      const spec::Problem problem{.op = intern(schema->name),
                                  .attributes = &attributes,
                                  .inputs = types,
                                  .outputs = outputs,
                                  .device = nullptr,
                                  .may_add = false};
      EXPECT_TRUE(std::ranges::any_of(kernels::ref_table(), [&](const kernels::Kernel& row) {
        return row.op == schema->name && row.supports(problem);
      })) << schema->name;
    }
  }
  EXPECT_EQ(num_ops, 39);
  EXPECT_EQ(num_forms, 78);
}

}  // namespace
}  // namespace anabatic::testing
