// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/ref/access.h"
#include "kernels/ref/rows.h"
#include "spec/dropout.h"
#include "spec/key_blocks.h"

namespace anabatic::kernels::ref {
namespace {

struct Heads {
  std::int64_t num_heads, num_kv_heads, window, key_width, value_width;
  double scale;
  const TensorView &q, &k, &v, &key_begin, &key_end;
  std::int64_t block_size;  // 0: no lists
  const TensorView *block_offsets = nullptr, *block_ids = nullptr;
  // Dropout of its probabilities. `draws` is null without.
  const TensorView* draws = nullptr;
  std::uint64_t stream = 0;
  std::int64_t threshold = 0;
  double kept_scale = 1;

  explicit Heads(const Arguments& args)
      : num_heads(spec::get_int(*args.attributes, "num_heads")),
        num_kv_heads(spec::get_int(*args.attributes, "num_kv_heads")),
        window(spec::get_int_or(*args.attributes, "window", 0)),
        key_width(columns(args.inputs[0]) / num_heads),
        value_width(columns(args.inputs[2]) / num_kv_heads),
        scale(spec::get_double(*args.attributes, "scale")),
        q(args.inputs[0]),
        k(args.inputs[1]),
        v(args.inputs[2]),
        key_begin(args.inputs[3]),
        key_end(args.inputs[4]),
        block_size(spec::get_int_or(*args.attributes, spec::kBlockSize, 0)) {
    if (const double rate = spec::get_double_or(*args.attributes, spec::kDropoutRate, 0);
        rate > 0) {
      draws = &args.inputs[args.inputs.size() - (block_size > 0 ? 3 : 1)];
      stream = stream_of(spec::get_string(*args.attributes, spec::kDropoutSite));
      threshold = spec::dropout_threshold(rate);
      kept_scale = spec::dropout_scale(rate);
    }
    if (block_size == 0) return;
    block_offsets = &args.inputs[args.inputs.size() - 2];
    block_ids = &args.inputs[args.inputs.size() - 1];
  }

  // Where head h of row t starts.
  std::int64_t query(std::int64_t t, std::int64_t h) const {
    return (t * num_heads + h) * key_width;
  }
  std::int64_t out(std::int64_t t, std::int64_t h) const {
    return (t * num_heads + h) * value_width;
  }
  std::int64_t kv_head(std::int64_t h) const { return h * num_kv_heads / num_heads; }
  std::int64_t key(std::int64_t s, std::int64_t h) const {
    return (s * num_kv_heads + kv_head(h)) * key_width;
  }
  std::int64_t value(std::int64_t s, std::int64_t h) const {
    return (s * num_kv_heads + kv_head(h)) * value_width;
  }

  std::int64_t end(std::int64_t t) const { return load_index(key_end, t); }
  std::int64_t begin(std::int64_t t) const {
    const std::int64_t first = load_index(key_begin, t);
    ANABATIC_REQUIRE(0 <= first && end(t) <= rows(k),
                     "[attention] expected keys within [0, {}), got [{}, {})", rows(k), first,
                     end(t));
    return window > 0 ? std::max(first, end(t) - window) : first;
  }

  // Whether the list of row t in head h has the block of key s, which is one of the row's range.
  bool sees(std::int64_t t, std::int64_t s, std::int64_t h) const {
    if (block_size == 0) return true;
    const std::int64_t document = load_index(key_begin, t), groups = rows(*block_offsets),
                       blocks = columns(*block_offsets) - 1,
                       block = (end(t) - 1 - document) / block_size;
    ANABATIC_REQUIRE(block < blocks, "[attention] expected rows in {} blocks of {}, got block {}",
                     blocks, block_size, block);
    const std::int64_t list = h * groups / num_heads * (blocks + 1) + block;
    for (std::int64_t i = load_index(*block_offsets, list);
         i < load_index(*block_offsets, list + 1); ++i)
      if (load_index(*block_ids, i) == (s - document) / block_size) return true;
    return false;
  }

  // What dropout multiplies a probability by.
  double kept(std::int64_t t, std::int64_t s, std::int64_t h) const {
    if (draws == nullptr) return 1;
    const auto draw = [&](int i) { return static_cast<std::uint32_t>(load_index(*draws, i)); };
    const std::int64_t bits = spec::dropout_bits(
        {draw(spec::kDropoutKeyLow), draw(spec::kDropoutKeyHigh)},
        stream + static_cast<std::uint64_t>(h),
        draw(spec::kDropoutRow) + static_cast<std::uint32_t>(t), s - load_index(key_begin, t));
    return bits >= threshold ? kept_scale : 0;
  }

  double score(std::int64_t t, std::int64_t s, std::int64_t h) const {
    double sum = 0;
    for (std::int64_t d = 0; d < key_width; ++d)
      sum += load(q, query(t, h) + d) * load(k, key(s, h) + d);
    return scale * sum;
  }
};

}  // namespace

// Workspace: the scores of one row, double[S].
std::int64_t attention_workspace_bytes(const spec::Problem& problem) {
  return problem.inputs[1].dim(0) * std::int64_t{sizeof(double)};
}

void attention(const Arguments& args) {
  const Heads heads(args);
  const std::size_t num_others = (heads.block_size == 0 ? 0 : 2) + (heads.draws == nullptr ? 0 : 1);
  const TensorView* sinks = args.inputs.size() - num_others > 5 ? &args.inputs[5] : nullptr;
  double* scores = reinterpret_cast<double*>(args.workspace);
  for (std::int64_t t = 0; t < rows(heads.q); ++t)
    for (std::int64_t h = 0; h < heads.num_heads; ++h) {
      const std::int64_t begin = heads.begin(t), end = heads.end(t);
      const double none = -std::numeric_limits<double>::infinity(),
                   sink = sinks != nullptr ? load(*sinks, h) : none;
      double largest = sink, sum = 0;
      bool is_empty = true;
      for (std::int64_t s = begin; s < end; ++s) {
        scores[s] = none;
        if (!heads.sees(t, s, h)) continue;
        is_empty = false;
        scores[s] = heads.score(t, s, h);
        largest = std::max(largest, scores[s]);
      }
      if (sink > none) sum += std::exp(sink - largest);
      for (std::int64_t s = begin; s < end; ++s)
        if (heads.sees(t, s, h)) sum += std::exp(scores[s] - largest);
      const double lse = is_empty ? largest : largest + std::log(sum);
      store(args.outputs[1], t * heads.num_heads + h, lse);
      for (std::int64_t d = 0; d < heads.value_width; ++d) {
        double value = 0;
        for (std::int64_t s = begin; s < end; ++s)
          if (heads.sees(t, s, h))
            value += heads.kept(t, s, h) * std::exp(scores[s] - lse) *
                     load(heads.v, heads.value(s, h) + d);
        store(args.outputs[0], heads.out(t, h) + d, value);
      }
    }
}

// Workspace: dk and dv in double, then dq of one row and head.
std::int64_t attention_gradient_workspace_bytes(const spec::Problem& problem) {
  return (problem.inputs[1].num_elements() + problem.inputs[2].num_elements() +
          problem.inputs[0].dim(1)) *
         std::int64_t{sizeof(double)};
}

// p = exp(score − lse), dp = dout·v, ds = p · (dp − dout·out); dv += p·dout, dq += scale·ds·k,
// dk += scale·ds·q (Dao et al., FlashAttention, appendix B.4). A sink changes out and lse alone.
// Dropout multiplies p in dv, and dp, by what it keeps.
void attention_gradient(const Arguments& args) {
  const Heads heads(args);
  const TensorView &out = args.inputs[5], &lse = args.inputs[6], &dout = args.inputs[7];
  double* dk = reinterpret_cast<double*>(args.workspace);
  double* dv = dk + size(heads.k);
  double* dq = dv + size(heads.v);
  std::fill(dk, dq, 0.0);
  for (std::int64_t t = 0; t < rows(heads.q); ++t)
    for (std::int64_t h = 0; h < heads.num_heads; ++h) {
      double inner = 0;
      for (std::int64_t d = 0; d < heads.value_width; ++d)
        inner += load(dout, heads.out(t, h) + d) * load(out, heads.out(t, h) + d);
      if (args.outputs.size() > 3) store(args.outputs[3], t * heads.num_heads + h, inner);
      std::fill(dq, dq + heads.key_width, 0.0);
      for (std::int64_t s = heads.begin(t); s < heads.end(t); ++s) {
        if (!heads.sees(t, s, h)) continue;
        const double p = std::exp(heads.score(t, s, h) - load(lse, t * heads.num_heads + h));
        const double kept = heads.kept(t, s, h);
        double dp = 0;
        for (std::int64_t d = 0; d < heads.value_width; ++d) {
          dp += load(dout, heads.out(t, h) + d) * load(heads.v, heads.value(s, h) + d);
          dv[heads.value(s, h) + d] += kept * p * load(dout, heads.out(t, h) + d);
        }
        const double ds = heads.scale * p * (kept * dp - inner);
        for (std::int64_t d = 0; d < heads.key_width; ++d) {
          dq[d] += ds * load(heads.k, heads.key(s, h) + d);
          dk[heads.key(s, h) + d] += ds * load(heads.q, heads.query(t, h) + d);
        }
      }
      for (std::int64_t d = 0; d < heads.key_width; ++d)
        store(args.outputs[0], heads.query(t, h) + d, dq[d]);
    }
  for (std::int64_t i = 0; i < size(heads.k); ++i) store(args.outputs[1], i, dk[i]);
  for (std::int64_t i = 0; i < size(heads.v); ++i) store(args.outputs[2], i, dv[i]);
}

// A sink has no value: dp = 0, so ds = −p · delta, of each row.
void sinks_gradient(const Arguments& args) {
  const TensorView &delta = args.inputs[0], &lse = args.inputs[1], &sinks = args.inputs[2];
  const std::int64_t num_heads = size(sinks);
  for (std::int64_t h = 0; h < num_heads; ++h) {
    double sum = 0;
    for (std::int64_t i = h; i < size(delta); i += num_heads)
      sum -= std::exp(load(sinks, h) - load(lse, i)) * load(delta, i);
    put(args, 0, h, sum);
  }
}

}  // namespace anabatic::kernels::ref
