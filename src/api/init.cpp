// Creation of communicators.
#include <thread>
#include <vector>

#include "api/boundary.h"
#include "base/thread.h"
#include "base/versioned.h"
#include "bootstrap/bootstrap.h"
#include "comm/config.h"

using namespace seqpar;

namespace {

ControlOptions controlOptions(const CommConfig& config) {
  return {config.timeout, config.interfaceName};
}

/// Collective, including CommEntry's constructor, which measures.
std::shared_ptr<CommEntry> makeEntry(Allgather& oob, const CommConfig& config) {
  return std::make_shared<CommEntry>(std::make_shared<Communicator>(oob, config));
}

void requireRank(const char* call, int nranks, int rank) {
  if (nranks < 1) fail(seqparInvalidArgument, call, ": nranks is ", nranks, ", expected at least 1");
  if (rank < 0 || rank >= nranks) {
    fail(seqparInvalidArgument, call, ": rank is ", rank, ", expected 0 to nranks - 1 = ", nranks - 1);
  }
}

bool isRemote(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    return known.result() == seqparRemoteError;
  } catch (...) {
    return false;
  }
}

/// Throws the error of the lowest rank that failed; errors about other ranks come last.
void rethrowCause(const std::vector<std::exception_ptr>& errors) {
  std::exception_ptr remote;
  for (const auto& error : errors) {
    if (error && !isRemote(error)) std::rethrow_exception(error);
    if (error && !remote) remote = error;
  }
  if (remote) std::rethrow_exception(remote);
}

void initRank(const char* call, seqparComm_t* comm, int nranks, const seqparUniqueId& id, int rank,
              const seqparConfig_t* config) {
  requirePointer(call, "comm", comm);
  *comm = nullptr;
  requireRank(call, nranks, rank);
  const auto resolved = resolveConfig(call, config);
  const auto oob = joinRendezvous(id, rank, nranks, controlOptions(resolved));
  *comm = seqpar::comms().add(makeEntry(*oob, resolved));
}

}  // namespace

extern "C" {

SEQPAR_API seqparResult_t seqparGetUniqueId(seqparUniqueId* id) {
  const char* call = "seqparGetUniqueId";
  return atBoundary(call, [&] {
    requirePointer(call, "id", id);
    *id = makeUniqueId(resolveConfig(call, nullptr).interfaceName);
  });
}

SEQPAR_API seqparResult_t seqparCommInitRank(seqparComm_t* comm, int nranks, seqparUniqueId id, int rank) {
  const char* call = "seqparCommInitRank";
  return atBoundary(call, [&] { initRank(call, comm, nranks, id, rank, nullptr); });
}

SEQPAR_API seqparResult_t seqparCommInitRankConfig(seqparComm_t* comm, int nranks, seqparUniqueId id, int rank,
                                                   const seqparConfig_t* config) {
  const char* call = "seqparCommInitRankConfig";
  return atBoundary(call, [&] { initRank(call, comm, nranks, id, rank, config); });
}

SEQPAR_API seqparResult_t seqparCommInitEnv(seqparComm_t* comm, const seqparConfig_t* config) {
  const char* call = "seqparCommInitEnv";
  return atBoundary(call, [&] {
    requirePointer(call, "comm", comm);
    *comm = nullptr;
    const auto resolved = resolveConfig(call, config);
    const auto joined = joinFromEnvironment(controlOptions(resolved));
    *comm = seqpar::comms().add(makeEntry(*joined.allgather, resolved));
  });
}

SEQPAR_API seqparResult_t seqparCommInitOob(seqparComm_t* comm, const seqparOob_t* oob, const seqparConfig_t* config) {
  const char* call = "seqparCommInitOob";
  return atBoundary(call, [&] {
    requirePointer(call, "comm", comm);
    *comm = nullptr;
    const auto given = readVersioned(call, "oob", oob, seqparOob_t SEQPAR_OOB_INITIALIZER);
    requireRank(call, given.nranks, given.rank);
    if (given.allgather == nullptr) fail(seqparInvalidArgument, call, ": oob->allgather is NULL");
    const auto resolved = resolveConfig(call, config);
    *comm = seqpar::comms().add(makeEntry(*wrapOob(given), resolved));
  });
}

SEQPAR_API seqparResult_t seqparCommInitAll(seqparComm_t* comms, int nranks, const int* devices) {
  const char* call = "seqparCommInitAll";
  return atBoundary(call, [&] {
    requirePointer(call, "comms", comms);
    requireRank(call, nranks, 0);
    const auto count = static_cast<size_t>(nranks);
    std::fill_n(comms, count, nullptr);
    std::vector<CommConfig> configs;
    for (size_t rank = 0; rank < count; ++rank) {
      seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
      if (devices != nullptr) config.device = devices[rank];
      configs.push_back(resolveConfig(call, &config));
    }
    auto group = makeLocalGroup(nranks, configs.front().timeout);

    std::vector<std::shared_ptr<CommEntry>> made(count);
    std::vector<std::exception_ptr> errors(count);
    std::vector<std::jthread> makers;
    const auto make = [&](size_t rank) {
      try {
        made[rank] = makeEntry(*group[rank], configs[rank]);
      } catch (...) {
        errors[rank] = std::current_exception();
        group[rank].reset();  // ends the waits of the others
      }
    };
    for (size_t rank = 0; rank < count; ++rank) {
      try {
        makers.push_back(startThread<std::jthread>("a rank", [&, rank] { make(rank); }));
      } catch (...) {
        errors[rank] = std::current_exception();
        for (size_t absent = rank; absent < count; ++absent) group[absent].reset();
        break;
      }
    }
    makers.clear();
    rethrowCause(errors);
    for (size_t rank = 0; rank < count; ++rank) comms[rank] = seqpar::comms().add(std::move(made[rank]));
  });
}

}  // extern "C"
