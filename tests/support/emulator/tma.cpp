// Barriers of transfers and boxes of tensors of an emulated CTA (TMA).
#include "kernels/attn/linear/forward_sm90/tensor_map_sm90.h"
#include "support/emulator/cta.h"

namespace seqpar::ptx {
namespace {

using emulator::Copy;
using emulator::cta;
using emulator::Transfer;
using emulator::TransferBarrier;

/// Ends the round if all threads and bytes have arrived; performs pending transfers first.
void tryToEnd(TransferBarrier& barrier) {
  if (barrier.arrived < barrier.count || barrier.bytesPending > 0) return;
  if (barrier.arrived > barrier.count) throw std::logic_error("more threads at a barrier of transfers than it counts");
  if (barrier.bytesPending < 0) throw std::logic_error("more bytes at a barrier of transfers than announced");
  const auto& self = cta->fibers[cta->current].strand;
  for (const Transfer& transfer : barrier.transfers) {
    transfer.engine.enter();
    for (const Copy& copy : transfer.copies) perform(copy);
    const auto round = barrier.round % emulator::Marks::kMarks;
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
      char* const inside = sharedAt(shared + (map.swizzled ? swizzled(row, byte) : row * rowBytes + byte));
      if (toTensor && inBounds) copies.push_back({outside, inside, true, kPiece});
      if (!toTensor) copies.push_back({inside, inBounds ? outside : nullptr, inBounds, kPiece});
    }
  }
  return copies;
}

TransferBarrier& at(uint32_t barrier) {
  return cta->transferBarriers.at(barrier);
}

/// Performs copies as late as allowed.
void start(std::vector<Copy> copies, uint32_t barrier) {
  Transfer transfer;
  transfer.copies = std::move(copies);
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

}  // namespace

void mbarrierInit(uint32_t barrier, int count) {
  cta->transferBarriers[barrier].count = count;
}
void mbarrierArrive(uint32_t barrier) {
  TransferBarrier& own = at(barrier);
  tryToEnd(own);
  own.marks.arrive(own.round);
  ++own.arrived;
  cta->moved = true;
}
void mbarrierArriveExpectTx(uint32_t barrier, int bytes) {
  mbarrierArrive(barrier);
  at(barrier).bytesPending += bytes;
}
void mbarrierWaitParity(uint32_t barrier, int parity) {
  TransferBarrier& own = at(barrier);
  for (tryToEnd(own); static_cast<int>(own.round % 2) == parity; tryToEnd(own)) emulator::yield();
  own.marks.leave(own.round - 1);
}

void tmaLoad(uint32_t to, const CUtensorMap& map, uint32_t barrier, int column, int head, int token, int batch) {
  start(copiesOf(map, to, column, head, token, batch, false), barrier);
}
void cpAsyncBulkLoad(void* to, const void* from, int bytes, uint32_t barrier) {
  constexpr int kPiece = 16;
  if (bytes % kPiece != 0) throw std::logic_error("a bulk copy of a size that is not a multiple of 16");
  std::vector<Copy> copies;
  for (int at = 0; at < bytes; at += kPiece) {
    copies.push_back({static_cast<char*>(to) + at, static_cast<const char*>(from) + at, true, kPiece});
  }
  start(std::move(copies), barrier);
}
void tmaStore(const CUtensorMap& map, uint32_t from, int column, int head, int token, int batch) {
  for (const Copy& copy : copiesOf(map, from, column, head, token, batch, true)) {
    cpAsyncBulkStore(copy.to, copy.from, copy.bytes);
  }
}

}  // namespace seqpar::ptx

namespace seqpar::attn::forward_sm90 {

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

}  // namespace seqpar::attn::forward_sm90
