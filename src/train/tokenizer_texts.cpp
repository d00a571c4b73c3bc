// SPDX-License-Identifier: Apache-2.0
#include "train/tokenizer_texts.h"

#include <memory>
#include <string_view>

#include "base/error.h"
#include "io/byte_source.h"
#include "io/data/json_values.h"
#include "io/data/tokenize_files.h"

namespace anabatic::train {
namespace {

class TextStream {
 public:
  explicit TextStream(std::vector<io::DataFile> files) : files_(std::move(files)) {}

  bool next(std::string& text) {
    while (true) {
      if (records_ ? next_document(text) : next_part_ && next_part_(text)) return true;
      records_ = nullptr;
      next_part_ = nullptr;
      if (file_ == files_.size()) return false;
      open(files_[file_++]);
    }
  }

 private:
  void open(const io::DataFile& file) {
    const io::TokenizeOptions options;
    switch (file.format) {
      case io::DataFormat::kText:
        next_part_ = io::read_texts({file.path}, [](const std::filesystem::path& path) {
          return [source = std::make_shared<io::ByteSource>(path)](std::span<char> bytes) {
            return source->read(std::as_writable_bytes(bytes));
          };
        });
        return;
      case io::DataFormat::kJsonLines:
        records_ = std::make_unique<io::LineReader>(file.path, options.max_line_bytes);
        return;
      case io::DataFormat::kJson:
        records_ = std::make_unique<io::JsonValueReader>(file.path, options.max_line_bytes);
        return;
      case io::DataFormat::kTokens:
      case io::DataFormat::kAuto:
        throw InvalidArgument(
            fmt::format("[data] {}: expected text or JSON, got token ids", file.path.string()));
    }
  }

  bool next_document(std::string& text) {
    std::string_view record;
    do {
      if (!records_->next(record)) return false;
    } while (record.find_first_not_of(" \t\r") == std::string_view::npos);
    try {
      text = io::text_of_record(record, io::TokenizeOptions().json_field);
    } catch (const Error& error) {
      throw InvalidArgument(fmt::format("[data] {}:{}: {}", files_[file_ - 1].path.string(),
                                        records_->line_number(), error.what()));
    }
    return true;
  }

  std::vector<io::DataFile> files_;
  std::size_t file_ = 0;  // the next one
  std::unique_ptr<io::RecordReader> records_;
  io::NextText next_part_;
};

}  // namespace

io::NextText texts_of(std::vector<io::DataFile> files) {
  return [texts = std::make_shared<TextStream>(std::move(files))](std::string& text) {
    return texts->next(text);
  };
}

}  // namespace anabatic::train
