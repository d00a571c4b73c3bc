// SPDX-License-Identifier: Apache-2.0
// What names and shapes of many file tensors take while weights are read and written, against what
// a plan books for them.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "model/weights.h"
#include "support/tiny_run.h"
#include "train/memory_account.h"

namespace {

std::atomic<std::int64_t> live_bytes = 0, most_bytes = 0;

constexpr std::int64_t kBytesBesideABlock = 8;  // of the heap

void add(std::int64_t bytes) {
  const std::int64_t now = live_bytes += bytes;
  std::int64_t most = most_bytes;
  while (now > most && !most_bytes.compare_exchange_weak(most, now)) {
  }
}

void release(void* memory) {
  if (memory == nullptr) return;
  add(-static_cast<std::int64_t>(malloc_usable_size(memory)) - kBytesBesideABlock);
  std::free(memory);
}

}  // namespace

// std::stable_sort takes this one.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory != nullptr)
    add(static_cast<std::int64_t>(malloc_usable_size(memory)) + kBytesBesideABlock);
  return memory;
}
void* operator new(std::size_t size) {
  if (void* memory = operator new(size, std::nothrow)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }

namespace anabatic::train {
namespace {

constexpr std::int64_t kLayers = 24, kExperts = 128;

// The largest number of bytes that `body` held at once, in addition to those held before it.
template <class Body>
std::int64_t most_bytes_of(Body&& body) {
  const std::int64_t before = live_bytes;
  most_bytes = before;
  body();
  return most_bytes - before;
}

TEST(FileTensors, TakeWhatThePlanBooksWhileTheyAreReadAndWritten) {
  const testing::TemporaryDirectory folder;
  const auto directory =
      testing::write_tiny_config(folder.path(),
                                 "\"num_hidden_layers\": 24, \"num_local_experts\": 128, "
                                 "\"hidden_size\": 8, \"intermediate_size\": 2");
  const model::ModelConfig config = model::load_config(directory);
  model::WeightMap map;
  const std::int64_t written = most_bytes_of([&] {
    map = model::make_weight_map(config);
    model::export_weights(map, directory, model::SaveDType::kSource,
                          [](std::string_view, std::int64_t, std::span<float> values) {
                            std::fill(values.begin(), values.end(), 0.5f);
                          });
  });
  const auto num_tensors = static_cast<std::int64_t>(map.tensors.size());
  ASSERT_GT(num_tensors, 3 * kLayers * kExperts);
  map = {};
  const std::int64_t read = most_bytes_of([&] {
    map = model::import_weights(config, directory,
                                [](std::string_view, std::int64_t, std::span<const float>) {});
  });
  const std::int64_t booked = num_tensors * kBytesAFileTensor;
  EXPECT_LE(written, booked + kStagingBytes);
  EXPECT_LE(read, booked + kStagingBytes);
  EXPECT_GE(3 * std::max(written, read), booked) << "far less is taken than is booked";
}

}  // namespace
}  // namespace anabatic::train
