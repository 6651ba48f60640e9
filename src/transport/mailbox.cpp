// Mailbox setup: all ranks agree on the transport of every pair.
#include "transport/mailbox.h"

#include <algorithm>

#include "bootstrap/agree.h"
#include "transport/queue_mailbox.h"

namespace seqpar {
namespace {

/// The other ranks that may share memory with this one.
std::vector<bool> hostRanks(const MailboxOptions& options, size_t self) {
  std::vector<bool> onHost(options.hostIds.size());
  for (size_t rank = 0; rank < onHost.size(); ++rank) {
    onHost[rank] = rank != self && options.hostIds[rank] == options.hostIds[self];
  }
  return onHost;
}

/// A pair is direct only if both could map each other.
std::vector<bool> agreeDirect(Allgather& control, const SharedMemory& memory) {
  const auto ranks = static_cast<size_t>(control.size());
  const auto self = static_cast<size_t>(control.rank());
  std::vector<std::byte> mapped(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) mapped[rank] = std::byte{memory.of(static_cast<int>(rank)) != nullptr};
  std::vector<std::byte> all(ranks * ranks);
  control.gather(mapped, all);
  std::vector<bool> direct(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    direct[rank] = all[self * ranks + rank] != std::byte{0} && all[rank * ranks + self] != std::byte{0};
  }
  return direct;
}

const char* orElse(const std::string& text, const char* otherwise) {
  return text.empty() ? otherwise : text.c_str();
}

/// The reason for not reaching `rank` by load and store.
std::string whyNotDirect(const MailboxOptions& options, const SharedMemory* memory, int self, int rank) {
  if (options.transport == seqparTransportNetwork) return "only messages were asked for";
  const auto& ids = options.hostIds;
  if (ids[static_cast<size_t>(self)] != ids[static_cast<size_t>(rank)]) return "it has another host id";
  if (memory == nullptr) return "no shared memory";
  return orElse(memory->whyNot(rank), "it could not map this rank's memory");
}

void describe(const MailboxOptions& options, const MailboxParts& parts, const std::vector<bool>& network, int self,
              MailboxDescription& description) {
  const auto remotePeers = std::count(network.begin(), network.end(), true);
  const auto localPeers = static_cast<std::ptrdiff_t>(network.size()) - 1 - remotePeers;
  const auto peers = [](std::ptrdiff_t count) { return concat(count, count == 1 ? " peer" : " peers"); };
  description = {};
  if (localPeers != 0) description.transport = concat("shared memory, ", peers(localPeers));
  if (localPeers == 0 && remotePeers == 0) description.transport = "none: one rank";
  if (remotePeers == 0) return;
  if (localPeers != 0) description.transport += "; ";
  description.transport += concat(parts.network->transport(), ", ", peers(remotePeers));
  const auto first = std::find(network.begin(), network.end(), true) - network.begin();
  description.reason =
      concat("rank ", first,
             " is reached by messages: ", whyNotDirect(options, parts.memory.get(), self, static_cast<int>(first)),
             ". ", parts.network->library(), parts.network->cuda() ? " knows" : " was built without", " CUDA memory.");
}

/// Index of each rank among the ranks of its host.
std::vector<size_t> placesOnHosts(const MailboxOptions& options) {
  std::vector<size_t> places(options.hostIds.size());
  for (size_t rank = 0; rank < places.size(); ++rank) {
    const auto begin = options.hostIds.begin();
    places[rank] = static_cast<size_t>(
        std::count(begin, begin + static_cast<std::ptrdiff_t>(rank), *(begin + static_cast<std::ptrdiff_t>(rank))));
  }
  return places;
}

}  // namespace

std::unique_ptr<Mailbox> makeMailbox(Allgather& control, const MailboxOptions& options, Health& health,
                                     MailboxDescription& description) {
  const auto ranks = static_cast<size_t>(control.size());
  const int self = control.rank();
  const auto own = static_cast<size_t>(self);
  if (options.hostIds.size() != ranks) {
    fail(seqparInternalError, "makeMailbox: ", options.hostIds.size(), " host ids for ", ranks, " ranks");
  }
  MailboxParts parts;
  parts.segments.resize(ranks);
  parts.places = placesOnHosts(options);
  std::vector<bool> onHost = hostRanks(options, own);
  std::vector<bool> direct(ranks, false);
  if (options.transport != seqparTransportNetwork && ranks > 1) {
    parts.memory = std::make_unique<SharedMemory>(control, onHost);
    direct = agreeDirect(control, *parts.memory);
    parts.reach = std::make_unique<PeerMemory>(control, direct);
    const bool any = std::find(direct.begin(), direct.end(), true) != direct.end();
    parts.buffers = std::make_unique<PeerBuffers>(control, direct, SharedBuffers::ofProcess(any));
  }
  std::vector<bool> network(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) network[rank] = rank != own && !direct[rank];

  together(control, [&] {
    const auto remotePeers = std::find(network.begin(), network.end(), true);
    if (options.transport != seqparTransportShared || remotePeers == network.end()) return;
    const int rank = static_cast<int>(remotePeers - network.begin());
    fail(seqparInvalidUsage, "SEQPAR_TRANSPORT=shared: rank ", self, " shares no memory with rank ", rank, ": ",
         whyNotDirect(options, parts.memory.get(), self, rank));
  });
  together(control, [&] {
    const auto remotePeers = std::find(network.begin(), network.end(), true);
    if (remotePeers == network.end() || Network::problem().empty()) return;
    const int rank = static_cast<int>(remotePeers - network.begin());
    fail(seqparInvalidUsage, "rank ", self, " reaches rank ", rank, " only through UCX (",
         whyNotDirect(options, parts.memory.get(), self, rank), "), but there is ", Network::problem());
  });
  parts.network = Network::connect(control, network, health, options.timeout);

  const size_t hostSize = static_cast<size_t>(std::count(onHost.begin(), onHost.end(), true)) + 1;
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (direct[rank]) parts.segments[rank] = Segment(parts.memory->of(static_cast<int>(rank)), hostSize);
  }
  if (std::find(direct.begin(), direct.end(), true) != direct.end()) {
    parts.segments[own] = Segment(parts.memory->mine(), hostSize);
  }
  onHost[own] = true;
  const Waiter::Options waiting{self, options.timeout, options.ownCores};
  describe(options, parts, network, self, description);
  return std::make_unique<QueueMailbox>(std::move(parts), health, waiting);
}

}  // namespace seqpar
