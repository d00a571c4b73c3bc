// SPDX-License-Identifier: Apache-2.0
#include "cli/convert_options.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "cli/standard_output.h"

namespace anabatic::cli {
namespace {

struct NamedType {
  const char *name, *block_type;
  std::optional<DType> dtype;     // of every tensor of a directory
  bool is_of_directories = true;  // else of GGUF files alone
};
constexpr NamedType kTypes[] = {
    {"f32", "F32", DType::kFloat32},       {"bf16", "BF16", DType::kBFloat16},
    {"f16", "F16", DType::kFloat16},       {"q8_0", "Q8_0", std::nullopt, false},
    {"q4_0", "Q4_0", std::nullopt, false}, {"mxfp4", "MXFP4", std::nullopt}};

void set_dtype(const std::string& name, std::string_view place, train::ConvertOptions& options) {
  if (name == "source") return;
  for (const NamedType& type : kTypes) {
    if (name != type.name || !(type.is_of_directories || options.writes_gguf)) continue;
    options.dtype = type.dtype;
    if (options.writes_gguf || !type.dtype)
      options.block_type = io::find_block_type(std::string_view(type.block_type));
    return;
  }
  throw InvalidArgument(
      fmt::format("{} --dtype: expected source, f32, bf16, f16{} or mxfp4, got '{}'", place,
                  options.writes_gguf ? ", q8_0, q4_0" : "", name));
}

// What is asked for, or what the name of the result says.
void set_format(const Invocation& invocation, const std::string& destination,
                std::string_view place, train::ConvertOptions& options) {
  options.writes_gguf = destination.ends_with(".gguf");
  if (!invocation.has("--format")) return;
  const std::string format = invocation.value("--format");
  ANABATIC_REQUIRE(
      format == "hf" || format == "gguf" || format == "mxfp4" || format == "compressed-tensors",
      "{} --format: expected hf, gguf, mxfp4 or compressed-tensors, got '{}'", place, format);
  options.writes_gguf = format == "gguf";
  options.packs_weights = format == "compressed-tensors";
  if (format == "mxfp4") options.block_type = io::find_block_type("MXFP4");
}

}  // namespace

void set_form(const Invocation& invocation, const std::string& destination, std::string_view place,
              train::ConvertOptions& options) {
  set_format(invocation, destination, place, options);
  if (invocation.has("--dtype")) set_dtype(invocation.value("--dtype"), place, options);
}

void print_grid_errors(const train::Manifest& manifest) {
  struct Weight {
    double largest_error = 0;
    std::string format{};
  };
  std::map<std::string, Weight> weights;
  for (const train::ManifestTensor& tensor : manifest.written)
    for (const train::ManifestPart& part : tensor.parts) {
      if (!tensor.largest_error) continue;
      Weight& weight = weights[part.parameter];
      weight.largest_error = std::max(weight.largest_error, *tensor.largest_error);
      weight.format = tensor.format;
    }
  for (const auto& [name, weight] : weights)
    print_output("grid        {}: {}, largest error {:.3g}\n", name, weight.format,
                 weight.largest_error);
}

}  // namespace anabatic::cli
