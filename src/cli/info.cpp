// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "anabatic/model_info.h"
#include "base/json.h"
#include "base/text.h"
#include "cli/model_facts.h"
#include "cli/plugin_facts.h"
#include "cli/standard_output.h"
#include "cli/verb.h"
#include "model/config_diagnosis.h"
#include "model/model.h"
#include "tensor/block_format.h"
#include "train/checkpoint/checkpoint_search.h"

namespace anabatic::cli {
namespace {

constexpr int kNotReadable = 2;

// A value in the second column; further lines of it are indented.
void print_field(std::string_view label, const std::string& value) {
  print_output("{:<11} {}\n", label, value);
}

OrderedJson info_json(const model::ConfigDiagnosis& diagnosis) {
  OrderedJson json{{"model_type", diagnosis.model_type}, {"is_supported", false}};
  json["nearest_family"] = diagnosis.family.empty() ? OrderedJson() : OrderedJson(diagnosis.family);
  json["problems"] = diagnosis.problems;
  json["unknown_fields"] = diagnosis.unknown;
  return json;
}

void print_unknown(const model::ConfigDiagnosis& diagnosis) {
  print_field("family", fmt::format("none reads the model_type {}", diagnosis.model_type));
  const bool is_near = !diagnosis.family.empty();
  const bool is_free = diagnosis.problems.empty() && diagnosis.unknown.empty();
  print_field("nearest", !is_near  ? "none: most fields are not those of a family"
                         : is_free ? diagnosis.family +
                                         ", which knows every field; the code of "
                                         "the model may still differ"
                                   : diagnosis.family + "; these fields stand in the way");
  for (const std::string& problem : diagnosis.problems) print_field("", problem);
  for (const std::string& key : diagnosis.unknown)
    print_field("", fmt::format("{}: {} does not know it, and it may change the maths", key,
                                is_near ? diagnosis.family : "every family"));
}

OrderedJson info_json(const ModelFacts& facts) {
  OrderedJson json;
  if (const auto& weights = facts.weights) {
    json["weights"] = {{"format", weights->format},
                       {"files", weights->num_files},
                       {"tensors", weights->num_tensors},
                       {"bytes", weights->num_bytes()},
                       {"bytes_by_dtype", weights->bytes}};
    if (!weights->problem.empty()) json["weights"]["problem"] = weights->problem;
  } else {
    json["weights"] = nullptr;
  }
  if (const auto& tokenizer = facts.tokenizer) {
    json["tokenizer"] = {
        {"place", tokenizer->place}, {"kind", tokenizer->kind}, {"ids", tokenizer->num_ids}};
    if (!tokenizer->problem.empty()) json["tokenizer"]["problem"] = tokenizer->problem;
  } else {
    json["tokenizer"] = nullptr;
  }
  json["chat_template"] = nullptr;
  if (const auto& found = facts.chat_template)
    json["chat_template"] = {{"place", found->place}, {"bytes", found->num_bytes}};
  json["ignored"] = OrderedJson::array();
  for (const Ignored& ignored : facts.ignored)
    json["ignored"].push_back({{"name", ignored.name}, {"why", ignored.why}});
  return json;
}

std::string text_of(const LayerKinds& kinds) {
  std::vector<std::string> parts;
  const auto add = [&](std::int64_t count, std::string text) {
    if (count > 0) parts.push_back(fmt::format("{} {}", count, text));
  };
  add(kinds.dense, "dense");
  add(kinds.moe, "of experts");
  add(kinds.full, "with full attention");
  add(kinds.sliding, fmt::format("with a window of {}", kinds.window));
  add(kinds.latent, "with latent attention");
  return fmt::format("{}", fmt::join(parts, ", "));
}

void print_facts(const ModelFacts& facts, std::int64_t vocab_size) {
  if (const auto& weights = facts.weights) {
    std::string dtypes;
    for (const auto& [dtype, bytes] : weights->bytes)
      dtypes += fmt::format(", {} of {}", format_bytes(bytes), dtype);
    print_field("files", fmt::format("{} of {}, {} tensors{}", weights->num_files, weights->format,
                                     weights->num_tensors, dtypes));
    if (!weights->problem.empty()) print_field("", weights->problem);
  } else {
    print_field("files", "no weights");
  }
  if (const auto& tokenizer = facts.tokenizer) {
    print_field("tokenizer", fmt::format("{}, {}, {} ids", tokenizer->kind, tokenizer->place,
                                         tokenizer->num_ids));
    if (!tokenizer->problem.empty()) print_field("", tokenizer->problem);
    if (tokenizer->num_ids > vocab_size)
      print_field("",
                  fmt::format("{} ids are beyond the vocabulary", tokenizer->num_ids - vocab_size));
  } else {
    print_field("tokenizer", "none");
  }
  const auto& found = facts.chat_template;
  print_field("template", found ? fmt::format("{}, {} bytes", found->place, found->num_bytes)
                                : std::string("none"));
  constexpr std::size_t kMost = 20;
  for (std::size_t i = 0; i < std::min(kMost, facts.ignored.size()); ++i)
    print_field(i == 0 ? "ignored" : "",
                fmt::format("{}: {}", facts.ignored[i].name, facts.ignored[i].why));
  if (facts.ignored.size() > kMost)
    print_field("", fmt::format("and {} more, which --json lists", facts.ignored.size() - kMost));
}

void print_sizes(const model::ModelConfig& config, double flops, double context) {
  const model::ModelCounts& counts = config.counts;
  print_field("family", config.model_type);
  print_field("layers", fmt::format("{} x {} wide, vocabulary {}", config.spec.layers.size(),
                                    config.spec.hidden_size, config.spec.vocab_size));
  print_field("", text_of(layer_kinds(config.spec)));
  const model::Moe* moe = model::first_moe(config.spec);
  if (moe != nullptr)
    print_field("experts",
                fmt::format("{} of {} a token, {} wide", moe->top_k, moe->num_experts, moe->width));
  print_field("parameters",
              fmt::format("{} total, {} active a token", counts.total, counts.active));
  print_field("FLOPs",
              fmt::format("{:.4g} a token of training at {} tokens of context", flops, context));
  print_field("bytes", fmt::format("{} in fp32, {} in bf16", format_bytes(4 * counts.total),
                                   format_bytes(2 * counts.total)));
  print_field("training",
              fmt::format("{} of weights, gradients and AdamW moments (fp32 weights with bf16 "
                          "copies)",
                          format_bytes(18 * counts.total)));
  const std::int64_t block = mxfp4_format().columns;
  const bool has_mxfp4 =
      moe != nullptr && moe->width % block == 0 && config.spec.hidden_size % block == 0;
  print_field("adapter", fmt::format("{} of frozen weights in bf16 with lora.base: auto; less with "
                                     "int8{}",
                                     format_bytes(2 * counts.total), has_mxfp4 ? " or mxfp4" : ""));
}

OrderedJson info_json(const model::ModelConfig& config, double flops, double context) {
  const model::ModelCounts& counts = config.counts;
  const LayerKinds kinds = layer_kinds(config.spec);
  return {{"model_type", config.model_type},
          {"is_supported", true},
          {"parameters", counts.total},
          {"active_parameters", counts.active},
          {"training_flops_per_token", flops},
          {"flops_context", context},
          {"fp32_bytes", 4 * counts.total},
          {"bf16_bytes", 2 * counts.total},
          {"layers",
           {{"total", config.spec.layers.size()},
            {"dense", kinds.dense},
            {"moe", kinds.moe},
            {"full_attention", kinds.full},
            {"sliding_attention", kinds.sliding},
            {"latent_attention", kinds.latent}}}};
}

// A model's files as far as they can be read.
struct Found {
  std::optional<model::ConfigDiagnosis> unknown{};  // the rest is empty then
  model::ModelConfig config{};
  ModelFacts facts{};
  double context = 0, flops = 0;  // of training, a token at that context
};

Found find_model(const std::string& path_or_config) {
  const std::string path = train::model_path_of(path_or_config);
  Found found;
  if (model::ConfigDiagnosis diagnosis = model::diagnose_config(path);
      !diagnosis.is_known && !diagnosis.model_type.empty()) {
    found.unknown = std::move(diagnosis);
    return found;
  }
  found.config = model::load_config(path);
  found.context =
      static_cast<double>(std::min<std::int64_t>(found.config.max_position_embeddings, 4096));
  // A token attends to (length + 1) / 2 keys on average.
  found.flops =
      model::training_flops(found.config, 1, [&](std::int64_t) { return (found.context + 1) / 2; });
  found.facts = facts_of(path, found.config);
  return found;
}

OrderedJson info_json(const Found& found) {
  if (found.unknown) return info_json(*found.unknown);
  OrderedJson json = info_json(found.config, found.flops, found.context);
  json.update(info_json(found.facts));
  return json;
}

int run_info(const Invocation& invocation) {
  const std::string& path = invocation.positionals.at(0);
  if (is_plugin(path)) {
    if (invocation.has("--json"))
      print_output("{}\n", dump_json(plugin_json(path)));
    else
      print_plugin(path);
    return 0;
  }
  const Found found = find_model(path);
  if (invocation.has("--json")) {
    print_output("{}\n", dump_json(info_json(found)));
  } else if (found.unknown) {
    print_unknown(*found.unknown);
  } else {
    print_sizes(found.config, found.flops, found.context);
    print_facts(found.facts, found.config.spec.vocab_size);
  }
  return found.unknown || found.facts.has_problem() ? kNotReadable : 0;
}

}  // namespace

const Verb& info_verb() {
  static const Verb verb{
      "info",
      "what a model directory, GGUF file or plugin holds, and what keeps it from being read",
      "MODEL_DIR",
      {{.name = "--json", .help = "print one JSON object", .is_flag = true}},
      false,
      run_info};
  return verb;
}

}  // namespace anabatic::cli

namespace anabatic {

std::string model_info(const std::string& path) {
  return dump_json(cli::is_plugin(path) ? cli::plugin_json(path)
                                        : cli::info_json(cli::find_model(path)));
}

}  // namespace anabatic
