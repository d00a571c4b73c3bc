// SPDX-License-Identifier: Apache-2.0
// Documents in JSON: one value a line, or the elements of an array, or values one after the other.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "io/byte_source.h"

namespace anabatic::io {

// Gives the text of JSON values one at a time; errors name file:line.
class RecordReader {
 public:
  virtual ~RecordReader() = default;
  // False at the end. The view lives until the next call.
  virtual bool next(std::string_view& record) = 0;
  // Where the record that was returned last begins; from 1.
  virtual std::int64_t line_number() const = 0;
};

// A file line by line, without "\n" or "\r\n"; holds one line and a buffer. InvalidArgument if a
// line is longer than max_bytes.
class LineReader : public RecordReader {
 public:
  LineReader(const std::filesystem::path& path, std::int64_t max_bytes);

  bool next(std::string_view& line) override;
  std::int64_t line_number() const override { return line_number_; }

 private:
  ByteSource source_;
  std::string buffer_;
  std::size_t position_ = 0;
  std::int64_t max_bytes_;
  std::int64_t line_number_ = 0;
  bool at_end_ = false;
};

// The elements of the array that a file holds, or its values where it does not begin with one;
// holds one value and a buffer. Values are cut by brackets and quotes alone: what is between them
// is for a parser to judge. InvalidArgument if a value is longer than max_bytes, where a comma or
// the end of the array is missing, and if anything follows that.
class JsonValueReader : public RecordReader {
 public:
  JsonValueReader(const std::filesystem::path& path, std::int64_t max_bytes);

  bool next(std::string_view& value) override;
  std::int64_t line_number() const override { return value_line_; }

 private:
  int peek();                // the next byte that is no white space; -1 at the end
  bool fill();               // false when there is nothing more
  void advance();            // past one byte, counting lines
  std::size_t value_size();  // of the value at position_, which it loads into the buffer
  [[noreturn]] void fail(std::string_view expected, int got) const;

  ByteSource source_;
  std::string buffer_;
  std::size_t position_ = 0;
  std::int64_t max_bytes_;
  std::int64_t line_ = 1, value_line_ = 0;
  bool at_end_ = false, has_begun_ = false, is_array_ = false, is_closed_ = false;
};

// The string at `field` of a JSON object. InvalidArgument says what was expected there and which
// fields the object has.
std::string text_of_record(std::string_view record, const std::string& field);

}  // namespace anabatic::io
