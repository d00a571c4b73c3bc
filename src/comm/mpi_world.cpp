// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi_world.h"

#include <algorithm>
#include <array>
#include <thread>

#include "base/error.h"
#include "comm/mpi_calls.h"
#include "device/memory.h"

namespace anabatic::comm {
namespace mpi {

std::mutex& mutex() {
  static std::mutex the_mutex;
  return the_mutex;
}

std::atomic<std::int64_t>& num_abandoned() {
  static std::atomic<std::int64_t> count{0};
  return count;
}

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  throw CommError(fmt::format("[mpi] {}: {}", call,
                              std::string(text.data(), static_cast<std::size_t>(length))));
}

bool has_ended(MPI_Request& request) {
  if (request == MPI_REQUEST_NULL) return true;
  int ended = 0;
  check(MPI_Test(&request, &ended, MPI_STATUS_IGNORE), "MPI_Test");
  return ended != 0;
}

MPI_Comm duplicate_world() {
  MPI_Comm result = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  {
    const std::lock_guard lock(mutex());
    check(MPI_Comm_idup(MPI_COMM_WORLD, &result, &request), "MPI_Comm_idup");
  }
  for (;; std::this_thread::yield()) {
    const std::lock_guard lock(mutex());
    if (!has_ended(request)) continue;
    check(MPI_Comm_set_errhandler(result, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    return result;
  }
}

}  // namespace mpi

namespace {

std::string name_of_level(int level) {
  if (level == MPI_THREAD_MULTIPLE) return "multiple";
  if (level == MPI_THREAD_SERIALIZED) return "serialized";
  return level == MPI_THREAD_FUNNELED ? "funneled" : "single";
}

}  // namespace

std::string mpi_library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0, version = 0, subversion = 0;
  if (MPI_Get_library_version(text.data(), &length) != MPI_SUCCESS ||
      MPI_Get_version(&version, &subversion) != MPI_SUCCESS)
    return "a library without a version";
  const std::string whole(text.data());
  return fmt::format("{}, MPI {}.{}", whole.substr(0, whole.find_first_of(",\n")), version,
                     subversion);
}

MpiWorld::MpiWorld() {
  const std::int64_t before = device::current_resident_bytes();
  const std::lock_guard lock(mpi::mutex());
  int level = MPI_THREAD_SINGLE;
  mpi::check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread");
  thread_level_ = name_of_level(level);
  if (level < MPI_THREAD_SERIALIZED)
    throw Unsupported(fmt::format(
        "[mpi] expected a library for threads that take turns (MPI_THREAD_SERIALIZED), got {} "
        "with level '{}'",
        mpi_library(), thread_level_));
  mpi::check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
  mpi::check(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
  MPI_Comm node = MPI_COMM_NULL;
  mpi::check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node),
             "MPI_Comm_split_type");
  mpi::check(MPI_Comm_size(node, &num_on_node_), "MPI_Comm_size");
  mpi::check(MPI_Comm_free(&node), "MPI_Comm_free");
  int* slots = nullptr;
  int is_known = 0;
  mpi::check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_UNIVERSE_SIZE, &slots, &is_known),
             "MPI_Comm_get_attr");
  if (is_known != 0 && slots != nullptr) num_slots_ = *slots;
  resident_bytes_ = std::max<std::int64_t>(device::current_resident_bytes() - before, 0);
}

bool MpiWorld::finalize() {
  if (mpi::num_abandoned() > 0) return false;
  const std::lock_guard lock(mpi::mutex());
  mpi::check(MPI_Finalize(), "MPI_Finalize");
  return true;
}

}  // namespace anabatic::comm
