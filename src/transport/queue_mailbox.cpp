#include "transport/queue_mailbox.h"

#include <algorithm>
#include <cstring>

#include "base/memory.h"
#include "base/ticks.h"
#include "transport/caches.h"

namespace seqpar {
namespace {

/// For smaller messages between processors without a common cache, waiting for memory would cost more than it saves.
constexpr size_t kLeastStreamed = 4096;
/// Takes some milliseconds: a failure elsewhere ends a read between two copies.
constexpr size_t kReadAtOnce = size_t{16} << 20;
/// From this size on, the bytes do not fit the caches.
constexpr size_t kReadStreamed = size_t{8} << 20;

}  // namespace

QueueMailbox::QueueMailbox(MailboxParts parts, Health& health, const Waiter::Options& options)
    : rank_(options.rank),
      health_(health),
      parts_(std::move(parts)),
      peers_(parts_.segments.size(),
             Peer{{}, {}, nullptr, StoreChoice(processorsShareCache() ? Store::Cached : Store::Streamed)}),
      waiter_(health,
              parts_.segments[static_cast<size_t>(rank_)]
                  ? parts_.segments[static_cast<size_t>(rank_)]->header().doorbell
                  : ownDoorbell_,
              parts_.network.get(), options) {
  const auto self = static_cast<size_t>(rank_);
  const std::optional<Segment>& mine = parts_.segments[self];
  if (mine) {
    ring_ = mine->ring();
  } else if (parts_.network != nullptr) {
    constexpr size_t kBytes = kRingBytes + kSmallRingBytes;
    ownRing_ = allocateFor("messages to other ranks", kBytes,
                           [] { return std::make_unique_for_overwrite<CacheLine[]>(kBytes / kCacheLine); });
    ring_ = ownRing_[0].bytes;
  }
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    const std::optional<Segment>& remote = parts_.segments[rank];
    if (rank == self || !remote) continue;
    const size_t remotePlace = parts_.places[rank];
    const size_t here = parts_.places[self];
    peers_[rank].send.emplace(mine->descriptors(remotePlace), mine->ack(remotePlace));
    peers_[rank].receive.emplace(remote->descriptors(here), remote->ack(here), remote->ring());
    peers_[rank].doorbell = &remote->header().doorbell;
  }
}

void QueueMailbox::begin(const char* operation, uint64_t number) {
  waiter_.begin(operation, number);
  mark_ = 0;
  if (parts_.network != nullptr) parts_.network->resume();
}

void QueueMailbox::end() {
  draft_.open = false;
  if (parts_.network != nullptr) parts_.network->rest();
}

void QueueMailbox::abandon() noexcept {
  const std::optional<Segment>& mine = parts_.segments[static_cast<size_t>(rank_)];
  if (!mine) return;
  mine->header().abandoned.store(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // before the caller's next stores to the buffers
}

void QueueMailbox::read(int peer, std::span<const RemoteBytes> from, std::span<const std::span<std::byte>> into) {
  if (!readMapped(peer, from, into)) parts_.reach->read(peer, from, into, health_);
  endViews(peer);
}

bool QueueMailbox::readMapped(int peer, std::span<const RemoteBytes> from, std::span<const std::span<std::byte>> into) {
  const auto isMapped = [&](const RemoteBytes& part) { return view(peer, part.address, part.bytes) != nullptr; };
  if (!std::all_of(from.begin(), from.end(), isMapped)) return false;
  size_t total = 0;
  for (const auto& each : into) total += each.size();
  const Store store = total < kReadStreamed ? Store::Cached : Store::Streamed;
  size_t part = 0, read = 0;
  for (auto rest : into) {
    while (!rest.empty()) {
      health_.check();
      const size_t bytes = std::min({from[part].bytes - read, rest.size(), kReadAtOnce});
      copyFrom(rest.data(), view(peer, from[part].address + read, bytes), bytes, store);
      rest = rest.subspan(bytes);
      read += bytes;
      if (read < from[part].bytes) continue;
      ++part;
      read = 0;
    }
  }
  if (store == Store::Streamed) finishParts();
  return true;
}

void QueueMailbox::endViews(int peer) {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // after the reads
  if (parts_.segments[static_cast<size_t>(peer)]->header().abandoned.load(std::memory_order_seq_cst) == 0) return;
  // The reason is on its way, and names the rank that is lost.
  health_.awaitFailure();
  health_.check();
  fail(seqparRemoteError, "rank ", peer, " had given up before rank ", rank_, " had read its data");
}

Target QueueMailbox::acquire(std::span<const int> to, size_t bytes) {
  if (draft_.open) fail(seqparInternalError, "acquire: another message is under construction");
  if (bytes > kMaxMessage) {
    fail(seqparInternalError, "acquire: ", bytes, " bytes; a message has at most ", kMaxMessage);
  }
  draft_.inlined = nullptr;
  if (to.size() == 1 && bytes <= kInlineBytes && direct(to[0])) {
    awaitDescriptor(to[0]);
    draft_.inlined = &peer(to[0]);
    draft_.bytes = bytes;
    draft_.open = true;
    return draft_.inlined->send->place(bytes);
  }
  bool allDirect = true;
  for (const int rank : to) {
    allDirect = allDirect && direct(rank);
    if (direct(rank)) awaitDescriptor(rank);
  }
  draft_.to.assign(to.begin(), to.end());
  draft_.remote = !allDirect;
  draft_.bytes = bytes;
  draft_.offset.reset();
  if (!allDirect || bytes > kInlineBytes) draft_.offset = awaitPlace(ringBytes());
  draft_.open = true;
  if (!draft_.offset) return inline_[0].bytes;
  // This processor reads messages for the network first.
  draft_.trial = Trial::None;
  return {ring_ + *draft_.offset, allDirect && bytes >= kLeastStreamed ? chooseStore() : Store::Cached};
}

Store QueueMailbox::chooseStore() {
  // Readers take turns as judges of a message to several.
  draft_.judge = draft_.to[judges_++ % draft_.to.size()];
  Peer& judge = peer(draft_.judge);
  const StoreChoice::Use use = judge.stores.next(draft_.bytes, [&] { return judge.send->readingTimes(); });
  draft_.trial = use.trial;
  if (use.trial != Trial::None) {
    draft_.start = ticksNow();
    return use.store;
  }
  const bool streams = std::any_of(draft_.to.begin(), draft_.to.end(),
                                   [this](int rank) { return peer(rank).stores.store() == Store::Streamed; });
  return streams ? Store::Streamed : Store::Cached;
}

bool QueueMailbox::prefersMessages(int peer) {
  Peer& reader = this->peer(peer);
  return reader.send && (reader.stores.store() == Store::Cached || reader.stores.trialDue());
}

void QueueMailbox::commit() {
  if (!draft_.open) fail(seqparInternalError, "commit: no message is under construction");
  draft_.open = false;
  health_.check();
  if (draft_.inlined != nullptr) {
    draft_.inlined->send->publishPlaced(draft_.bytes, mark_);
    ring(*draft_.inlined->doorbell);
    return;
  }
  if (draft_.offset && draft_.trial != Trial::None) {
    peer(draft_.judge).stores.wrote(draft_.trial, ticksNow() - draft_.start);
  }
  std::byte* const data = draft_.offset ? ring_ + *draft_.offset : inline_[0].bytes;
  if (draft_.remote && mark_ != 0) std::memcpy(data + draft_.bytes, &mark_, sizeof(mark_));
  for (const int rank : draft_.to) {
    Peer& reader = peer(rank);
    if (!reader.send) {
      keep(rank, parts_.network->send(rank, data, networkBytes(draft_.bytes)));
    } else if (draft_.bytes <= kInlineBytes) {
      reader.send->publishInline(data, draft_.bytes, mark_);
      ring(*reader.doorbell);
    } else {
      const Trial trial = rank == draft_.judge ? draft_.trial : Trial::None;
      keep(rank, reader.send->publishAt(*draft_.offset, draft_.bytes, mark_, trial));
      ring(*reader.doorbell);
    }
  }
}

void QueueMailbox::keep(int rank, uint64_t sequence) {
  const size_t offset = *draft_.offset;
  if (offset < kRingBytes) return outbox_.keep(offset, ringBytes(), rank, sequence);
  small_.keep(offset - kRingBytes, ringBytes(), rank, sequence);
}

const std::byte* QueueMailbox::receive(int from, size_t bytes) {
  Peer& sender = peer(from);
  waiter_.wait(
      sender.receive ? Waiter::By::Store : Waiter::By::Network, [&] { return arrived(from); },
      [&] { return concat("for a message from rank ", from); });
  if (!sender.receive) return receiveFromNetwork(from, bytes);
  if (const MessageHead head = sender.receive->head(); head != MessageHead(bytes, mark_)) {
    refuse(from, bytes, head.bytes());
  }
  if (const Trial trial = sender.receive->trial(); trial != Trial::None) sender.clock.begin(trial, bytes, ticksNow());
  return sender.receive->data();
}

const std::byte* QueueMailbox::receiveFromNetwork(int from, size_t bytes) {
  const size_t size = parts_.network->bytes(from);
  const std::byte* const data = parts_.network->data(from);
  if (size != networkBytes(bytes)) refuse(from, bytes, size);
  if (mark_ != 0 && std::memcmp(data + bytes, &mark_, sizeof(mark_)) != 0) refuse(from, bytes, bytes);
  return data;
}

void QueueMailbox::refuse(int from, size_t bytes, size_t sent) const {
  if (sent != bytes) {
    fail(seqparInternalError, "rank ", rank_, " expected a message of ", bytes, " bytes from rank ", from,
         ", which sent one of ", sent, ": the ranks disagree about the operation");
  }
  fail(seqparInternalError, "rank ", from, " sent rank ", rank_, " a message of another call, or of this call with ",
       "other arguments: the ranks disagree about the operation");
}

void QueueMailbox::release(int from) {
  Peer& sender = peer(from);
  if (!sender.receive) {
    parts_.network->release(from);
    return;
  }
  if (sender.clock.running()) {
    if (const auto times = sender.clock.end(ticksNow())) sender.receive->report(*times);
  }
  sender.receive->release();
  ring(*sender.doorbell);
}

bool QueueMailbox::ready(int from) {
  if (arrived(from)) return true;
  if (peer(from).receive) return false;
  parts_.network->progress();
  return arrived(from);
}

void QueueMailbox::awaitDescriptor(int to) {
  SendQueue& queue = *peer(to).send;
  if (!queue.full()) return;
  waiter_.wait(
      Waiter::By::Store, [&] { return !queue.full(); },
      [&] { return concat("for rank ", to, " to read its messages"); });
}

size_t QueueMailbox::awaitPlace(size_t bytes) {
  if (bytes <= kSmallMessage) {
    std::optional<size_t> offset = small_.place(bytes);
    if (!offset) {
      small_.reclaim([this](int rank) { return consumed(rank); });
      offset = small_.place(bytes);
    }
    if (offset) return kRingBytes + *offset;
  }
  std::optional<size_t> offset = outbox_.place(bytes);
  while (!offset) {
    const Outbox::Reader oldest = *outbox_.oldest();
    waiter_.wait(
        direct(oldest.rank) ? Waiter::By::Store : Waiter::By::Network,
        [&] { return consumed(oldest.rank) >= oldest.sequence; },
        [&] { return concat("for rank ", oldest.rank, " to read its messages"); });
    outbox_.reclaim([this](int rank) { return consumed(rank); });
    offset = outbox_.place(bytes);
  }
  return *offset;
}

bool QueueMailbox::arrived(int from) {
  Peer& sender = peer(from);
  return sender.receive ? sender.receive->arrived() : parts_.network->arrived(from);
}

uint64_t QueueMailbox::consumed(int by) {
  Peer& reader = peer(by);
  return reader.send ? reader.send->consumed() : parts_.network->completed(by);
}

}  // namespace seqpar
