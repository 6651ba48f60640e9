#include "transport/peer_memory.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

#include "base/error.h"

namespace seqpar {
namespace {

/// Bytes copied; -1 with errno.
ssize_t readProcess(uint64_t process, uint64_t address, std::span<std::byte> into) {
  const iovec mine{into.data(), into.size()};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of another process, which only the kernel follows.
  const iovec theirs{reinterpret_cast<void*>(address), into.size()};
  return process_vm_readv(static_cast<pid_t>(process), &mine, 1, &theirs, 1, 0);
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
    reads[rank] = std::byte{candidates[rank] && rank != self && recognises(cards_[rank])};
  }
  // Also a barrier: until here every rank keeps its token where the others look for it.
  std::vector<std::byte> all(ranks * ranks);
  control.gather(reads, all);
  for (size_t rank = 0; rank < ranks; ++rank) {
    readable_[rank] = all[self * ranks + rank] != std::byte{0} && all[rank * ranks + self] != std::byte{0};
  }
}

bool PeerMemory::recognises(const Card& card) const {
  uint64_t token = 0;
  const auto got = readProcess(card.process, card.address, std::as_writable_bytes(std::span(&token, 1)));
  return got == sizeof(token) && token == card.token;
}

void PeerMemory::read(int peer, uint64_t address, std::span<std::byte> into) const {
  const Card& card = cards_[static_cast<size_t>(peer)];
  // For ranks that are threads of this process as well: what the kernel cannot read is an error, not a crash.
  while (!into.empty()) {
    const auto got = readProcess(card.process, address, into);
    if (got <= 0) {
      fail(seqparRemoteError, "reading ", into.size(), " bytes of rank ", peer, " (process ", card.process,
           "): ", got == 0 ? "nothing came" : std::strerror(errno));
    }
    into = into.subspan(static_cast<size_t>(got));
    address += static_cast<uint64_t>(got);
  }
}

}  // namespace seqpar
