// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/word_counter.h"

#include <algorithm>
#include <exception>
#include <fstream>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "io/tokenizer/pre_tokenizer.h"
#include "io/tokenizer/tokenizer.h"
#include "io/tokenizer/unicode.h"

namespace anabatic::io {
namespace tokenizer {
namespace {

struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>()(text);
  }
};
using Counts = std::unordered_map<std::string, std::int64_t, TextHash, std::equal_to<>>;

PreTokenizers byte_level_pre_tokenizer() {
  const nlohmann::json json{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  return PreTokenizers(JsonNode(json, "[tokenizer]", "pre_tokenizer"));
}

// Reads files one after the other and cuts what it read at safe places.
class TextReader {
 public:
  TextReader(std::vector<std::filesystem::path> files, OpenText open)
      : files_(std::move(files)), open_(std::move(open)) {}

  bool next(std::string& text) {
    for (;;) {
      if (!read_ && !open_next()) return false;
      if (!is_at_end_) fill();
      if (pending_.empty()) {
        read_ = nullptr;
        continue;
      }
      std::size_t size = is_at_end_ ? pending_.size() : cut();
      if (size == 0 && pending_.size() < kLimit_bytes) {
        wanted_ = pending_.size() + kChunk_bytes;
        continue;
      }
      if (size == 0) size = previous_character(pending_, pending_.size());
      text.assign(pending_, 0, size);
      check(text);
      pending_.erase(0, size);
      offset_ += size;
      wanted_ = kChunk_bytes;
      return true;
    }
  }

 private:
  static constexpr std::size_t kChunk_bytes = 1 << 20;
  static constexpr std::size_t kLimit_bytes = 16 << 20;  // a text without any safe place

  bool open_next() {
    if (index_ == files_.size()) return false;
    const auto& file = files_[index_++];
    read_ = open_(file);
    offset_ = 0;
    is_at_end_ = false;
    wanted_ = kChunk_bytes;
    return true;
  }

  void fill() {
    const std::size_t before = pending_.size();
    if (before >= wanted_) return;
    pending_.resize(wanted_);
    pending_.resize(before + read_(std::span(pending_).subspan(before)));
    is_at_end_ = pending_.size() < wanted_;
  }

  // The last line feed, or else the last space, that follows a character other than white space: no
  // word of the pre-tokenization crosses it.
  std::size_t cut() const {
    for (const char separator : {'\n', ' '}) {
      for (std::size_t at = pending_.rfind(separator); at != std::string::npos && at > 0;
           at = pending_.rfind(separator, at - 1)) {
        std::size_t length = 0;
        const std::size_t before = previous_character(pending_, at);
        if (before + utf8_length(static_cast<unsigned char>(pending_[before])) == at &&
            !is_whitespace(decode_utf8(pending_, before, length)))
          return at;
      }
    }
    return 0;
  }

  void check(const std::string& text) const {
    const auto bad = find_invalid_utf8(text);
    ANABATIC_REQUIRE(!bad, "[tokenizer] {}: expected UTF-8, got the byte 0x{:02X} at offset {}",
                     files_[index_ - 1].string(), static_cast<unsigned char>(text[*bad]),
                     offset_ + *bad);
  }

  std::vector<std::filesystem::path> files_;
  std::size_t index_ = 0;  // of the next file
  OpenText open_;
  ReadText read_;
  std::string pending_;
  std::size_t wanted_ = kChunk_bytes;
  std::size_t offset_ = 0;  // of pending_ in the file
  bool is_at_end_ = false;
};

}  // namespace

std::vector<std::pair<std::string, std::int64_t>> count_words(const NextText& next_text,
                                                              int threads) {
  const PreTokenizers pre_tokenizer = byte_level_pre_tokenizer();
  std::mutex mutex;  // guards next_text, total and failure
  Counts total;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      Counts counts;
      CutScratch scratch;
      std::string text;
      const NextStage::TakeWord take_word = [&](std::string_view word) {
        const auto found = counts.find(word);
        if (found != counts.end())
          ++found->second;
        else
          counts.emplace(word, 1);
      };
      for (;;) {
        {
          const std::lock_guard lock(mutex);
          if (failure || !next_text(text)) break;
        }
        pre_tokenizer.cut({text, Start::kInput}, scratch, take_word);
      }
      const std::lock_guard lock(mutex);
      for (const auto& [word, count] : counts) total[word] += count;
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  std::vector<std::thread> team;
  for (int i = 1; i < threads; ++i) team.emplace_back(work);
  work();
  for (std::thread& thread : team) thread.join();
  if (failure) std::rethrow_exception(failure);
  std::vector<std::pair<std::string, std::int64_t>> words(total.begin(), total.end());
  std::sort(words.begin(), words.end());
  return words;
}

}  // namespace tokenizer

NextText read_texts(std::vector<std::filesystem::path> files, const OpenText& open) {
  const auto reader = std::make_shared<tokenizer::TextReader>(std::move(files), open);
  return [reader](std::string& text) { return reader->next(text); };
}

NextText read_texts(std::vector<std::filesystem::path> files) {
  return read_texts(std::move(files), [](const std::filesystem::path& file) -> ReadText {
    const auto stream = std::make_shared<std::ifstream>(file, std::ios::binary);
    if (!*stream || std::filesystem::is_directory(file))
      throw ResourceError(fmt::format("[tokenizer] cannot read the text {}", file.string()));
    return [stream](std::span<char> bytes) {
      stream->read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
      return static_cast<std::size_t>(stream->gcount());
    };
  });
}

}  // namespace anabatic::io
