// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of a test, or as processes.
#pragma once
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/local_transport.h"
#include "comm/mpi_world.h"

namespace anabatic::testing {

struct RanksOptions {
  comm::CommunicatorOptions communicator{.patience_seconds = 60};
  std::function<std::unique_ptr<comm::Transport>(std::unique_ptr<comm::Transport>)> wrap{};
  comm::MpiWorld* mpi = nullptr;  // ranks are its processes, all of which call run_ranks
  comm::MpiTransportOptions transport{};
};

// Runs a body on every rank; returns what each threw, empty for none. A rank that throws aborts the
// others. A process knows of its own rank alone.
inline std::vector<std::string> run_ranks(std::int32_t num_ranks, const RanksOptions& options,
                                          const std::function<void(comm::Communicator&)>& body) {
  std::vector<std::unique_ptr<comm::Transport>> transports;
  if (options.mpi == nullptr)
    transports = comm::local_transports(num_ranks);
  else
    transports.push_back(options.mpi->make_transport(options.transport));
  std::vector<std::string> errors(transports.size());
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < transports.size(); ++rank)
    threads.emplace_back([&, rank] {
      auto transport = std::move(transports[rank]);
      if (options.wrap) transport = options.wrap(std::move(transport));
      comm::Communicator communicator(std::move(transport), options.communicator);
      try {
        body(communicator);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
        communicator.abort(error.what());
      }
    });
  threads.clear();
  return errors;
}

// Runs a body that may throw while exchanges are under way in buffers of the caller's.
inline void or_abort(comm::Communicator& communicator, const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    communicator.abort(error.what());
    throw;
  }
}

// Bytes aligned as a workspace is.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::int64_t bytes) : lines_(static_cast<std::size_t>(bytes + 63) / 64) {}
  std::byte* data() { return lines_.empty() ? nullptr : lines_.front().bytes; }
  std::span<std::byte> span() { return {data(), lines_.size() * 64}; }

 private:
  struct alignas(64) Line {
    std::byte bytes[64]{};
  };
  std::vector<Line> lines_;
};

}  // namespace anabatic::testing
