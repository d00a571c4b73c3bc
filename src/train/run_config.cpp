// SPDX-License-Identifier: Apache-2.0
#include "train/run_config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "passes/pipelines.h"

namespace anabatic::train {
namespace {

using Values = std::span<const std::string>;

const std::string& only(Values values) {
  ANABATIC_REQUIRE(values.size() == 1, "expected one value, got {}", values.size());
  return values[0];
}

template <class T>
T parse_number(const std::string& text, const char* kind) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  ANABATIC_REQUIRE(error == std::errc{} && stop == end && !text.empty(), "expected {}, got '{}'",
                   kind, text);
  return value;
}

std::string yaml_quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\x{:02X}", c);
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

template <class T, class Show>
std::string show_list(const std::vector<T>& list, Show&& show) {
  std::string out = "[";
  for (std::size_t i = 0; i < list.size(); ++i) out += (i > 0 ? ", " : "") + show(list[i]);
  return out + "]";
}

std::string show_double(double value) { return fmt::format("{}", value); }

// The makers below tie one field of RunConfig, reached through `at`, to its text.
template <class At>
ConfigKey integer(std::string name, std::string help, std::int64_t lowest, At at) {
  return {
      name, help, false,
      [=](RunConfig& config, Values values) {
        const auto value = parse_number<std::int64_t>(only(values), "an integer");
        ANABATIC_REQUIRE(value >= lowest, "expected an integer >= {}, got {}", lowest, value);
        at(config) = value;
      },
      [=](const RunConfig& config) { return std::to_string(at(const_cast<RunConfig&>(config))); }};
}

template <class At>
ConfigKey number(std::string name, std::string help, double lowest, double highest, At at) {
  return {name, help, false,
          [=](RunConfig& config, Values values) {
            const double value = parse_number<double>(only(values), "a number");
            ANABATIC_REQUIRE(value >= lowest && value <= highest,
                             "expected a number in [{}, {}], got {}", lowest, highest, value);
            at(config) = value;
          },
          [=](const RunConfig& config) { return show_double(at(const_cast<RunConfig&>(config))); }};
}

template <class At>
ConfigKey boolean(std::string name, std::string help, At at) {
  return {name, help, false,
          [=](RunConfig& config, Values values) {
            const auto value = parse_boolean(only(values));
            ANABATIC_REQUIRE(value.has_value(), "expected true or false, got '{}'", values[0]);
            at(config) = *value;
          },
          [=](const RunConfig& config) {
            return at(const_cast<RunConfig&>(config)) ? "true" : "false";
          }};
}

template <class At>
ConfigKey string(std::string name, std::string help, At at) {
  return {name, help, false, [=](RunConfig& config, Values values) { at(config) = only(values); },
          [=](const RunConfig& config) { return yaml_quoted(at(const_cast<RunConfig&>(config))); }};
}

template <class At>
ConfigKey choice(std::string name, std::string help, std::vector<std::string> choices, At at) {
  return {name, help, false,
          [=](RunConfig& config, Values values) {
            const std::string& value = only(values);
            ANABATIC_REQUIRE(std::find(choices.begin(), choices.end(), value) != choices.end(),
                             "expected one of {}, got '{}'",
                             show_list(choices, [](const std::string& text) { return text; }),
                             value);
            at(config) = value;
          },
          [=](const RunConfig& config) { return at(const_cast<RunConfig&>(config)); }};
}

template <class At>
ConfigKey strings(std::string name, std::string help, At at) {
  return {
      name, help, true,
      [=](RunConfig& config, Values values) { at(config).assign(values.begin(), values.end()); },
      [=](const RunConfig& config) {
        return show_list(at(const_cast<RunConfig&>(config)), yaml_quoted);
      }};
}

ConfigKey budget_key() {
  return {"memory.budget",
          "bytes that the process may take, such as 6GiB; auto: what is available when train "
          "begins; none: no budget",
          false,
          [](RunConfig& config, Values values) {
            const std::string& text = only(values);
            const auto value = parse_bytes(text);
            ANABATIC_REQUIRE(value.has_value() || text == "auto" || text == "none",
                             "expected bytes such as 6GiB or 500MB, auto or none, got '{}'", text);
            config.memory.budget =
                text == "auto" ? RunConfig::Memory::kAvailable : value.value_or(0);
          },
          [](const RunConfig& config) -> std::string {
            if (config.memory.budget < 0) return "auto";
            return config.memory.budget == 0 ? "none" : std::to_string(config.memory.budget);
          }};
}

ConfigKey betas_key() {
  return {"optimizer.betas", "decay rates of the two moments", true,
          [](RunConfig& config, Values values) {
            ANABATIC_REQUIRE(values.size() == 2, "expected two numbers, got {} values",
                             values.size());
            std::vector<double> betas;
            for (const std::string& text : values) {
              betas.push_back(parse_number<double>(text, "a number"));
              ANABATIC_REQUIRE(betas.back() >= 0 && betas.back() < 1,
                               "expected numbers in [0, 1), got {}", text);
            }
            config.optimizer.betas = betas;
          },
          [](const RunConfig& config) { return show_list(config.optimizer.betas, show_double); }};
}

#define AT(field) \
  [](RunConfig & config) -> auto& { return config.field; }

void add_data_keys(std::vector<ConfigKey>& keys) {
  keys.push_back(string("model.path",
                        "Hugging Face model directory (or config.json with init: random)",
                        AT(model.path)));
  keys.push_back(choice("model.init", "where the weights come from", {"random", "pretrained"},
                        AT(model.init)));
  keys.push_back(
      strings("data.train", "training files: .bin/.idx prefix, .txt or .jsonl", AT(data.train)));
  keys.push_back(strings("data.validation", "validation files", AT(data.validation)));
  keys.push_back(integer("data.sequence_length", "tokens a sample", 1, AT(data.sequence_length)));
  keys.push_back(choice("data.packing", "how documents fill samples", {"isolated", "concatenated"},
                        AT(data.packing)));
  keys.push_back(boolean("data.shuffle", "shuffle samples, anew each epoch", AT(data.shuffle)));
  keys.push_back(
      boolean("data.append_eos", "end text and JSONL documents with EOS", AT(data.append_eos)));
}

void add_train_keys(std::vector<ConfigKey>& keys) {
  keys.push_back(integer("train.steps", "optimizer steps of the whole run", 0, AT(train.steps)));
  keys.push_back(
      integer("train.micro_batch_size", "samples a micro-batch", 1, AT(train.micro_batch_size)));
  keys.push_back(integer("train.gradient_accumulation_steps", "micro-batches a step", 1,
                         AT(train.gradient_accumulation_steps)));
  keys.push_back(choice("train.precision", "arithmetic", {"bf16", "fp32"}, AT(train.precision)));
  keys.push_back(integer("train.seed", "of initialization and shuffling", 0, AT(train.seed)));
  keys.push_back(
      string("train.output", "directory of checkpoints, metrics and logs", AT(train.output)));
  keys.push_back(
      choice("train.resume", "go on from OUTPUT/latest", {"auto", "never"}, AT(train.resume)));
  keys.push_back(integer("train.save_every", "steps between checkpoints; 0: at the end only", 0,
                         AT(train.save_every)));
  keys.push_back(integer("train.validate_every", "steps between validations; 0: at the end only", 0,
                         AT(train.validate_every)));
  keys.push_back(
      integer("train.log_every", "steps between plain console lines", 1, AT(train.log_every)));
  keys.push_back(integer("train.keep_last", "checkpoints kept; 0: all", 0, AT(train.keep_last)));
  keys.push_back(
      choice("train.save_dtype", "of exported weights", {"source", "fp32"}, AT(train.save_dtype)));
  keys.push_back(number("train.router_z_loss_coef", "weight of the router z-loss", 0, 1e6,
                        AT(train.router_z_loss_coef)));
}

void add_optimizer_keys(std::vector<ConfigKey>& keys) {
  keys.push_back(choice("optimizer.name", "optimizer", {"adamw"}, AT(optimizer.name)));
  keys.push_back(
      number("optimizer.learning_rate", "peak learning rate", 0, 1e6, AT(optimizer.learning_rate)));
  keys.push_back(betas_key());
  keys.push_back(
      number("optimizer.epsilon", "added to the denominator", 0, 1, AT(optimizer.epsilon)));
  keys.push_back(
      number("optimizer.weight_decay", "decoupled decay", 0, 1e6, AT(optimizer.weight_decay)));
  keys.push_back(number("optimizer.clip_grad_norm", "largest global norm; 0: no clipping", 0, 1e30,
                        AT(optimizer.clip_grad_norm)));
  keys.push_back(choice("optimizer.schedule", "after the warm-up", {"cosine", "linear", "constant"},
                        AT(optimizer.schedule)));
  keys.push_back(
      integer("optimizer.warmup_steps", "linear warm-up", 0, AT(optimizer.warmup_steps)));
  keys.push_back(number("optimizer.min_learning_rate", "at the end of the schedule", 0, 1e6,
                        AT(optimizer.min_learning_rate)));
  keys.push_back(boolean("optimizer.decay_norms_and_biases",
                         "apply weight decay to 1-D parameters too",
                         AT(optimizer.decay_norms_and_biases)));
  keys.push_back(choice("optimizer.state_precision",
                        "of the moments of matrices; bf16 is rounded stochastically, int8 by "
                        "blocks of 256 with a scale each",
                        {"fp32", "bf16", "int8"}, AT(optimizer.state_precision)));
  keys.push_back(choice("optimizer.update",
                        "in_backward: each gradient is applied as soon as it is whole, clipped by "
                        "the norm of the step before",
                        {"after_backward", "in_backward"}, AT(optimizer.update)));
}

void add_memory_keys(std::vector<ConfigKey>& keys) {
  keys.push_back(budget_key());
  keys.push_back(strings("memory.recompute",
                         "values or segments that the backward makes again, such as "
                         "experts.activation",
                         AT(memory.recompute)));
  keys.push_back(
      strings("memory.keep", "values or segments that are never made again", AT(memory.keep)));
  keys.push_back(strings("memory.hot",
                         "values, segments or parameters that stay as they are: not made again, no "
                         "moments on disk",
                         AT(memory.hot)));
  keys.push_back(strings("memory.cold",
                         "parameters or segments whose moments go to disk, such as embedding or "
                         "experts.96-127; with memory.activations: disk also values that wait "
                         "there",
                         AT(memory.cold)));
  keys.push_back(string("memory.plan",
                        "file of choices to replay, as `anabatic plan --save FILE` writes it; "
                        "empty: choose anew",
                        AT(memory.plan)));
  keys.push_back(choice("memory.compress",
                        "in what the planner may keep saved activations to keep a budget: bf16 of "
                        "fp32, int8 in blocks; each changes gradients a little",
                        {"off", "bf16", "int8"}, AT(memory.compress)));
  keys.push_back(choice("memory.activations",
                        "where what the backward reads waits for it; disk: in a scratch file, what "
                        "the planner chooses to keep a budget (it is written in every micro-batch)",
                        {"resident", "disk"}, AT(memory.activations)));
  keys.push_back(choice("memory.optimizer_state",
                        "where moments stay between updates; disk: in a scratch file, through "
                        "windows of memory that activations leave free; auto: on disk where "
                        "memory.budget asks for it and nothing costs less",
                        {"auto", "resident", "disk"}, AT(memory.optimizer_state)));
  keys.push_back(choice("memory.masters",
                        "where the lower halves of parameters stay between updates, with bf16, "
                        "whose upper halves the model reads; disk: where moments are, if they are; "
                        "auto: there where memory.budget is not kept otherwise",
                        {"auto", "resident", "disk"}, AT(memory.masters)));
  keys.push_back(choice("memory.parameters",
                        "where what the model reads of parameters stays; disk: where moments are, "
                        "if they are, and every call that reads one has it brought; auto: there "
                        "where memory.budget is not kept otherwise",
                        {"auto", "resident", "disk"}, AT(memory.parameters)));
  keys.push_back(string("memory.swap_directory",
                        "directory of the scratch file; empty: that of train.output",
                        AT(memory.swap_directory)));
  keys.push_back(integer("memory.swap_windows",
                         "the largest slices whose moments fit into memory at once; more than "
                         "what activations leave costs memory and hides more of the disk",
                         1, AT(memory.swap_windows)));
  keys.push_back(integer("memory.swap_slice",
                         "bytes of a moment that one update takes through a window, at most", 1,
                         AT(memory.swap_slice)));
}

// "fusions.NAME" for every pass of either pipeline that may be left out.
void add_fusion_keys(std::vector<ConfigKey>& keys) {
  std::vector<passes::Pass> all = passes::training_pipeline();
  for (passes::Pass& pass : passes::inference_pipeline()) all.push_back(std::move(pass));
  std::set<std::string> seen;
  for (const passes::Pass& pass : all) {
    const std::string name(pass.name);
    if (pass.required || !seen.insert(name).second) continue;
    keys.push_back({"fusions." + name, "off: leave this optional pass out", false,
                    [name](RunConfig& config, Values values) {
                      const auto on = parse_boolean(only(values));
                      ANABATIC_REQUIRE(on.has_value(), "expected on or off, got '{}'", values[0]);
                      if (*on)
                        config.fusions.off.erase(name);
                      else
                        config.fusions.off.insert(name);
                    },
                    [name](const RunConfig& config) {
                      return config.fusions.off.contains(name) ? "off" : "on";
                    }});
  }
}

void add_other_keys(std::vector<ConfigKey>& keys) {
  keys.push_back(choice("device.kind", "device", {"cpu"}, AT(device.kind)));
  keys.push_back(
      integer("device.threads", "compute threads; 0: all cores allowed", 0, AT(device.threads)));
  keys.push_back(boolean("device.calibrate",
                         "measure this machine once, a few seconds ahead of the first run with a "
                         "memory.budget, for the prices of choices",
                         AT(device.calibrate)));
  keys.push_back(
      integer("generate.max_new_tokens", "tokens to generate", 0, AT(generate.max_new_tokens)));
  keys.push_back(number("generate.temperature", "0: greedy", 0, 1e6, AT(generate.temperature)));
  keys.push_back(
      integer("generate.top_k", "sample among the k likeliest; 0: all", 0, AT(generate.top_k)));
  keys.push_back(number("generate.top_p", "sample among the likeliest that hold this mass", 0, 1,
                        AT(generate.top_p)));
  keys.push_back(integer("generate.seed", "of sampling", 0, AT(generate.seed)));
  keys.push_back(strings("compiler.disable_passes", "optional passes to leave out",
                         AT(compiler.disable_passes)));
  keys.push_back(boolean("compiler.pack_transposed",
                         "keep a second packing of weights, for input-gradients; false: the "
                         "backward makes it, for as many bytes less",
                         AT(compiler.pack_transposed)));
  keys.push_back(string("compiler.dump", "directory for every artifact", AT(compiler.dump)));
  keys.push_back(boolean("compiler.explain_dispatch", "print why kernels were chosen",
                         AT(compiler.explain_dispatch)));
  keys.push_back(
      boolean("compiler.trivial_planners", "plan with the twins", AT(compiler.trivial_planners)));
  keys.push_back(boolean("compiler.poison", "fill dead memory with NaN", AT(compiler.poison)));
}

#undef AT

const ConfigKey* find_key(std::string_view name) {
  for (const ConfigKey& key : config_keys())
    if (key.name == name) return &key;
  return nullptr;
}

std::string unknown_key(const std::string& name) {
  std::vector<std::string> names;
  for (const ConfigKey& key : config_keys()) names.push_back(key.name);
  if (name.starts_with("fusions.")) {
    std::string known;
    for (const std::string& key : names)
      if (key.starts_with("fusions.")) known += (known.empty() ? "" : ", ") + key.substr(8);
    return fmt::format("{}: unknown pass; expected one of {}", name, known);
  }
  const auto nearest = nearest_word(name, names);
  return nearest ? fmt::format("{}: unknown key; did you mean {}?", name, *nearest)
                 : fmt::format("{}: unknown key", name);
}

void apply(RunConfig& config, const std::string& name, Values values,
           std::vector<std::string>& problems) {
  const ConfigKey* key = find_key(name);
  if (key == nullptr) {
    problems.push_back(unknown_key(name));
    return;
  }
  try {
    key->set(config, values);
  } catch (const Error& error) {
    problems.push_back(fmt::format("{}: {}", name, error.what()));
  }
}

bool is_section(const std::string& name) {
  return std::any_of(config_keys().begin(), config_keys().end(),
                     [&](const ConfigKey& key) { return key.name.starts_with(name + "."); });
}

void apply_node(RunConfig& config, const YAML::Node& node, const std::string& name,
                std::vector<std::string>& problems) {
  const bool may_hold_keys = name.empty() || is_section(name);
  if (node.IsNull() && may_hold_keys) return;  // a section whose keys are all left out
  if (node.IsMap()) {
    if (!may_hold_keys) {
      problems.push_back(find_key(name) != nullptr
                             ? fmt::format("{}: expected a value, got a map", name)
                             : unknown_key(name));
      return;
    }
    std::set<std::string> seen;
    for (const auto& entry : node) {
      const std::string child = (name.empty() ? "" : name + ".") + entry.first.as<std::string>();
      if (!seen.insert(child).second) problems.push_back(fmt::format("{}: given twice", child));
      apply_node(config, entry.second, child, problems);
    }
    return;
  }
  if (name.empty()) {
    problems.emplace_back("expected a map of sections such as `train: {steps: 100}`");
    return;
  }
  std::vector<std::string> values;
  if (node.IsSequence()) {
    for (const YAML::Node& item : node) {
      if (!item.IsScalar()) {
        problems.push_back(fmt::format("{}: expected a list of values", name));
        return;
      }
      values.push_back(item.Scalar());
    }
  } else if (node.IsScalar()) {
    values.push_back(node.Scalar());
  } else {
    problems.push_back(fmt::format("{}: expected a value, got nothing", name));
    return;
  }
  apply(config, name, values, problems);
}

}  // namespace

const std::vector<ConfigKey>& config_keys() {
  static const std::vector<ConfigKey> keys = [] {
    std::vector<ConfigKey> all;
    add_data_keys(all);
    add_train_keys(all);
    add_optimizer_keys(all);
    add_memory_keys(all);
    add_other_keys(all);
    add_fusion_keys(all);
    return all;
  }();
  return keys;
}

std::optional<bool> parse_boolean(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (lower == "true" || lower == "1" || lower == "yes" || lower == "on") return true;
  if (lower == "false" || lower == "0" || lower == "no" || lower == "off") return false;
  return std::nullopt;
}

std::vector<std::string> problems_of(const RunConfig& config) {
  std::vector<std::string> problems;
  const auto& optimizer = config.optimizer;
  if (optimizer.min_learning_rate > optimizer.learning_rate)
    problems.push_back(
        fmt::format("optimizer.min_learning_rate: expected <= optimizer.learning_rate = {}, got {}",
                    optimizer.learning_rate, optimizer.min_learning_rate));
  const RunConfig::Memory& memory = config.memory;
  if (memory.masters == "disk" &&
      (memory.optimizer_state == "resident" || config.train.precision != "bf16"))
    problems.push_back(
        fmt::format("memory.masters: disk puts lower halves of bf16 parameters beside the moments; "
                    "expected memory.optimizer_state: disk or auto and train.precision: bf16, got "
                    "{} and {}",
                    memory.optimizer_state, config.train.precision));
  if (memory.parameters == "disk" && memory.optimizer_state == "resident")
    problems.push_back(
        "memory.parameters: disk puts parameters beside the moments; expected "
        "memory.optimizer_state: disk or auto, got resident");
  constexpr std::int64_t kMaxTokens = std::int64_t{1} << 31;
  if (config.data.sequence_length > kMaxTokens / config.train.micro_batch_size)
    problems.push_back(fmt::format(
        "train.micro_batch_size x data.sequence_length: expected < 2^31 tokens, got {} x {}",
        config.train.micro_batch_size, config.data.sequence_length));
  return problems;
}

RunConfig load_run_config(const std::filesystem::path& file, const Overrides& overrides) {
  RunConfig config;
  std::vector<std::string> problems;
  if (!file.empty()) {
    try {
      apply_node(config, YAML::Load(read_file(file, std::int64_t{1} << 20)), "", problems);
    } catch (const YAML::Exception& error) {
      problems.push_back(fmt::format("{}: {}", file.string(), error.what()));
    } catch (const ResourceError& error) {
      problems.emplace_back(error.what());
    }
  }
  for (const auto& [name, values] : overrides) apply(config, name, values, problems);
  for (std::string& problem : problems_of(config)) problems.push_back(std::move(problem));
  if (!problems.empty()) {
    std::string text =
        fmt::format("[config] {} problem{}:", problems.size(), problems.size() == 1 ? "" : "s");
    for (const std::string& problem : problems) text += "\n  " + problem;
    throw InvalidArgument(text);
  }
  return config;
}

std::string to_yaml(const RunConfig& config) {
  std::string out, section;
  for (const ConfigKey& key : config_keys()) {
    const auto dot = key.name.find('.');
    const std::string head = key.name.substr(0, dot);
    if (head != section) out += (section = head) + ":\n";
    out += fmt::format("  {}: {}\n", key.name.substr(dot + 1), key.show(config));
  }
  return out;
}

}  // namespace anabatic::train
