/* SPDX-License-Identifier: Apache-2.0
 * Ops that break the contract, each in one way that its name says. Where nothing is said, y [N] = x [N] in f32. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "anabatic/plugin.h"

static int64_t size_of(const anabatic_call* call) { return call->inputs[0]->shape[0]; }
static const float* x_of(const anabatic_call* call) { return call->inputs[0]->data; }
static float* y_of(const anabatic_call* call) { return call->outputs[0]->data; }

static int32_t copy(const anabatic_call* call) {
  for (int64_t i = 0; i < size_of(call); ++i) y_of(call)[i] = x_of(call)[i];
  return 0;
}
/* Its gradient: that of y. */
static int32_t copy_backward(const anabatic_call* call) {
  const float* dy = call->inputs[1]->data;
  for (int64_t i = 0; i < size_of(call); ++i) y_of(call)[i] = dy[i];
  return 0;
}

static int32_t reads_over(const anabatic_call* call) {
  for (int64_t i = 0; i < size_of(call); ++i) y_of(call)[i] = x_of(call)[i] + 0 * x_of(call)[i + 1];
  return 0;
}
static int32_t reads_before(const anabatic_call* call) {
  for (int64_t i = 0; i < size_of(call); ++i) y_of(call)[i] = x_of(call)[i] + 0 * x_of(call)[i - 1];
  return 0;
}
static int32_t writes_over(const anabatic_call* call) {
  y_of(call)[size_of(call)] = 0;
  return copy(call);
}
static int32_t writes_input(const anabatic_call* call) {
  volatile float* x = call->inputs[0]->data;
  if (size_of(call) > 0) x[0] = x[0];
  return copy(call);
}
static int32_t leaves_last(const anabatic_call* call) {
  for (int64_t i = 0; i + 1 < size_of(call); ++i) y_of(call)[i] = x_of(call)[i];
  return 0;
}
static int64_t seven_bytes(const anabatic_call* call, int32_t is_backward) {
  (void)call;
  return is_backward ? 0 : 7;
}
static int32_t overruns_workspace(const anabatic_call* call) {
  memset(call->workspace, 0, (size_t)call->workspace_bytes + 1);
  return copy(call);
}
static int32_t reads_workspace(const anabatic_call* call) {
  copy(call);
  if (size_of(call) > 0) y_of(call)[0] += (float)((const char*)call->workspace)[0];
  return 0;
}

static int32_t keeps_state(const anabatic_call* call) {
  static int calls = 0;
  copy(call);
  if (size_of(call) > 0) y_of(call)[0] = (float)++calls;
  return 0;
}
struct Ranges {
  const anabatic_call* call;
  pthread_t caller;
};
static void thread_range(void* data, int64_t begin, int64_t end) {
  const struct Ranges* ranges = data;
  const struct timespec pause = {0, 1000000};
  nanosleep(&pause, NULL);
  for (int64_t i = begin; i < end; ++i) y_of(ranges->call)[i] = pthread_equal(pthread_self(), ranges->caller) ? 1 : 2;
}
static int32_t by_threads(const anabatic_call* call) {
  struct Ranges ranges = {call, pthread_self()};
  call->host->parallel_for(call->host, size_of(call), size_of(call) / 8 + 1, thread_range, &ranges);
  return 0;
}

/* A constant is no undefined behaviour that a compiler may use. */
static float* volatile null_pointer = NULL;
static int32_t crashes(const anabatic_call* call) {
  *null_pointer = 1;
  return copy(call);
}
static int32_t divides(const anabatic_call* call) {
  (void)call;
  return raise(SIGFPE);
}
static int32_t exits(const anabatic_call* call) {
  (void)call;
  exit(3);
}
static int32_t hangs(const anabatic_call* call) {
  for (volatile int forever = 1; forever;) {
  }
  return copy(call);
}
static int32_t fails(const anabatic_call* call) { return call->host->fail(call->host, "sizes above 0 are too much"); }
static int32_t fails_silently(const anabatic_call* call) {
  (void)call;
  return 7;
}

static int32_t too_large(const anabatic_call* call) {
  *call->outputs[0] = *call->inputs[0];
  call->outputs[0]->shape[0] += 1;
  return 0;
}
static int32_t refuses(const anabatic_call* call) { return call->host->fail(call->host, "no size is right"); }
static int32_t negative_cost(const anabatic_call* call, anabatic_cost* cost) {
  cost->flops = -size_of(call);
  return 0;
}

static int32_t wrong_backward(const anabatic_call* call) {
  copy_backward(call);
  for (int64_t i = 0; i < size_of(call); ++i) y_of(call)[i] *= 2;
  return 0;
}
/* y = a + b: writes both gradients, whether they are asked for or not. */
static int32_t add(const anabatic_call* call) {
  const float* b = call->inputs[1]->data;
  for (int64_t i = 0; i < size_of(call); ++i) y_of(call)[i] = x_of(call)[i] + b[i];
  return 0;
}
static int32_t writes_absent(const anabatic_call* call) {
  for (int k = 0; k < 2; ++k)
    memcpy(call->outputs[k]->data, call->inputs[2]->data, (size_t)size_of(call) * sizeof(float));
  return 0;
}
/* The gradient of b is wrong where that of a is not asked for. */
static int32_t needs_other(const anabatic_call* call) {
  const float* dy = call->inputs[2]->data;
  float *da = call->outputs[0]->data, *db = call->outputs[1]->data;
  for (int64_t i = 0; i < size_of(call); ++i) {
    if (da) da[i] = dy[i];
    if (db) db[i] = da ? dy[i] : 0;
  }
  return 0;
}
/* y = x and z = x, whose gradients add up: here only where both are given. */
static int32_t copy_twice(const anabatic_call* call) {
  for (int k = 0; k < 2; ++k)
    memcpy(call->outputs[k]->data, call->inputs[0]->data, (size_t)size_of(call) * sizeof(float));
  return 0;
}
static int32_t needs_both(const anabatic_call* call) {
  const float *dy = call->inputs[1]->data, *dz = call->inputs[2]->data;
  for (int64_t i = 0; i < size_of(call); ++i) y_of(call)[i] = dy && dz ? dy[i] + dz[i] : 0;
  return 0;
}
/* y = x in f32, x / 2 in bf16. */
static int32_t wrong_in_bf16(const anabatic_call* call) {
  if (call->inputs[0]->dtype == ANABATIC_F32) return copy(call);
  const uint16_t* x = call->inputs[0]->data;
  for (int64_t i = 0; i < size_of(call); ++i) ((uint16_t*)call->outputs[0]->data)[i] = (uint16_t)(x[i] - 0x80);
  return 0;
}

#define F32 ANABATIC_DTYPE_BIT(ANABATIC_F32)
#define NARROW (F32 | ANABATIC_DTYPE_BIT(ANABATIC_BF16))
#define ACTIVATION(name, dtypes) {sizeof(anabatic_operand), ANABATIC_ACTIVATION, name, "N", dtypes, NULL}
static const anabatic_operand kX[] = {ACTIVATION("x", F32)}, kY[] = {ACTIVATION("y", F32)};
static const anabatic_operand kAB[] = {ACTIVATION("a", F32), ACTIVATION("b", F32)};
static const anabatic_operand kYZ[] = {ACTIVATION("y", F32), ACTIVATION("z", F32)};
static const anabatic_operand kNarrowX[] = {ACTIVATION("x", NARROW)}, kNarrowY[] = {ACTIVATION("y", NARROW)};

#define OP(op_name, num_in, in, num_out, out, ...)                                                                \
  {                                                                                                               \
    .size = sizeof(anabatic_op), .name = op_name, .num_inputs = num_in, .num_outputs = num_out, .inputs = in,     \
    .outputs = out, __VA_ARGS__                                                                                   \
  }
#define PLAIN(op_name, ...) OP(op_name, 1, kX, 1, kY, __VA_ARGS__)

static const anabatic_op kOps[] = {
    PLAIN("reads_over", .forward = reads_over),
    PLAIN("reads_before", .forward = reads_before),
    PLAIN("writes_over", .forward = writes_over),
    PLAIN("writes_input", .forward = writes_input),
    PLAIN("leaves_last", .forward = leaves_last),
    PLAIN("overruns_workspace", .forward = overruns_workspace, .workspace_bytes = seven_bytes),
    PLAIN("reads_workspace", .forward = reads_workspace, .workspace_bytes = seven_bytes),
    PLAIN("keeps_state", .forward = keeps_state),
    PLAIN("by_threads", .forward = by_threads),
    PLAIN("crashes", .forward = copy, .backward = crashes),
    PLAIN("divides", .forward = divides),
    PLAIN("exits", .forward = exits),
    PLAIN("hangs", .forward = hangs),
    PLAIN("fails", .forward = fails),
    PLAIN("fails_silently", .forward = fails_silently),
    PLAIN("too_large", .forward = copy, .infer = too_large),
    PLAIN("refuses", .forward = copy, .infer = refuses),
    PLAIN("negative_cost", .forward = copy, .cost = negative_cost),
    PLAIN("wrong_gradient", .forward = copy, .backward = wrong_backward),
    OP("writes_absent", 2, kAB, 1, kY, .forward = add, .backward = writes_absent),
    OP("needs_other", 2, kAB, 1, kY, .forward = add, .backward = needs_other),
    OP("needs_both", 1, kX, 2, kYZ, .forward = copy_twice, .backward = needs_both),
    OP("wrong_in_bf16", 1, kNarrowX, 1, kNarrowY, .forward = wrong_in_bf16),
};

ANABATIC_PLUGIN_EXPORT const anabatic_op* anabatic_plugin(uint32_t abi, int32_t* count) {
  (void)abi;
  *count = (int32_t)(sizeof kOps / sizeof kOps[0]);
  return kOps;
}
