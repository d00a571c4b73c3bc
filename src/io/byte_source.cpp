// SPDX-License-Identifier: Apache-2.0
#include "io/byte_source.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"

namespace anabatic::io {
namespace {

constexpr std::size_t kInputBytes = std::size_t{1} << 18;
constexpr int kGzipWindow = 15 + 16;  // zlib's way to say the largest window, in gzip's wrapping

}  // namespace

struct ByteSource::Inflater {
  z_stream stream{};
  std::vector<std::byte> input = std::vector<std::byte>(kInputBytes);
  bool is_in_member = false, has_begun = false;

  Inflater() {
    if (inflateInit2(&stream, kGzipWindow) != Z_OK)
      throw ResourceError("[gzip] zlib cannot begin to decompress: out of memory?");
  }
  ~Inflater() { inflateEnd(&stream); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  void refill(const File& file, std::int64_t& offset) {
    const std::size_t count = file.read_some_at(offset, input);
    offset += static_cast<std::int64_t>(count);
    stream.next_in = reinterpret_cast<Bytef*>(input.data());
    stream.avail_in = static_cast<uInt>(count);
  }

  // Is there another member? Zeros between this place and the end are padding.
  bool begin_member() {
    while (has_begun && stream.avail_in > 0 && *stream.next_in == 0) {
      ++stream.next_in;
      --stream.avail_in;
    }
    if (stream.avail_in == 0) return false;
    inflateReset(&stream);
    is_in_member = has_begun = true;
    return true;
  }
};

bool has_gzip_magic(std::span<const std::byte> head) {
  constexpr std::array kMagic = {std::byte{0x1F}, std::byte{0x8B}, std::byte{8}};
  return head.size() >= kMagic.size() && std::equal(kMagic.begin(), kMagic.end(), head.begin());
}

ByteSource::ByteSource(const std::filesystem::path& path) : file_(File::open(path)) {
  std::array<std::byte, 4> head;
  const std::size_t count = file_.read_some_at(0, head);
  if (has_gzip_magic(std::span(head).first(count))) inflater_ = std::make_unique<Inflater>();
}

ByteSource::ByteSource(ByteSource&&) noexcept = default;
ByteSource& ByteSource::operator=(ByteSource&&) noexcept = default;
ByteSource::~ByteSource() = default;

std::size_t ByteSource::read(std::span<std::byte> bytes) {
  if (inflater_ == nullptr) {
    const std::size_t count = file_.read_some_at(offset_, bytes);
    offset_ += static_cast<std::int64_t>(count);
    return count;
  }
  z_stream& stream = inflater_->stream;
  std::size_t done = 0;
  while (done < bytes.size()) {
    if (stream.avail_in == 0) inflater_->refill(file_, offset_);
    if (!inflater_->is_in_member && !inflater_->begin_member()) {
      if (offset_ >= file_.size()) break;
      continue;  // padding up to the end of the input buffer
    }
    ANABATIC_REQUIRE(stream.avail_in > 0,
                     "[gzip] {}: expected more compressed data, got the end of the file at byte "
                     "{}; was it copied whole?",
                     path().string(), offset_);
    const std::size_t room = std::min<std::size_t>(bytes.size() - done, std::size_t{1} << 30);
    stream.next_out = reinterpret_cast<Bytef*>(bytes.data() + done);
    stream.avail_out = static_cast<uInt>(room);
    const int status = inflate(&stream, Z_NO_FLUSH);
    done += room - stream.avail_out;
    if (status == Z_STREAM_END) inflater_->is_in_member = false;
    if (status == Z_MEM_ERROR)
      throw ResourceError(fmt::format("[gzip] {}: out of memory", path().string()));
    ANABATIC_REQUIRE(status == Z_OK || status == Z_STREAM_END || status == Z_BUF_ERROR,
                     "[gzip] {}: expected gzip data, got damaged ones at byte {} ({})",
                     path().string(), offset_ - static_cast<std::int64_t>(stream.avail_in),
                     stream.msg != nullptr ? stream.msg : "unknown");
  }
  return done;
}

std::size_t append_part(ByteSource& source, std::string& buffer) {
  const std::size_t held = buffer.size();
  buffer.resize(held + kPartBytes);
  const std::size_t count = source.read(std::as_writable_bytes(std::span(buffer).subspan(held)));
  buffer.resize(held + count);
  return count;
}

}  // namespace anabatic::io
