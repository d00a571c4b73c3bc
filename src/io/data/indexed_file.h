// SPDX-License-Identifier: Apache-2.0
// Megatron's indexed token files: PREFIX.bin holds token ids back to back, PREFIX.idx where each
// sequence and document lies. Layout of .idx, little-endian: "MMIDIDX\0\0", u64 version 1, u8 dtype
// code, u64 sequences, u64 document indices, i32 sequence lengths, i64 byte pointers, i64 document
// indices (the first sequence of each document, then the count of sequences).
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "io/data/pair_pool.h"
#include "io/file.h"

namespace anabatic::io {

// Megatron's dtype numbers. kFloat64 = 6 and kFloat32 = 7 exist there but hold no token ids.
enum class TokenType : std::uint8_t {
  kUint8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kUint16 = 8
};
inline constexpr std::array kIndexMagic = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};

std::int64_t size_bytes(TokenType type);

// Megatron's choice: uint16 if vocab_size < 65500, else int32.
TokenType token_type_for(std::int64_t vocab_size);

struct IndexedPaths {
  std::filesystem::path bin, idx;
};

// PREFIX.bin for PREFIX and ".bin".
std::filesystem::path with_suffix(const std::filesystem::path& prefix, const char* suffix);

// The pair that PREFIX, PREFIX.bin or PREFIX.idx names, with suffixes in any case; none where one
// of both is missing, or where PREFIX itself is a file.
std::optional<IndexedPaths> indexed_pair(const std::filesystem::path& path);

// Read access to one pair of files, which `PairPool` opens when they are read. The index is checked
// whole at first (lengths, pointers back to back as Megatron writes them, the size of .bin); one
// number for every 512 documents stays in memory. ResourceError when a file has changed or gone
// since. Const members are thread-safe.
class IndexedFile {
 public:
  // `prefix` without ".bin"/".idx". InvalidArgument for a bad index, ResourceError if unreadable.
  explicit IndexedFile(const std::filesystem::path& prefix);
  explicit IndexedFile(const IndexedPaths& paths);

  std::int64_t num_tokens() const { return num_tokens_; }
  // An index without document ends (document indices: only 0) counts each sequence as a document.
  std::int64_t num_documents() const { return num_documents_; }
  TokenType type() const { return type_; }
  const std::filesystem::path& bin_path() const { return pair_->bin; }
  const FileStamp& bin_stamp() const { return pair_->bin_stamp; }

  // Position of the document's first token among all tokens; num_tokens() for num_documents().
  std::int64_t document_begin(std::int64_t document) const;
  // Begins of documents first, first + 1, ...; one or two reads for some hundred of them.
  void document_begins(std::int64_t first, std::span<std::int64_t> begins) const;
  // The document that holds this token.
  std::int64_t document_of(std::int64_t token) const;
  // Tokens [begin, begin + count) as they lie in .bin; out.size() == count * size_bytes(type()).
  void read_raw(std::int64_t begin, std::span<std::byte> out) const;
  // Tokens [begin, begin + ids.size()); `scratch` holds at least ids.size() * size_bytes(type()).
  void read(std::int64_t begin, std::span<std::int64_t> ids, std::span<std::byte> scratch) const;

 private:
  void read_header();
  void check_sequences();
  void check_documents();
  void mark_documents();

  struct Forget {
    void operator()(PooledPair* pair) const {
      PairPool::instance().forget(*pair);
      delete pair;
    }
  };

  std::unique_ptr<PooledPair, Forget> pair_;
  TokenType type_ = TokenType::kInt32;
  std::int64_t num_sequences_ = 0;
  std::int64_t num_document_indices_ = 0;
  std::int64_t num_documents_ = 0;
  std::int64_t num_tokens_ = 0;
  bool is_document_a_sequence_ = true;  // document d is sequence d
  std::vector<std::int64_t> marks_;     // the begin of every 512th document
};

// Writes one pair of files, one sequence a document, byte for byte as Megatron's builder does. The
// files appear under their names in finish(); before that they end in ".partial". Memory: one
// buffer and four bytes a document.
class IndexedFileWriter {
 public:
  // Without `is_durable` it does not wait for the disk: for files that can be rebuilt.
  IndexedFileWriter(const std::filesystem::path& prefix, TokenType type, bool is_durable = true);
  ~IndexedFileWriter();  // removes what finish() has not completed
  IndexedFileWriter(const IndexedFileWriter&) = delete;
  IndexedFileWriter& operator=(const IndexedFileWriter&) = delete;

  // Adds tokens to the open document. InvalidArgument if an id does not fit the type.
  void append(std::span<const std::int32_t> ids);
  void end_document();
  void finish();

  std::int64_t num_documents() const { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t num_tokens() const { return num_tokens_; }

 private:
  void flush();
  void write_index();

  std::filesystem::path prefix_;
  TokenType type_;
  bool is_durable_;
  File bin_;
  std::vector<std::byte> buffer_;
  std::vector<std::int32_t> lengths_;
  std::int64_t num_tokens_ = 0;
  std::int64_t open_tokens_ = 0;  // of the open document
  bool finished_ = false;
};

}  // namespace anabatic::io
