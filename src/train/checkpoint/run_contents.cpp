// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint/run_contents.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "io/data/fingerprint.h"
#include "io/data/indexed_file.h"
#include "io/data/weight_file.h"
#include "io/gguf.h"
#include "io/tokenizer/gguf/gguf_tokenizer.h"
#include "io/tokenizer/tokenizer_file.h"
#include "plugin/plugin_set.h"
#include "train/attention/key_blocks.h"
#include "train/checkpoint/kept_batch.h"
#include "train/config/quantization_keys.h"
#include "train/model_session.h"
#include "train/tokenize.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostJsonBytes = std::int64_t{1} << 26;  // of a JSON file

// Fields of config.json without effect on the maths: those of libraries, and the files' dtype.
const std::set<std::string, std::less<>>& fields_without_maths() {
  static const std::set<std::string, std::less<>> fields{"_name_or_path", "_attn_implementation",
                                                         "architectures", "attn_implementation",
                                                         "auto_map",      "dtype",
                                                         "torch_dtype",   "transformers_version",
                                                         "use_cache"};
  return fields;
}

// Fields of the small JSON files of a tokenizer that determine ids. Chat templates may change.
constexpr const char* kTokenFields[] = {"add_bos_token",  "add_eos_token", "bos_token",
                                        "bos_token_id",   "eos_token",     "eos_token_id",
                                        "tokenizer_class"};
constexpr const char* kTokenFieldFiles[] = {"tokenizer_config.json", "special_tokens_map.json",
                                            "generation_config.json"};
constexpr const char* kTokenizerFiles[] = {"tokenizer.json", "tekken.json", "tokenizer.model",
                                           "vocab.json",     "merges.txt",  "added_tokens.json"};

Json read_object(const fs::path& file) {
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) return Json::object();
  Json json = try_parse_json(read_file(file, kMostJsonBytes));
  return json.is_object() ? std::move(json) : Json::object();
}

Json config_contents(const RunConfig& run) {
  const fs::path path = run.model.path;
  const Json config = io::is_gguf(path)
                          ? parse_json(model::config_text(path))
                          : read_object(fs::is_directory(path) ? path / "config.json" : path);
  Json kept = Json::object();
  for (const auto& [name, value] : config.items())
    if (!fields_without_maths().contains(name) && !value.is_null()) kept[name] = value;
  return kept;
}

std::string file_contents(const fs::path& path) {
  const std::string bytes = read_file(path);
  return fmt::format("{} bytes of hash {}", bytes.size(), io::content_hash(bytes));
}

Json tokenizer_contents(const RunConfig& run) {
  const fs::path directory = model_directory(run.model.path);
  Json contents = Json::object();
  const auto found = io::find_tokenizer_file(tokenizer_folder_or_file(run.model.path));
  if (found && io::is_gguf(*found)) {
    const io::GgufFiles files = io::GgufFiles::open(*found);
    contents["tokenizer"] = io::content_hash(io::tokenizer_json(*found));
    contents["tokenizer config"] = io::content_hash(io::gguf_tokenizer_config(files.metadata()));
    return contents;
  }
  for (const char* name : kTokenizerFiles) {
    std::error_code ignored;
    if (!fs::is_regular_file(directory / name, ignored)) continue;
    contents[name] = file_contents(directory / name);
  }
  for (const char* name : kTokenFieldFiles) {
    const Json file = read_object(directory / name);
    for (const char* field : kTokenFields)
      if (file.contains(field) && !file[field].is_null())
        contents[fmt::format("{}: {}", name, field)] = file[field];
  }
  return contents;
}

// By file name: a build may lie elsewhere.
Json plugin_contents(const std::vector<std::string>& plugins) {
  Json contents = Json::object();
  (void)plugin::plugin_set(plugins);  // says what is no plugin
  for (const fs::path path : plugins) contents[path.filename().string()] = file_contents(path);
  return contents;
}

Json data_contents(const std::vector<std::string>& files, bool with_weights) {
  const std::vector<fs::path> paths(files.begin(), files.end());
  Json list = Json::array();
  std::vector<io::FileFingerprint> of_weights;
  for (const fs::path& path : paths) {
    std::error_code ignored;
    const auto pair = io::indexed_pair(path);
    if (!pair && !fs::is_regular_file(path, ignored)) return list;
    if (with_weights && pair && fs::exists(io::weights_path(*pair), ignored))
      of_weights.push_back(io::fingerprint(io::weights_path(*pair)));
  }
  std::vector<io::FileFingerprint> all = io::data_fingerprints(paths);
  all.insert(all.end(), of_weights.begin(), of_weights.end());
  for (const io::FileFingerprint& file : all)
    list.push_back({{"path", file.path.string()}, {"bytes", file.bytes}, {"hash", file.hash}});
  return list;
}

std::string shown(const Json* value) { return value == nullptr ? "none" : show_json(*value); }

// One line for each leaf that differs.
void compare_objects(const std::string& name, const Json* saved, const Json* now,
                     std::string& lines) {
  const bool are_objects =
      saved != nullptr && now != nullptr && saved->is_object() && now->is_object();
  if (!are_objects) {
    if (saved == nullptr || now == nullptr || *saved != *now)
      lines +=
          fmt::format("\n  {}: the checkpoint has {}, this run {}", name, shown(saved), shown(now));
    return;
  }
  std::set<std::string> keys;
  for (const Json* object : {saved, now})
    for (const auto& item : object->items()) keys.insert(item.key());
  const auto find = [](const Json& object, const std::string& key) {
    const auto found = object.find(key);
    return found == object.end() ? nullptr : &*found;
  };
  for (const std::string& key : keys)
    compare_objects(name + key, find(*saved, key), find(*now, key), lines);
}

struct DataFile {
  std::string path, content;
  std::string bytes;
};

std::vector<DataFile> data_files(const Json& contents, const char* list) {
  std::vector<DataFile> files;
  if (!contents.is_object() || !contents.contains(list)) return files;
  for (const Json& file : contents[list])
    files.push_back({file.value("path", ""), file.value("hash", ""),
                     format_bytes(file.value("bytes", std::int64_t{0}))});
  return files;
}

// Names the files of two lists that differ in content; paths alone may differ.
std::string compare_data(const std::vector<DataFile>& saved, const std::vector<DataFile>& now) {
  const auto same = [](const DataFile& a, const DataFile& b) { return a.content == b.content; };
  if (std::equal(saved.begin(), saved.end(), now.begin(), now.end(), same)) return "";
  const auto holds = [](const std::vector<DataFile>& files, auto&& matches) {
    return std::any_of(files.begin(), files.end(), matches);
  };
  std::string lines;
  for (const DataFile& file : saved) {
    if (holds(now, [&](const DataFile& other) { return same(file, other); })) continue;
    const auto changed = std::find_if(
        now.begin(), now.end(), [&](const DataFile& other) { return other.path == file.path; });
    lines += changed == now.end() ? fmt::format("\n  {}: removed ({})", file.path, file.bytes)
                                  : fmt::format("\n  {}: changed (from {} to {})", file.path,
                                                file.bytes, changed->bytes);
  }
  for (const DataFile& file : now) {
    const bool is_known = holds(
        saved, [&](const DataFile& other) { return same(file, other) || other.path == file.path; });
    if (!is_known) lines += fmt::format("\n  {}: added ({})", file.path, file.bytes);
  }
  return lines.empty() ? "\n  the same files in another order, or another number of times" : lines;
}

// Settings that decide which numbers a step computes.
const std::set<std::string, std::less<>>& binding_keys() {
  static const std::set<std::string, std::less<>> keys{"data.sequence_length",
                                                       "data.packing",
                                                       "data.shuffle",
                                                       "data.add_bos",
                                                       "data.append_eos",
                                                       "data.chat_template",
                                                       "data.now",
                                                       "data.allow_special_in_content",
                                                       "data.loss_on",
                                                       "data.max_length",
                                                       "data.truncation",
                                                       "train.objective",
                                                       "train.micro_batch_size",
                                                       "train.gradient_accumulation_steps",
                                                       "parallel.local_ranks",
                                                       "train.precision",
                                                       "train.seed",
                                                       "train.balance_loss",
                                                       "train.balance_coef",
                                                       "train.router_z_loss_coef",
                                                       "train.router_bias_update_rate",
                                                       "train.mtp_loss_coef",
                                                       "model.keep_mtp",
                                                       "model.replace",
                                                       "lora.targets",
                                                       "lora.rank",
                                                       "lora.alpha",
                                                       "lora.rslora",
                                                       "lora.share_gate_up",
                                                       "lora.base",
                                                       "lora.from",
                                                       "attention.blocks.size",
                                                       "attention.blocks.local",
                                                       "attention.blocks.global",
                                                       "attention.blocks.stride",
                                                       "attention.blocks.random",
                                                       "attention.blocks.seed",
                                                       "dpo.beta",
                                                       "dpo.loss",
                                                       "dpo.label_smoothing",
                                                       "dpo.length_normalized",
                                                       "dpo.reference",
                                                       "sparsity.weights",
                                                       "memory.compress",
                                                       "optimizer.state_precision",
                                                       "optimizer.update"};
  return keys;
}

// What keeps the micro-batches of a step on so many ranks.
std::string settings_for(std::int64_t micro_batches, std::int64_t ranks) {
  if (micro_batches % ranks == 0)
    return fmt::format("train.gradient_accumulation_steps: {} keeps them", micro_batches / ranks);
  std::int64_t fewer = ranks, more = ranks;
  while (micro_batches % fewer != 0) --fewer;
  while (more < micro_batches && micro_batches % more != 0) ++more;
  const auto setting = [&](std::int64_t count) {
    return fmt::format("parallel.local_ranks: {} with train.gradient_accumulation_steps: {}", count,
                       micro_batches / count);
  };
  return more > micro_batches ? fmt::format("{} keeps them", setting(fewer))
                              : fmt::format("{} keeps them, or {}", setting(fewer), setting(more));
}

// Weights under an adapter in another grid are other weights, however keys spell it.
bool is_other_grid(const std::string& key, const RunConfig& saved, const RunConfig& now) {
  return key.starts_with("quantization.") && trains_adapter(now) &&
         quantization_options(saved) != quantization_options(now);
}

// Settings whose change is reported: those of the optimizer and its schedule.
bool is_remarkable(const std::string& key) {
  return key == "train.steps" || key.starts_with("optimizer.");
}

}  // namespace

Json run_contents(const RunConfig& run) {
  return {{"config", config_contents(run)},
          {"tokenizer", tokenizer_contents(run)},
          {"plugins", plugin_contents(run.model.plugins)},
          {"attention", key_blocks_contents(run)},
          {"train", data_contents(run.data.train, trains_on_rows(run))},
          {"validation", data_contents(run.data.validation, trains_on_rows(run))}};
}

ContentsChange compare_contents(const Json& saved, const Json& now) {
  ContentsChange change;
  const Json nothing = Json::object();
  const auto part = [&](const Json& contents, const char* name) -> const Json* {
    return contents.is_object() && contents.contains(name) ? &contents[name] : &nothing;
  };
  compare_objects("config.json: ", part(saved, "config"), part(now, "config"), change.maths);
  compare_objects("", part(saved, "tokenizer"), part(now, "tokenizer"), change.maths);
  compare_objects("", part(saved, "attention"), part(now, "attention"), change.maths);
  if (const auto files = data_files(now, "train"); !files.empty())
    change.data = compare_data(data_files(saved, "train"), files);
  std::string plugins;
  compare_objects("", part(saved, "plugins"), part(now, "plugins"), plugins);
  if (!plugins.empty())
    change.remarks.push_back(
        fmt::format("plugins are not the files that they were at that checkpoint:{}", plugins));
  const std::string validation =
      compare_data(data_files(saved, "validation"), data_files(now, "validation"));
  if (!validation.empty())
    change.remarks.push_back(
        fmt::format("data.validation is not what it was at that checkpoint:{}", validation));
  return change;
}

ContentsChange compare_keys(const RunConfig& saved, const RunConfig& now) {
  ContentsChange change;
  const std::int64_t micro_batches = micro_batches_of_step(saved);
  const bool has_its_steps = micro_batches == micro_batches_of_step(now);
  const std::set<std::string, std::less<>> factors{"train.gradient_accumulation_steps",
                                                   "parallel.local_ranks"};
  for (const ConfigKey& key : config_keys()) {
    const std::string before = key.show(saved), after = key.show(now);
    if (before == after) continue;
    if (key.name == "data.packing" && packing_of(saved) == packing_of(now)) continue;
    // Files hold the same states in each of these precisions.
    const bool is_other_product =
        key.name.starts_with("precision.") ||
        (key.name == "train.precision" && saved.train.precision != "fp32" &&
         now.train.precision != "fp32");
    if (factors.contains(key.name) && has_its_steps) {
      change.remarks.push_back(
          fmt::format("{} is {} from here on; the checkpoint has {}, with as many samples a step",
                      key.name, after, before));
    } else if (!is_other_product &&
               (binding_keys().contains(key.name) || is_other_grid(key.name, saved, now))) {
      change.maths +=
          fmt::format("\n  {}: the checkpoint has {}, this run {}", key.name, before, after);
    } else if (is_other_product || is_remarkable(key.name)) {
      change.remarks.push_back(
          fmt::format("{} is {} from here on; the checkpoint has {}", key.name, after, before));
    }
  }
  if (!has_its_steps && saved.parallel.local_ranks != now.parallel.local_ranks)
    change.maths += fmt::format("\n  a step there has {} micro-batches: {}", micro_batches,
                                settings_for(micro_batches, now.parallel.local_ranks));
  if (gradient_leaves(saved) != gradient_leaves(now))
    change.remarks.push_back(
        fmt::format("gradients add up in another order from here on, of {} leaves instead of {} "
                    "(train.gradient_leaves)",
                    gradient_leaves(now), gradient_leaves(saved)));
  return change;
}

}  // namespace anabatic::train
