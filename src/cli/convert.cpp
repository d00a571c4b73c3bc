// SPDX-License-Identifier: Apache-2.0
#include "train/convert/convert.h"

#include "base/error.h"
#include "base/text.h"
#include "cli/standard_output.h"
#include "cli/verb.h"
#include "train/checkpoint/checkpoint_search.h"

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

void set_dtype(const std::string& name, train::ConvertOptions& options) {
  if (name == "source") return;
  for (const NamedType& type : kTypes) {
    if (name != type.name || !(type.is_of_directories || options.writes_gguf)) continue;
    options.dtype = type.dtype;
    if (options.writes_gguf || !type.dtype)
      options.block_type = io::find_block_type(std::string_view(type.block_type));
    return;
  }
  throw InvalidArgument(
      fmt::format("[convert] --dtype: expected source, f32, bf16, f16{} or mxfp4, got '{}'",
                  options.writes_gguf ? ", q8_0, q4_0" : "", name));
}

// What is asked for, or what the name of the result says.
void set_format(const Invocation& invocation, train::ConvertOptions& options) {
  options.writes_gguf = invocation.positionals.at(1).ends_with(".gguf");
  if (!invocation.has("--format")) return;
  const std::string format = invocation.value("--format");
  ANABATIC_REQUIRE(
      format == "hf" || format == "gguf" || format == "mxfp4" || format == "compressed-tensors",
      "[convert] --format: expected hf, gguf, mxfp4 or compressed-tensors, got '{}'", format);
  options.writes_gguf = format == "gguf";
  options.packs_weights = format == "compressed-tensors";
  if (format == "mxfp4") options.block_type = io::find_block_type("MXFP4");
}

train::ConvertOptions options_of(const Invocation& invocation) {
  train::ConvertOptions options{.compares_logits = !invocation.has("--no-logits")};
  set_format(invocation, options);
  if (invocation.has("--dtype")) set_dtype(invocation.value("--dtype"), options);
  if (invocation.has("--experts")) {
    const std::string experts = invocation.value("--experts");
    ANABATIC_REQUIRE(experts == "separate" || experts == "fused",
                     "[convert] --experts: expected separate or fused, got '{}'", experts);
    options.fuses_experts = experts == "fused";
  }
  if (invocation.has("--shard_size")) {
    const std::string text = invocation.value("--shard_size");
    const auto bytes = parse_bytes(text);
    ANABATIC_REQUIRE(bytes && *bytes > 0,
                     "[convert] --shard_size: expected bytes such as 5GB, got '{}'", text);
    options.max_shard_bytes = *bytes;
  }
  if (invocation.has("--keep_mtp")) {
    const std::string keeps = invocation.value("--keep_mtp");
    ANABATIC_REQUIRE(keeps == "true" || keeps == "false",
                     "[convert] --keep_mtp: expected true or false, got '{}'", keeps);
    options.keeps_mtp = keeps == "true";
  }
  if (invocation.has("--upcycle"))
    options.upcycle = train::parse_upcycle(invocation.value("--upcycle"));
  return options;
}

void print_tensors(const char* label, const std::vector<train::ManifestTensor>& tensors) {
  if (!tensors.empty())
    print_output("{:<11} {} tensors, {} elements\n", label, tensors.size(),
                 train::num_elements(tensors));
}

int run_convert(const Invocation& invocation) {
  const std::string& destination = invocation.positionals.at(1);
  const train::Manifest manifest = train::convert(
      train::model_path_of(invocation.positionals.at(0)), destination, options_of(invocation));
  print_tensors("read", manifest.read);
  print_tensors("written", manifest.written);
  print_tensors("equal twins", manifest.repeated);
  print_tensors("ignored", manifest.ignored);
  for (const train::ManifestTensor& tensor : manifest.ignored)
    print_output("            {}\n", tensor.name);
  print_tensors("dropped", manifest.dropped);
  print_output("values      every one compared with the source\n");
  if (const auto& logits = manifest.logits)
    print_output("logits      largest difference {:.3g}, {} of {} next tokens agree\n",
                 logits->largest_difference, logits->agreeing, logits->tokens);
  for (const std::string& tensor : manifest.in_f16)
    print_output("F16         {}: no block divides its rows\n", tensor);
  print_output("manifest    {}\n", train::manifest_path(destination).string());
  return 0;
}

}  // namespace

const Verb& convert_verb() {
  static const Verb verb{
      "convert",
      "write a model in another format, dtype, spelling or shard size, and prove that it is whole",
      "MODEL OUTPUT",
      {{.name = "--format",
        .help = "hf (a directory; default), gguf (a file), mxfp4 (a directory with experts in "
                "MXFP4), or compressed-tensors (a directory of a run with quantization)"},
       {.name = "--dtype",
        .help = "source (default: each tensor keeps its own), f32, bf16 or f16; mxfp4 for the "
                "experts of gpt_oss; for GGUF also q8_0 or q4_0"},
       {.name = "--experts",
        .help = "separate (a tensor for each expert) or fused (default: as they came)"},
       {.name = "--shard_size", .help = "most bytes of a file (default 5GB)", .value = "BYTES"},
       {.name = "--keep_mtp",
        .help = "true (default) or false: leave out layers of multi-token prediction",
        .value = "BOOLEAN"},
       {.name = "--upcycle",
        .help = "make a dense model a mixture of experts that computes the same: "
                "experts=8,top_k=2[,granularity=4][,noise=0.01][,seed=0]",
        .value = "OPTIONS"},
       {.name = "--no-logits",
        .help = "do not load both models to compare their logits",
        .is_flag = true}},
      false,
      run_convert};
  return verb;
}

}  // namespace anabatic::cli
