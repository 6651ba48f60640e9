#include "api/describe.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "device/device.h"

namespace seqpar {
namespace {

template <size_t Size>
void copyText(const std::string& text, char (&into)[Size]) {
  const size_t length = std::min(text.size(), Size - 1);
  std::memcpy(into, text.data(), length);
  into[length] = '\0';
}

bool reachesDirectly(const Communicator& comm, int peer) {
  if (comm.device() == nullptr) return comm.mailbox().direct(peer);
  const auto& peers = comm.device()->peerRanks();
  return std::find(peers.begin(), peers.end(), peer) != peers.end();
}

}  // namespace

seqparCommInfo_t describe(Communicator& comm) {
  seqparCommInfo_t info = SEQPAR_COMM_INFO_INITIALIZER;
  info.rank = comm.rank();
  info.nranks = comm.size();
  info.device = comm.config().device;
  info.nodes = comm.topology().nodeCount;
  info.node = comm.topology().nodes[static_cast<size_t>(comm.rank())];
  const auto& threads = comm.topology().threads;
  info.threads = threads[static_cast<size_t>(comm.rank())];
  info.mostThreads = *std::max_element(threads.begin(), threads.end());
  info.sharing = comm.device() == nullptr ? 1 : comm.device()->sharing();
  for (int peer = 0; peer < comm.size(); ++peer) {
    if (peer == comm.rank()) continue;
    ++(reachesDirectly(comm, peer) ? info.directPeers : info.networkPeers);
  }
  // The slowest class of links dominates.
  const auto& link = comm.links().network;
  info.alphaUs = link.alpha * 1e6;
  info.bandwidth = link.secondsPerByte > 0 ? 1 / link.secondsPerByte : 0;
  info.overheadUs = link.overhead * 1e6;
  info.contention = comm.links().contention;
  copyText(comm.transport().transport, info.transport);
  copyText(concat(comm.transport().reason, comm.transport().reason.empty() ? "" : "; ", deviceReport()), info.reason);
  return info;
}

void logCreated(Communicator& comm) {
  if (!logs(LogLevel::Info)) return;
  const seqparCommInfo_t info = describe(comm);
  const std::string device = info.device == SEQPAR_HOST_DEVICE ? "host memory" : concat("GPU ", info.device);
  log(LogLevel::Info, "communicator ", comm.calls().id(), ": rank ", info.rank, " of ", info.nranks, " on ", device,
      ", node ", info.node, " of ", info.nodes, ", ", info.directPeers, " peers by load and store, ", info.networkPeers,
      " by messages, over ", info.transport);
  log(LogLevel::Info, "communicator ", comm.calls().id(), ": alpha ", info.alphaUs, " us, bandwidth ",
      info.bandwidth / 1e9, " GB/s, overhead ", info.overheadUs, " us a block, contention ", info.contention,
      *info.reason != '\0' ? "; " : "", info.reason);
}

}  // namespace seqpar
