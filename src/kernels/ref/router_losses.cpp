// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/ref/access.h"
#include "kernels/ref/rows.h"

namespace anabatic::kernels::ref {
namespace {

// The number of tokens in the counts of a layer; each token chose top_k experts.
double num_tokens(const TensorView& counts, const spec::Attributes& attributes) {
  double sum = 0;
  for (std::int64_t e = 0; e < size(counts); ++e) sum += load(counts, e);
  return sum / static_cast<double>(spec::get_int(attributes, "top_k"));
}

bool is_token(const TensorView* documents, std::int64_t t) {
  return documents == nullptr || load_index(*documents, t) >= 0;
}

// Where the document of row `begin` ends.
std::int64_t document_end(const TensorView& documents, std::int64_t begin) {
  std::int64_t end = begin + 1;
  while (end < rows(documents) && load_index(documents, end) == load_index(documents, begin)) ++end;
  return end;
}

// How often rows [begin, end) chose expert e.
double count_of(const TensorView& experts, std::int64_t begin, std::int64_t end, std::int64_t e) {
  double count = 0;
  for (std::int64_t i = begin * columns(experts); i < end * columns(experts); ++i)
    count += load_index(experts, i) == e ? 1 : 0;
  return count;
}

}  // namespace

void load_balancing_loss(const Arguments& args) {
  const std::int64_t num_experts = size(args.inputs[1]);
  const auto num_layers = static_cast<double>(args.inputs.size() / 2);
  const double tokens = num_tokens(args.inputs[1], *args.attributes);
  double loss = 0;
  for (std::int64_t e = 0; tokens > 0 && e < num_experts; ++e) {
    double count = 0, probability = 0;
    for (std::size_t i = 1; i + 1 < args.inputs.size(); i += 2) {
      count += load(args.inputs[i], e);
      probability += load(args.inputs[i + 1], e);
    }
    loss += count / (num_layers * tokens) * (probability / num_layers);
  }
  store(args.outputs[0], 0, load(args.inputs[0], 0) * static_cast<double>(num_experts) * loss);
}

void load_balancing_loss_gradient(const Arguments& args) {
  const std::int64_t num_experts = size(args.inputs[2]);
  const auto num_layers = static_cast<double>(args.inputs.size() - 2);
  const double tokens = num_tokens(args.inputs[2], *args.attributes);
  const double factor =
      load(args.inputs[0], 0) * load(args.inputs[1], 0) * static_cast<double>(num_experts);
  for (std::int64_t e = 0; e < num_experts; ++e) {
    double count = 0;
    for (std::size_t i = 2; i < args.inputs.size(); ++i) count += load(args.inputs[i], e);
    store(args.outputs[0], e,
          tokens > 0 ? factor * count / (num_layers * tokens) / num_layers : 0.0);
  }
}

void sequence_balance_loss(const Arguments& args) {
  const TensorView &probabilities = args.inputs[1], &experts = args.inputs[2],
                   &documents = args.inputs[3];
  const std::int64_t num_experts = columns(probabilities);
  double loss = 0;
  for (std::int64_t begin = 0, end; begin < rows(documents); begin = end) {
    end = document_end(documents, begin);
    if (!is_token(&documents, begin)) continue;
    const auto tokens = static_cast<double>(end - begin);
    for (std::int64_t e = 0; e < num_experts; ++e) {
      double sum = 0;
      for (std::int64_t t = begin; t < end; ++t) sum += load(probabilities, t * num_experts + e);
      loss += count_of(experts, begin, end, e) / tokens * (sum / tokens);
    }
  }
  store(args.outputs[0], 0,
        load(args.inputs[0], 0) * static_cast<double>(num_experts) /
            static_cast<double>(columns(experts)) * loss);
}

void sequence_balance_loss_gradient(const Arguments& args) {
  const TensorView &experts = args.inputs[2], &documents = args.inputs[3], &out = args.outputs[0];
  const std::int64_t num_experts = columns(out);
  const double factor = load(args.inputs[0], 0) * load(args.inputs[1], 0) *
                        static_cast<double>(num_experts) / static_cast<double>(columns(experts));
  for (std::int64_t begin = 0, end; begin < rows(documents); begin = end) {
    end = document_end(documents, begin);
    const auto tokens = static_cast<double>(end - begin);
    for (std::int64_t t = begin; t < end; ++t)
      for (std::int64_t e = 0; e < num_experts; ++e)
        store(out, t * num_experts + e,
              is_token(&documents, t) ? factor * count_of(experts, begin, end, e) / tokens / tokens
                                      : 0.0);
  }
}

void router_z_loss(const Arguments& args) {
  const TensorView& logits = args.inputs[0];
  const TensorView* documents = args.inputs.size() > 1 ? &args.inputs[1] : nullptr;
  const std::int64_t width = columns(logits);
  const double scale = documents != nullptr ? load(args.inputs[2], 0)
                       : rows(logits) > 0   ? 1.0 / static_cast<double>(rows(logits))
                                            : 0.0;
  double sum = 0;
  for (std::int64_t t = 0; t < rows(logits); ++t) {
    const double lse = log_sum_exp(logits, t * width, width);
    if (is_token(documents, t)) sum += lse * lse;
  }
  store(args.outputs[0], 0, scale * sum);
}

void router_z_loss_gradient(const Arguments& args) {
  const TensorView& logits = args.inputs[0];
  const TensorView* documents = args.inputs.size() > 2 ? &args.inputs[2] : nullptr;
  const std::int64_t width = columns(logits);
  for (std::int64_t t = 0; t < rows(logits); ++t) {
    const double lse = log_sum_exp(logits, t * width, width);
    const double scale =
        documents != nullptr ? load(args.inputs[3], 0) : 1.0 / static_cast<double>(rows(logits));
    const double factor = is_token(documents, t) ? load(args.inputs[1], 0) * 2.0 * lse * scale : 0;
    for (std::int64_t e = 0; e < width; ++e)
      store(args.outputs[0], t * width + e, factor * std::exp(load(logits, t * width + e) - lse));
  }
}

}  // namespace anabatic::kernels::ref
