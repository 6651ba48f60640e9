#include "transport/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "bootstrap/agree.h"

namespace seqpar {
namespace {

SharedMapping map(const SharedFileCard& card) {
  const SharedFile file = SharedFile::open(card, O_RDWR);
  SharedMapping mapping(file, card.bytes, PROT_READ | PROT_WRITE);
  if (Segment(mapping.data(), 0).header().token != card.token) {
    fail(seqparSystemError, "descriptor ", card.descriptor, " of process ", card.process,
         " is another memory than meant");
  }
  return mapping;
}

}  // namespace

SharedMemory::SharedMemory(Allgather& control, const std::vector<bool>& candidates) : peers_(candidates.size()) {
  const auto readers = static_cast<size_t>(std::count(candidates.begin(), candidates.end(), true));
  SharedFileCard card{};
  together(control, [&] {
    if (readers != 0) card = allocate(Segment::bytes(readers + 1));
  });
  std::vector<SharedFileCard> cards(candidates.size());
  control.gatherValues(card, std::span(cards));
  together(control, [&] {
    for (size_t rank = 0; rank < candidates.size(); ++rank) {
      if (!candidates[rank]) continue;
      try {
        peers_[rank].memory = map(cards[rank]);
      } catch (const Shortage&) {
        throw;
      } catch (const Error& error) {
        peers_[rank].whyNot = error.what();
      }
    }
  });
}

SharedFileCard SharedMemory::allocate(size_t bytes) {
  file_ = SharedFile::create(bytes, true);
  mine_ = SharedMapping(file_, bytes, PROT_READ | PROT_WRITE);
  // Touches all pages now, in order: if messages touch them first, messages stay slower (measured, not explained).
  std::memset(mine_.data(), 0, bytes);
  const SharedFileCard card = file_.card(bytes, randomFileToken());
  Segment(mine_.data(), 0).header().token = card.token;
  return card;
}

}  // namespace seqpar
