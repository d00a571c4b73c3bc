// SPDX-License-Identifier: Apache-2.0
#include "bench/exchange_benchmark.h"

#include <algorithm>
#include <array>
#include <barrier>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <thread>

#include "base/error.h"
#include "bench/benchmark.h"
#include "comm/communicator.h"
#include "comm/local_transport.h"
#include "comm/methods.h"
#include "comm/mpi_blocking.h"
#include "comm/mpi_world.h"
#include "device/clock.h"
#include "train/ranks/measured_exchanges.h"

namespace anabatic::bench {
namespace {

using comm::ExchangeKind;
using comm::Method;

constexpr std::array<std::int64_t, 3> kMib{1, 16, 64};
constexpr std::array kExchangeKinds{ExchangeKind::kReduceScatter, ExchangeKind::kAllGather,
                                    ExchangeKind::kAllReduce, ExchangeKind::kExchangeRows};
constexpr std::int64_t kTimedBytes = 16 << 20;  // small exchanges repeat until so much has moved
constexpr std::int64_t kCopyBytes = 64 << 20;
constexpr std::int64_t kMostRanks = 64;
// A rank awaits what it posts, so it moves all bytes. A helper would wake at every post.
constexpr comm::CommunicatorOptions kOptions{.has_helper = false};

// Integers of which a sum over all ranks is exact.
float value(std::int64_t rank, std::int64_t at) {
  return static_cast<float>((at * 7 + rank * 13) % 17 - 8);
}

struct FreeLines {
  void operator()(std::byte* lines) const { ::operator delete[](lines, std::align_val_t(64)); }
};

// What one rank sees: its communicator, and a place to wait for the others.
class Rank {
 public:
  Rank(comm::Communicator& communicator, std::function<void()> barrier, bool has_mpi,
       std::int64_t most_bytes)
      : communicator_(communicator),
        barrier_(std::move(barrier)),
        has_mpi_(has_mpi),
        input_(static_cast<std::size_t>(most_bytes) / sizeof(float)),
        output_(input_.size()) {
    for (std::int32_t rank = 0; rank < size(); ++rank) group_.push_back(rank);
    const auto bytes = static_cast<std::size_t>(
        std::max(comm::workspace_bytes(size()), comm::workspace_bytes(size(), Method::kMpi)));
    workspace_ = {new (std::align_val_t(64)) std::byte[bytes], bytes};
    lines_.reset(workspace_.data());
  }

  // An error ends all ranks before the memory of this one goes.
  void run(ExchangeResult& result) {
    try {
      run_rounds(result);
    } catch (const std::exception& error) {
      communicator_.abort(error.what());
      throw;
    }
  }

 private:
  void run_rounds(ExchangeResult& result) {
    std::vector<double> copies;
    std::vector<std::vector<double>> ours(result.rows.size()), methods = ours, theirs = ours,
                                                               ratios = ours, shares = ours;
    for (std::int64_t round = 0; round <= result.num_rounds; ++round) {
      const double copy_rate = 2.0 * kCopyBytes / timed(1, [&] { copy(); });
      const bool is_counted = round > 0;  // the first one met cold pages and connections
      if (is_counted) copies.push_back(copy_rate);
      for (std::size_t i = 0; i < result.rows.size(); ++i) {
        const ExchangeRow& row = result.rows[i];
        const ExchangeKind kind = kExchangeKinds[i % kExchangeKinds.size()];
        const std::int64_t count = elements_a_rank(row.bytes);
        if (!is_counted && result.is_checked) {
          check(kind, Method::kOrdered, count);
          if (has_mpi_) check(kind, Method::kMpi, count);
        }
        const std::int64_t repeats = std::max<std::int64_t>(kTimedBytes / row.bytes, 1);
        double mine = 0, method = 0, mpi = 0;
        for (std::int64_t turn = round; turn < round + 3; ++turn) {  // each goes first in turn
          if (turn % 3 == 0)
            mine = timed(repeats, [&] { exchange(kind, Method::kOrdered, count); });
          if (!has_mpi_) continue;
          if (turn % 3 == 1) method = timed(repeats, [&] { exchange(kind, Method::kMpi, count); });
          if (turn % 3 == 2) mpi = timed(repeats, [&] { call_mpi(kind, count); });
        }
        if (!is_counted) continue;
        ours[i].push_back(mine);
        methods[i].push_back(method);
        theirs[i].push_back(mpi);
        ratios[i].push_back(mpi / mine);
        shares[i].push_back(row.touched_bytes / copy_rate / mine);
      }
    }
    result.copy_bytes_per_second = median(std::move(copies));
    for (std::size_t i = 0; i < result.rows.size(); ++i) {
      result.rows[i].seconds = median(std::move(ours[i]));
      result.rows[i].method_seconds = median(std::move(methods[i]));
      result.rows[i].mpi_seconds = median(std::move(theirs[i]));
      result.rows[i].ratio = median(std::move(ratios[i]));
      result.rows[i].copy_share = median(std::move(shares[i]));
    }
  }

  std::int32_t rank() const { return communicator_.rank(); }
  std::int32_t size() const { return communicator_.size(); }
  std::int64_t elements_a_rank(std::int64_t bytes) const {
    return bytes / static_cast<std::int64_t>(sizeof(float)) / size();
  }

  // Seconds of one repetition, from when all begin to when all have ended.
  template <class F>
  double timed(std::int64_t repeats, const F& work) const {
    barrier_();
    const std::int64_t begin = device::wall_nanoseconds();
    for (std::int64_t i = 0; i < repeats; ++i) work();
    barrier_();
    return 1e-9 * static_cast<double>(device::wall_nanoseconds() - begin) /
           static_cast<double>(repeats);
  }

  void copy() {
    const auto bytes = std::min<std::size_t>(kCopyBytes, input_.size() * sizeof(float));
    for (std::size_t done = 0; done < kCopyBytes; done += bytes)
      std::memcpy(output_.data(), input_.data(), bytes);
  }

  void exchange(ExchangeKind kind, Method method, std::int64_t count) {
    counts_.assign(static_cast<std::size_t>(size()), count);
    comm::Exchange exchange{.kind = kind,
                            .method = method,
                            .group = group_,
                            .counts = counts_,
                            .row_bytes = sizeof(float),
                            .input = reinterpret_cast<const std::byte*>(input_.data()),
                            .output = reinterpret_cast<std::byte*>(output_.data()),
                            .label = "a benchmark"};
    if (kind == ExchangeKind::kExchangeRows) exchange.send_counts = counts_;
    if (kind == ExchangeKind::kAllGather)  // in place
      exchange.input = reinterpret_cast<const std::byte*>(output_.data() + rank() * count);
    if (kind == ExchangeKind::kAllReduce) exchange.input = exchange.output;
    communicator_.begin_step(0, step_++);
    communicator_.await(communicator_.post(exchange, workspace_));
  }

  void call_mpi(ExchangeKind kind, std::int64_t count) {
    if (kind == ExchangeKind::kReduceScatter)
      comm::mpi_reduce_scatter_block(input_.data(), output_.data(), count);
    else if (kind == ExchangeKind::kAllGather)
      comm::mpi_all_gather(output_.data(), count);
    else if (kind == ExchangeKind::kAllReduce)
      comm::mpi_all_reduce(output_.data(), count * size());
    else
      comm::mpi_all_to_all(input_.data(), output_.data(), count);
  }

  void check(ExchangeKind kind, Method method, std::int64_t count) {
    const std::int64_t whole = count * size();
    for (std::int64_t i = 0; i < whole; ++i) input_[static_cast<std::size_t>(i)] = value(rank(), i);
    std::fill(output_.begin(), output_.end(), -100.0F);
    if (kind == ExchangeKind::kAllGather)
      std::copy_n(input_.begin() + rank() * count, count, output_.begin() + rank() * count);
    if (kind == ExchangeKind::kAllReduce) std::copy_n(input_.begin(), whole, output_.begin());
    exchange(kind, method, count);
    const std::int64_t first = rank() * count;
    const std::int64_t num_outputs = kind == ExchangeKind::kReduceScatter ? count : whole;
    for (std::int64_t i = 0; i < num_outputs; ++i) {
      float expected = 0;
      if (kind == ExchangeKind::kReduceScatter)
        for (std::int32_t each = 0; each < size(); ++each) expected += value(each, first + i);
      else if (kind == ExchangeKind::kAllReduce)
        for (std::int32_t each = 0; each < size(); ++each) expected += value(each, i);
      else if (kind == ExchangeKind::kAllGather)
        expected = value(i / count, i);
      else
        expected = value(i / count, first + i % count);
      const float got = output_[static_cast<std::size_t>(i)];
      ANABATIC_CHECK(got == expected, "[bench] {} by {} at rank {}: element {} is {}, expected {}",
                     to_string(kind), to_string(method), rank(), i, got, expected);
    }
  }

  comm::Communicator& communicator_;
  std::function<void()> barrier_;
  bool has_mpi_;
  std::vector<float> input_, output_;
  std::vector<std::int32_t> group_;
  std::vector<std::int64_t> counts_;
  std::span<std::byte> workspace_;
  std::unique_ptr<std::byte[], FreeLines> lines_;
  std::int64_t step_ = 0;
};

// A reduce_scatter reads a term of each rank and writes the sum. An all_gather in place reads and
// writes what it receives; an all-to-all its own part too. An all_reduce is the first, and then the
// second of the sums.
std::vector<ExchangeRow> rows_of(std::int64_t num_ranks, std::int64_t mib) {
  const auto n = static_cast<double>(num_ranks);
  std::vector<ExchangeRow> rows;
  for (const std::int64_t each : kMib) {
    const std::int64_t bytes = (mib > 0 ? mib : each) << 20;
    const double part = static_cast<double>(bytes) / n;
    for (const ExchangeKind kind : kExchangeKinds) {
      const double parts = kind == ExchangeKind::kReduceScatter ? n + 1
                           : kind == ExchangeKind::kAllGather   ? 2 * (n - 1)
                           : kind == ExchangeKind::kAllReduce   ? 3 * n - 1
                                                                : 2 * n;
      rows.push_back({.name = std::string(to_string(kind)),
                      .bytes = bytes,
                      .received_bytes = (kind == ExchangeKind::kAllReduce ? 2 : 1) * (n - 1) * part,
                      .touched_bytes = parts * part});
    }
    if (mib > 0) break;
  }
  return rows;
}

void run_processes(comm::MpiWorld& world, std::int64_t most_bytes, ExchangeResult& result) {
  std::vector<std::int32_t> everyone(static_cast<std::size_t>(world.size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  comm::Communicator communicator(
      world.make_transport({.silence_seconds = 0, .groups = {everyone}}), kOptions);
  Rank(communicator, comm::mpi_barrier, true, most_bytes).run(result);
}

// For runs of as many ranks, of which the first one reads it.
void keep(const ExchangeResult& result) {
  std::vector<train::MeasuredExchange> measured;
  for (std::size_t i = 0; i < result.rows.size(); ++i)
    measured.push_back({.kind = kExchangeKinds[i % kExchangeKinds.size()],
                        .num_ranks = result.num_ranks,
                        .bytes = result.rows[i].bytes,
                        .ordered_seconds = result.rows[i].seconds,
                        .mpi_seconds = result.rows[i].method_seconds});
  train::store_exchanges(measured);
}

void run_threads(std::int64_t most_bytes, ExchangeResult& result) {
  auto transports = comm::local_transports(static_cast<std::int32_t>(result.num_ranks));
  std::barrier barrier(static_cast<std::ptrdiff_t>(transports.size()));
  std::mutex mutex;
  std::exception_ptr first_error;
  const auto run_rank = [&](std::unique_ptr<comm::Transport> transport) {
    comm::Communicator communicator(std::move(transport), kOptions);
    ExchangeResult own = result;
    try {
      Rank(
          communicator, [&] { barrier.arrive_and_wait(); }, false, most_bytes)
          .run(own);
    } catch (const std::exception&) {
      {
        const std::lock_guard lock(mutex);
        if (!first_error) first_error = std::current_exception();
      }
      barrier.arrive_and_drop();
    }
    const std::lock_guard lock(mutex);
    if (communicator.rank() == 0) result = std::move(own);
  };
  std::vector<std::jthread> threads;
  for (auto& transport : transports) threads.emplace_back(run_rank, std::move(transport));
  threads.clear();
  if (first_error) std::rethrow_exception(first_error);
}

}  // namespace

ExchangeResult measure_exchanges(comm::MpiWorld* world, Settings settings, std::int64_t num_rounds,
                                 bool is_checked) {
  const bool has_processes = world != nullptr && world->size() > 1;
  const std::int64_t default_ranks = has_processes ? world->size() : 2;
  ExchangeResult result{.num_ranks = settings.integer("ranks", default_ranks, 2),
                        .num_rounds = num_rounds,
                        .ranks_are = "threads",
                        .is_checked = is_checked};
  const std::int64_t mib = settings.integer("mib", 0, 0);
  settings.require_all_read(kExchangeKind);
  ANABATIC_REQUIRE(!has_processes || result.num_ranks == world->size(),
                   "[bench] --ranks: expected the {} processes that the launcher started, got {}",
                   world->size(), result.num_ranks);
  ANABATIC_REQUIRE(has_processes || result.num_ranks <= kMostRanks,
                   "[bench] --ranks: expected at most {} threads, got {}", kMostRanks,
                   result.num_ranks);
  ANABATIC_REQUIRE(mib <= 1024, "[bench] --mib: expected at most 1024, got {}", mib);
  result.settings = std::move(settings);
  result.rows = rows_of(result.num_ranks, mib);
  const std::int64_t most_bytes = result.rows.back().bytes;
  if (has_processes) {
    result.ranks_are = fmt::format("processes of {}", comm::mpi_library());
    run_processes(*world, most_bytes, result);
    if (world->rank() == 0) keep(result);
  } else {
    run_threads(most_bytes, result);
  }
  return result;
}

}  // namespace anabatic::bench
