// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/bpe_trainer.h"

#include <algorithm>
#include <limits>
#include <thread>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "io/tokenizer/flat_map.h"
#include "io/tokenizer/json_fields.h"
#include "io/tokenizer/merge.h"
#include "io/tokenizer/unicode.h"
#include "io/tokenizer/word_counter.h"

namespace anabatic::io {

namespace {

using tokenizer::append_utf8;
using tokenizer::byte_symbol;
using tokenizer::count_words;
using tokenizer::FlatMap;
using tokenizer::kMaxId;
using tokenizer::MergeTable;

// Pair counts are kept up to date as words are rewritten; the queue holds each pair with the words
// where it came up, its count possibly outdated, which shows when it is taken.
class Trainer {
 public:
  Trainer(const TrainOptions& options, std::vector<std::pair<std::string, std::int64_t>> words)
      : vocab_size_(static_cast<std::size_t>(options.vocab_size)) {
    for (const std::string& token : options.special_tokens) id_of(token);
    add_alphabet();
    for (auto& [word, count] : words) {
      std::vector<std::int32_t> symbols;
      for (const char byte : word) symbols.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
      words_.push_back({std::move(symbols), count});
    }
  }

  TrainedBpe train() {
    count_pairs();
    while (result_.tokens.size() < vocab_size_ && !queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end(), comes_later);
      Candidate top = std::move(queue_.back());
      queue_.pop_back();
      const std::int64_t count = pair_counts_.at(MergeTable::key(top.left, top.right));
      if (top.count != count) {
        if (count < 1) continue;
        top.count = count;
        push(std::move(top));
        continue;
      }
      merge(top);
    }
    drop_repeated_merges();
    return std::move(result_);
  }

 private:
  struct Word {
    std::vector<std::int32_t> symbols;
    std::int64_t count;
  };
  struct Candidate {
    std::int64_t count;
    std::int32_t left;
    std::int32_t right;
    std::vector<std::uint32_t> words;
  };
  static bool comes_later(const Candidate& a, const Candidate& b) {
    if (a.count != b.count) return a.count < b.count;
    return std::pair(a.left, a.right) > std::pair(b.left, b.right);
  }

  std::int32_t id_of(const std::string& token) {
    const auto [entry, is_new] =
        ids_.try_emplace(token, static_cast<std::int32_t>(result_.tokens.size()));
    if (is_new) result_.tokens.push_back(token);
    return entry->second;
  }

  void add_alphabet() {
    std::vector<std::pair<char32_t, unsigned>> symbols;
    for (unsigned byte = 0; byte < 256; ++byte)
      symbols.emplace_back(byte_symbol(static_cast<unsigned char>(byte)), byte);
    std::sort(symbols.begin(), symbols.end());
    byte_ids_.resize(256);
    for (const auto& [symbol, byte] : symbols) {
      std::string text;
      append_utf8(text, symbol);
      byte_ids_[byte] = id_of(text);
    }
  }

  void push(Candidate candidate) {
    queue_.push_back(std::move(candidate));
    std::push_heap(queue_.begin(), queue_.end(), comes_later);
  }

  void change(std::int32_t left, std::int32_t right, std::int64_t by, std::uint32_t word) {
    const std::uint64_t key = MergeTable::key(left, right);
    pair_counts_[key] += by;
    if (by <= 0) return;
    auto& places = fresh_[key];
    if (places.empty() || places.back() != word) places.push_back(word);
  }

  void push_fresh() {
    for (auto& [key, words] : fresh_) {
      const std::int64_t count = pair_counts_.at(key);
      if (count < 1) continue;
      push({count, static_cast<std::int32_t>(key >> 32), static_cast<std::int32_t>(key),
            std::move(words)});
    }
    fresh_.clear();
  }

  void count_pairs() {
    for (std::uint32_t w = 0; w < words_.size(); ++w) {
      const auto& symbols = words_[w].symbols;
      for (std::size_t i = 0; i + 1 < symbols.size(); ++i)
        change(symbols[i], symbols[i + 1], words_[w].count, w);
    }
    push_fresh();
  }

  void merge(const Candidate& pair) {
    const std::int32_t id = id_of(result_.tokens[static_cast<std::size_t>(pair.left)] +
                                  result_.tokens[static_cast<std::size_t>(pair.right)]);
    result_.merges.emplace_back(pair.left, pair.right);
    for (const std::uint32_t w : pair.words) merge_in_word(pair, id, w);
    push_fresh();
  }

  void merge_in_word(const Candidate& pair, std::int32_t id, std::uint32_t w) {
    auto& symbols = words_[w].symbols;
    const std::int64_t count = words_[w].count;
    std::size_t out = 0;
    for (std::size_t in = 0; in < symbols.size(); ++in) {
      if (in + 1 >= symbols.size() || symbols[in] != pair.left || symbols[in + 1] != pair.right) {
        symbols[out++] = symbols[in];
        continue;
      }
      if (out > 0) {
        change(symbols[out - 1], pair.left, -count, w);
        change(symbols[out - 1], id, count, w);
      }
      symbols[out++] = id;
      ++in;
      if (in + 1 < symbols.size()) {
        change(pair.right, symbols[in + 1], -count, w);
        change(id, symbols[in + 1], count, w);
      }
    }
    symbols.resize(out);
  }

  // A pair that comes up again after its merge (its parts can arise in two ways) is merged again;
  // only the last rank counts, as in Hugging Face's map of merges.
  void drop_repeated_merges() {
    FlatMap<std::size_t> last(result_.merges.size());
    const auto key = [](const auto& pair) { return MergeTable::key(pair.first, pair.second); };
    for (std::size_t i = 0; i < result_.merges.size(); ++i) last.set(key(result_.merges[i]), i);
    std::vector<std::pair<std::int32_t, std::int32_t>> merges;
    for (std::size_t i = 0; i < result_.merges.size(); ++i)
      if (*last.find(key(result_.merges[i])) == i) merges.push_back(result_.merges[i]);
    result_.merges = std::move(merges);
  }

  std::size_t vocab_size_;
  TrainedBpe result_;
  std::unordered_map<std::string, std::int32_t> ids_;
  std::vector<std::int32_t> byte_ids_;
  std::vector<Word> words_;
  std::unordered_map<std::uint64_t, std::int64_t> pair_counts_;
  std::unordered_map<std::uint64_t, std::vector<std::uint32_t>> fresh_;  // since the last push
  std::vector<Candidate> queue_;                                         // a heap
};

std::string quoted(const std::string& text) { return dump_json(nlohmann::json(text)); }

std::string special_token(const std::string& content, std::string_view id) {
  return fmt::format(R"({{{}"content": {}, "single_word": false, "lstrip": false, )"
                     R"("rstrip": false, "normalized": false, "special": true}})",
                     id, quoted(content));
}

std::string trained_json(const TrainOptions& options, const TrainedBpe& trained) {
  std::string json = "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n";
  json += "  \"added_tokens\": [";
  for (std::size_t i = 0; i < options.special_tokens.size(); ++i) {
    json += i == 0 ? "\n    " : ",\n    ";
    json += special_token(options.special_tokens[i], fmt::format("\"id\": {}, ", i));
  }
  constexpr std::string_view kByteLevel =
      R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})";
  json += fmt::format(
      "\n  ],\n  \"normalizer\": null,\n  \"pre_tokenizer\": {0},\n  \"post_processor\": {0},\n"
      "  \"decoder\": {0},\n",
      kByteLevel);
  json +=
      "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n"
      "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n"
      "    \"fuse_unk\": false,\n    \"byte_fallback\": false,\n    \"ignore_merges\": false,\n"
      "    \"vocab\": {";
  for (std::size_t i = 0; i < trained.tokens.size(); ++i)
    json += fmt::format("{}\n      {}: {}", i == 0 ? "" : ",", quoted(trained.tokens[i]), i);
  json += "\n    },\n    \"merges\": [";
  for (std::size_t i = 0; i < trained.merges.size(); ++i) {
    const auto& [left, right] = trained.merges[i];
    json += fmt::format("{}\n      [{}, {}]", i == 0 ? "" : ",",
                        quoted(trained.tokens[static_cast<std::size_t>(left)]),
                        quoted(trained.tokens[static_cast<std::size_t>(right)]));
  }
  return json + "\n    ]\n  }\n}\n";
}

std::string tokenizer_config(const TrainOptions& options) {
  std::string json = "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n";
  if (!options.special_tokens.empty()) {
    const std::string token = quoted(options.special_tokens[0]);
    json +=
        fmt::format("  \"bos_token\": {0},\n  \"eos_token\": {0},\n  \"unk_token\": {0},\n", token);
  }
  json += "  \"added_tokens_decoder\": {";
  for (std::size_t i = 0; i < options.special_tokens.size(); ++i)
    json += fmt::format("{}\n    \"{}\": {}", i == 0 ? "" : ",", i,
                        special_token(options.special_tokens[i], ""));
  return json +
         "\n  },\n  \"clean_up_tokenization_spaces\": false,\n"
         "  \"model_max_length\": 1000000000000000019884624838656\n}\n";
}

}  // namespace

TrainedBpe train_bpe(const TrainOptions& options, const NextText& next_text) {
  const auto smallest = static_cast<std::int64_t>(options.special_tokens.size()) + 256;
  ANABATIC_REQUIRE(options.vocab_size >= smallest && options.vocab_size <= kMaxId,
                   "[tokenizer] expected a vocab_size from {} (special tokens and bytes) to {}, "
                   "got {}",
                   smallest, kMaxId, options.vocab_size);
  for (std::size_t i = 0; i < options.special_tokens.size(); ++i) {
    const auto end = options.special_tokens.begin() + static_cast<std::ptrdiff_t>(i);
    ANABATIC_REQUIRE(
        !options.special_tokens[i].empty() &&
            std::find(options.special_tokens.begin(), end, options.special_tokens[i]) == end,
        "[tokenizer] expected distinct special tokens, got `{}`", options.special_tokens[i]);
  }
  ANABATIC_REQUIRE(options.threads >= 0, "[tokenizer] expected threads >= 0, got {}",
                   options.threads);
  const int threads = options.threads > 0
                          ? options.threads
                          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  TrainedBpe trained = Trainer(options, count_words(next_text, threads)).train();
  if (trained.tokens.size() < static_cast<std::size_t>(options.vocab_size)) {
    log_warning("[tokenizer] the text gives only {} tokens of {}", trained.tokens.size(),
                options.vocab_size);
  }
  return trained;
}

void train_bpe(const TrainOptions& options, std::span<const std::filesystem::path> files,
               const std::filesystem::path& folder) {
  const auto next_text = read_texts(std::vector<std::filesystem::path>(files.begin(), files.end()));
  write_tokenizer(options, train_bpe(options, next_text), folder);
}

void write_tokenizer(const TrainOptions& options, const TrainedBpe& trained,
                     const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  write_file_atomically(folder / "tokenizer_config.json", tokenizer_config(options));
  write_file_atomically(folder / "tokenizer.json", trained_json(options, trained));
}

}  // namespace anabatic::io
