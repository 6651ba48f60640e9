#include "transport/peer_memory.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <random>

#include "base/error.h"

namespace seqpar {
namespace {

/// Maximum number of parts per system call, including the token.
constexpr size_t kParts = 1024;
/// Takes some milliseconds: a failure elsewhere ends a read between two calls.
constexpr size_t kReadChunk = size_t{16} << 20;

iovec partOf(uint64_t address, size_t bytes) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of another process, dereferenced only by the kernel.
  return {reinterpret_cast<void*>(address), bytes};
}

/// Number of bytes copied, limited by the shorter side; -1 with errno.
ssize_t readProcess(uint64_t process, std::span<const iovec> from, std::span<const iovec> into) {
  return process_vm_readv(static_cast<pid_t>(process), into.data(), into.size(), from.data(), from.size(), 0);
}

/// Adds a part, in pieces of at most kReadChunk.
void addPart(std::vector<iovec>& parts, uint64_t address, size_t bytes) {
  for (; bytes > 0; address += kReadChunk) {
    const size_t chunk = std::min(bytes, kReadChunk);
    parts.push_back(partOf(address, chunk));
    bytes -= chunk;
  }
}

/// `first`, and the first parts, of about kReadChunk bytes together.
void takeFirst(std::vector<iovec>& out, const iovec& first, std::span<const iovec> parts) {
  out.assign(1, first);
  size_t bytes = 0;
  for (size_t i = 0; i < std::min(parts.size(), kParts - 1) && bytes < kReadChunk; ++i) {
    out.push_back(parts[i]);
    bytes += parts[i].iov_len;
  }
}

/// Removes the first `bytes`.
void drop(std::span<iovec>& parts, size_t bytes) {
  while (bytes > 0 && bytes >= parts.front().iov_len) {
    bytes -= parts.front().iov_len;
    parts = parts.subspan(1);
  }
  if (bytes == 0) return;
  parts.front() = partOf(reinterpret_cast<uint64_t>(parts.front().iov_base) + bytes, parts.front().iov_len - bytes);
}

/// Throws the communicator's failure if it arrives soon. A peer whose memory is gone has ended or has lost the
/// communicator, mostly because of a third rank, which the control plane is about to name.
void awaitCause(const Health& health) {
  health.awaitFailure();
  health.check();
}

}  // namespace

PeerMemory::PeerMemory(Allgather& control, const std::vector<bool>& candidates)
    : token_(std::make_unique<uint64_t>()), cards_(candidates.size()), readable_(candidates.size()) {
  std::random_device random;
  *token_ = (uint64_t{random()} << 32) | random();
  const Card mine{static_cast<uint64_t>(getpid()), reinterpret_cast<uint64_t>(token_.get()), *token_};
  control.gatherValues(mine, std::span(cards_));

  const size_t ranks = candidates.size();
  const auto self = static_cast<size_t>(control.rank());
  std::vector<std::byte> reads(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    reads[rank] = std::byte{candidates[rank] && rank != self && recognizes(cards_[rank])};
  }
  // Also a barrier: until here every rank keeps its token at the address that the others read.
  std::vector<std::byte> all(ranks * ranks);
  control.gather(reads, all);
  for (size_t rank = 0; rank < ranks; ++rank) {
    readable_[rank] = all[self * ranks + rank] != std::byte{0} && all[rank * ranks + self] != std::byte{0};
  }
}

bool PeerMemory::recognizes(const Card& card) const {
  uint64_t token = 0;
  const iovec remote = partOf(card.address, sizeof(token));
  const iovec mine{&token, sizeof(token)};
  const auto got = readProcess(card.process, {&remote, 1}, {&mine, 1});
  return got == sizeof(token) && token == card.token;
}

void PeerMemory::read(int peer, std::span<const RemoteBytes> from, std::span<const std::span<std::byte>> into,
                      const Health& health) const {
  const Card& card = cards_[static_cast<size_t>(peer)];
  const auto refuse = [&](ssize_t got, int error) {
    awaitCause(health);
    fail(seqparRemoteError, "reading from rank ", peer, " (process ", card.process,
         "): ", got < 0 ? std::strerror(error) : "no data");
  };
  // Read with each part, as a process that replaced the peer may have the addresses too.
  uint64_t token = 0;
  const iovec theirToken = partOf(card.address, sizeof(token));
  const iovec myToken{&token, sizeof(token)};
  const auto readNext = [&](std::span<const iovec> remote, std::span<const iovec> mine) {
    health.check();
    const auto got = readProcess(card.process, remote, mine);
    if (got <= static_cast<ssize_t>(sizeof(token))) refuse(got, errno);
    if (token != card.token) {
      awaitCause(health);
      fail(seqparRemoteError, "process ", card.process, " is no longer rank ", peer);
    }
    return static_cast<size_t>(got) - sizeof(token);
  };
  // Also for ranks that are threads of this process: unreadable memory is an error, not a crash.
  if (from.size() == 1 && into.size() == 1 && into[0].size() <= kReadChunk) {
    for (size_t done = 0; done < into[0].size();) {
      const auto rest = into[0].subspan(done);
      const std::array remote{theirToken, partOf(from[0].address + done, rest.size())};
      const std::array mine{myToken, iovec{rest.data(), rest.size()}};
      done += readNext(remote, mine);
    }
    return;
  }
  std::vector<iovec> theirParts;
  std::vector<iovec> myParts;
  for (const auto& part : from) addPart(theirParts, part.address, part.bytes);
  for (const auto& part : into) addPart(myParts, reinterpret_cast<uint64_t>(part.data()), part.size());
  std::span<iovec> remote(theirParts);
  std::span<iovec> mine(myParts);
  std::vector<iovec> theirNext;
  std::vector<iovec> myNext;
  while (!mine.empty()) {
    takeFirst(theirNext, theirToken, remote);
    takeFirst(myNext, myToken, mine);
    const size_t got = readNext(theirNext, myNext);
    drop(remote, got);
    drop(mine, got);
  }
}

}  // namespace seqpar
