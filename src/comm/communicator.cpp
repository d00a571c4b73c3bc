// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "comm/methods.h"
#include "device/clock.h"
#include "device/denormals.h"
#include "device/helper_cores.h"

namespace anabatic::comm {
namespace {

// A queue of flights that owns none.
class Flights {
 public:
  bool is_empty() const { return first_ == nullptr; }
  Flight* first() const { return first_; }
  void append(Flight& flight) {
    flight.next = nullptr;
    (first_ == nullptr ? first_ : last_->next) = &flight;
    last_ = &flight;
  }
  Flight* take_first() {
    Flight* flight = first_;
    first_ = flight->next;
    return flight;
  }
  void remove(Flight& flight) {
    Flight* before = nullptr;
    for (Flight* each = first_; each != &flight; each = each->next) before = each;
    (before == nullptr ? first_ : before->next) = flight.next;
    if (last_ == &flight) last_ = before;
  }
  Flight* find(std::uint32_t number) const {
    Flight* each = first_;
    while (each != nullptr && each->number() != number) each = each->next;
    return each;
  }

 private:
  Flight *first_ = nullptr, *last_ = nullptr;
};

}  // namespace

struct Communicator::Impl {
  std::unique_ptr<Transport> transport;
  CommunicatorOptions options;
  Header header{};               // plan and step of what is posted
  std::uint32_t num_posted = 0;  // the caller's

  // Posted while somebody else moves bytes: not started.
  std::mutex posted_mutex;
  Flights posted;

  // Under the seat's mutex.
  Flights flights;
  std::uint32_t next_number = 0;  // whose turn it is
  bool is_timed = false;          // time alone may bring news, as the last look found
  CommStats stats;

  // What the thread that awaits found missing in its last look: ranks, and since when.
  std::vector<std::int32_t> missing;
  std::int64_t missing_since = 0;
  std::vector<std::int64_t> lost_nanoseconds;  // by rank

  std::atomic<std::uint64_t> looked_at{0};  // rings before the last look that moved nothing
  std::atomic<bool> stops{false};
  std::thread helper;

  Impl(std::unique_ptr<Transport> given, const CommunicatorOptions& chosen)
      : transport(std::move(given)),
        options(chosen),
        lost_nanoseconds(static_cast<std::size_t>(transport->size()), 0) {
    missing.reserve(lost_nanoseconds.size());
    if (options.has_helper) helper = std::thread([this] { help(); });
  }

  ~Impl() {
    if (helper.joinable()) {
      stops.store(true);
      bell().ring();
      helper.join();
    }
    try {
      leave();
    } catch (const std::exception& error) {
      log_line(Severity::kError, error.what());
    }
  }

  // Once aborted, the memory of exchanges may be gone.
  void leave() {
    std::string text;
    {
      const std::lock_guard lock(seat().mutex);
      if (transport->abort_text() != nullptr) return;
      start_posted();
      for (Flight* each = flights.first(); each != nullptr && text.empty(); each = each->next)
        if (!each->is_complete(*transport))
          text = fmt::format("[exchange] rank {} ended before its {}", transport->rank(),
                             each->describe());
    }
    if (text.empty()) return;
    transport->abort(text);
    transport->settle();
  }

  Seat& seat() { return transport->seat(); }
  Doorbell& bell() { return seat().bell; }

  void start_posted() {
    const std::lock_guard lock(posted_mutex);
    while (!posted.is_empty()) {
      Flight* flight = posted.take_first();
      flight->start(*transport);
      stats.sent_bytes += flight->sent_bytes();
      stats.received_bytes += flight->received_bytes();
      flights.append(*flight);
    }
  }

  bool move_piece(Flight& flight) {
    const std::int64_t begin = device::wall_nanoseconds();
    if (!flight.move_piece(*transport)) return false;
    const std::int64_t busy = device::wall_nanoseconds() - begin;
    stats.busy_nanoseconds += busy;
    flight.busy_nanoseconds += busy;
    return true;
  }

  // A piece of the flight whose turn it is, or of one after it.
  bool move_any() {
    const auto move_from = [&](std::uint32_t first, std::uint32_t end) {
      for (Flight* each = flights.first(); each != nullptr; each = each->next)
        if (each->number() >= first && each->number() < end && move_piece(*each)) {
          next_number = each->number() + 1;
          return true;
        }
      return false;
    };
    return move_from(next_number, UINT32_MAX) || move_from(0, next_number);
  }

  // Under the seat's mutex: `moved` by a look that began after so many rings. Returns how long
  // nothing is to be expected.
  std::int64_t note(bool moved, std::uint64_t rings) {
    if (moved) return 0;
    const std::int64_t sleep = transport->sleep_nanoseconds();
    is_timed = sleep != Transport::kForever;
    looked_at.store(rings);
    return sleep;
  }

  void help() {
    const device::DenormalsAreZero mode;
    if (options.num_compute_threads > 0)
      device::keep_off_compute_cores(options.num_compute_threads);
    while (!stops.load()) {
      std::int64_t sleep = Transport::kForever;
      std::string error;
      if (!bell().is_awaited()) {
        const std::lock_guard lock(seat().mutex);
        const std::uint64_t rings = bell().count();
        bool moved = false;
        try {
          if (transport->abort_text() == nullptr) {
            start_posted();
            moved = move_any();
            sleep = note(moved, rings);
          } else {
            looked_at.store(rings);
          }
        } catch (const CommError& found) {
          error = found.what();
        }
      }
      if (!error.empty()) transport->abort("[exchange] " + error);
      if (sleep > 0 && !stops.load()) bell().help_on_ring(looked_at.load(), sleep);
    }
  }

  [[noreturn]] void fail() {
    transport->settle();
    throw CommError(*transport->abort_text());
  }

  void throw_if_aborted() {
    if (transport->abort_text() != nullptr) fail();
  }

  enum class Look { kDone, kMoved, kNothing };

  // Moves a piece of the flight, else of another one. After kNothing: there is no news before a
  // ring after `rings`, or before so many nanoseconds. After kDone: what the exchange took.
  Look look(std::uint32_t number, std::uint64_t& rings, std::int64_t& sleep, CommStats& took) {
    const std::lock_guard lock(seat().mutex);
    sleep = 0;
    if (transport->abort_text() != nullptr) return Look::kNothing;
    start_posted();
    rings = bell().count();
    blame_missing();
    Flight* flight = flights.find(number);
    if (flight == nullptr) return Look::kDone;
    if (move_piece(*flight)) return Look::kMoved;
    if (flight->is_complete(*transport)) {
      took = {.sent_bytes = flight->sent_bytes(),
              .received_bytes = flight->received_bytes(),
              .busy_nanoseconds = flight->busy_nanoseconds};
      flights.remove(*flight);
      if (flights.is_empty()) note(false, rings);
      return Look::kDone;
    }
    const bool moved = move_any();
    sleep = note(moved, rings);
    if (moved) return Look::kMoved;
    flight->add_missing_ranks(*transport, missing);
    missing_since = device::wall_nanoseconds();
    return Look::kNothing;
  }

  // The time since the last look is lost to those that it found missing.
  void blame_missing() {
    if (missing.empty()) return;
    const std::int64_t lost = device::wall_nanoseconds() - missing_since;
    for (const std::int32_t rank : missing)
      lost_nanoseconds[static_cast<std::size_t>(rank)] += lost;
    missing.clear();
  }

  CommStats wait_for(std::uint32_t number, std::int64_t patience) {
    CommStats took;
    const auto period = static_cast<std::int64_t>(options.report_seconds * 1e9);
    std::int64_t last_moved = device::wall_nanoseconds(), next_report = period;
    for (;;) {
      std::uint64_t rings = 0;
      std::int64_t sleep = 0;
      Look result{};
      try {
        result = look(number, rings, sleep, took);
      } catch (const CommError& error) {
        transport->abort(fmt::format("[exchange] {}", error.what()));
      }
      throw_if_aborted();
      if (result == Look::kDone) return took;
      const std::int64_t now = device::wall_nanoseconds();
      if (result == Look::kMoved) {
        last_moved = now;
        next_report = period;
        continue;
      }
      const std::int64_t idle = now - last_moved;
      if (idle >= patience) {
        transport->abort(describe_wait(number, options.patience_seconds));
        fail();
      }
      if (idle >= next_report) {
        report_wait(number, 1e-9 * static_cast<double>(next_report));
        next_report += period;
      }
      if (sleep > 0)
        bell().await_ring(rings, std::min({sleep, patience - idle, next_report - idle}));
    }
  }

  std::string describe_wait(std::uint32_t number, double seconds) {
    const std::lock_guard lock(seat().mutex);
    if (transport->abort_text() != nullptr) return {};
    Flight* flight = flights.find(number);
    return fmt::format("[exchange] rank {} waited {:g} s for {}: {}", transport->rank(), seconds,
                       flight->describe(), flight->missing(*transport));
  }

  // One of those that wait tells of it: the first of the group that is not missing itself.
  void report_wait(std::uint32_t number, double seconds) {
    {
      const std::lock_guard lock(seat().mutex);
      if (transport->abort_text() != nullptr) return;
      for (const std::int32_t member : flights.find(number)->group())
        if (member < transport->rank() && std::ranges::find(missing, member) == missing.end())
          return;
    }
    if (const std::string text = describe_wait(number, seconds); !text.empty())
      log_warning("{}; it goes on waiting", text);
  }
};

CommStats& CommStats::operator+=(const CommStats& more) {
  sent_bytes += more.sent_bytes;
  received_bytes += more.received_bytes;
  busy_nanoseconds += more.busy_nanoseconds;
  waited_nanoseconds += more.waited_nanoseconds;
  return *this;
}

CommStats CommStats::operator-(const CommStats& before) const {
  return {.sent_bytes = sent_bytes - before.sent_bytes,
          .received_bytes = received_bytes - before.received_bytes,
          .busy_nanoseconds = busy_nanoseconds - before.busy_nanoseconds,
          .waited_nanoseconds = waited_nanoseconds - before.waited_nanoseconds};
}

Communicator::Communicator(std::unique_ptr<Transport> transport, const CommunicatorOptions& options)
    : impl_(std::make_unique<Impl>(std::move(transport), options)) {}
Communicator::~Communicator() = default;

std::int32_t Communicator::rank() const { return impl_->transport->rank(); }
std::int32_t Communicator::size() const { return impl_->transport->size(); }

bool Communicator::has_collectives(std::span<const std::int32_t> group) const {
  const Collectives* collectives = impl_->transport->collectives();
  return collectives != nullptr && collectives->has(group);
}

void Communicator::begin_step(std::uint64_t plan, std::int64_t step) {
  Impl& impl = *impl_;
  impl.throw_if_aborted();
  {
    const std::lock_guard lock(impl.seat().mutex);
    impl.start_posted();
    ANABATIC_CHECK(impl.flights.is_empty(), "[exchange] step {} begins before the await of {}",
                   step, impl.flights.first()->describe());
    impl.next_number = 0;
  }
  impl.header = {.plan = plan, .step = step};
  impl.num_posted = 0;
}

std::uint32_t Communicator::post(const Exchange& exchange, std::span<std::byte> workspace) {
  Impl& impl = *impl_;
  impl.throw_if_aborted();
  check(exchange, rank());
  const std::uint32_t number = impl.num_posted++;
  if (std::find(exchange.group.begin(), exchange.group.end(), rank()) == exchange.group.end())
    return number;
  impl.header.number = number;
  Flight* flight = row_of(exchange.method).make(workspace, exchange, impl.header, rank());
  {
    const std::lock_guard lock(impl.posted_mutex);
    impl.posted.append(*flight);
  }
  // Whoever holds the mutex starts it after the piece at hand: the caller does not wait for that.
  if (impl.seat().mutex.try_lock()) {
    const std::lock_guard lock(impl.seat().mutex, std::adopt_lock);
    if (impl.transport->abort_text() == nullptr) impl.start_posted();
  }
  impl.bell().ring();
  return number;
}

bool Communicator::test(std::uint32_t number) {
  Impl& impl = *impl_;
  impl.throw_if_aborted();
  ANABATIC_CHECK(number < impl.num_posted, "[exchange] rank {} tests exchange {} after {} posts",
                 rank(), number, impl.num_posted);
  const std::lock_guard lock(impl.seat().mutex);
  if (impl.transport->abort_text() != nullptr) return false;
  impl.start_posted();
  Flight* flight = impl.flights.find(number);
  return flight == nullptr || flight->is_complete(*impl.transport);
}

CommStats Communicator::await(std::uint32_t number, Patience patience) {
  Impl& impl = *impl_;
  impl.throw_if_aborted();
  ANABATIC_CHECK(number < impl.num_posted,
                 "[exchange] rank {} awaits exchange {} of step {} after {} posts: those below it "
                 "have to be posted before",
                 rank(), number, impl.header.step, impl.num_posted);
  const device::DenormalsAreZero mode;  // it adds what arrives
  const std::int64_t begin = device::wall_nanoseconds();
  impl.bell().begin_await();
  struct End {
    Impl& impl;
    std::int64_t begin;
    ~End() {
      bool wakes = false;
      {
        const std::lock_guard lock(impl.seat().mutex);
        impl.stats.waited_nanoseconds += device::wall_nanoseconds() - begin;
        wakes = impl.is_timed && !impl.flights.is_empty();
      }
      impl.bell().end_await(impl.looked_at.load());
      if (wakes) impl.bell().ring();
    }
  } end{impl, begin};
  CommStats took =
      impl.wait_for(number, patience == Patience::kUnlimited
                                ? Transport::kForever
                                : static_cast<std::int64_t>(impl.options.patience_seconds * 1e9));
  took.waited_nanoseconds = device::wall_nanoseconds() - begin;
  return took;
}

void Communicator::abort(const std::string& text) {
  impl_->transport->abort(text);
  impl_->transport->settle();
}

std::span<const std::int64_t> Communicator::lost_nanoseconds() const {
  return impl_->lost_nanoseconds;
}

CommStats Communicator::stats() const {
  const std::lock_guard lock(impl_->transport->seat().mutex);
  return impl_->stats;
}

}  // namespace anabatic::comm
