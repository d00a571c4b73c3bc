// SPDX-License-Identifier: Apache-2.0
// A program for kill_rank.py, under mpirun: ranks add for about two seconds, and one of them dies,
// stops or throws on the way, while others wait to send to it. All but the dead print how they end.
// usage: kill_rank kill|stop|throw RANK EXCHANGE SECONDS METHOD    (SECONDS: how long it stops)
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "comm/communicator.h"
#include "comm/mpi_world.h"
#include "support/ranks.h"

namespace anabatic::testing {
namespace {

constexpr int kExchanges = 400;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void stop(unsigned seconds) {
  if (::fork() == 0) {
    ::sleep(seconds);
    ::kill(::getppid(), SIGCONT);
    ::_exit(0);
  }
  ::raise(SIGSTOP);
}

int run(comm::MpiWorld& world, const std::string& what, int victim, int at, unsigned seconds,
        comm::Method method) {
  std::vector<std::int32_t> group;
  for (std::int32_t rank = 0; rank < world.size(); ++rank) group.push_back(rank);
  comm::Communicator communicator(world.make_transport({.groups = {group}}),
                                  {.patience_seconds = 60});
  const auto counts = comm::even_counts(200'000, world.size());
  std::vector<float> values(200'000, 0);
  AlignedBytes workspace(comm::workspace_bytes(world.size(), method));
  auto last = std::chrono::steady_clock::now();
  try {
    communicator.begin_step(1, 9);
    for (int i = 0; i < kExchanges; ++i) {
      if (i == at && world.rank() == victim) {
        std::printf("victim %d is process %d\n", victim, static_cast<int>(::getpid()));
        std::fflush(stdout);
        if (what == "kill") ::raise(SIGKILL);
        if (what == "throw") throw ResourceError("disk full");
        stop(seconds);
      }
      communicator.await(
          communicator.post({.kind = comm::ExchangeKind::kAllReduce,
                             .method = method,
                             .group = group,
                             .counts = counts,
                             .row_bytes = sizeof(float),
                             .input = reinterpret_cast<const std::byte*>(values.data()),
                             .output = reinterpret_cast<std::byte*>(values.data())},
                            workspace.span()));
      last = std::chrono::steady_clock::now();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  } catch (const Error& error) {
    communicator.abort(error.what());
    std::printf("rank %d ended after %.2f s: %s\n", world.rank(), seconds_since(last),
                error.what());
    std::fflush(stdout);
    ::_exit(3);  // MPI goes on, as nobody finalizes with open requests
  }
  std::printf("rank %d is done\n", world.rank());
  std::fflush(stdout);
  return 0;
}

}  // namespace
}  // namespace anabatic::testing

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  anabatic::comm::MpiWorld world;
  using anabatic::comm::Method;
  const int result =
      anabatic::testing::run(world, argv[1], std::stoi(argv[2]), std::stoi(argv[3]),
                             static_cast<unsigned>(std::stoi(argv[4])),
                             std::string_view(argv[5]) == "mpi" ? Method::kMpi : Method::kOrdered);
  return world.finalize() ? result : 1;
}
