// SPDX-License-Identifier: Apache-2.0
// Messages over MPI. Each is a header, then pieces under a tag of its own, so that messages pass
// one another. Every call returns at once: requests are tested, never waited for.
#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/mpi_calls.h"
#include "comm/mpi_collectives.h"
#include "comm/mpi_heartbeat.h"
#include "comm/mpi_messages.h"
#include "comm/mpi_world.h"
#include "device/clock.h"
#include "device/denormals.h"
#include "device/memory.h"

namespace anabatic::comm {
namespace {

using mpi::num_slots;
using mpi::Receiving;
using mpi::Sending;
using mpi::slot_bytes;

constexpr std::int64_t kPlainBytes = 4 << 20;         // of a piece between memory of users
constexpr int kHeaderTag = 0;                         // of pieces: from 1 on
constexpr std::int64_t kNumTags = 32767;              // MPI promises tags up to this one
constexpr int kAbortTag = 0;                          // on the communicator for control
constexpr std::size_t kMostText = 2000;               // of an abort: MPI sends so much at once
constexpr std::int64_t kLater = -1;                   // Wire::begins_nanoseconds: follows by itself
constexpr std::int64_t kSpinNanoseconds = 2'000'000;  // of an await without news
constexpr std::int64_t kShortest = 50'000, kLongest = 1'000'000;  // sleeps between polls
constexpr std::int64_t kAbortNanoseconds = 500'000'000;           // for peers to hear of it
constexpr std::int64_t kQuietNanoseconds = 200'000'000;           // then nothing moves any more
constexpr auto kWatchPeriod = std::chrono::milliseconds(50);

int tag_of(std::int64_t place) { return 1 + static_cast<int>(place % kNumTags); }

struct PeerChannel {  // with one peer
  std::int64_t num_sent = 0, num_received = 0, num_matched = 0;
  Wire wire;  // of the next message from it
  MPI_Request header = MPI_REQUEST_NULL;
};

class MpiTransport : public Transport {
 public:
  // `is_crowded`: ranks share cores.
  MpiTransport(std::int32_t rank, std::int32_t size, bool is_crowded, EndingOptions ending,
               const MpiTransportOptions& options)
      : Transport(rank, size, own_seat_),
        is_crowded_(is_crowded),
        ending_(std::move(ending)),
        slot_bytes_(slot_bytes(size)),
        packed_(options.packs_rows ? num_slots(size) : 0, slot_bytes_),
        received_(num_slots(size), slot_bytes_),
        messages_(mpi::duplicate_world()),
        control_(mpi::duplicate_world()),
        collectives_(options.groups, rank, options.most_count),
        channels_(static_cast<std::size_t>(size)) {
    const std::lock_guard lock(mpi::mutex());
    for (std::int32_t peer = 0; peer < size; ++peer)
      if (peer != rank) await_header(peer);
    mpi::check(MPI_Irecv(text_from_peer_.data(), static_cast<int>(text_from_peer_.size()), MPI_CHAR,
                         MPI_ANY_SOURCE, kAbortTag, control_, &abort_request_),
               "MPI_Irecv");
    if (options.silence_seconds > 0) {
      heartbeat_.emplace(control_, rank, size, options.silence_seconds);
      heartbeat_->tick(device::wall_nanoseconds(), nullptr);
    }
    watch_ = std::thread([this] { watch(); });
  }

  ~MpiTransport() override {
    {
      const std::lock_guard lock(watch_mutex_);
      stops_ = true;
    }
    wakes_watch_.notify_one();
    watch_.join();
    try {
      close();
    } catch (const CommError&) {
      ++mpi::num_abandoned();
    }
  }

  void send(Outgoing& message) override {
    const std::lock_guard lock(mpi::mutex());
    Sending& sending = mpi::make_state<Sending>(message);
    sends_.append(sending);
    sending.message = &message;
    sending.wire = to_wire(message.header);
    last_ = message.header;
    sending.tag = tag_of(channel(message.peer).num_sent++);
    const bool is_packed = message.block.row_index != nullptr;
    sending.wire.piece_bytes = is_packed || is_sum(message.header) ? slot_bytes_ : kPlainBytes;
    const bool is_late = message.ready.load(std::memory_order_acquire) == 0;
    sending.wire.begins_nanoseconds = is_late ? kLater : message.begins_nanoseconds;
    sending.start(sending.wire);
    ANABATIC_CHECK(!is_packed || packed_.count() > 0,
                   "[mpi] {} sends rows by an index without room", to_string(message.header));
    if (is_packed) packed_.ask(sending, sending.count);
    mpi::check(MPI_Isend(&sending.wire, sizeof(Wire), MPI_BYTE, message.peer, kHeaderTag, messages_,
                         &sending.header),
               "MPI_Isend");
    has_news_ = true;
    if (!is_packed) drive(sending);
  }

  void receive(Incoming& message) override {
    Receiving& receiving = mpi::make_state<Receiving>(message);
    receives_.append(receiving);
    message.place = channel(message.peer).num_received++;
    receiving.tag = tag_of(message.place);
    if (!message.to_is_free)
      received_.ask(receiving, (message.header.bytes + slot_bytes_ - 1) / slot_bytes_);
  }

  void advance(Outgoing& message, std::int64_t ready) override {
    message.ready.store(ready, std::memory_order_release);
    poll(message);
  }

  void poll(Outgoing& message) override {
    if (message.state == nullptr) return;
    const std::lock_guard lock(mpi::mutex());
    drive(*static_cast<Sending*>(message.state));
  }

  void poll(Incoming& message) override {
    const std::lock_guard lock(mpi::mutex());
    drive_next();
    Receiving& receiving = *static_cast<Receiving*>(message.state);
    if (!receiving.is_matched && !match(message, receiving)) return;
    if (!ends(receiving.begins)) return;
    message.begins_nanoseconds = receiving.begins_nanoseconds;
    while (receiving.done < receiving.posted && ends(receiving.request_of(receiving.done)))
      ++receiving.done;
    const std::int64_t used = message.used / receiving.piece_bytes;
    const std::int64_t end =
        message.to_is_free ? receiving.done + mpi::kMostPieces : used + receiving.num_slots;
    while (receiving.posted < std::min(end, receiving.count)) post_piece(message, receiving);
    if (message.to_is_free) {
      message.block.data = message.to;
      message.arrived = std::min(receiving.begin_of(receiving.done), receiving.bytes);
    } else if (used < receiving.done) {
      // The piece that is used now, as if all pieces lay one after the other.
      message.block.data = reinterpret_cast<const std::byte*>(
          reinterpret_cast<std::uintptr_t>(receiving.slot_of(used)) -
          static_cast<std::uintptr_t>(receiving.begin_of(used)));
      message.arrived = receiving.end_of(used);
    } else {
      message.arrived = message.used;
    }
  }

  void finish(Incoming& message) override {
    Receiving& receiving = *static_cast<Receiving*>(std::exchange(message.state, nullptr));
    received_.give_back(receiving);
    receives_.remove(receiving);
  }

  std::int64_t sleep_nanoseconds() override {
    const std::lock_guard lock(mpi::mutex());
    for (Sending* each = sends_.first(); each != nullptr;) drive(*std::exchange(each, each->after));
    poll_abort();
    const std::int64_t now = device::wall_nanoseconds();
    if (std::exchange(has_news_, false)) {
      last_news_ = now;
      return 0;
    }
    const bool has_collectives = collectives_.is_under_way();
    if (sends_.first() == nullptr && receives_.first() == nullptr && !has_collectives)
      return kForever;
    // A collective moves on at every look, and does not tell.
    const bool is_busy = has_collectives && now < collectives_.busy_until();
    const std::int64_t quiet = is_busy ? 0 : now - last_news_;
    // Whoever awaits has nothing better to do. A helper leaves the core to those who compute.
    if (own_seat_.bell.is_awaited()) {
      if (quiet >= kSpinNanoseconds) return 2 * kShortest;
      if (is_crowded_) std::this_thread::yield();  // else the core goes to other programs
      return 0;
    }
    return std::clamp(quiet / 4, kShortest, kLongest);
  }

  Collectives* collectives() override { return &collectives_; }

  // Peers hear of it before this rank ends.
  void abort(const std::string& text) override { abort_all(text, &MpiTransport::publish_abort); }

  const std::string* abort_text() const override { return is_aborted_.load() ? &text_ : nullptr; }

  // No rank reads memory of this one once its sends have ended, or once nothing moved for long:
  // what no peer receives stays unread, and a dead peer sends no more. From then on nothing is
  // polled, so nothing is written either.
  void settle() override {
    const std::lock_guard seat_lock(own_seat_.mutex);
    if (std::exchange(is_settled_, true)) return;
    {
      const std::lock_guard lock(mpi::mutex());
      for_each_receive([](MPI_Request& request) {
        if (request != MPI_REQUEST_NULL) mpi::check(MPI_Cancel(&request), "MPI_Cancel");
      });
    }
    const std::int64_t begin = device::wall_nanoseconds();
    std::int64_t last = begin, num_open = 0;
    for (;; std::this_thread::sleep_for(std::chrono::microseconds(20))) {
      const std::lock_guard lock(mpi::mutex());
      std::int64_t count = 0;
      const auto count_open = [&](MPI_Request& request) {
        count += mpi::has_ended(request) ? 0 : 1;
      };
      for_each_receive(count_open);
      for_each_send(count_open);
      const std::int64_t now = device::wall_nanoseconds();
      if (std::exchange(num_open, count) != count) last = now;
      const bool is_quiet = now - last > kQuietNanoseconds;
      if (num_open > 0 && !is_quiet && now - begin < kAbortNanoseconds) continue;
      mpi::num_abandoned() += num_open;
      return;
    }
  }

 private:
  static bool is_sum(const Header& header) {
    return header.kind == ExchangeKind::kReduceScatter || header.kind == ExchangeKind::kAllReduce;
  }

  PeerChannel& channel(std::int32_t peer) { return channels_[static_cast<std::size_t>(peer)]; }

  // The rest is under MPI's mutex.

  bool ends(MPI_Request& request) {
    if (request == MPI_REQUEST_NULL) return true;
    if (!mpi::has_ended(request)) return false;
    return has_news_ = true;
  }

  void await_header(std::int32_t peer) {
    PeerChannel& from = channel(peer);
    mpi::check(
        MPI_Irecv(&from.wire, sizeof(Wire), MPI_BYTE, peer, kHeaderTag, messages_, &from.header),
        "MPI_Irecv");
  }

  bool match(Incoming& message, Receiving& receiving) {
    PeerChannel& from = channel(message.peer);
    if (message.place != from.num_matched || !ends(from.header)) return false;
    check_wire(from.wire, message, rank(),
               message.to_is_free ? std::numeric_limits<int>::max() : slot_bytes_);
    receiving.is_matched = true;
    receiving.start(from.wire);
    if (from.wire.begins_nanoseconds == kLater)
      mpi::check(MPI_Irecv(&receiving.begins_nanoseconds, sizeof(std::int64_t), MPI_BYTE,
                           message.peer, receiving.tag, messages_, &receiving.begins),
                 "MPI_Irecv");
    ++from.num_matched;
    await_header(message.peer);
    return true;
  }

  void post_piece(const Incoming& message, Receiving& receiving) {
    const std::int64_t piece = receiving.posted++, begin = receiving.begin_of(piece);
    std::byte* to = message.to_is_free ? message.to + begin : receiving.slot_of(piece);
    mpi::check(MPI_Irecv(to, static_cast<int>(receiving.end_of(piece) - begin), MPI_BYTE,
                         message.peer, receiving.tag, messages_, &receiving.request_of(piece)),
               "MPI_Irecv");
    has_news_ = true;
  }

  // Sends what is ready, as far as the window allows; ends the message when all has gone.
  void drive(Sending& sending) {
    Outgoing& message = *sending.message;
    while (sending.done < sending.posted && ends(sending.request_of(sending.done))) ++sending.done;
    const std::int64_t ready = message.ready.load(std::memory_order_acquire);
    const bool is_packed = message.block.row_index != nullptr;
    const std::int64_t end = sending.done + (is_packed ? sending.num_slots : mpi::kMostPieces);
    while (sending.posted < std::min(end, sending.count) &&
           sending.end_of(sending.posted) <= ready) {
      if (sending.posted == 0 && sending.wire.begins_nanoseconds == kLater) send_begin(sending);
      const std::int64_t piece = sending.posted++, begin = sending.begin_of(piece);
      const std::int64_t bytes = sending.end_of(piece) - begin;
      const std::byte* from = message.block.data + begin;
      if (is_packed) {
        copy_from(message.block, begin, bytes, sending.slot_of(piece));
        from = sending.slot_of(piece);
      }
      mpi::check(MPI_Isend(from, static_cast<int>(bytes), MPI_BYTE, message.peer, sending.tag,
                           messages_, &sending.request_of(piece)),
                 "MPI_Isend");
      has_news_ = true;
    }
    if (sending.done < sending.count || !ends(sending.header) || !ends(sending.begins)) return;
    if (is_packed) packed_.give_back(sending);
    if (next_send_ == &sending) next_send_ = sending.after;
    sends_.remove(sending);
    message.state = nullptr;
    message.is_taken.store(true, std::memory_order_release);  // it may be gone now
  }

  void send_begin(Sending& sending) {
    sending.begins_nanoseconds = sending.message->begins_nanoseconds;
    mpi::check(MPI_Isend(&sending.begins_nanoseconds, sizeof(std::int64_t), MPI_BYTE,
                         sending.message->peer, sending.tag, messages_, &sending.begins),
               "MPI_Isend");
  }

  void drive_next() {
    Sending* sending = next_send_ != nullptr ? next_send_ : sends_.first();
    if (sending == nullptr) return;
    next_send_ = sending->after;
    drive(*sending);
  }

  template <class F>
  void for_each_receive(const F& visit) {
    for (Receiving* receiving = receives_.first(); receiving != nullptr;
         receiving = receiving->after) {
      visit(receiving->begins);
      for (MPI_Request& request : receiving->requests) visit(request);
    }
    for (PeerChannel& each : channels_) visit(each.header);
    visit(abort_request_);
    if (heartbeat_) heartbeat_->for_each_receive(visit);
  }

  // And what cannot be cancelled either.
  template <class F>
  void for_each_send(const F& visit) {
    collectives_.for_each_request(visit);
    for (Sending* sending = sends_.first(); sending != nullptr; sending = sending->after) {
      visit(sending->header);
      visit(sending->begins);
      for (MPI_Request& request : sending->requests) visit(request);
    }
    if (heartbeat_) heartbeat_->for_each_send(visit);
  }

  void leave() {
    const std::int64_t begin = device::wall_nanoseconds();
    for (;; std::this_thread::sleep_for(std::chrono::microseconds(20))) {
      const std::lock_guard lock(mpi::mutex());
      if (heartbeat_->say_farewell() || device::wall_nanoseconds() - begin > kQuietNanoseconds)
        return;
    }
  }

  // At the end of a communicator without an error all messages are done: only receives for what
  // never comes are open. After an abort messages may still come, and signs of life at any time:
  // communicators that something may come on stay.
  void close() {
    const bool is_clean = !is_aborted_.load();
    if (is_clean && heartbeat_) leave();
    settle();
    const std::lock_guard lock(mpi::mutex());
    if (!is_clean) return;
    mpi::check(MPI_Comm_free(&messages_), "MPI_Comm_free");
    collectives_.free();
  }

  void publish_abort() {
    is_aborted_.store(true);
    own_seat_.bell.ring();
  }

  // The text came from elsewhere, or silence told it.
  void publish_end() {
    if (is_ending()) ending_.on_death(text_);
    publish_abort();
  }

  bool is_ending() const { return ending_.is_asked && ending_.is_asked(); }

  void abort_all(const std::string& text, void (MpiTransport::*publish)()) {
    const std::lock_guard abort_lock(abort_mutex_);
    if (is_aborted_.load()) return;
    text_ = text;
    std::vector<MPI_Request> requests;
    {
      const std::lock_guard lock(mpi::mutex());
      for (std::int32_t peer = 0; peer < size(); ++peer)
        if (peer != rank())
          mpi::check(MPI_Isend(text_.data(), static_cast<int>(std::min(text_.size(), kMostText)),
                               MPI_CHAR, peer, kAbortTag, control_, &requests.emplace_back()),
                     "MPI_Isend");
    }
    (this->*publish)();
    const std::int64_t begin = device::wall_nanoseconds();
    for (;; std::this_thread::yield()) {
      const std::lock_guard lock(mpi::mutex());
      std::erase_if(requests, mpi::has_ended);
      if (requests.empty() || device::wall_nanoseconds() - begin > kAbortNanoseconds) break;
    }
    mpi::num_abandoned() += static_cast<std::int64_t>(requests.size());
  }

  // Unless this rank is about to abort, and thus to have a text of its own.
  void set_text(const std::string& text) {
    const std::unique_lock abort_lock(abort_mutex_, std::try_to_lock);
    if (!abort_lock || is_aborted_.load()) return;
    text_ = text;
    publish_end();
  }

  void poll_abort() {
    if (abort_request_ == MPI_REQUEST_NULL) return;
    int ended = 0;
    MPI_Status status;
    mpi::check(MPI_Test(&abort_request_, &ended, &status), "MPI_Test");
    if (ended == 0) return;
    int length = 0, is_cancelled = 0;
    mpi::check(MPI_Test_cancelled(&status, &is_cancelled), "MPI_Test_cancelled");
    mpi::check(MPI_Get_count(&status, MPI_CHAR, &length), "MPI_Get_count");
    if (is_cancelled == 0)
      set_text(std::string(text_from_peer_.data(), static_cast<std::size_t>(length)));
  }

  // Nobody else may look while a rank computes without exchanges.
  void watch() {
    const device::DenormalsAreZero mode;  // a look may add what belongs to a collective
    for (std::unique_lock watch_lock(watch_mutex_); !stops_;) {
      wakes_watch_.wait_for(watch_lock, kWatchPeriod, [&] { return stops_; });
      if (is_aborted_.load()) continue;
      try {
        if (const auto death = look(); death) abort_all(*death, &MpiTransport::publish_end);
      } catch (const CommError& error) {
        set_text(error.what());
      }
    }
  }

  std::optional<std::string> look() {
    const std::lock_guard lock(mpi::mutex());
    poll_abort();
    if (!heartbeat_ || is_aborted_.load()) return std::nullopt;
    return heartbeat_->tick(device::wall_nanoseconds(), last_ ? &*last_ : nullptr, is_ending());
  }

  Seat own_seat_;
  bool is_crowded_;
  EndingOptions ending_;
  std::int64_t slot_bytes_;
  mpi::Slots packed_, received_;
  MPI_Comm messages_, control_;
  mpi::MpiCollectives collectives_;
  std::vector<PeerChannel> channels_;  // by peer
  mpi::List<Sending> sends_;
  mpi::List<Receiving> receives_;
  Sending* next_send_ = nullptr;  // whose turn it is; null: the first one's
  bool has_news_ = false;         // since the last sleep_nanoseconds()
  std::int64_t last_news_ = 0;
  bool is_settled_ = false;
  std::optional<Header> last_;  // of all that was sent
  std::optional<mpi::Heartbeat> heartbeat_;

  std::mutex abort_mutex_;  // taken before MPI's mutex, or tried
  std::string text_;        // written once, before is_aborted_
  std::atomic<bool> is_aborted_{false};
  std::array<char, kMostText> text_from_peer_{};
  MPI_Request abort_request_ = MPI_REQUEST_NULL;

  std::mutex watch_mutex_;
  std::condition_variable wakes_watch_;
  bool stops_ = false;
  std::thread watch_;
};

}  // namespace

std::unique_ptr<Transport> MpiWorld::make_transport(const MpiTransportOptions& options) {
  const auto num_cores = static_cast<std::int32_t>(std::thread::hardware_concurrency());
  const std::int64_t before = device::current_resident_bytes();
  auto transport =
      std::make_unique<MpiTransport>(rank_, size_, num_on_node_ > num_cores, ending_, options);
  resident_bytes_ += std::max<std::int64_t>(device::current_resident_bytes() - before, 0);
  return transport;
}

std::int64_t expected_mpi_bytes(std::int32_t num_ranks, bool packs_rows) {
  constexpr std::int64_t kLibraryBytes = 7 << 20;  // of Open MPI 4.1.4, two ranks on a machine
  return kLibraryBytes + (packs_rows ? 2 : 1) * num_slots(num_ranks) * slot_bytes(num_ranks);
}

}  // namespace anabatic::comm
