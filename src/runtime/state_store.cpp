// SPDX-License-Identifier: Apache-2.0
#include "runtime/state_store.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "base/rounding.h"
#include "device/memory.h"
#include "runtime/swap/swap_space.h"
#include "spec/execution.h"

namespace anabatic::runtime {
namespace {

constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;
constexpr std::int64_t kPageBytes = 4096;

// Small states share blocks; a large one has its own.
bool has_own_block(std::int64_t bytes) { return bytes >= kBlockBytes / 8; }

const char* tier_name(Tier tier) {
  return tier == Tier::kDisk ? "on disk" : tier == Tier::kPeer ? "on another rank" : "in memory";
}

}  // namespace

struct StateStore::Impl {
  struct Entry {
    TensorType type;
    std::byte* data = nullptr;
    Tier tier = Tier::kMemory;
    std::size_t region = 0;   // on disk
    std::int32_t holder = 0;  // a rank; of a peer's
    spec::StatePart part{};
  };
  std::unique_ptr<swap::SwapSpace> swap;
  PeerStates* peers = nullptr;
  std::map<std::string, Entry, std::less<>> entries;  // nodes of a map do not move
  std::map<std::pair<spec::StateRole, Name>, std::vector<Name>> parts;  // of roles with an owner
  std::vector<device::Memory> blocks;
  std::byte* next = nullptr;  // free bytes of the newest block for small states
  std::int64_t free_bytes = 0;
  std::vector<std::span<std::byte>> holes;  // that removed states leave in shared blocks

  std::byte* allocate(std::int64_t bytes) {
    bytes = round_up(bytes, spec::kAlignmentBytes);
    if (has_own_block(bytes)) return blocks.emplace_back(bytes).data();
    const auto size = static_cast<std::size_t>(bytes);
    for (std::span<std::byte>& hole : holes) {
      if (hole.size() < size) continue;
      std::byte* result = hole.data();
      hole = hole.subspan(size);
      std::memset(result, 0, size);
      return result;
    }
    if (bytes > free_bytes || !next) {
      next = blocks.emplace_back(kBlockBytes).data();
      free_bytes = kBlockBytes;
    }
    std::byte* result = next;
    next += bytes;
    free_bytes -= bytes;
    return result;
  }

  void release(std::byte* data, std::int64_t bytes) {
    bytes = round_up(bytes, spec::kAlignmentBytes);
    if (!has_own_block(bytes)) {
      holes.push_back({data, static_cast<std::size_t>(bytes)});
      return;
    }
    const auto block = std::find_if(blocks.begin(), blocks.end(), [&](const device::Memory& other) {
      return other.data() == data;
    });
    ANABATIC_CHECK(block != blocks.end(), "[state store] a state without its block");
    blocks.erase(block);
  }

  Entry make(Name name, const TensorType& type, Tier tier) {
    if (tier == Tier::kMemory) return {type, allocate(type.num_bytes())};
    if (tier == Tier::kPeer) return {type, nullptr, tier};
    ANABATIC_CHECK(swap, "[state store] state {} is to be on disk, and there is no swap space",
                   text(name));
    return {type, nullptr, tier, swap->add(text(name), type.num_bytes())};
  }

  // Ranks share a parameter under its own name.
  static Name owner_of(Name name, const spec::StatePart& part) {
    return part.owner == Name{} ? name : part.owner;
  }

  void index(Name name, const spec::StatePart& part) {
    if (part.owner == Name{} && part.rows.is_whole()) return;
    std::vector<Name>& same = parts[{part.role, owner_of(name, part)}];
    const auto place = std::find_if(same.begin(), same.end(), [&](Name other) {
      return find(other).part.rows.first > part.rows.first;
    });
    same.insert(place, name);
  }

  const Entry& find(Name name) const {
    const auto it = entries.find(text(name));
    ANABATIC_REQUIRE(it != entries.end(), "[state store] expected a known state, got {}",
                     text(name));
    return it->second;
  }
};

StateStore::StateStore() : impl_(std::make_unique<Impl>()) {}
StateStore::~StateStore() = default;

TensorView StateStore::add(Name name, const TensorType& type, Tier tier,
                           const spec::StatePart& part) {
  const auto [it, is_new] = impl_->entries.try_emplace(std::string(text(name)));
  Impl::Entry& entry = it->second;
  if (is_new) {
    try {
      entry = impl_->make(name, type, tier);
      entry.part = part;
      impl_->index(name, part);
    } catch (...) {
      impl_->entries.erase(it);
      throw;
    }
  }
  ANABATIC_REQUIRE(entry.type == type, "[state store] expected state {} of type {}, got {}",
                   text(name), to_string(entry.type), to_string(type));
  ANABATIC_REQUIRE(entry.tier == tier, "[state store] expected state {} {}, where it is already",
                   text(name), tier_name(entry.tier));
  ANABATIC_REQUIRE(
      entry.part == part, "[state store] expected state {} to be the {} of '{}', got {}",
      text(name), to_string(entry.part.role), text(entry.part.owner),
      part.role == entry.part.role ? "other rows or another owner" : to_string(part.role));
  return {entry.data, &entry.type};
}

void StateStore::add_peer(Name name, const TensorType& type, const spec::StatePart& part,
                          std::int32_t holder) {
  add(name, type, Tier::kPeer, part);
  impl_->entries.find(text(name))->second.holder = holder;
}

void StateStore::remove(Name name) {
  const Impl::Entry entry = impl_->find(name);
  ANABATIC_CHECK(entry.tier == Tier::kMemory, "[state store] state {} is {}", text(name),
                 tier_name(entry.tier));
  if (entry.part.owner != Name{} || !entry.part.rows.is_whole())
    std::erase(impl_->parts.at({entry.part.role, Impl::owner_of(name, entry.part)}), name);
  impl_->entries.erase(impl_->entries.find(text(name)));
  impl_->release(entry.data, entry.type.num_bytes());
}

bool StateStore::has(Name name) const { return impl_->entries.contains(text(name)); }

TensorView StateStore::find(Name name) const {
  const Impl::Entry& entry = impl_->find(name);
  return {entry.data, &entry.type};
}

spec::StatePart StateStore::part(Name name) const { return impl_->find(name).part; }

std::span<const Name> StateStore::parts(spec::StateRole role, Name owner) const {
  const auto found = impl_->parts.find({role, owner});
  return found == impl_->parts.end() ? std::span<const Name>() : found->second;
}

std::vector<Name> StateStore::names() const {
  std::vector<Name> result;
  for (const auto& [name, entry] : impl_->entries) result.push_back(intern(name));
  return result;
}

std::int64_t StateStore::num_bytes() const {
  std::int64_t bytes = impl_->swap ? swap::kStagingBytes : 0;
  for (const auto& [name, entry] : impl_->entries)
    if (entry.tier == Tier::kMemory) bytes += entry.type.num_bytes();
  return bytes;
}

std::int64_t StateStore::allocated_bytes() const {
  std::int64_t bytes = 0;
  for (const device::Memory& block : impl_->blocks) bytes += round_up(block.bytes(), kPageBytes);
  return bytes;
}

std::int64_t allocated_bytes(std::span<const std::int64_t> state_bytes) {
  std::int64_t total = 0, free_bytes = 0;
  bool has_block = false;
  for (const std::int64_t size : state_bytes) {
    const std::int64_t bytes = round_up(size, spec::kAlignmentBytes);
    if (has_own_block(bytes)) {
      total += round_up(bytes, kPageBytes);
      continue;
    }
    if (bytes > free_bytes || !has_block) {
      total += kBlockBytes;
      free_bytes = kBlockBytes;
      has_block = true;
    }
    free_bytes -= bytes;
  }
  return total;
}

void StateStore::set_swap(std::unique_ptr<swap::SwapSpace> swap) {
  ANABATIC_CHECK(!impl_->swap, "[state store] a second swap space");
  impl_->swap = std::move(swap);
}

swap::SwapSpace* StateStore::swap() const { return impl_->swap.get(); }

Tier StateStore::tier(Name name) const { return impl_->find(name).tier; }

std::size_t StateStore::region(Name name) const {
  const Impl::Entry& entry = impl_->find(name);
  ANABATIC_CHECK(entry.tier == Tier::kDisk, "[state store] state {} is {}", text(name),
                 tier_name(entry.tier));
  return entry.region;
}

std::int32_t StateStore::holder(Name name) const {
  const Impl::Entry& entry = impl_->find(name);
  ANABATIC_CHECK(entry.tier == Tier::kPeer, "[state store] state {} is {}", text(name),
                 tier_name(entry.tier));
  return entry.holder;
}

void StateStore::set_peers(PeerStates* peers) { impl_->peers = peers; }
PeerStates* StateStore::peers() const { return impl_->peers; }

}  // namespace anabatic::runtime
