// Barriers of transfers and boxes of tensors of an emulated CTA (TMA).
#include "kernels/attn/linear/hopper/tensor_map.h"
#include "support/emulated_cta.h"

namespace seqpar::attn::hopper {
namespace {

using warp::Copy;
using warp::cta;
using warp::Transfer;
using warp::TransferBarrier;

/// Ends the round if all threads and bytes have arrived; performs pending transfers first.
void tryToEnd(TransferBarrier& barrier) {
  if (barrier.arrived < barrier.count || barrier.bytesPending > 0) return;
  if (barrier.arrived > barrier.count) throw std::logic_error("more threads at a barrier of transfers than it counts");
  if (barrier.bytesPending < 0) throw std::logic_error("more bytes at a barrier of transfers than announced");
  const auto& self = cta->fibers[cta->current].strand;
  for (const Transfer& transfer : barrier.transfers) {
    transfer.engine.enter();
    for (const Copy& copy : transfer.copies) perform(copy);
    const auto round = barrier.round % warp::Marks::kMarks;
    test::lead(barrier.marks.ofThreads[round]);
    test::lead(barrier.marks.ofUnits[round]);
    self.enter();
  }
  cta->ended.splice(cta->ended.end(), barrier.transfers);
  barrier.arrived = 0;
  ++barrier.round;
  cta->moved = true;
}

/// The TMA box in pieces of 16 bytes, as copies from the tensor or to it.
std::vector<Copy> copiesOf(const CUtensorMap& map, uint32_t shared, int column, int head, int token, int batch,
                           bool toTensor) {
  constexpr int kPiece = 16;
  const int rowBytes = map.boxColumns * map.numberBytes, numbers = kPiece / map.numberBytes;
  std::vector<Copy> copies;
  for (int row = 0; row < map.boxTokens; ++row) {
    for (int byte = 0; byte < rowBytes; byte += kPiece) {
      const int first = column + byte / map.numberBytes;
      const bool inBounds = token + row < map.tokens && first + numbers <= map.columns && head < map.heads;
      char* const outside = map.data + batch * map.batchStride + (token + row) * map.tokenStride +
                            head * map.headStride + first * map.numberBytes;
      char* const inside = warp::sharedAt(shared + (map.swizzled ? swizzled(row, byte) : row * rowBytes + byte));
      if (toTensor && inBounds) copies.push_back({outside, inside, true, kPiece});
      if (!toTensor) copies.push_back({inside, inBounds ? outside : nullptr, inBounds, kPiece});
    }
  }
  return copies;
}

TransferBarrier& at(uint32_t barrier) {
  return cta->transferBarriers.at(barrier);
}

}  // namespace

bool encodeMap(CUtensorMap& map, const TensorBox& box, const LinearProblem& problem) {
  const int size = box.type == seqparFloat32 ? 4 : 2;
  map = {static_cast<char*>(const_cast<void*>(box.tensor.data)),
         size,
         box.columns,
         box.boxColumns,
         box.boxTokens,
         box.heads,
         problem.tokens,
         problem.batch,
         box.tensor.head * size,
         box.tensor.token * size,
         box.tensor.batch * size,
         box.swizzled};
  return true;
}

void initBarrier(uint32_t barrier, int count) {
  cta->transferBarriers[barrier].count = count;
}
void arrive(uint32_t barrier) {
  TransferBarrier& own = at(barrier);
  tryToEnd(own);
  own.marks.arrive(own.round);
  ++own.arrived;
  cta->moved = true;
}
void arriveExpecting(uint32_t barrier, int bytes) {
  arrive(barrier);
  at(barrier).bytesPending += bytes;
}
void waitBarrier(uint32_t barrier, int parity) {
  TransferBarrier& own = at(barrier);
  for (tryToEnd(own); static_cast<int>(own.round % 2) == parity; tryToEnd(own)) warp::yield();
  own.marks.leave(own.round - 1);
}

void syncNamed(int id, int threads) {
  warp::syncBarrier(id, threads, true);
}
bool anyNamed(int id, int threads, bool mine) {
  return warp::anyAtBarrier(id, threads, mine);
}

void loadBox(uint32_t to, const CUtensorMap& map, uint32_t barrier, int column, int head, int token, int batch) {
  Transfer transfer;
  transfer.copies = copiesOf(map, to, column, head, token, batch, false);
  char begin = 0;
  test::lead(begin);
  transfer.engine.enter();
  test::follow(begin);
  for (const Copy& copy : transfer.copies) corrupt(copy);
  cta->fibers[cta->current].strand.enter();
  TransferBarrier& own = at(barrier);
  own.bytesPending -= static_cast<int64_t>(transfer.copies.size()) * transfer.copies[0].bytes;
  own.transfers.push_back(std::move(transfer));
}
void storeBox(const CUtensorMap& map, uint32_t from, int column, int head, int token, int batch) {
  for (const Copy& copy : copiesOf(map, from, column, head, token, batch, true)) {
    warp::storeBulk(copy.to, copy.from, copy.bytes);
  }
}

void storeMatrices(uint32_t address, const uint32_t (&words)[4]) {
  warp::storeMatrices(warp::sharedAt(address), words);
}
void storeTransposed(uint32_t address, const uint32_t (&words)[4]) {
  warp::storeTransposed(warp::sharedAt(address), words);
}

}  // namespace seqpar::attn::hopper
