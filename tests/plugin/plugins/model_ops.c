/* SPDX-License-Identifier: Apache-2.0
 * Ops with the signatures of a model's own, ops that fail within a model, and kernels for ops of the engine. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "anabatic/plugin.h"

static float load(const anabatic_tensor* t, int64_t i) {
  if (t->dtype == ANABATIC_F32) return ((const float*)t->data)[i];
  uint32_t bits = (uint32_t)((const uint16_t*)t->data)[i] << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static void store(const anabatic_tensor* t, int64_t i, float value) {
  if (t->dtype == ANABATIC_F32) {
    ((float*)t->data)[i] = value;
    return;
  }
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  ((uint16_t*)t->data)[i] = (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

static float epsilon_of(const anabatic_call* call) {
  const char* at = strstr(call->attributes, "\"epsilon\":");
  float value = 0, scale = 1;
  int exponent = 0, sign = 1;
  for (at += 10; *at >= '0' && *at <= '9'; ++at) value = 10 * value + (float)(*at - '0');
  if (*at == '.')
    for (++at; *at >= '0' && *at <= '9'; ++at) value += (scale /= 10) * (float)(*at - '0');
  if (*at == 'e') {
    if (*++at == '-') sign = -1, ++at;
    for (; *at >= '0' && *at <= '9'; ++at) exponent = 10 * exponent + (*at - '0');
  }
  return value * powf(10.f, (float)(sign * exponent));
}

static float inverse_root(const anabatic_tensor* x, int64_t row, float epsilon) {
  const int64_t width = x->shape[1];
  double sum = 0;
  for (int64_t i = 0; i < width; ++i) sum += (double)load(x, row * width + i) * load(x, row * width + i);
  return (float)(1 / sqrt(sum / (double)width + epsilon));
}

static void norm_rows(void* data, int64_t begin, int64_t end) {
  const anabatic_call* call = data;
  const anabatic_tensor *x = call->inputs[0], *weight = call->inputs[1];
  const int64_t width = x->shape[1];
  for (int64_t row = begin; row < end; ++row) {
    const float scale = inverse_root(x, row, epsilon_of(call));
    for (int64_t i = 0; i < width; ++i)
      store(call->outputs[0], row * width + i, load(x, row * width + i) * scale * load(weight, i));
  }
}

static int32_t norm(const anabatic_call* call) {
  call->host->parallel_for(call->host, call->inputs[0]->shape[0], 4, norm_rows, (void*)call);
  return 0;
}

static int32_t norm_backward(const anabatic_call* call) {
  const anabatic_tensor *x = call->inputs[0], *weight = call->inputs[1], *dy = call->inputs[2];
  const anabatic_tensor *dx = call->outputs[0], *dweight = call->outputs[1];
  const int64_t rows = x->shape[0], width = x->shape[1];
  if (dweight->data != 0) memset(dweight->data, 0, (size_t)width * sizeof(float));
  for (int64_t row = 0; row < rows; ++row) {
    const float scale = inverse_root(x, row, epsilon_of(call));
    double dot = 0;
    for (int64_t i = 0; i < width; ++i) {
      const int64_t at = row * width + i;
      dot += (double)load(dy, at) * load(weight, i) * load(x, at);
      if (dweight->data != 0) ((float*)dweight->data)[i] += load(dy, at) * load(x, at) * scale;
    }
    for (int64_t i = 0; dx->data != 0 && i < width; ++i) {
      const int64_t at = row * width + i;
      store(dx, at, scale * (load(dy, at) * load(weight, i) -
                             load(x, at) * scale * scale * (float)(dot / (double)width)));
    }
  }
  return 0;
}

static void swiglu_rows(void* data, int64_t begin, int64_t end) {
  const anabatic_call* call = data;
  for (int64_t i = begin; i < end; ++i) {
    const float gate = load(call->inputs[0], i);
    store(call->outputs[0], i, gate / (1 + expf(-gate)) * load(call->inputs[1], i));
  }
}

static int64_t elements(const anabatic_tensor* t) { return t->shape[0] * t->shape[1]; }

static int32_t swiglu(const anabatic_call* call) {
  call->host->parallel_for(call->host, elements(call->inputs[0]), 256, swiglu_rows, (void*)call);
  return 0;
}

static void swiglu_backward_rows(void* data, int64_t begin, int64_t end) {
  const anabatic_call* call = data;
  for (int64_t i = begin; i < end; ++i) {
    const float gate = load(call->inputs[0], i), up = load(call->inputs[1], i), dy = load(call->inputs[2], i);
    const float s = 1 / (1 + expf(-gate));
    if (call->outputs[0]->data != 0) store(call->outputs[0], i, dy * up * s * (1 + gate * (1 - s)));
    if (call->outputs[1]->data != 0) store(call->outputs[1], i, dy * gate * s);
  }
}

static int32_t swiglu_backward(const anabatic_call* call) {
  call->host->parallel_for(call->host, elements(call->inputs[0]), 256, swiglu_backward_rows, (void*)call);
  return 0;
}

static void crash_rows(void* data, int64_t begin, int64_t end) {
  (void)data, (void)begin;
  *(volatile float*)(uintptr_t)(end - end) = 0;
}

static int32_t crash(const anabatic_call* call) {
  call->host->parallel_for(call->host, elements(call->inputs[0]), 256, crash_rows, 0);
  return 0;
}

/* Deeper than any stack. Its buffer keeps compilers from making it a loop. */
static int64_t overflow(int64_t depth) {
  volatile char buffer[1024];
  buffer[depth % 1024] = (char)depth;
  return depth == INT64_MAX ? buffer[0] : overflow(depth + 1) + buffer[depth % 1024];
}

static void overflow_rows(void* data, int64_t begin, int64_t end) {
  (void)data, (void)end;
  (void)overflow(begin);
}

static int32_t overflow_stack(const anabatic_call* call) {
  call->host->parallel_for(call->host, elements(call->inputs[0]), 256, overflow_rows, 0);
  return 0;
}

static int32_t end_process(const anabatic_call* call) {
  (void)call;
  exit(0);
}

static int32_t refuse(const anabatic_call* call) { return call->host->fail(call->host, "not today"); }

#define FLOATS (1u << ANABATIC_F32 | 1u << ANABATIC_BF16)
#define OPERAND(kind, name, shape, dtypes) {sizeof(anabatic_operand), kind, name, shape, dtypes, 0}

static const anabatic_operand kGateUp[] = {OPERAND(ANABATIC_ACTIVATION, "gate", "R,F", FLOATS),
                                           OPERAND(ANABATIC_ACTIVATION, "up", "R,F", FLOATS)};
static const anabatic_operand kGateUpFp32[] = {
    OPERAND(ANABATIC_ACTIVATION, "gate", "R,F", 1u << ANABATIC_F32),
    OPERAND(ANABATIC_ACTIVATION, "up", "R,F", 1u << ANABATIC_F32)};
static const anabatic_operand kNormInputs[] = {OPERAND(ANABATIC_ACTIVATION, "x", "R,H", FLOATS),
                                               OPERAND(ANABATIC_WEIGHT, "weight", "H", 1u << ANABATIC_F32)};
static const anabatic_operand kY[] = {OPERAND(ANABATIC_ACTIVATION, "y", "R,F", FLOATS)};
static const anabatic_operand kNormY[] = {OPERAND(ANABATIC_ACTIVATION, "y", "R,H", FLOATS)};
static const anabatic_operand kColumn[] = {OPERAND(ANABATIC_ACTIVATION, "y", "R,1", FLOATS)};

static const anabatic_op kOps[] = {
    {.size = sizeof(anabatic_op), .name = "my_swiglu", .num_inputs = 2, .num_outputs = 1, .inputs = kGateUp,
     .outputs = kY, .forward = swiglu, .backward = swiglu_backward},
    {.size = sizeof(anabatic_op), .name = "fp32_swiglu", .num_inputs = 2, .num_outputs = 1, .inputs = kGateUpFp32,
     .outputs = kY, .forward = swiglu, .backward = swiglu_backward},
    {.size = sizeof(anabatic_op), .name = "my_norm", .num_inputs = 2, .num_outputs = 1, .inputs = kNormInputs,
     .outputs = kNormY, .attributes = "{\"epsilon\": 1e-5}", .forward = norm, .backward = norm_backward},
    {.size = sizeof(anabatic_op), .name = "bare_norm", .num_inputs = 2, .num_outputs = 1, .inputs = kNormInputs,
     .outputs = kNormY, .forward = norm, .backward = norm_backward},
    {.size = sizeof(anabatic_op), .name = "forward_only", .num_inputs = 2, .num_outputs = 1, .inputs = kGateUp,
     .outputs = kY, .forward = swiglu},
    {.size = sizeof(anabatic_op), .name = "column", .num_inputs = 2, .num_outputs = 1, .inputs = kGateUp,
     .outputs = kColumn, .forward = swiglu, .backward = swiglu_backward},
    {.size = sizeof(anabatic_op), .name = "crashing", .num_inputs = 2, .num_outputs = 1, .inputs = kGateUp,
     .outputs = kY, .forward = swiglu, .backward = crash},
    {.size = sizeof(anabatic_op), .name = "overflowing", .num_inputs = 2, .num_outputs = 1, .inputs = kGateUp,
     .outputs = kY, .forward = swiglu, .backward = overflow_stack},
    {.size = sizeof(anabatic_op), .name = "exiting", .num_inputs = 2, .num_outputs = 1, .inputs = kGateUp,
     .outputs = kY, .forward = swiglu, .backward = end_process},
    {.size = sizeof(anabatic_op), .name = "failing", .num_inputs = 2, .num_outputs = 1, .inputs = kGateUp,
     .outputs = kY, .forward = refuse, .backward = swiglu_backward},
};

static int32_t supports_swiglu(const anabatic_call* call) {
  if (strstr(call->attributes, "\"activation\":\"swiglu\"") == 0) return call->host->fail(call->host, "it takes swiglu");
  if (call->num_inputs != 2) return call->host->fail(call->host, "it takes gate and up alone");
  return 0;
}

static const anabatic_kernel kKernels[] = {{.size = sizeof(anabatic_kernel), .op = "activation", .name = "my_activation",
                                            .supports = supports_swiglu, .run = swiglu}};

ANABATIC_PLUGIN_EXPORT const anabatic_op* anabatic_plugin(uint32_t abi, int32_t* count) {
  *count = (int32_t)(sizeof kOps / sizeof *kOps);
  return abi == ANABATIC_PLUGIN_ABI ? kOps : 0;
}

ANABATIC_PLUGIN_EXPORT const anabatic_kernel* anabatic_plugin_kernels(uint32_t abi, int32_t* count) {
  *count = 1;
  return abi == ANABATIC_PLUGIN_ABI ? kKernels : 0;
}
