/* SPDX-License-Identifier: Apache-2.0
 * Kernels for ops of the engine: good ones, and kernels of `add` that break the contract, each in one way that its name says. */
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

static int64_t count_of(const anabatic_tensor* t) {
  int64_t count = 1;
  for (int32_t i = 0; i < t->ndim; ++i) count *= t->shape[i];
  return count;
}

static int32_t supports(const anabatic_call* call) {
  (void)call;
  return 0;
}
static int32_t supports_f32(const anabatic_call* call) {
  return call->inputs[0]->dtype == ANABATIC_F32 ? 0 : call->host->fail(call->host, "only f32 is fast");
}

static void add_range(void* data, int64_t begin, int64_t end) {
  const anabatic_call* call = data;
  for (int64_t i = begin; i < end; ++i) store(call->outputs[0], i, load(call->inputs[0], i) + load(call->inputs[1], i));
}
static int32_t good_add(const anabatic_call* call) {
  call->host->parallel_for(call->host, count_of(call->outputs[0]), 16, add_range, (void*)call);
  return 0;
}

static int32_t good_embedding(const anabatic_call* call) {
  const anabatic_tensor *table = call->inputs[0], *ids = call->inputs[1], *y = call->outputs[0];
  const int64_t width = table->shape[1];
  for (int64_t row = 0; row < ids->shape[0]; ++row)
    for (int64_t i = 0; i < width; ++i) store(y, row * width + i, load(table, ((const int32_t*)ids->data)[row] * width + i));
  return 0;
}

static int32_t good_grouped(const anabatic_call* call) {
  const anabatic_tensor *x = call->inputs[0], *weight = call->inputs[1], *y = call->outputs[0];
  const int32_t* offsets = call->inputs[2]->data;
  const int64_t n = weight->shape[1], k = weight->shape[2];
  for (int64_t group = 0; group < weight->shape[0]; ++group)
    for (int64_t row = offsets[group]; row < offsets[group + 1]; ++row)
      for (int64_t column = 0; column < n; ++column) {
        float sum = 0;
        for (int64_t i = 0; i < k; ++i) sum += load(x, row * k + i) * load(weight, (group * n + column) * k + i);
        store(y, row * n + column, sum);
      }
  return 0;
}

/* y[t] = sum over j of weights[t,j] times the row map[t k + j]. */
static int32_t good_unpermute(const anabatic_call* call) {
  const anabatic_tensor *rows = call->inputs[0], *weights = call->inputs[1], *y = call->outputs[0];
  const int32_t* map = call->inputs[2]->data;
  const int64_t width = rows->shape[1], top_k = weights->shape[1];
  for (int64_t token = 0; token < weights->shape[0]; ++token)
    for (int64_t i = 0; i < width; ++i) {
      float sum = 0;
      for (int64_t j = token * top_k; j < (token + 1) * top_k; ++j) sum += load(weights, j) * load(rows, map[j] * width + i);
      store(y, token * width + i, sum);
    }
  return 0;
}

static int32_t reads_over(const anabatic_call* call) {
  volatile float over = load(call->inputs[1], count_of(call->inputs[1]));
  (void)over;
  return good_add(call);
}
static int32_t writes_over(const anabatic_call* call) {
  store(call->outputs[0], count_of(call->outputs[0]), 0);
  return good_add(call);
}
static int32_t writes_input(const anabatic_call* call) {
  if (count_of(call->inputs[1]) > 0) store(call->inputs[1], 0, 0);
  return good_add(call);
}
static int32_t leaves_last(const anabatic_call* call) {
  add_range((void*)call, 0, count_of(call->outputs[0]) - 1);
  return 0;
}
static int32_t subtracts(const anabatic_call* call) {
  for (int64_t i = 0; i < count_of(call->outputs[0]); ++i) store(call->outputs[0], i, load(call->inputs[0], i) - load(call->inputs[1], i));
  return 0;
}
static int32_t wrong_in_bf16(const anabatic_call* call) {
  return call->inputs[0]->dtype == ANABATIC_F32 ? good_add(call) : subtracts(call);
}
/* The output may be an input. */
static int32_t writes_first(const anabatic_call* call) {
  const int64_t count = count_of(call->outputs[0]);
  for (int64_t i = 0; i < count; ++i) store(call->outputs[0], i, 0);
  for (int64_t i = 0; i < count; ++i)
    store(call->outputs[0], i, load(call->outputs[0], i) + load(call->inputs[0], i) + load(call->inputs[1], i));
  return 0;
}
static int32_t keeps_state(const anabatic_call* call) {
  static int calls = 0;
  good_add(call);
  if (count_of(call->outputs[0]) > 0) store(call->outputs[0], 0, (float)++calls);
  return 0;
}
static int64_t five_bytes(const anabatic_call* call) {
  (void)call;
  return 5;
}
static int32_t overruns_workspace(const anabatic_call* call) {
  ((char*)call->workspace)[5] = 0;
  return good_add(call);
}
static int32_t crashes(const anabatic_call* call) {
  *(volatile int*)0 = (int)call->size;
  return 0;
}
static int32_t fails(const anabatic_call* call) { return call->host->fail(call->host, "no time"); }
static int32_t refuses(const anabatic_call* call) { return call->host->fail(call->host, "nothing is right"); }

#define NAMED(op, name, function, supports, workspace) {sizeof(anabatic_kernel), op, name, supports, workspace, function}
#define KERNEL(op, function, supports, workspace) NAMED(op, #function, function, supports, workspace)
static const anabatic_kernel kKernels[] = {
    KERNEL("add", good_add, supports, NULL),
    KERNEL("embedding", good_embedding, supports, NULL),
    KERNEL("grouped_linear", good_grouped, supports_f32, NULL),
    KERNEL("unpermute", good_unpermute, supports, NULL),
    NAMED("head_loss", "not_checked", good_add, supports, NULL),
    KERNEL("add", reads_over, supports, NULL),
    KERNEL("add", writes_over, supports, NULL),
    KERNEL("add", writes_input, supports, NULL),
    KERNEL("add", leaves_last, supports, NULL),
    KERNEL("add", subtracts, supports, NULL),
    KERNEL("add", wrong_in_bf16, supports, NULL),
    KERNEL("add", writes_first, supports, NULL),
    KERNEL("add", keeps_state, supports, NULL),
    KERNEL("add", overruns_workspace, supports, five_bytes),
    KERNEL("add", crashes, supports, NULL),
    KERNEL("add", fails, supports, NULL),
    NAMED("add", "crashes_in_supports", good_add, crashes, NULL),
    NAMED("add", "refuses", good_add, refuses, NULL),
};

ANABATIC_PLUGIN_EXPORT const anabatic_kernel* anabatic_plugin_kernels(uint32_t abi, int32_t* count) {
  (void)abi;
  *count = sizeof kKernels / sizeof kKernels[0];
  return kKernels;
}
