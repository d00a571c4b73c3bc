// SPDX-License-Identifier: Apache-2.0
#include "model/gguf_export.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>

#include "base/error.h"
#include "base/log.h"
#include "base/rounding.h"
#include "io/block_loops.h"
#include "io/parallel.h"
#include "model/read_elements.h"

namespace anabatic::model {
namespace {

constexpr float kLargestHalf = 65504.0f;
constexpr std::int64_t kWrittenElements = std::int64_t{1}
                                          << 16;  // a multiple of every block's elements

const io::BlockType& type_named(std::string_view name) { return *io::find_block_type(name); }

const io::BlockType& type_of(DType dtype) {
  if (dtype == DType::kBFloat16) return type_named("BF16");
  return type_named(dtype == DType::kFloat16 ? "F16" : "F32");
}

// general.file_type: llama.cpp's number of what most matrices are.
std::int64_t file_type(const io::BlockType& type) {
  static const std::map<std::string_view, std::int64_t> types{
      {"F32", 0}, {"F16", 1}, {"Q4_0", 2}, {"Q8_0", 7}, {"BF16", 32}, {"MXFP4", 38}};
  return types.at(type.name);
}

std::int64_t size_of(const ModelConfig& config, std::string_view name) {
  const auto found =
      std::ranges::find(config.sizes, name, [](const auto& size) { return size.first; });
  ANABATIC_CHECK(found != config.sizes.end(), "[gguf] no size {}", name);
  return found->second;
}

// The bytes of values in a tensor's type.
void to_blocks(const FileTensor& tensor, const io::BlockType& type, std::span<const float> values,
               std::vector<std::byte>& bytes) {
  const auto count = static_cast<std::int64_t>(values.size());
  if (type.name == "F16" &&
      !(io::block_loops().largest_finite(values.data(), count) <= kLargestHalf)) {
    const auto bad = std::ranges::find_if(values, [](float value) {
      return std::isfinite(value) && !(std::abs(value) <= kLargestHalf);
    });
    ANABATIC_REQUIRE(bad == values.end(),
                     "[gguf] tensor {}: expected values that F16 can hold, got {}", tensor.name,
                     *bad);
  }
  bytes.resize(values.size() / static_cast<std::size_t>(type.elements) *
               static_cast<std::size_t>(type.bytes));
  io::quantise(type, values, bytes);
}

// The bytes of a tensor in its type, in order, some at a time.
void make_blocks(const FileTensor& tensor, const io::BlockType& type, const StateReader& read,
                 const std::function<void(std::span<const std::byte> blocks,
                                          std::span<const float> values)>& take) {
  const std::int64_t total = tensor.num_elements();
  std::vector<float> values;
  std::vector<std::byte> bytes;
  for (std::int64_t done = 0; done < total; done += kWrittenElements) {
    values.resize(static_cast<std::size_t>(std::min(kWrittenElements, total - done)));
    read_elements(tensor, done, values, read);
    to_blocks(tensor, type, values, bytes);
    take(bytes, values);
  }
}

// Whether it holds parameters of that type; all of its have it then.
bool holds_any(const FileTensor& tensor, const GgufParameterType& own) {
  if (own.type == nullptr) return false;
  const auto count = std::ranges::count_if(tensor.pieces, [&](const WeightPiece& piece) {
    return own.parameters.contains(piece.state);
  });
  if (count != 0 && count != std::ssize(tensor.pieces))
    throw Unsupported(
        fmt::format("[gguf] tensor {}: expected parameters of one type, got {} of {} in {}",
                    tensor.name, count, tensor.pieces.size(), own.type->name));
  return count != 0;
}

std::vector<float> rope_factors(const spec::Rope& rope) {
  if (rope.variant != "llama3") return {};
  spec::Rope bare{.rotary_dim = rope.rotary_dim, .theta = rope.theta};
  std::vector<float> factors = spec::rope_frequencies(bare, 1).inverse;
  const std::vector<float> scaled = spec::rope_frequencies(rope, 1).inverse;
  for (std::size_t i = 0; i < factors.size(); ++i) factors[i] /= scaled[i];
  return factors;
}

class KeyWriter {
 public:
  KeyWriter(const GgufArchitecture& architecture, io::GgufKeys& keys)
      : architecture_(architecture), keys_(keys) {}

  void integer(std::string_view name, std::int64_t value) {
    keys_.add_integer(key(name), io::GgufType::kUInt32, value);
  }
  void number(std::string_view name, double value) {
    keys_.add_float(key(name), static_cast<float>(value));
  }
  void text(std::string_view name, std::string_view value) { keys_.add_text(key(name), value); }

  void rope(const spec::Rope& rope) {
    integer("rope.dimension_count", rope.rotary_dim);
    number("rope.freq_base", rope.theta);
    const bool is_scaled = rope.factor != 1.0;
    if (is_scaled && (rope.variant == "linear" || rope.variant == "yarn")) {
      text("rope.scaling.type", rope.variant);
      number("rope.scaling.factor", rope.factor);
    }
    if (is_scaled && rope.variant == "yarn") {
      integer("rope.scaling.original_context_length", rope.original_max_position);
      if (architecture_.has_exact_yarn && rope.truncate) keys_.add_bool(kRopeTruncateKey, true);
    }
    if (rope.variant != "llama3") return;
    keys_.add_float(kRopeFactorKey, static_cast<float>(rope.factor));
    keys_.add_float(kRopeLowKey, static_cast<float>(rope.low_freq_factor));
    keys_.add_float(kRopeHighKey, static_cast<float>(rope.high_freq_factor));
    keys_.add_integer(kRopeOriginalKey, io::GgufType::kUInt32, rope.original_max_position);
  }

 private:
  std::string key(std::string_view name) const {
    return fmt::format("{}.{}", architecture_.name, name);
  }

  const GgufArchitecture& architecture_;
  io::GgufKeys& keys_;
};

}  // namespace

const io::BlockType& GgufTarget::main_type() const {
  std::map<const io::BlockType*, std::int64_t> elements;
  for (std::size_t i = 0; i < types.size(); ++i)
    if (map.tensors[i].shape.size() > 1) elements[types[i]] += map.tensors[i].num_elements();
  return *std::ranges::max_element(elements, {}, [](const auto& entry) {
            return entry.second;
          })->first;
}

GgufTarget gguf_target(const ModelConfig& config, const WeightMap& source,
                       const io::BlockType* type, const GgufParameterType& own_type) {
  const GgufArchitecture& architecture = require_gguf_architecture(config);
  const io::BlockType* const mxfp4 = &type_named("MXFP4");
  const bool is_of_experts = type == mxfp4;
  if ((is_of_experts || own_type.type == mxfp4) && architecture.name != "gpt-oss")
    throw Unsupported(
        fmt::format("[gguf] type MXFP4: expected a file of gpt-oss, got {}; llama.cpp has MXFP4 "
                    "for its experts",
                    architecture.name));
  std::map<std::string_view, DType> dtypes;
  for (const FileTensor& tensor : source.tensors)
    for (const WeightPiece& piece : tensor.pieces) dtypes.emplace(piece.state, tensor.dtype);
  GgufTarget target{.map = gguf_weight_map(config, architecture.has_pairs),
                    .types = {},
                    .rope_factors = rope_factors(config.spec.rope)};
  for (const FileTensor& tensor : target.map.tensors) {
    const bool has_type = type != nullptr && (!is_of_experts || is_gguf_expert(tensor));
    const io::BlockType* own = has_type ? type : &type_of(dtypes.at(tensor.pieces.front().state));
    if (holds_any(tensor, own_type)) own = own_type.type;
    if (!is_gguf_matrix(tensor)) {
      own = &type_named("F32");
    } else if (tensor.shape.back() % own->elements != 0) {
      own = &type_named("F16");
      target.in_f16.push_back(tensor.name);
    }
    target.types.push_back(own);
  }
  return target;
}

void add_gguf_config(const ModelConfig& config, const std::string& name, const GgufTarget& target,
                     io::GgufKeys& keys) {
  const GgufArchitecture& architecture = require_gguf_architecture(config);
  const io::BlockType& type = target.main_type();
  keys.add_text("general.architecture", architecture.name);
  keys.add_text("general.type", "model");
  keys.add_text("general.name", name);
  keys.add_integer("general.file_type", io::GgufType::kUInt32, file_type(type));
  if (type.elements > 1) keys.add_integer("general.quantization_version", io::GgufType::kUInt32, 2);
  KeyWriter writer(architecture, keys);
  const auto& attention = std::get<Gqa>(config.spec.layers.front().attention);
  writer.integer("vocab_size", config.spec.vocab_size);
  writer.integer("context_length", config.max_position_embeddings);
  writer.integer("embedding_length", config.spec.hidden_size);
  writer.integer("block_count", static_cast<std::int64_t>(config.spec.layers.size()));
  writer.integer("feed_forward_length", size_of(config, "intermediate_size"));
  writer.integer("attention.head_count", attention.num_heads);
  writer.integer("attention.head_count_kv", attention.num_kv_heads);
  writer.integer("attention.key_length", attention.head_dim);
  writer.integer("attention.value_length", attention.head_dim);
  writer.number("attention.layer_norm_rms_epsilon", config.spec.norm_epsilon);
  if (architecture.has_windows) writer.integer("attention.sliding_window", attention.window);
  writer.rope(config.spec.rope);
  if (const spec::Rope& rope = config.spec.rope; rope.variant == "yarn" && !rope.truncate)
    log_warning(
        "[gguf] rope_scaling.truncate: the file means false, but llama.cpp always rounds the "
        "bounds of yarn's range: its logits differ a little");
  if (architecture.has_scales) {
    writer.number("attention.scale", attention.softmax_scale.value_or(0.0));
    writer.number("embedding_scale", config.spec.embedding_multiplier);
    writer.number("residual_scale", config.spec.residual_multiplier);
    writer.number("logit_scale", config.spec.logits_divisor);
  }
  const Moe* moe = first_moe(config.spec);
  if (moe == nullptr) return;
  writer.integer("expert_count", moe->num_experts);
  writer.integer("expert_used_count", moe->top_k);
  // llama.cpp wants it of gpt-oss, where it is the same number.
  if (!architecture.has_mlp_width || architecture.has_windows)
    writer.integer("expert_feed_forward_length", moe->width);
  if (moe->shared) writer.integer("expert_shared_feed_forward_length", moe->shared->mlp.width);
}

void write_gguf(const std::filesystem::path& file, io::GgufKeys keys, const GgufTarget& target,
                const StateReader& read) {
  std::vector<io::GgufTensorInfo> infos;
  if (!target.rope_factors.empty())
    infos.push_back({std::string(kRopeFactors),
                     &type_named("F32"),
                     {static_cast<std::int64_t>(target.rope_factors.size())}});
  for (std::size_t i = 0; i < target.types.size(); ++i)
    infos.push_back({target.map.tensors[i].name, target.types[i], target.map.tensors[i].shape});
  io::GgufWriter writer(file, std::move(keys), std::move(infos));
  if (!target.rope_factors.empty())
    writer.write(kRopeFactors, std::as_bytes(std::span(target.rope_factors)));
  io::parallel_tasks(std::ssize(target.types), io::threads_for_files(), [&](std::int64_t task) {
    const auto i = static_cast<std::size_t>(task);
    const FileTensor& tensor = target.map.tensors[i];
    make_blocks(tensor, *target.types[i], read,
                [&](std::span<const std::byte> bytes, std::span<const float>) {
                  writer.write(tensor.name, bytes);
                });
  });
  writer.finish();
}

ValueComparison compare_blocks(const StateReader& read, const GgufSource& file) {
  const std::vector<FileTensor>& tensors = file.map().tensors;
  std::vector<std::string> lines(tensors.size());
  std::vector<double> errors(tensors.size());
  io::parallel_tasks(std::ssize(lines), io::threads_for_files(), [&](std::int64_t task) {
    const auto place = static_cast<std::size_t>(task);
    const FileTensor& tensor = tensors[place];
    const io::GgufTensor& entry = *file.files().find(tensor.name);
    const auto size = static_cast<std::size_t>(entry.type->bytes);
    std::size_t at = 0, num_different = 0, first = 0;
    std::vector<float> found;
    make_blocks(tensor, *entry.type, read,
                [&](std::span<const std::byte> expected, std::span<const float> values) {
                  const auto stored = entry.data.subspan(at, expected.size());
                  if (std::memcmp(stored.data(), expected.data(), expected.size()) != 0)
                    for (std::size_t i = 0; i < expected.size(); i += size)
                      if (std::memcmp(stored.data() + i, expected.data() + i, size) != 0 &&
                          num_different++ == 0)
                        first = (at + i) / size * static_cast<std::size_t>(entry.type->elements);
                  if (entry.type->elements > 1) {
                    found.resize(values.size());
                    io::dequantise(*entry.type, stored, found);
                    for (std::size_t i = 0; i < values.size(); ++i)
                      errors[place] =
                          std::max(errors[place], std::abs(double{found[i]} - double{values[i]}));
                  }
                  file.files().release(stored);
                  at += expected.size();
                });
    if (num_different > 0)
      lines[place] = fmt::format(
          "{}: {} of {} blocks of {} differ from those of the source, the first at element {}",
          tensor.name, num_different, entry.data.size() / size, entry.type->name, first);
  });
  ValueComparison comparison;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (file.files().find(tensors[i].name)->type->elements > 1)
      comparison.largest_errors[tensors[i].name] = errors[i];
  std::erase(lines, "");
  comparison.differences = std::move(lines);
  return comparison;
}

}  // namespace anabatic::model
