// Selects the backend of a ring on GPUs.
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/env.h"
#include "device/cuda.h"
#include "device/stream_memory.h"
#include "exchange/device_exchanges.h"
#include "ring/copy_rule.h"
#include "ring/device_backend.h"

namespace seqpar {
namespace {

constexpr std::size_t kKilo = 1024;

enum EnginePreference { kAuto, kKernels, kCopy };

EnginePreference preferred() {
  constexpr std::array<Choice, 3> kEngines{{{"auto", kAuto}, {"kernels", kKernels}, {"copy", kCopy}}};
  return static_cast<EnginePreference>(envChoice("SEQPAR_RING_ENGINE", kEngines).value_or(kAuto));
}

/// Data that a rank sends to the others before a ring is created.
struct Offer {
  std::array<char, 16> bus{};
  int process = 0;
  int preference = kAuto;
  int canWait = 0;
  int givesHome = 0, givesScratch = 0;

  bool sharesWith(const Offer& other) const { return process == other.process && bus == other.bus; }
};

Offer offerOf(Communicator& comm, const RingBuffers& buffers, EnginePreference preference) {
  Offer mine;
  mine.process = static_cast<int>(getpid());
  const auto found = cudaDeviceGetPCIBusId(mine.bus.data(), static_cast<int>(mine.bus.size()), comm.device()->device());
  mine.preference = preference;
  mine.canWait = noteCuda(found, "cudaDeviceGetPCIBusId") && canStreamWait() ? 1 : 0;
  mine.givesHome = buffers.home.empty() ? 0 : 1;
  mine.givesScratch = buffers.scratch.empty() ? 0 : 1;
  return mine;
}

/// The obstacle that prevents copy engines from moving the ring of these ranks; "" if there is none.
std::string obstacle(const std::vector<Offer>& offers) {
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    const Offer& offer = offers[rank];
    if (offer.preference == kKernels) return concat("SEQPAR_RING_ENGINE is kernels on rank ", rank);
    if (offer.canWait == 0) return concat("streams of rank ", rank, " cannot wait for words of memory");
    if (offer.givesScratch != 0) return concat("rank ", rank, " passed scratch memory");
    // Streams of one process on one GPU may be executed one after the other: one rank's wait would block the other.
    for (std::size_t other = rank + 1; other < offers.size(); ++other) {
      if (offer.sharesWith(offers[other])) return concat("ranks ", rank, " and ", other, " share a GPU and a process");
    }
  }
  return "";
}

}  // namespace

RingChoice chooseDeviceRingBackend(Communicator& comm, const RingBuffers& buffers) {
  // All ranks reach this point with the same arguments: only the environment may differ before the offers are
  // exchanged.
  if (comm.size() == 1) return {false, false, "one rank"};
  if (!exchangesOf(*comm.device()).mapsAll()) return {false, false, "not all ranks reach each other's memory"};
  if (!buffers.everybody) return {false, false, "not all ranks of the communicator are in the ring"};
  const CurrentDevice current(comm.device()->device());
  const EnginePreference preference = preferred();
  std::vector<Offer> offers(static_cast<std::size_t>(comm.size()));
  comm.control().gatherValues(offerOf(comm, buffers, preference), std::span(offers));
  auto reason = obstacle(offers);
  if (!reason.empty()) return {false, false, reason};

  const auto least = leastBytesForCopyEngines(buffers.mostBytes);
  const auto any = [&](auto counts) { return std::any_of(offers.begin(), offers.end(), counts); };
  if (!any([](const Offer& offer) { return offer.preference != kCopy; })) {
    reason = "SEQPAR_RING_ENGINE is copy";
  } else if (!copyEnginesPay(buffers.mostBytes)) {
    return {false, false, concat("a step has less than ", least / kKilo, " KiB")};
  } else {
    reason = concat("a step has at least ", least / kKilo, " KiB");
  }
  // Receive buffers must be in memory that the peers have mapped, so the caller's own tensors stay in place.
  return {true, any([](const Offer& offer) { return offer.givesHome != 0; }), reason};
}

}  // namespace seqpar
