/* SPDX-License-Identifier: Apache-2.0
 * A plugin whose table is wrong, as the environment variable ANABATIC_TEST_TABLE says. */
#include <stdlib.h>
#include <string.h>

#include "anabatic/plugin.h"

static int32_t forward(const anabatic_call* call) {
  (void)call;
  return 0;
}

static anabatic_operand input, output, outputs[2];
static anabatic_op op, ops[2];
static anabatic_kernel kernel;

static const char* table_of_test(void) {
  const char* table = getenv("ANABATIC_TEST_TABLE");
  return table != NULL ? table : "";
}

/* A table without a fault, before each call. */
static void reset(void) {
  const anabatic_operand x = {sizeof(anabatic_operand), ANABATIC_ACTIVATION, "x", "R,F", ANABATIC_FLOATS, NULL};
  input = output = x;
  output.name = "y";
  memset(&op, 0, sizeof op);
  op.size = sizeof op;
  op.name = "broken";
  op.num_inputs = op.num_outputs = 1;
  op.inputs = &input;
  op.outputs = &output;
  op.forward = forward;
}

ANABATIC_PLUGIN_EXPORT const anabatic_op* anabatic_plugin(uint32_t abi, int32_t* count) {
  const char* table = table_of_test();
  reset();
  *count = 1;
  if (strcmp(table, "abi") == 0) return abi == ANABATIC_PLUGIN_ABI + 1 ? &op : NULL;
  if (strcmp(table, "count") == 0) *count = -1;
  if (strcmp(table, "size") == 0) op.size = 24;
  if (strcmp(table, "operand size") == 0) input.size = 8;
  if (strcmp(table, "operand count") == 0) {
    outputs[0] = output;
    outputs[1].size = 1;
    op.outputs = outputs;
    op.num_outputs = 2;
  }
  if (strcmp(table, "no name") == 0) op.name = NULL;
  if (strcmp(table, "name") == 0) op.name = "Relu2";
  if (strcmp(table, "taken name") == 0) op.name = "rms_norm";
  if (strcmp(table, "activation") == 0) op.name = "swiglu";
  if (strcmp(table, "twice") == 0) {
    ops[0] = ops[1] = op;
    *count = 2;
    return ops;
  }
  if (strcmp(table, "operand name") == 0) input.name = "my x";
  if (strcmp(table, "same operand") == 0) output.name = "x";
  if (strcmp(table, "kind") == 0) input.kind = 4;
  if (strcmp(table, "output kind") == 0) output.kind = ANABATIC_WEIGHT;
  if (strcmp(table, "no dtype") == 0) input.dtypes = 0;
  if (strcmp(table, "dtype") == 0) input.dtypes = ANABATIC_DTYPE_BIT(ANABATIC_I32);
  if (strcmp(table, "no shape") == 0) input.shape = NULL;
  if (strcmp(table, "shape") == 0) input.shape = "R,,F";
  if (strcmp(table, "shape word") == 0) input.shape = "R,2F";
  if (strcmp(table, "dimensions") == 0) input.shape = "A,B,C,D,E,F,G,H,I";
  if (strcmp(table, "unknown dimension") == 0) output.shape = "R,G";
  if (strcmp(table, "below") == 0) input.below = "R";
  if (strcmp(table, "unknown below") == 0) {
    input.kind = ANABATIC_INDEX;
    input.dtypes = ANABATIC_DTYPE_BIT(ANABATIC_I32);
    input.below = "E";
  }
  if (strcmp(table, "no inputs") == 0) op.num_inputs = 0;
  if (strcmp(table, "outputs") == 0) op.num_outputs = 9;
  if (strcmp(table, "no operands") == 0) op.inputs = NULL;
  if (strcmp(table, "forward") == 0) op.forward = NULL;
  if (strcmp(table, "flags") == 0) op.flags = 8;
  if (strcmp(table, "attributes") == 0) op.attributes = "[1.5]";
  if (strcmp(table, "attribute") == 0) op.attributes = "{\"alpha\": {\"of\": 1}}";
  if (strcmp(table, "reserved attribute") == 0) op.attributes = "{\"given\": [1]}";
  return &op;
}

ANABATIC_PLUGIN_EXPORT const anabatic_kernel* anabatic_plugin_kernels(uint32_t abi, int32_t* count) {
  const char* table = table_of_test();
  const anabatic_kernel good = {sizeof(anabatic_kernel), "activation", "fast", forward, NULL, forward};
  (void)abi;
  kernel = good;
  *count = 1;
  if (strcmp(table, "kernel name") == 0) kernel.name = "";
  if (strcmp(table, "kernel size") == 0) kernel.size = 0;
  if (strcmp(table, "kernel op") == 0) kernel.op = "rms_nrom";
  if (strcmp(table, "kernel activation") == 0) kernel.op = "swiglu";
  if (strcmp(table, "kernel run") == 0) kernel.run = NULL;
  return &kernel;
}
