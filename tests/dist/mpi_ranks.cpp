// SPDX-License-Identifier: Apache-2.0
#include "dist/mpi_ranks.h"

#include <gtest/gtest.h>

#include <memory>

#include "comm/launcher.h"

namespace anabatic::testing {
namespace {

class EndOfMpi : public ::testing::Environment {
 public:
  explicit EndOfMpi(comm::MpiWorld& world) : world_(world) {}
  void TearDown() override { EXPECT_TRUE(world_.finalize()) << "requests of MPI are open"; }

 private:
  comm::MpiWorld& world_;
};

std::unique_ptr<comm::MpiWorld> start() {
  const auto process = comm::launched_process();
  if (!process || process->size < 2) return nullptr;
  auto world = std::make_unique<comm::MpiWorld>();
  ::testing::AddGlobalTestEnvironment(new EndOfMpi(*world));
  return world;
}

}  // namespace

comm::MpiWorld* mpi_world() {
  static const std::unique_ptr<comm::MpiWorld> world = start();
  return world.get();
}

std::vector<comm::MpiWorld*> mpi_worlds() {
  if (mpi_world() == nullptr) return {};
  return {mpi_world()};
}

}  // namespace anabatic::testing
