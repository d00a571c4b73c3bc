// SPDX-License-Identifier: Apache-2.0
#include "train/convert/convert.h"

#include "base/error.h"
#include "base/text.h"
#include "cli/convert_options.h"
#include "cli/standard_output.h"
#include "cli/verb.h"
#include "train/checkpoint/checkpoint_search.h"

namespace anabatic::cli {
namespace {

train::ConvertOptions options_of(const Invocation& invocation) {
  train::ConvertOptions options{.compares_logits = !invocation.has("--no-logits")};
  set_form(invocation, invocation.positionals.at(1), "[convert]", options);
  if (invocation.has("--grid_of"))
    options.grid_of = train::model_path_of(invocation.value("--grid_of"));
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
  if (invocation.has("--grid_of")) print_grid_errors(manifest);
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
       {.name = "--grid_of",
        .help = "an adapter that was trained with quantization: write MODEL, which is below it, in "
                "the grid that its products read; the adapter is not merged",
        .value = "ADAPTER"},
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
