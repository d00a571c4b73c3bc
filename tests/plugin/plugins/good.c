/* SPDX-License-Identifier: Apache-2.0
 * A plugin that keeps to the contract: an op of one activation, one of two, one with a weight, an attribute, a
 * workspace and two outputs, and one with an index. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "anabatic/plugin.h"

/* Values of any dtype, computed with in double. */
static double get(const anabatic_tensor* tensor, int64_t i) {
  if (tensor->dtype == ANABATIC_F64) return ((const double*)tensor->data)[i];
  if (tensor->dtype == ANABATIC_F32) return ((const float*)tensor->data)[i];
  uint32_t bits = (uint32_t)((const uint16_t*)tensor->data)[i] << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static void set(const anabatic_tensor* tensor, int64_t i, double value) {
  float narrow = (float)value;
  uint32_t bits;
  memcpy(&bits, &narrow, sizeof bits);
  if (tensor->dtype == ANABATIC_F64)
    ((double*)tensor->data)[i] = value;
  else if (tensor->dtype == ANABATIC_F32)
    ((float*)tensor->data)[i] = narrow;
  else
    ((uint16_t*)tensor->data)[i] = (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

static int64_t num_elements(const anabatic_tensor* tensor) {
  int64_t count = 1;
  for (int i = 0; i < tensor->ndim; ++i) count *= tensor->shape[i];
  return count;
}

static void each(const anabatic_call* call, int64_t count, int64_t grain, void (*body)(void*, int64_t, int64_t)) {
  call->host->parallel_for(call->host, count, grain, body, (void*)call);
}

enum { kGrain = 256, kRows = 16 };

/* square_relu: y = max(x, 0)^2 */
static void square_relu_range(void* data, int64_t begin, int64_t end) {
  const anabatic_call* call = data;
  for (int64_t i = begin; i < end; ++i) {
    const double x = get(call->inputs[0], i);
    set(call->outputs[0], i, x > 0 ? x * x : 0);
  }
}
static int32_t square_relu(const anabatic_call* call) {
  each(call, num_elements(call->inputs[0]), kGrain, square_relu_range);
  return 0;
}
static void square_relu_backward_range(void* data, int64_t begin, int64_t end) {
  const anabatic_call* call = data;
  for (int64_t i = begin; i < end; ++i) {
    const double x = get(call->inputs[0], i);
    set(call->outputs[0], i, x > 0 ? 2 * x * get(call->inputs[1], i) : 0);
  }
}
static int32_t square_relu_backward(const anabatic_call* call) {
  each(call, num_elements(call->inputs[0]), kGrain, square_relu_backward_range);
  return 0;
}

/* my_swiglu: y = gate sigmoid(gate) up */
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static void swiglu_range(void* data, int64_t begin, int64_t end) {
  const anabatic_call* call = data;
  for (int64_t i = begin; i < end; ++i) {
    const double gate = get(call->inputs[0], i);
    set(call->outputs[0], i, gate * sigmoid(gate) * get(call->inputs[1], i));
  }
}
static int32_t swiglu(const anabatic_call* call) {
  each(call, num_elements(call->inputs[0]), kGrain, swiglu_range);
  return 0;
}
static void swiglu_backward_range(void* data, int64_t begin, int64_t end) {
  const anabatic_call* call = data;
  for (int64_t i = begin; i < end; ++i) {
    const double gate = get(call->inputs[0], i), up = get(call->inputs[1], i), dy = get(call->inputs[2], i);
    const double s = sigmoid(gate);
    if (call->outputs[0]->data) set(call->outputs[0], i, dy * up * s * (1 + gate * (1 - s)));
    if (call->outputs[1]->data) set(call->outputs[1], i, dy * gate * s);
  }
}
static int32_t swiglu_backward(const anabatic_call* call) {
  each(call, num_elements(call->inputs[0]), kGrain, swiglu_backward_range);
  return 0;
}
static int32_t swiglu_cost(const anabatic_call* call, anabatic_cost* cost) {
  cost->flops = 5 * num_elements(call->inputs[0]);
  return 0;
}

/* scaled_norm: scale = 1 / sqrt(mean(x^2) + epsilon) of each row, y = x scale weight */
static double epsilon_of(const anabatic_call* call) {
  const char* found = strstr(call->attributes, "\"epsilon\":");
  return found ? strtod(found + strlen("\"epsilon\":"), NULL) : 0;
}
static void norm_rows(void* data, int64_t begin, int64_t end) {
  const anabatic_call* call = data;
  const int64_t width = call->inputs[0]->shape[1];
  const double epsilon = epsilon_of(call);
  for (int64_t row = begin; row < end; ++row) {
    double sum = 0;
    for (int64_t k = 0; k < width; ++k) {
      const double x = get(call->inputs[0], row * width + k);
      sum += x * x;
    }
    const double scale = 1 / sqrt((width > 0 ? sum / (double)width : 0) + epsilon);
    set(call->outputs[1], row, scale);
    for (int64_t k = 0; k < width; ++k)
      set(call->outputs[0], row * width + k,
          get(call->inputs[0], row * width + k) * scale * get(call->inputs[1], k));
  }
}
static int32_t norm(const anabatic_call* call) {
  each(call, call->inputs[0]->shape[0], kRows, norm_rows);
  return 0;
}
static int64_t norm_workspace(const anabatic_call* call, int32_t is_backward) {
  if (!is_backward) return 0;
  const int64_t ranges = (call->inputs[0]->shape[0] + kRows - 1) / kRows;
  return ranges * call->inputs[0]->shape[1] * (int64_t)sizeof(double);
}
/* Inputs: x, weight, y, scale, gradients of y and scale. Sums over the rows of a range come into the workspace. */
static void norm_backward_rows(void* data, int64_t begin, int64_t end) {
  const anabatic_call* call = data;
  const anabatic_tensor *x = call->inputs[0], *weight = call->inputs[1], *dy = call->inputs[4], *ds = call->inputs[5];
  const int64_t width = x->shape[1];
  double* sums = (double*)call->workspace + begin / kRows * width;
  for (int64_t k = 0; k < width; ++k) sums[k] = 0;
  for (int64_t row = begin; row < end; ++row) {
    const double scale = get(call->inputs[3], row);
    double of_scale = ds->data ? get(ds, row) : 0;
    for (int64_t k = 0; k < width; ++k) {
      const double term = dy->data ? get(dy, row * width + k) * get(x, row * width + k) : 0;
      of_scale += term * get(weight, k);
      sums[k] += term * scale;
    }
    if (!call->outputs[0]->data) continue;
    for (int64_t k = 0; k < width; ++k) {
      const int64_t at = row * width + k;
      const double direct = dy->data ? get(dy, at) * scale * get(weight, k) : 0;
      set(call->outputs[0], at, direct - of_scale * scale * scale * scale * get(x, at) / (double)width);
    }
  }
}
static int32_t norm_backward(const anabatic_call* call) {
  const int64_t rows = call->inputs[0]->shape[0], width = call->inputs[0]->shape[1];
  if (call->workspace_bytes < norm_workspace(call, 1)) return call->host->fail(call->host, "too little workspace");
  each(call, rows, kRows, norm_backward_rows);
  if (!call->outputs[1]->data) return 0;
  for (int64_t k = 0; k < width; ++k) {
    double sum = 0;
    for (int64_t range = 0; range * kRows < rows; ++range)
      sum += ((const double*)call->workspace)[range * width + k];
    set(call->outputs[1], k, sum);
  }
  return 0;
}

/* pick_rows: y[t] = x[index[t]] */
static int32_t pick(const anabatic_call* call) {
  const int64_t width = call->inputs[0]->shape[1], count = call->inputs[1]->shape[0];
  const int32_t* index = call->inputs[1]->data;
  for (int64_t t = 0; t < count; ++t)
    for (int64_t k = 0; k < width; ++k)
      set(call->outputs[0], t * width + k, get(call->inputs[0], index[t] * width + k));
  return 0;
}
static int32_t pick_infer(const anabatic_call* call) {
  anabatic_tensor* y = call->outputs[0];
  y->dtype = call->inputs[0]->dtype;
  y->ndim = 2;
  y->shape[0] = call->inputs[1]->shape[0];
  y->shape[1] = call->inputs[0]->shape[1];
  return y->shape[1] == 0 ? call->host->fail(call->host, "rows have no elements") : 0;
}
static int32_t pick_backward(const anabatic_call* call) {
  const int64_t rows = call->inputs[0]->shape[0], width = call->inputs[0]->shape[1], count = call->inputs[1]->shape[0];
  const int32_t* index = call->inputs[1]->data;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t k = 0; k < width; ++k) {
      double sum = 0;
      for (int64_t t = 0; t < count; ++t)
        if (index[t] == row) sum += get(call->inputs[2], t * width + k);
      set(call->outputs[0], row * width + k, sum);
    }
  return 0;
}

#define OPERAND(kind, name, shape, dtypes, below) {sizeof(anabatic_operand), kind, name, shape, dtypes, below}
static const anabatic_operand kX[] = {OPERAND(ANABATIC_ACTIVATION, "x", "R,F", ANABATIC_FLOATS, NULL)};
static const anabatic_operand kY[] = {OPERAND(ANABATIC_ACTIVATION, "y", "R,F", ANABATIC_FLOATS, NULL)};
static const anabatic_operand kGateUp[] = {OPERAND(ANABATIC_ACTIVATION, "gate", "R,F", ANABATIC_FLOATS, NULL),
                                           OPERAND(ANABATIC_ACTIVATION, "up", "R,F", ANABATIC_FLOATS, NULL)};
static const anabatic_operand kNorm[] = {OPERAND(ANABATIC_ACTIVATION, "x", "R,F", ANABATIC_FLOATS, NULL),
                                         OPERAND(ANABATIC_WEIGHT, "weight", "F", ANABATIC_FLOATS, NULL)};
static const anabatic_operand kNormed[] = {OPERAND(ANABATIC_ACTIVATION, "y", "R,F", ANABATIC_FLOATS, NULL),
                                           OPERAND(ANABATIC_ACTIVATION, "scale", "R", ANABATIC_FLOATS, NULL)};
static const anabatic_operand kRowsIndex[] = {
    OPERAND(ANABATIC_ACTIVATION, "x", "R,F", ANABATIC_FLOATS, NULL),
    OPERAND(ANABATIC_INDEX, "index", "T", ANABATIC_DTYPE_BIT(ANABATIC_I32), "R")};
static const anabatic_operand kPicked[] = {OPERAND(ANABATIC_ACTIVATION, "y", "T,F", ANABATIC_FLOATS, NULL)};

static const anabatic_op kOps[] = {
    {.size = sizeof(anabatic_op),
     .name = "square_relu",
     .summary = "The square of what is above zero.",
     .num_inputs = 1,
     .num_outputs = 1,
     .inputs = kX,
     .outputs = kY,
     .forward = square_relu,
     .backward = square_relu_backward},
    {.size = sizeof(anabatic_op),
     .name = "my_swiglu",
     .summary = "The gate's SiLU times up.",
     .num_inputs = 2,
     .num_outputs = 1,
     .inputs = kGateUp,
     .outputs = kY,
     .forward = swiglu,
     .backward = swiglu_backward,
     .cost = swiglu_cost},
    {.size = sizeof(anabatic_op),
     .flags = ANABATIC_BACKWARD_READS_OUTPUTS,
     .name = "scaled_norm",
     .summary = "Rows over their root mean square, times a weight.",
     .num_inputs = 2,
     .num_outputs = 2,
     .inputs = kNorm,
     .outputs = kNormed,
     .attributes = "{\"epsilon\": 1e-6}",
     .forward = norm,
     .backward = norm_backward,
     .workspace_bytes = norm_workspace},
    {.size = sizeof(anabatic_op),
     .name = "pick_rows",
     .summary = "Rows by their indices.",
     .num_inputs = 2,
     .num_outputs = 1,
     .inputs = kRowsIndex,
     .outputs = kPicked,
     .infer = pick_infer,
     .forward = pick,
     .backward = pick_backward},
};

ANABATIC_PLUGIN_EXPORT const anabatic_op* anabatic_plugin(uint32_t abi, int32_t* count) {
  *count = (int32_t)(sizeof kOps / sizeof kOps[0]);
  return abi == ANABATIC_PLUGIN_ABI ? kOps : NULL;
}
