// Creation of NCCL communicators.
#include "device/nccl_comm.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/env.h"
#include "device/nccl_group.h"

namespace seqpar {
namespace {

/// A rank's contribution to the setup.
struct Offer {
  int version = 0;
  char problem[256] = {};  ///< not empty: this rank cannot use NCCL
  ncclUniqueId id = {};    ///< rank 0's
};

Offer makeOffer(bool first) {
  Offer offer;
  const NcclFound& found = findNccl();
  std::string problem = found.problem;
  offer.version = found.library.version;
  if (problem.empty() && first) {
    const ncclResult_t result = found.library.getUniqueId(&offer.id);
    if (result != ncclSuccess) problem = found.library.describe(result, "ncclGetUniqueId", nullptr);
  }
  std::memcpy(offer.problem, problem.data(), std::min(problem.size(), sizeof(offer.problem) - 1));
  return offer;
}

/// The unique id, agreed on by all ranks.
ncclUniqueId exchangeId(Allgather& control) {
  std::vector<Offer> offers(static_cast<std::size_t>(control.size()));
  control.gatherValues(makeOffer(control.rank() == 0), std::span(offers));
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    const Offer& offer = offers[rank];
    if (offer.problem[0] != '\0') {
      fail(seqparInvalidUsage, "NCCL is needed, but rank ", rank, " has ", offer.problem);
    }
    if (offer.version != offers[0].version) {
      fail(seqparInvalidUsage, "rank ", rank, " has NCCL ", ncclVersionInWords(offer.version), " and rank 0 has NCCL ",
           ncclVersionInWords(offers[0].version), "; expected one version");
    }
  }
  return offers[0].id;
}

/// A blocking communicator of all ranks, which a non-blocking one guards: each group of calls of a non-blocking one
/// starts a thread, which takes 70 us.
std::shared_ptr<NcclHandle> guarded(std::unique_ptr<NcclHandle> guard, int rank, std::chrono::milliseconds timeout,
                                    Health& health) {
  // Without common resources, an abort of the guard does not end the other's work.
  if (envText("NCCL_COMM_SPLIT_SHARE_RESOURCES") == "0") return guard;
  const NcclLibrary& nccl = guard->library();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  auto comm = std::make_unique<ncclComm_t>(nullptr);
  try {
    guard->call("ncclCommSplit", health,
                [&](ncclComm_t parent) { return nccl.commSplit(parent, 0, rank, comm.get(), &config); });
  } catch (...) {
    (void)comm.release();  // a thread of NCCL may still write it
    throw;
  }
  if (*comm == nullptr) fail(seqparInternalError, "ncclCommSplit returned no communicator");
  return std::make_shared<NcclHandle>(nccl, *comm, true, timeout, std::move(guard));
}

std::shared_ptr<NcclComm> connected(std::shared_ptr<NcclHandle> handle, int size, int rank, int device,
                                    std::chrono::milliseconds timeout, Health& health) {
  std::vector<int> everybody(static_cast<std::size_t>(size));
  std::iota(everybody.begin(), everybody.end(), 0);
  auto group = std::make_shared<NcclGroup>(std::move(handle), std::move(everybody), rank, device, timeout, health);
  group->connect();
  return group;
}

}  // namespace

std::shared_ptr<NcclComm> NcclComm::create(Allgather& control, int device, std::chrono::milliseconds timeout,
                                           Health& health) {
  const ncclUniqueId id = exchangeId(control);
  const NcclLibrary& nccl = requireNccl();
  const CurrentDevice current(device);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  // Only a non-blocking communicator can be aborted at any time.
  config.blocking = 0;
  config.splitShare = 1;
  ncclComm_t comm = nullptr;
  nccl.check(nccl.commInitRankConfig(&comm, control.size(), id, control.rank(), &config), "ncclCommInitRankConfig");
  auto handle = std::make_unique<NcclHandle>(nccl, comm, true, timeout);
  handle->finish("ncclCommInitRankConfig", health);
  return connected(guarded(std::move(handle), control.rank(), timeout, health), control.size(), control.rank(), device,
                   timeout, health);
}

std::shared_ptr<NcclComm> NcclComm::borrow(void* ncclComm, std::chrono::milliseconds timeout, Health& health) {
  const NcclLibrary& nccl = requireNccl();
  const auto comm = static_cast<ncclComm_t>(ncclComm);
  int size = 0, rank = 0, device = 0;
  nccl.check(nccl.commCount(comm, &size), "ncclCommCount", comm);
  nccl.check(nccl.commUserRank(comm, &rank), "ncclCommUserRank", comm);
  nccl.check(nccl.commCuDevice(comm, &device), "ncclCommCuDevice", comm);
  const CurrentDevice current(device);
  return connected(std::make_shared<NcclHandle>(nccl, comm, false, timeout), size, rank, device, timeout, health);
}

}  // namespace seqpar
