/* SPDX-License-Identifier: Apache-2.0
 * A plugin: operators and kernels of others in a shared library, for the engine, Python and torch
 * alike. C99.
 *
 *   static int32_t forward(const anabatic_call* call) { ... return 0; }
 *   static const anabatic_operand kInputs[] = {
 *       {sizeof(anabatic_operand), ANABATIC_ACTIVATION, "x", "R,F", ANABATIC_FLOATS, NULL}};
 *   static const anabatic_op kOps[] = {
 *       {.size = sizeof(anabatic_op), .name = "my_op", .inputs = kInputs, ...}};
 *   const anabatic_op* anabatic_plugin(uint32_t abi, int32_t* count) { ... return kOps; }
 *
 * Every struct begins with its size, so that later versions can add fields at the end. The elements
 * of an array have one size. `anabatic new-op NAME` writes a project that works;
 * docs/guide/custom-op.md explains it.
 */
#ifndef ANABATIC_PLUGIN_H
#define ANABATIC_PLUGIN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ANABATIC_PLUGIN_ABI 1u
#define ANABATIC_PLUGIN_EXPORT __attribute__((visibility("default")))

/* Element types, and their bits in anabatic_operand.dtypes. */
enum { ANABATIC_F32 = 0, ANABATIC_BF16 = 1, ANABATIC_F64 = 2, ANABATIC_I32 = 3 };
#define ANABATIC_DTYPE_BIT(dtype) (1u << (dtype))
#define ANABATIC_FLOATS (1u << ANABATIC_F32 | 1u << ANABATIC_BF16 | 1u << ANABATIC_F64)

enum { ANABATIC_MAX_NDIM = 8 };

/* A row-major tensor. Its data begin at a multiple of the size of an element, and no byte around
 * them belongs to the plugin. Data are null while types are inferred, and of some gradients, as
 * `backward` says. */
typedef struct anabatic_tensor {
  uint32_t size;
  int32_t dtype;
  int32_t ndim;
  int64_t shape[ANABATIC_MAX_NDIM];
  void* data;
} anabatic_tensor;

/* What the engine does for a call. */
typedef struct anabatic_host {
  uint32_t size;
  void* context;
  /* Runs body(data, begin, end) for the ranges [0, grain), [grain, 2 grain), ... of [0, count), on
   * several threads at once, and returns when all are done. The ranges are the same for any number
   * of threads: what adds up within a range has equal bits on all machines of one kind. Not to be
   * called inside a body. */
  void (*parallel_for)(const struct anabatic_host* host, int64_t count, int64_t grain,
                       void (*body)(void* data, int64_t begin, int64_t end), void* data);
  /* Makes the call fail with this text, which is copied. Returns 1: `return
   * call->host->fail(call->host, "...")`. May be called in a body; the first text counts. */
  int32_t (*fail)(const struct anabatic_host* host, const char* message);
} anabatic_host;

/* A call of one of the functions below. */
typedef struct anabatic_call {
  uint32_t size;
  int32_t num_inputs, num_outputs;
  const anabatic_tensor* const* inputs;
  anabatic_tensor* const* outputs;
  const char* attributes; /* a JSON object with every attribute of the op */
  void* workspace; /* of workspace_bytes, 64-byte aligned, contents undefined; null for none */
  int64_t workspace_bytes;
  const anabatic_host* host;
} anabatic_call;

/* Kinds of operands. An activation begins with the rows of a micro-batch, and its gradient has its
 * dtype. A weight has a gradient in f32 (in f64 if it is f64). An index is i32 and has no gradient.
 * A constant has none either. */
enum { ANABATIC_ACTIVATION = 0, ANABATIC_WEIGHT = 1, ANABATIC_INDEX = 2, ANABATIC_CONSTANT = 3 };

typedef struct anabatic_operand {
  uint32_t size;
  int32_t kind;
  const char* name;
  /* "R,F": dimensions by name or number, separated by commas; "" is a scalar. One name has one size
   * in a call, which the engine checks before it calls the plugin. */
  const char* shape;
  /* Those that it may have: ANABATIC_FLOATS, or bits joined by |. One dtype alone is
   * ANABATIC_DTYPE_BIT(ANABATIC_F32), not ANABATIC_F32. */
  uint32_t dtypes;
  const char* below; /* of an index: a dimension by name; values are in [0, its size). Else null. */
} anabatic_operand;

typedef struct anabatic_cost {
  uint32_t size;
  int64_t flops;
  int64_t bytes_read, bytes_written; /* those of all operands when the function is called */
} anabatic_cost;

/* The backward reads the op's outputs too. */
enum { ANABATIC_BACKWARD_READS_OUTPUTS = 1 };

/* An operator. Functions return 0, or what host->fail returns. They may run on several threads at
 * once, keep nothing between calls, and the same inputs give the same bits. */
typedef struct anabatic_op {
  uint32_t size;
  uint32_t flags;
  const char* name;    /* lower case letters, digits and _ */
  const char* summary; /* one sentence */
  int32_t num_inputs, num_outputs;
  const anabatic_operand* inputs;
  const anabatic_operand* outputs; /* kind ANABATIC_ACTIVATION or ANABATIC_INDEX */
  /* A JSON object of all attributes with their default values: {"alpha": 1.5, "steps": 2, "exact":
   * true}. Numbers with a point are floats. Null: none. */
  const char* attributes;

  /* Sets dtype, ndim and shape of the outputs. Null: as `outputs` says, in the dtype of the first
   * input that is no index; every dimension of the outputs is then one of the inputs' or a number.
   */
  int32_t (*infer)(const anabatic_call* call);
  /* Writes every element of the outputs. */
  int32_t (*forward)(const anabatic_call* call);
  /* Inputs: those of the op, its outputs if flags say so, and the gradient of each output. Outputs:
   * the gradient of each input. The data of an output's gradient are null where it is zero, in ops
   * of several outputs alone. The data of an input's gradient are null where nobody asks for it,
   * and that of an index or a constant always. Null: the op has no gradient. */
  int32_t (*backward)(const anabatic_call* call);
  /* Bytes of workspace of the forward, or of the backward, for operands of these types. Null: none.
   */
  int64_t (*workspace_bytes)(const anabatic_call* call, int32_t is_backward);
  /* Work of the forward; the backward is taken for twice as much. Null: it moves its operands'
   * bytes once. */
  int32_t (*cost)(const anabatic_call* call, anabatic_cost* cost);
} anabatic_op;

/* A kernel for an operator that the engine has, such as "activation" or "rms_norm";
 * `anabatic plan --compiler.dump DIR` writes the ops of a model. Kernels of plugins are asked
 * before the engine's own. They see row-major operands of the four dtypes, in the order of the
 * dump. Their attributes are those in braces in the dump: one that a model does not need is
 * absent. An output may have the memory of an input of its type. */
typedef struct anabatic_kernel {
  uint32_t size;
  const char* op;
  const char* name; /* shown as plugin:NAME */
  /* 0 if it takes such a call; else fail with the reason, which `--compiler.explain_dispatch`
   * shows. Attributes that it does not know are a reason. */
  int32_t (*supports)(const anabatic_call* call);
  int64_t (*workspace_bytes)(const anabatic_call* call); /* null: none */
  int32_t (*run)(const anabatic_call* call);
} anabatic_kernel;

/* What a plugin defines, one or both. `abi` is ANABATIC_PLUGIN_ABI of the engine. Null: the plugin
 * cannot serve it. */
ANABATIC_PLUGIN_EXPORT const anabatic_op* anabatic_plugin(uint32_t abi, int32_t* count);
ANABATIC_PLUGIN_EXPORT const anabatic_kernel* anabatic_plugin_kernels(uint32_t abi, int32_t* count);

#ifdef __cplusplus
}
#endif

#endif
