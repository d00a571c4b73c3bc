// SPDX-License-Identifier: Apache-2.0
// The swap file and its engine, and what both make of a disk that fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <vector>

#include "anabatic/error.h"
#include "device/memory.h"
#include "runtime/swap/checksum.h"
#include "runtime/swap/swap_space.h"
#include "runtime/swap/window_sums.h"
#include "support/faulty_device.h"

namespace anabatic::runtime::swap {
namespace {

namespace fs = std::filesystem;
using anabatic::testing::Fault;
using anabatic::testing::FaultPlan;
using anabatic::testing::with_fault;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class Swap : public ::testing::Test {
 protected:
  Swap() {
    std::string name = (fs::temp_directory_path() / "anabatic-swap-test-XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
  }
  ~Swap() override { fs::remove_all(directory_); }

  SwapOptions options(DeviceWrapper wrap = {}) const {
    return {.directory = directory_, .wrap_device = std::move(wrap)};
  }

  fs::path directory_;
};

void fill(const device::Memory& memory, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::int64_t i = 0; i + 8 <= memory.bytes(); i += 8) {
    const std::uint64_t value = random();
    std::memcpy(memory.data() + i, &value, 8);
  }
}

bool equal(const device::Memory& a, const device::Memory& b, std::int64_t bytes) {
  return std::memcmp(a.data(), b.data(), static_cast<std::size_t>(bytes)) == 0;
}

// Three states: less than a sector, several blocks, and blocks with an odd end.
constexpr std::int64_t kSizes[] = {100, 3 * kBlockBytes, 2 * kBlockBytes + 5000};

template <class Body>
std::string message_of(Body&& body) {
  try {
    body();
  } catch (const ResourceError& error) {
    return error.what();
  }
  return "no ResourceError";
}

class Checksum : public ::testing::Test {
 protected:
  Checksum() {
    std::mt19937_64 random(7);
    for (std::uint64_t& word : words_) word = random();
  }
  const std::byte* bytes() const { return reinterpret_cast<const std::byte*>(words_.data()); }
  std::uint64_t whole() const { return sum(0, kWords, kFirst); }
  std::uint64_t sum(std::int64_t begin, std::int64_t count, std::int64_t place) const {
    return checksum(bytes() + begin * kWordBytes, count, place);
  }

  static constexpr std::int64_t kWords = 9001, kFirst = 131072;
  std::vector<std::uint64_t> words_ = std::vector<std::uint64_t>(kWords);
};

// Whatever vectors it takes, at any length and place.
TEST_F(Checksum, IsTheSameInEveryRow) {
  for (const std::int64_t count : {0, 1, 3, 4, 15, 16, 17, 511, 8192})
    for (const std::int64_t begin : {0, 1, 8}) {
      const std::byte* data = bytes() + begin * kWordBytes;
      const std::uint64_t want = checksum_portable(data, count, begin + 5);
      EXPECT_EQ(checksum(data, count, begin + 5), want);
#ifdef __x86_64__
      if (__builtin_cpu_supports("avx2")) {
        EXPECT_EQ(checksum_avx2(data, count, begin + 5), want);
      }
#endif
    }
}

TEST_F(Checksum, IsTheSumOfAnyParts) {
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    std::uint64_t sum_of_parts = 0;
    for (std::int64_t at = 0; at < kWords;) {
      const std::int64_t count =
          std::min<std::int64_t>(kWords - at, std::uniform_int_distribution<>(1, 2000)(random));
      sum_of_parts += sum(at, count, kFirst + at);
      at += count;
    }
    EXPECT_EQ(sum_of_parts, whole());
  }
}

TEST_F(Checksum, SeesBitsWordsAndPlaces) {
  const std::uint64_t want = whole();
  // Every bit of some words, alone and with the same bit of another word.
  for (const std::size_t word : {0, 1, 17, 4096, 9000})
    for (int bit = 0; bit < 64; ++bit) {
      words_[word] ^= std::uint64_t{1} << bit;
      EXPECT_NE(whole(), want) << word << ' ' << bit;
      for (const std::size_t other : {2, 18, 4098, 8192}) {
        words_[other] ^= std::uint64_t{1} << bit;
        EXPECT_NE(whole(), want) << word << ' ' << other << ' ' << bit;
        words_[other] ^= std::uint64_t{1} << bit;
      }
      words_[word] ^= std::uint64_t{1} << bit;
    }
  // One stuck in every word, whichever it is.
  for (int bit = 0; bit < 64; ++bit) {
    const std::vector<std::uint64_t> before = words_;
    for (std::uint64_t& word : words_) word |= std::uint64_t{1} << bit;
    EXPECT_NE(whole(), want) << bit;
    words_ = before;
  }
  // Sectors at each other's places, and lost ones.
  std::swap_ranges(words_.begin(), words_.begin() + 512, words_.begin() + 512);
  EXPECT_NE(whole(), want);
  std::swap_ranges(words_.begin(), words_.begin() + 512, words_.begin() + 512);
  EXPECT_EQ(whole(), want);
  EXPECT_NE(sum(0, kWords, kFirst + 512), want);
  std::fill(words_.begin() + 1024, words_.begin() + 1536, 0);
  EXPECT_NE(whole(), want);
}

TEST_F(Swap, GivesBackWhatItTookWithEveryRow) {
  for (const bool uring : {true, false})
    for (const bool direct : {true, false}) {
      SwapOptions with = options();
      with.try_uring = uring;
      with.try_direct = direct;
      SwapSpace space(with);
      SCOPED_TRACE(space.describe());
      std::vector<std::size_t> regions;
      std::vector<device::Memory> written, got;
      for (const std::int64_t bytes : kSizes) {
        regions.push_back(space.add("state", bytes));
        written.emplace_back(round_to_sectors(bytes));
        got.emplace_back(round_to_sectors(bytes));
        fill(written.back(), regions.back() + 1);
        fill(got.back(), 99);
      }
      // Zeroes before the first write.
      for (std::size_t i = 0; i < regions.size(); ++i)
        space.wait(space.read(regions[i], got[i].data()));
      for (std::size_t i = 0; i < regions.size(); ++i)
        EXPECT_TRUE(equal(got[i], device::Memory(got[i].bytes()), got[i].bytes()));
      Ticket last = 0;
      for (std::size_t i = 0; i < regions.size(); ++i) space.write(regions[i], written[i].data());
      for (std::size_t i = 0; i < regions.size(); ++i) last = space.read(regions[i], got[i].data());
      space.wait(last);
      for (std::size_t i = 0; i < regions.size(); ++i)
        EXPECT_TRUE(equal(got[i], written[i], kSizes[i])) << i;
      EXPECT_EQ(space.stats().written_bytes, space.file_bytes());
    }
}

// Pages that the device knows, those that it no longer may know, and pieces that lie in both.
TEST_F(Swap, MovesWhatIsPinnedAndWhatIsNot) {
  SwapSpace space(options());
  constexpr std::int64_t kBytes = 20 * kBlockBytes;
  const std::size_t region = space.add("state", kBytes);
  device::Memory got(kBytes), other(kBytes);
  for (std::uint64_t round = 0; round < 4; ++round) {
    device::Memory written(kBytes);  // at the same place again, in other pages
    const std::span<std::byte> all(written.data(), static_cast<std::size_t>(kBytes));
    const std::span<std::byte> pinned =
        round % 2 == 0 ? all : all.subspan(3 * kSectorBytes, 7 * kBlockBytes);
    fill(written, round);
    space.pin(pinned);
    space.pin({other.data(), static_cast<std::size_t>(kBytes)});
    space.write(region, written.data());
    space.read(region, other.data());
    space.wait(space.read(region, got.data()));
    EXPECT_TRUE(equal(got, written, kBytes)) << round;
    EXPECT_TRUE(equal(other, written, kBytes)) << round;
    space.unpin(pinned);
    space.unpin({other.data(), static_cast<std::size_t>(kBytes)});
  }
}

TEST_F(Swap, LeavesNoFileBehind) {
  SwapSpace space(options());
  space.add("state", 1 << 20);
  EXPECT_TRUE(fs::is_empty(directory_));
}

// Order of the queue: a read into bytes that a write still needs must not overtake it.
TEST_F(Swap, KeepsTheOrderOfTheQueue) {
  SwapSpace space(options(with_fault({Fault::kSlow})));
  const std::size_t a = space.add("a", 4 * kBlockBytes), b = space.add("b", 4 * kBlockBytes);
  device::Memory window(4 * kBlockBytes), want(4 * kBlockBytes), other(4 * kBlockBytes);
  fill(other, 2);
  space.wait(space.write(b, other.data()));
  fill(window, 1);
  fill(want, 1);
  space.write(a, window.data());
  space.wait(space.read(b, window.data()));
  EXPECT_TRUE(equal(window, other, window.bytes()));
  space.wait(space.read(a, window.data()));
  EXPECT_TRUE(equal(window, want, window.bytes()));
}

TEST_F(Swap, MovesAnyBytesOfARegion) {
  SwapSpace space(options());
  const std::int64_t bytes = 9 * kBlockBytes + 12345;
  space.add("other", 5000);
  const std::size_t region = space.add("state", bytes);
  std::vector<std::byte> want(static_cast<std::size_t>(bytes)), got(want.size());
  std::mt19937_64 random(3);
  for (int i = 0; i < 40; ++i) {
    const std::size_t first = random() % want.size(),
                      count = random() % (i % 4 == 0 ? want.size() : 5000) % (want.size() - first);
    for (std::size_t j = first; j < first + count; ++j) want[j] = static_cast<std::byte>(random());
    space.write_bytes(region, static_cast<std::int64_t>(first),
                      std::span(want).subspan(first, count));
  }
  for (std::size_t first = 0, count = 1; first < got.size(); first += count, count = count * 3 + 7)
    space.read_bytes(region, static_cast<std::int64_t>(first),
                     std::span(got).subspan(first, std::min(count, got.size() - first)));
  EXPECT_TRUE(got == want);
  got.resize(got.size() + 5000);
  EXPECT_THROW(space.read_bytes(region, 0, got), InternalError);
}

TEST_F(Swap, GoesOnAfterShortTransfersAndOnASlowDisk) {
  for (const Fault fault : {Fault::kShort, Fault::kSlow})
    for (const bool on_write : {false, true}) {
      SwapSpace space(options(with_fault({fault, on_write, 2})));
      const std::size_t region = space.add("state", kSizes[2]);
      device::Memory written(round_to_sectors(kSizes[2])), got(round_to_sectors(kSizes[2]));
      fill(written, 4);
      space.write(region, written.data());
      space.wait(space.read(region, got.data()));
      EXPECT_TRUE(equal(got, written, kSizes[2]));
    }
}

struct Case {
  FaultPlan plan;
  const char* found;
};

TEST_F(Swap, NamesRegionOffsetAndFaultAndKeepsTheFirstError) {
  for (const auto& [plan, found] :
       {Case{{Fault::kError, false, 4, EIO}, "Input/output error"},
        Case{{Fault::kError, true, 4, ENOSPC}, "No space left on device"},
        Case{{Fault::kFlip, false, 4, 0, true}, "of checksum"},
        Case{{Fault::kVanish, false, 4}, "0 bytes, then the end"}}) {
    SCOPED_TRACE(found);
    SwapSpace space(options(with_fault(plan)));
    device::Memory buffer(3 * kBlockBytes);
    fill(buffer, 5);
    std::vector<std::size_t> regions;
    for (int i = 0; i < 3; ++i)
      regions.push_back(space.add("moment." + std::to_string(i), 3 << 20));
    for (const std::size_t region : regions) space.write(region, buffer.data());
    for (const std::size_t region : regions) space.read(region, buffer.data());
    const std::string message = message_of([&] { space.wait_all(); });
    // The fifth block that moves is one of the second region, whichever of them ends first.
    EXPECT_THAT(message, AllOf(HasSubstr(directory_.string()), HasSubstr("moment.1"),
                               AnyOf(HasSubstr("offset 3145728"), HasSubstr("offset 4194304"),
                                     HasSubstr("offset 5242880")),
                               HasSubstr("expected"), HasSubstr(found)));
    EXPECT_EQ(message_of([&] { space.wait(space.read(regions[0], buffer.data())); }), message);
    std::byte one[1];
    EXPECT_EQ(message_of([&] { space.read_bytes(regions[0], 0, one); }), message);
    space.finish();
  }
}

// A region whose words its caller sums, with a part of a sector and of a word after them.
TEST_F(Swap, TakesChecksumsOfItsCaller) {
  constexpr std::int64_t kState = 2 * kBlockBytes + 1004;
  for (const bool flips : {false, true}) {
    SwapSpace space(
        options(flips ? with_fault({Fault::kFlip, false, 1, 0, true}) : DeviceWrapper{}));
    const std::size_t region = space.add("moment", kState);
    device::Memory buffer(space.region_bytes(region));
    WindowSums sums(buffer.data(), kState, buffer.bytes());
    // Zeroes at first, whose checksums nothing has noted.
    space.wait(space.read_unchecked(region, buffer.data()));
    sums.begin();
    sums.add_read(0, kState);
    fill(buffer, 5);
    sums.add_written(kBlockBytes / 2, kState - kBlockBytes / 2);
    sums.add_written(0, kBlockBytes / 2);
    sums.end();
    space.check(region, sums.read());
    space.wait(space.write_summed(region, buffer.data(), sums.written()));

    // What the engine reads itself has those checksums.
    if (!flips) space.wait(space.read(region, buffer.data()));
    space.wait(space.read_unchecked(region, buffer.data()));
    sums.begin();
    sums.add_read(0, kState);
    const std::string message = message_of([&] { space.check(region, sums.read()); });
    if (!flips) {
      EXPECT_EQ(message, "no ResourceError");
      continue;
    }
    EXPECT_THAT(message, AllOf(HasSubstr("moment"), HasSubstr("of checksum")));
    EXPECT_EQ(message_of([&] { space.wait_all(); }), message);
    space.finish();
  }
}

TEST_F(Swap, MissesWordsThatItWasNotToldOf) {
  device::Memory buffer(kSectorBytes);
  fill(buffer, 5);
  WindowSums sums(buffer.data(), 1000, kSectorBytes);
  sums.begin();
  sums.add(0, 992, 0, 0);
  sums.end();
  EXPECT_THROW(sums.read(), InternalError);
  EXPECT_THROW(sums.written(), InternalError);
}

TEST_F(Swap, GivesUpOnADiskThatDoesNotAnswer) {
  SwapOptions with = options(with_fault({Fault::kSlow}));  // 2 ms a transfer
  with.patience_seconds = 1e-4;
  SwapSpace space(with);
  device::Memory buffer(16 * kBlockBytes);
  const std::size_t region = space.add("moment", buffer.bytes());
  EXPECT_THAT(message_of([&] { space.wait(space.write(region, buffer.data())); }),
              AllOf(HasSubstr("moment: expected to write 16.00 MiB within"),
                    HasSubstr("found the transfer still in progress")));
  EXPECT_NE(message_of([&] { space.wait_all(); }), "no ResourceError");
  space.finish();
}

TEST_F(Swap, RefusesADirectoryThatItCannotWriteTo) {
  const fs::path file = directory_ / "file";
  std::ofstream(file) << "x";
  SwapOptions with = options();
  with.directory = file / "below";
  EXPECT_THAT(message_of([&] { SwapSpace space(with); }),
              AllOf(HasSubstr("[swap] expected to make a file in"), HasSubstr("file/below"),
                    HasSubstr("Not a directory")));
}

TEST_F(Swap, RefusesMoreThanTheDiskHasBeforeAnythingMoves) {
  SwapSpace space(options());
  EXPECT_THAT(message_of([&] { space.add("huge", std::int64_t{1} << 50); }),
              AllOf(HasSubstr("room for 1024.00 TiB more"), HasSubstr("huge")));
}

}  // namespace
}  // namespace anabatic::runtime::swap
