// SPDX-License-Identifier: Apache-2.0
#include "train/ranks/peer_reads.h"

#include <algorithm>

#include "base/error.h"
#include "base/philox.h"

namespace anabatic::train {
namespace {

constexpr std::int32_t kDone = -1;

// Names of parts differ between ranks; what they are a part of, and where they begin, do not.
struct Request {
  std::int32_t holder = kDone;  // the rank that answers
  std::uint32_t role = 0;
  std::uint64_t owner = 0;  // hash of the parameter's name
  std::int64_t first_row = 0, first_byte = 0, num_bytes = 0;
};

std::uint64_t hash_of_owner(Name name, const spec::StatePart& part) {
  return stream_of(text(part.owner == Name{} ? name : part.owner));
}

bool is_wanted(const Request& request, Name name, const spec::StatePart& part) {
  return static_cast<std::uint32_t>(part.role) == request.role &&
         part.rows.first == request.first_row && !part.rows.is_whole() &&
         hash_of_owner(name, part) == request.owner;
}

void broadcast(StepSums& sums, Request& request) {
  sums.broadcast(std::as_writable_bytes(std::span(&request, 1)));
}

}  // namespace

PeerReads::PeerReads(StepSums& sums, runtime::StateStore& store) : sums_(sums), store_(store) {
  store_.set_peers(this);
}

PeerReads::~PeerReads() {
  store_.set_peers(nullptr);
  try {
    Request done;
    broadcast(sums_, done);
  } catch (const std::exception&) {
    // The run has ended with an error, of which the next step speaks.
  }
}

void PeerReads::read_bytes(Name state, std::int64_t first_byte, std::span<std::byte> bytes) {
  const spec::StatePart part = store_.part(state);
  Request request{store_.holder(state),
                  static_cast<std::uint32_t>(part.role),
                  hash_of_owner(state, part),
                  part.rows.first,
                  first_byte,
                  std::ssize(bytes)};
  broadcast(sums_, request);
  sums_.bring(request.holder, bytes);
}

void answer_reads(StepSums& sums, const runtime::StateStore& store) {
  for (;;) {
    Request request;
    broadcast(sums, request);
    if (request.holder == kDone) return;
    std::span<std::byte> bytes;
    if (request.holder == sums.rank()) {
      const std::vector<Name> names = store.names();
      const auto wanted = std::ranges::find_if(
          names, [&](Name name) { return is_wanted(request, name, store.part(name)); });
      ANABATIC_CHECK(wanted != names.end(),
                     "[ranks] the first rank reads a state that is not here");
      const TensorView state = store.find(*wanted);
      ANABATIC_CHECK(state.data != nullptr && request.first_byte >= 0 && request.num_bytes >= 0 &&
                         request.first_byte + request.num_bytes <= state.type->num_bytes(),
                     "[ranks] bytes {} + {} of {}", request.first_byte, request.num_bytes,
                     text(*wanted));
      bytes = {state.data + request.first_byte, static_cast<std::size_t>(request.num_bytes)};
    }
    sums.bring(request.holder, bytes);
  }
}

}  // namespace anabatic::train
