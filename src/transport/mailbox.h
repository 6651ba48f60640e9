// Messages between the ranks of a communicator: the only transport interface for collectives.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/health.h"
#include "base/target.h"
#include "bootstrap/allgather.h"

namespace seqpar {

/// Bytes in the memory of another rank.
struct RemoteBytes {
  uint64_t address;
  size_t bytes;
};

/// A one-way, in-order, reliable queue connects every rank to every other. A sender writes a message in place, in
/// memory that receivers of the same host read directly, so the arithmetic of a collective is fused into the store. A
/// receiver reads it in place. Messages of a queue are received in commit order.
///
/// Deadlock freedom: acquire() waits for receivers only while more than window() bytes of this rank's messages are
/// unread, counted from the oldest unread one, each in full, rounded up to 64 and at least 512. A collective cannot
/// deadlock if all ranks take the same steps in the same order, and in each step first publish at most window() / 2
/// bytes and then receive.
///
/// Waits throw Error(RemoteError) once Health has failed or a wait has exceeded the timeout; the latter also fails
/// Health. No message is published after that.
class Mailbox {
 public:
  Mailbox() = default;
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;
  virtual ~Mailbox() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// The largest message, in bytes.
  virtual size_t maxMessage() const = 0;
  /// See above; at least 4 * maxMessage().
  virtual size_t window() const = 0;
  /// True if this rank reaches `peer` by load and store.
  virtual bool direct(int peer) const = 0;

  /// Starts an operation, which error texts name "operation #number". `operation` must live until end().
  virtual void begin(const char* operation, uint64_t number) = 0;
  /// Marks the operation's following messages, sent and received, with some bits of a digest of its arguments:
  /// receive() of a message with another mark is InternalError. Operations that do not call it have a common mark.
  virtual void mark(uint64_t digest) = 0;
  /// Ends an operation: messages in flight progress without further calls.
  virtual void end() = 0;
  /// Ends the use of the mailbox after a failure, before the failed call returns and its buffers may change: later ends
  /// of read() on other ranks fail.
  virtual void abandon() noexcept = 0;
  /// True if the latest operation waited for more than about 2 us.
  virtual bool waited() const = 0;

  /// Returns memory for one message of `bytes` (0..maxMessage()) to the ranks `to` (other than this one, each once),
  /// aligned to 64, and its preferred store type. One message is under construction at a time.
  virtual Target acquire(std::span<const int> to, size_t bytes) = 0;
  /// Publishes the message under construction.
  virtual void commit() = 0;

  /// Waits for the next message of the queue from `from` and returns it in place, aligned to 64, readable until
  /// release(from). Its size must be `bytes`; another size is InternalError naming both (the ranks disagree about the
  /// operation), and so is another mark. Messages of different queues may be held at the same time.
  virtual const std::byte* receive(int from, size_t bytes) = 0;
  /// Returns the message of receive(from) to its sender.
  virtual void release(int from) = 0;

  /// True if receive(from) would not wait.
  virtual bool ready(int from) = 0;

  /// True if this rank and `peer` can read each other's memory in place, which for large buffers is cheaper than
  /// messages.
  virtual bool readable(int peer) const = 0;
  /// True if a payload to `peer`, which could read it in place, should be sent in messages: the two ranks seem to share
  /// a cache, or this is to be found out again. A decision of the sender, for contiguous payloads below kMostMessages.
  virtual bool prefersMessages(int peer) = 0;
  static constexpr size_t kMostMessages = size_t{2} << 20;
  /// Copies `from` in the process of `peer` to `into`, of the same total size, part by part. The peer must have sent
  /// the addresses in a message, and must be told by another message when it may change the data again. Parts of less
  /// than 4 KiB at the peer take longer than they would as messages. RemoteError if the peer had abandoned the
  /// operation before the end, as the data may have changed.
  virtual void read(int peer, std::span<const RemoteBytes> from, std::span<const std::span<std::byte>> into) = 0;

  /// Payloads of fewer bytes are faster as messages than through view().
  static constexpr size_t kLeastMapped = size_t{16} << 10;
  /// True if this rank and `peer` map each other's buffers of seqparMemAlloc().
  virtual bool mapped(int peer) const = 0;
  /// True if the data are in a buffer of this rank that those peers map.
  virtual bool shared(const void* data, size_t bytes) const = 0;
  /// Data of a peer that shared() them and sent their address, in place; null if the system does not let this rank read
  /// them: then read() throws or copies them. The peer must be told when it may change them, after endViews().
  virtual const std::byte* view(int peer, uint64_t address, size_t bytes) = 0;
  /// As the end of read(): RemoteError if the peer had abandoned the operation before all views were read.
  virtual void endViews(int peer) = 0;

  /// read() of one part.
  void read(int peer, uint64_t address, std::span<std::byte> into) {
    const RemoteBytes from{address, into.size()};
    read(peer, std::span(&from, 1), std::span(&into, 1));
  }
  Target acquire(int to, size_t bytes) { return acquire(std::span<const int>(&to, 1), bytes); }
};

/// A message without payload, which only signals its arrival.
inline void sendEmpty(Mailbox& mail, int to) {
  mail.acquire(to, 0);
  mail.commit();
}
inline void receiveEmpty(Mailbox& mail, int from) {
  mail.receive(from, 0);
  mail.release(from);
}

struct MailboxOptions {
  std::chrono::milliseconds timeout{300000};  ///< 0: none
  int transport = seqparTransportAuto;        ///< a seqparTransport_t
  std::vector<std::string> hostIds;           ///< one per rank; ranks with different ids never share memory
  bool ownCores = false;                      ///< every rank has its own processor, so it may spin while it waits
};

/// Description of the transports, for seqparCommQuery().
struct MailboxDescription {
  std::string transport;  ///< e.g. "shared memory, 3 peers; UCX 1.13.1 tcp, 4 peers"
  std::string reason;     ///< the obstacle to something faster, or ""
};

/// Collective over `control`: creates the queues and all connections.
std::unique_ptr<Mailbox> makeMailbox(Allgather& control, const MailboxOptions& options, Health& health,
                                     MailboxDescription& description);

}  // namespace seqpar
