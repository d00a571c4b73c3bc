// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "io/problems.h"
#include "model/declarations.h"
#include "model/gguf_model.h"

namespace anabatic::model {
namespace {

constexpr std::int64_t kBlock = std::int64_t{1} << 18;  // a multiple of every block's elements

constexpr std::pair<std::string_view, std::string_view> kNames[] = {
    {"attention.k", "attn_k"},
    {"attention.k_norm", "attn_k_norm"},
    {"attention.o", "attn_output"},
    {"attention.q", "attn_q"},
    {"attention.q_norm", "attn_q_norm"},
    {"attention.v", "attn_v"},
    {"attention_norm", "attn_norm"},
    {"embedding", "token_embd"},
    {"experts.down", "ffn_down_exps"},
    {"experts.gate", "ffn_gate_exps"},
    {"experts.up", "ffn_up_exps"},
    {"head", "output"},
    {"mlp.down", "ffn_down"},
    {"mlp.gate", "ffn_gate"},
    {"mlp.up", "ffn_up"},
    {"mlp_norm", "ffn_norm"},
    {"norm", "output_norm"},
    {"router", "ffn_gate_inp"},
};

// "blk.3.attn_q.bias" of layers.3.attention.q.bias; "" where the format has no such tensor.
std::string gguf_name(const Parameter& parameter) {
  const std::size_t end = parameter.key.rfind('.');
  const auto* name = std::ranges::find(kNames, std::string_view(parameter.key).substr(0, end),
                                       &std::pair<std::string_view, std::string_view>::first);
  if (name == std::end(kNames)) return "";
  const std::string rest = parameter.key.substr(end);
  return parameter.layer < 0 ? fmt::format("{}{}", name->second, rest)
                             : fmt::format("blk.{}.{}{}", parameter.layer, name->second, rest);
}

// Heads whose rows are in pairs; 0 for the order that states have.
std::int64_t heads_in_pairs(const ModelConfig& config, const Parameter& parameter) {
  const bool is_query = parameter.key.starts_with("attention.q.");
  if (parameter.layer < 0 || (!is_query && !parameter.key.starts_with("attention.k."))) return 0;
  const auto& attention =
      std::get<Gqa>(config.spec.layers[static_cast<std::size_t>(parameter.layer)].attention);
  return is_query ? attention.num_heads : attention.num_kv_heads;
}

void read_in_order(const io::GgufFiles& files, const io::GgufTensor& tensor,
                   const std::string& state, const StateWriter& write, std::vector<float>& values) {
  const std::int64_t count = tensor.num_elements();
  for (std::int64_t done = 0; done < count; done += kBlock) {
    values.resize(static_cast<std::size_t>(std::min(kBlock, count - done)));
    const std::int64_t begin = done / tensor.type->elements * tensor.type->bytes;
    const std::int64_t blocks = static_cast<std::int64_t>(values.size()) / tensor.type->elements;
    const auto data = tensor.data.subspan(static_cast<std::size_t>(begin),
                                          static_cast<std::size_t>(blocks * tensor.type->bytes));
    io::dequantise(*tensor.type, data, values);
    write(state, done, values);
    files.release(data);
  }
}

// Row 2i + p of a head goes to row p · d/2 + i. A bias has rows of one element.
void read_pairs(const io::GgufFiles& files, const io::GgufTensor& tensor, std::int64_t num_heads,
                const std::string& state, const StateWriter& write, std::vector<float>& values) {
  const std::int64_t rows = tensor.shape.front(), half = rows / num_heads / 2;
  const auto row_of = [&](std::int64_t row) {
    const std::int64_t head = row / (2 * half), place = row % (2 * half);
    return head * 2 * half + place % 2 * half + place / 2;
  };
  if (tensor.shape.size() == 1) {
    std::vector<float> in_pairs(static_cast<std::size_t>(rows));
    io::dequantise(*tensor.type, tensor.data, in_pairs);
    values.resize(in_pairs.size());
    for (std::int64_t row = 0; row < rows; ++row)
      values[static_cast<std::size_t>(row_of(row))] = in_pairs[static_cast<std::size_t>(row)];
    return write(state, 0, values);
  }
  const std::int64_t columns = tensor.shape.back();
  const std::size_t row_bytes = tensor.data.size() / static_cast<std::size_t>(rows);
  values.resize(static_cast<std::size_t>(columns));
  for (std::int64_t row = 0; row < rows; ++row) {
    io::dequantise(*tensor.type,
                   tensor.data.subspan(static_cast<std::size_t>(row) * row_bytes, row_bytes),
                   values);
    write(state, row_of(row) * columns, values);
  }
  files.release(tensor.data);
}

struct Source {
  const Parameter* parameter;
  const io::GgufTensor* tensor;
};

// The tensor of every parameter. Throws what import_gguf says.
std::vector<Source> match(const Declarations& declared, const io::GgufFiles& files,
                          const std::filesystem::path& file) {
  std::vector<std::string> problems;
  std::vector<Source> sources;
  std::set<std::string_view> used{"rope_freqs.weight"};  // read as a part of the config
  for (const Parameter& parameter : declared.parameters) {
    const std::string name = gguf_name(parameter);
    if (name.empty()) {
      problems.push_back(
          fmt::format("parameter {}: has no tensor in a GGUF file", parameter.name()));
      continue;
    }
    const io::GgufTensor* tensor = files.find(name);
    if (tensor == nullptr) {
      problems.push_back(
          fmt::format("tensor {}: missing, expected shape {}", name, parameter.shape));
      continue;
    }
    used.insert(tensor->name);
    if (tensor->shape != parameter.shape)
      problems.push_back(fmt::format("tensor {}: expected shape {}, got {}", name, parameter.shape,
                                     tensor->shape));
    if (tensor->type->dequantise == nullptr)
      problems.push_back(
          fmt::format("tensor {}: type {} is not supported", name, tensor->type->name));
    sources.push_back({&parameter, tensor});
  }
  for (const auto& [name, tensor] : files.tensors())
    if (!used.contains(name))
      problems.push_back(
          fmt::format("tensor {}: surplus, shape {}", io::shown(name), tensor.shape));
  io::throw_if_any("gguf", file.string(), problems);
  return sources;
}

}  // namespace

WeightMap import_gguf(const ModelConfig& config, const std::filesystem::path& file,
                      const StateWriter& write) {
  const io::GgufFiles files = io::GgufFiles::open(file);
  const Declarations declared = declare(config.spec);
  const bool has_pairs = files.metadata().text("general.architecture") == "llama";
  std::vector<float> values;
  for (const auto& [parameter, tensor] : match(declared, files, file)) {
    const std::int64_t heads = has_pairs ? heads_in_pairs(config, *parameter) : 0;
    if (heads > 0)
      read_pairs(files, *tensor, heads, parameter->name(), write, values);
    else
      read_in_order(files, *tensor, parameter->name(), write, values);
  }
  return make_weight_map(config);
}

}  // namespace anabatic::model
