// SPDX-License-Identifier: Apache-2.0
#include "support/tiny_run.h"

#include <fmt/ranges.h>
#include <stdlib.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/philox.h"
#include "base/text.h"
#include "io/data/indexed_file.h"
#include "io/safetensors.h"
#include "support/test_config.h"

namespace anabatic::testing {

namespace fs = std::filesystem;

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern = (fs::temp_directory_path() / "anabatic-test-XXXXXX").string();
  ANABATIC_CHECK(::mkdtemp(pattern.data()) != nullptr, "[test] cannot make {}", pattern);
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

fs::path write_tiny_config(const fs::path& folder, const std::string& extra) {
  nlohmann::json config{{"architectures", {"MixtralForCausalLM"}},
                        {"model_type", "mixtral"},
                        {"vocab_size", 97},
                        {"hidden_size", 16},
                        {"intermediate_size", 24},
                        {"num_hidden_layers", 2},
                        {"num_attention_heads", 4},
                        {"num_key_value_heads", 2},
                        {"num_local_experts", 4},
                        {"num_experts_per_tok", 2},
                        {"max_position_embeddings", 64},
                        {"hidden_act", "silu"},
                        {"rms_norm_eps", 1e-5},
                        {"rope_theta", 10000.0},
                        {"router_aux_loss_coef", 0.01},
                        {"output_router_logits", true},
                        {"tie_word_embeddings", false},
                        {"initializer_range", 0.1},
                        {"bos_token_id", 0},
                        {"eos_token_id", 0}};
  config.update(parse_json("{" + extra + "}"));
  fs::create_directories(folder / "model");
  std::ofstream(folder / "model" / "config.json") << dump_json(config, 2);
  return folder / "model";
}

fs::path write_tiny_tokens(const fs::path& folder, const std::string& name, int documents,
                           std::uint64_t seed) {
  const fs::path prefix = folder / name;
  io::IndexedFileWriter writer(prefix, io::TokenType::kUint16);
  std::uint64_t draw = 0;
  for (int document = 0; document < documents; ++document) {
    std::vector<std::int32_t> ids{static_cast<std::int32_t>(random_below(seed, 1, draw++, 97))};
    const std::uint64_t length = 5 + random_below(seed, 1, draw++, 36);
    while (ids.size() < length) {
      const bool noise = random_below(seed, 1, draw++, 8) == 0;
      ids.push_back(noise ? static_cast<std::int32_t>(random_below(seed, 1, draw++, 97))
                          : (ids.back() * 3 + 1) % 97);
    }
    writer.append(ids);
    writer.end_document();
  }
  writer.finish();
  return prefix;
}

train::RunConfig tiny_run(const fs::path& folder, const std::string& extra) {
  train::RunConfig run;
  run.model.path = write_tiny_config(folder, extra);
  run.model.init = "random";
  run.data.train = {write_tiny_tokens(folder, "train", 60, 7)};
  run.data.sequence_length = 16;
  run.train.steps = 8;
  run.train.micro_batch_size = 2;
  run.train.precision = "fp32";
  run.train.output = folder / "run";
  run.optimizer.learning_rate = 1e-2;
  run.optimizer.warmup_steps = 2;
  run.device.threads = 2;
  apply_test_config(run);
  return run;
}

std::map<std::string, std::string> training_state(const fs::path& checkpoint) {
  std::map<std::string, std::string> tensors;
  const auto bytes_in = [&](const std::string& file, const std::string& name) {
    const io::SafetensorsDirectory files = io::SafetensorsDirectory::open(checkpoint / file);
    const io::TensorEntry* entry = files.find(name);
    ANABATIC_CHECK(entry != nullptr, "[test] no {} in {}", name, file);
    return std::string(reinterpret_cast<const char*>(entry->data.data()), entry->data.size());
  };
  const auto head = [](const auto& dtype, const auto& shape) {
    return fmt::format("{} [{}] ", dtype, fmt::join(shape, ","));
  };
  const Json json = parse_json(read_file(checkpoint / "training_state.json"));
  if (!json.contains("tensors")) {
    const auto files = io::SafetensorsDirectory::open(checkpoint / "training_state.safetensors");
    for (const auto& [name, entry] : files.entries())
      tensors[name] =
          head(entry.dtype_name, entry.shape) + bytes_in("training_state.safetensors", name);
    return tensors;
  }
  for (const auto& [name, tensor] : json["tensors"].items()) {
    std::string& bytes = tensors[name];
    bytes =
        head(tensor["dtype"].get<std::string>(), tensor["shape"].get<std::vector<std::int64_t>>());
    std::map<std::int64_t, std::string> files;  // by first row
    for (const Json& box : tensor["boxes"])
      files[box["first_row"].get<std::int64_t>()] = box["file"].get<std::string>();
    for (const auto& [row, file] : files) bytes += bytes_in(file, name);
  }
  return tensors;
}

std::string checkpoint_bytes(const fs::path& checkpoint) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(checkpoint))
    if (entry.path().extension() == ".safetensors" &&
        !entry.path().filename().string().starts_with("training_state"))
      files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  ANABATIC_CHECK(!files.empty(), "[test] {} holds no safetensors", checkpoint.string());
  std::string all;
  for (const fs::path& file : files) all += file.filename().string() + "\n" + read_file(file);
  for (const auto& [name, bytes] : training_state(checkpoint)) all += name + " " + bytes + "\n";
  return all;
}

void go_back_to(const fs::path& output, std::int64_t step) {
  std::vector<fs::path> later;
  for (const auto& entry : fs::directory_iterator(output)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("step-") && std::stoll(name.substr(5)) > step)
      later.push_back(entry.path());
  }
  ANABATIC_CHECK(!later.empty(), "[test] {} holds no step after {}", output.string(), step);
  for (const fs::path& path : later) fs::remove_all(path);
  std::ofstream(output / "latest") << fmt::format("step-{:08}\n", step);
}

void flip_bit(const fs::path& file, std::int64_t from_end) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(-from_end, std::ios::end);
  const int byte = stream.get();
  ANABATIC_CHECK(byte >= 0, "[test] {} has no byte {} from its end", file.string(), from_end);
  stream.seekp(-from_end, std::ios::end);
  stream.put(static_cast<char>(byte ^ 1));
}

std::vector<nlohmann::json> json_lines(const fs::path& file) {
  std::vector<nlohmann::json> lines;
  std::istringstream text(read_file(file));
  for (std::string line; std::getline(text, line);) lines.push_back(parse_json(line));
  return lines;
}

}  // namespace anabatic::testing
