#include "transport/peer_buffers.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/error.h"
#include "base/process.h"

namespace seqpar {
namespace {

/// A program that locks its memory allocates all pages that it may access. So access grows with the buffers.
constexpr size_t kStep = size_t{64} << 20;

struct Card {
  SharedFileCard file;
  uint64_t begin;
};

/// The mapped files of this process, by their tokens.
class Files {
 public:
  std::shared_ptr<PeerFile> of(const SharedFileCard& card) {
    const std::lock_guard lock(mutex_);
    auto& known = files_[card.token];
    auto file = known.lock();
    if (file == nullptr) known = file = std::make_shared<PeerFile>(card);
    std::erase_if(files_, [](const auto& entry) { return entry.second.expired(); });
    return file;
  }

 private:
  std::mutex mutex_;
  std::map<uint64_t, std::weak_ptr<PeerFile>> files_;
};

}  // namespace

PeerFile::PeerFile(const SharedFileCard& card) : open_(0) {
  if (card.descriptor < 0 || card.bytes < sizeof(card.token)) fail(seqparSystemError, "it shares no buffers");
  mapping_ = SharedMapping(SharedFile::open(card, O_RDONLY), card.bytes, PROT_NONE);
  ::madvise(mapping_.data(), mapping_.size(), MADV_DONTDUMP);
  uint64_t token = 0;
  const std::byte* const first = at(0, sizeof(token));
  if (first != nullptr) std::memcpy(&token, first, sizeof(token));
  if (token != card.token) fail(seqparSystemError, "its buffers are other memory than meant");
}

const std::byte* PeerFile::at(uint64_t offset, size_t bytes) {
  if (offset >= mapping_.size() || bytes > mapping_.size() - offset) return nullptr;
  if (offset + bytes > open_.load(std::memory_order_acquire) && !open(offset + bytes)) return nullptr;
  return mapping_.data() + offset;
}

bool PeerFile::open(size_t end) {
  const std::lock_guard lock(mutex_);
  const size_t wanted = std::min((end + kStep - 1) / kStep * kStep, mapping_.size());
  if (wanted <= open_.load(std::memory_order_relaxed)) return true;
  if (::mprotect(mapping_.data(), wanted, PROT_READ) != 0) return false;
  open_.store(wanted, std::memory_order_release);
  return true;
}

PeerBuffers::PeerBuffers(Allgather& control, const std::vector<bool>& candidates, std::shared_ptr<SharedBuffers> own)
    : own_(std::move(own)), peers_(candidates.size()) {
  const size_t ranks = candidates.size();
  const auto self = static_cast<size_t>(control.rank());
  Card mine{};
  mine.file.descriptor = -1;
  if (own_ != nullptr) mine = {own_->card(), reinterpret_cast<uint64_t>(own_->begin())};
  std::vector<Card> cards(ranks);
  control.gatherValues(mine, std::span(cards));
  std::vector<std::byte> maps(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (!candidates[rank] || rank == self || own_ == nullptr) continue;
    try {
      peers_[rank] = {cards[rank].begin, ofProcess<Files>().of(cards[rank].file)};
      maps[rank] = std::byte{1};
    } catch (const Error&) {
      // No descriptor, no address or no permission: this pair uses messages.
    }
  }
  std::vector<std::byte> all(ranks * ranks);
  control.gather(maps, all);
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (all[self * ranks + rank] == std::byte{0} || all[rank * ranks + self] == std::byte{0}) peers_[rank] = {};
  }
}

const std::byte* PeerBuffers::view(int peer, uint64_t address, size_t bytes) const {
  const Peer& from = peers_[static_cast<size_t>(peer)];
  if (from.file == nullptr || address < from.begin) return nullptr;
  return from.file->at(address - from.begin, bytes);
}

}  // namespace seqpar
