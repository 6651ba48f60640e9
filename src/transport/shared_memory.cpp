#include "transport/shared_memory.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "transport/agree.h"

namespace seqpar {

/// What a peer needs to map a segment; the packed key and the worker's address follow in the same piece.
struct SharedMemory::Card {
  uint64_t token;
  uint64_t address;
  uint64_t keyBytes;
};

SharedMemory::SharedMemory(Allgather& control, const std::vector<bool>& candidates) : peers_(candidates.size()) {
  const auto readers = static_cast<size_t>(std::count(candidates.begin(), candidates.end(), true));
  std::vector<std::byte> piece;
  together(control, [&] {
    Card card{};
    if (readers != 0) piece = allocate(Segment::bytes(readers + 1), card);
  });
  const auto pieces = gatherPieces(control, piece);
  for (size_t rank = 0; rank < candidates.size(); ++rank) {
    if (!candidates[rank]) continue;
    Card card{};
    std::memcpy(&card, pieces[rank].data(), sizeof(card));
    try {
      map(peers_[rank], card, pieces[rank].data() + sizeof(card));
    } catch (const Error& error) {
      peers_[rank].whyNot = error.what();
    }
  }
}

std::vector<std::byte> SharedMemory::allocate(size_t bytes, Card& card) {
  // Only transports whose memory a peer can map.
  context_ = makeUcxContext(UCP_FEATURE_RMA, {{"TLS", "posix,sysv"}});
  worker_ = makeUcxWorker(context_.get(), UCS_THREAD_MODE_SINGLE);

  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
  params.length = bytes;
  params.flags = UCP_MEM_MAP_ALLOCATE;
  ucp_mem_h handle = nullptr;
  checkUcx(ucp_mem_map(context_.get(), &params, &handle), concat("ucp_mem_map(", bytes, " bytes)"));
  segment_ = UcxMemory(handle, UcxMemoryDeleter{context_.get()});
  ucp_mem_attr_t attributes{};
  attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
  checkUcx(ucp_mem_query(handle, &attributes), "ucp_mem_query");
  mine_ = static_cast<std::byte*>(attributes.address);
  std::memset(mine_, 0, bytes);

  std::random_device random;
  card.token = (uint64_t{random()} << 32) | random() | 1;
  card.address = reinterpret_cast<uint64_t>(mine_);
  Segment(mine_, 0).header().token = card.token;

  void* key = nullptr;
  size_t keyBytes = 0;
  checkUcx(ucp_rkey_pack(context_.get(), handle, &key, &keyBytes), "ucp_rkey_pack");
  const std::unique_ptr<void, void (*)(void*)> owner(key, ucp_rkey_buffer_release);
  card.keyBytes = keyBytes;

  const std::vector<std::byte> address = ucxAddress(worker_.get());
  std::vector<std::byte> piece(sizeof(card) + keyBytes);
  std::memcpy(piece.data(), &card, sizeof(card));
  std::memcpy(piece.data() + sizeof(card), key, keyBytes);
  piece.insert(piece.end(), address.begin(), address.end());
  return piece;
}

void SharedMemory::map(Peer& peer, const Card& card, const std::byte* keyAndAddress) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
  params.address = reinterpret_cast<const ucp_address_t*>(keyAndAddress + card.keyBytes);
  ucp_ep_h endpoint = nullptr;  // the worker owns it
  checkUcx(ucp_ep_create(worker_.get(), &params, &endpoint), "ucp_ep_create");
  ucp_rkey_h key = nullptr;
  checkUcx(ucp_ep_rkey_unpack(endpoint, keyAndAddress, &key), "ucp_ep_rkey_unpack");
  UcxKey owner(key);
  void* memory = nullptr;
  checkUcx(ucp_rkey_ptr(key, card.address, &memory), "ucp_rkey_ptr");
  auto* base = static_cast<std::byte*>(memory);
  if (Segment(base, 0).header().token != card.token) fail(seqparSystemError, "ucp_rkey_ptr: another memory than meant");
  peer.key = std::move(owner);
  peer.memory = base;
}

}  // namespace seqpar
