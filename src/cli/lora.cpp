// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <array>
#include <cmath>

#include "base/error.h"
#include "cli/adapter_base.h"
#include "cli/convert_options.h"
#include "cli/standard_output.h"
#include "cli/verb.h"
#include "model/lora/gguf_adapter.h"
#include "model/lora/merged_weights.h"
#include "model/lora/peft_files.h"
#include "train/checkpoint/checkpoint_search.h"
#include "train/convert/convert.h"
#include "train/convert/unfinished.h"
#include "train/lora/run_adapter.h"

namespace anabatic::cli {
namespace {

namespace fs = std::filesystem;

struct LoadedAdapter {
  std::string directory, base;
  model::ModelConfig config;
  model::PeftFiles files;
  model::AdapterValues values;
};

LoadedAdapter load(const Invocation& invocation, const std::string& path,
                   model::GateUp gate_up = model::GateUp::kTogether) {
  std::string directory = train::model_path_of(path),
              base = train::model_path_of(adapter_base(invocation, directory));
  model::ModelConfig config = model::load_config(base);
  model::PeftFiles files(config, directory, gate_up);
  train::require_weights_of(files, base);
  model::AdapterValues values(files.adapter());
  files.load(values.writer());
  return {std::move(directory), std::move(base), std::move(config), std::move(files),
          std::move(values)};
}

int show(const LoadedAdapter& loaded) {
  const model::Adapter& adapter = loaded.values.adapter();
  print_output("adapter     {}\nmodel       {}, {}\n", loaded.directory, loaded.config.model_type,
               loaded.base);
  print_output("{}\n", model::coverage_to_string(loaded.config, adapter));
  print_output("dropout     {} (of its training; products are made without)\n",
               loaded.files.peft().dropout);
  std::array<double, model::kNumAdapterKinds> squares{};
  for (const model::AdapterGroup& group : adapter.groups)
    squares[static_cast<std::size_t>(group.kind)] +=
        std::pow(model::norm_of_change(loaded.values, group), 2);
  for (std::size_t i = 0; i < squares.size(); ++i)
    if (squares[i] > 0)
      print_output("{:<11} norm of the change {:.6g}\n",
                   model::to_string(static_cast<model::AdapterKind>(i)), std::sqrt(squares[i]));
  for (const std::string& module : loaded.files.left_out())
    print_output("without     {}: target_modules names it, the file has no tensors of it\n",
                 module);
  return loaded.files.left_out().empty() ? 0 : 1;
}

int rewrite(const LoadedAdapter& loaded, const std::string& output, const std::string& format) {
  ANABATIC_REQUIRE(format == "peft" || format == "peft_per_expert" || format == "gguf",
                   "[lora] --format: expected peft, peft_per_expert or gguf, got '{}'", format);
  const model::Adapter& adapter = loaded.values.adapter();
  train::Unfinished written(output);
  if (format == "gguf") {
    model::write_gguf_adapter(loaded.config, adapter, loaded.values.reader(), written.path());
  } else {
    fs::create_directory(written.path());
    const auto& write =
        format == "peft" ? model::write_peft_files : model::write_numbered_peft_files;
    write(loaded.config, adapter, loaded.values.reader(), written.path(),
          fs::absolute(loaded.base).string());
  }
  written.finish();
  print_output("written     {}, {} parameters\n", output, adapter.num_elements());
  return 0;
}

int merge(const Invocation& invocation, const std::string& base, const std::string& adapter,
          const std::string& output) {
  train::ConvertOptions options{.compares_logits = !invocation.has("--no-logits"),
                                .adapter = train::model_path_of(adapter)};
  set_form(invocation, output, "[lora]", options);
  const train::Manifest manifest = train::convert(train::model_path_of(base), output, options);
  print_output("merged      {} tensors, {} elements, every one read back and compared\n",
               manifest.written.size(), train::num_elements(manifest.written));
  if (const auto& logits = manifest.logits)
    print_output(
        "logits      largest difference from the unmerged model {:.3g}, {} of {} next "
        "tokens agree\n",
        logits->largest_difference, logits->agreeing, logits->tokens);
  print_grid_errors(manifest);
  print_output("manifest    {}\n", train::manifest_path(output).string());
  return 0;
}

int run_lora(const Invocation& invocation) {
  const std::vector<std::string>& words = invocation.positionals;
  const auto expect = [&](std::size_t count, const char* usage) {
    ANABATIC_REQUIRE(words.size() == count, "[lora] expected anabatic lora {}", usage);
  };
  if (words[0] == "merge") {
    expect(4, "merge BASE ADAPTER OUTPUT");
    return merge(invocation, words[1], words[2], words[3]);
  }
  if (words[0] == "info") {
    expect(2, "info ADAPTER --model.path BASE");
    return show(load(invocation, words[1]));
  }
  ANABATIC_REQUIRE(words[0] == "convert", "[lora] expected info, convert or merge, got '{}'",
                   words[0]);
  expect(3, "convert ADAPTER OUTPUT --format FORMAT");
  return rewrite(load(invocation, words[1], model::GateUp::kApartIfPossible), words[2],
                 invocation.has("--format") ? invocation.value("--format") : "peft");
}

}  // namespace

const Verb& lora_verb() {
  static const Verb verb{
      "lora",
      "an adapter: its coverage (info ADAPTER), another spelling (convert ADAPTER OUTPUT), merged "
      "(merge BASE ADAPTER OUTPUT)",
      "ACTION PATH...",
      {{.name = "--format",
        .help =
            "of convert: peft (stacks of experts; default), peft_per_expert (as PEFT wrote on "
            "transformers 4) or gguf (a file for llama.cpp); of merge: hf (default), gguf, mxfp4 "
            "or compressed-tensors, in the grid that the adapter was trained with"},
       {.name = "--dtype",
        .help = "of merge: as that of convert (default: each tensor keeps its own)"},
       {.name = "--no-logits",
        .help = "of merge: do not load both models to compare their logits",
        .is_flag = true}},
      true,
      run_lora};
  return verb;
}

}  // namespace anabatic::cli
