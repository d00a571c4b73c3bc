// SPDX-License-Identifier: Apache-2.0
#include "train/ranks/peer_reads.h"

#include <algorithm>

#include "base/error.h"

namespace anabatic::train {
namespace {

constexpr std::int32_t kDone = -1;

struct Request {
  std::int32_t part = kDone;  // of the states in parts, in the order of their names
  std::int32_t holder = 0;    // the rank that answers
  std::int64_t first_byte = 0, num_bytes = 0;
};

// The same list on all ranks: each knows of the parts of all.
std::vector<Name> parts_of(const runtime::StateStore& store) {
  std::vector<Name> parts = store.names();
  std::erase_if(parts, [&](Name name) { return store.part(name).rows.is_whole(); });
  return parts;
}

void broadcast(StepSums& sums, Request& request) {
  sums.broadcast(std::as_writable_bytes(std::span(&request, 1)));
}

}  // namespace

PeerReads::PeerReads(StepSums& sums, runtime::StateStore& store)
    : sums_(sums), store_(store), parts_(parts_of(store)) {
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
  const auto found = std::ranges::find(parts_, state);
  ANABATIC_CHECK(found != parts_.end(), "[ranks] {} is no part of a state", text(state));
  Request request{static_cast<std::int32_t>(found - parts_.begin()), store_.holder(state),
                  first_byte, std::ssize(bytes)};
  broadcast(sums_, request);
  sums_.bring(request.holder, bytes);
}

void answer_reads(StepSums& sums, const runtime::StateStore& store) {
  const std::vector<Name> parts = parts_of(store);
  for (;;) {
    Request request;
    broadcast(sums, request);
    if (request.part == kDone) return;
    const auto part = static_cast<std::size_t>(request.part);
    ANABATIC_CHECK(request.part >= 0 && part < parts.size(), "[ranks] part {} of {}", request.part,
                   parts.size());
    std::span<std::byte> bytes;
    if (request.holder == sums.rank()) {
      const TensorView state = store.find(parts[part]);
      ANABATIC_CHECK(state.data != nullptr && request.first_byte >= 0 && request.num_bytes >= 0 &&
                         request.first_byte + request.num_bytes <= state.type->num_bytes(),
                     "[ranks] bytes {} + {} of {}", request.first_byte, request.num_bytes,
                     text(parts[part]));
      bytes = {state.data + request.first_byte, static_cast<std::size_t>(request.num_bytes)};
    }
    sums.bring(request.holder, bytes);
  }
}

}  // namespace anabatic::train
