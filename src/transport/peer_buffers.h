// Maps the SharedBuffers of other processes of this host, for reading.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/shared_buffers.h"
#include "bootstrap/allgather.h"

namespace seqpar {

/// The file of one process, mapped once for all communicators. Thread safe.
class PeerFile {
 public:
  /// Throws SystemError.
  explicit PeerFile(const SharedFileCard& card);

  /// The bytes from `offset` on; null if they are not in the file, or the system does not let this process read them.
  const std::byte* at(uint64_t offset, size_t bytes);

 private:
  bool open(size_t end);

  SharedMapping mapping_;
  std::mutex mutex_;
  std::atomic<size_t> open_;  ///< bytes from the begin that this process may read
};

class PeerBuffers {
 public:
  /// Collective: maps the buffers of the candidates. `own` may be null.
  PeerBuffers(Allgather& control, const std::vector<bool>& candidates, std::shared_ptr<SharedBuffers> own);

  /// True if this rank and `peer` map each other's buffers.
  bool mapped(int peer) const { return peers_[static_cast<size_t>(peer)].file != nullptr; }
  /// True if all peers that map this rank's buffers can read the data.
  bool own(const void* data, size_t bytes) const { return own_ != nullptr && own_->contain(data, bytes); }
  /// Data at an address in the process of `peer`; null if it is not in a buffer that this rank maps.
  const std::byte* view(int peer, uint64_t address, size_t bytes) const;

 private:
  struct Peer {
    uint64_t begin = 0;
    std::shared_ptr<PeerFile> file;
  };
  std::shared_ptr<SharedBuffers> own_;
  std::vector<Peer> peers_;
};

}  // namespace seqpar
