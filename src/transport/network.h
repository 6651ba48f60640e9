// Messages to the ranks that share no memory with this one.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/health.h"
#include "bootstrap/allgather.h"

namespace seqpar {

/// Sends are synchronous: a send completes when the receiver has stored the message in its memory, so completions are
/// the flow control. During an operation the rank's own thread progresses the messages; between operations, a thread of
/// the network does.
class Network {
 public:
  /// Collective over `control`: connects the ranks r with peers[r] (which must be symmetric), and returns after a
  /// message in each direction; null on a rank without peers. `health` fails when a peer's process or connection dies.
  static std::unique_ptr<Network> connect(Allgather& control, const std::vector<bool>& peers, Health& health,
                                          std::chrono::milliseconds timeout);

  /// The reason why this process has no network, as "no libucp.so.0"; empty if it has one.
  static const std::string& problem();

  Network() = default;
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;
  /// Waits briefly for sends to complete and sends bye to the peers, unless the communicator has failed.
  virtual ~Network() = default;

  /// The rank's own thread takes over progress from the background thread, or returns it.
  virtual void resume() noexcept = 0;
  virtual void rest() = 0;

  /// Sends `bytes` at `data`; the memory must stay valid until completed(to) has reached the returned number.
  virtual uint64_t send(int to, const std::byte* data, size_t bytes) = 0;
  virtual uint64_t completed(int to) const = 0;

  /// True if the next message from `from` has arrived.
  virtual bool arrived(int from) = 0;
  /// Its size and address, until release(). Requires arrived().
  virtual size_t bytes(int from) const = 0;
  virtual const std::byte* data(int from) const = 0;
  virtual void release(int from) = 0;

  /// Progresses messages; true if there was work.
  virtual bool progress() = 0;
  /// Sleeps until there is work, at most `most`.
  virtual void doze(std::chrono::milliseconds most) = 0;

  /// Description of the transport, e.g. "UCX 1.13.1 tcp", and its library, e.g. "UCX 1.13.1".
  virtual std::string transport() const = 0;
  virtual std::string library() const = 0;
  /// True if it supports the memory of CUDA devices.
  virtual bool cuda() const = 0;
};

}  // namespace seqpar
