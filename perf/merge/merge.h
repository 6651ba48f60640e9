// One rank's part of merge_perf: partial results, their merge, and the peers that compute it.
#pragma once

#include <cmath>
#include <limits>
#include <memory>

#include "common/values.h"
#include "exchange/exchange.h"
#include "seqpar/exchange.h"
#include "seqpar/lse.h"

namespace seqpar::perf {

constexpr size_t kHeadDim = 128;

/// A rank's partial results in fp32. Every third row is empty on every second rank.
inline float outAt(size_t index, int rank) {
  return static_cast<float>(byteAt(index, rank) % 9) - 4;
}
inline float lseAt(size_t row, int rank) {
  if (row % 3 == 2 && rank % 2 == 1) return -std::numeric_limits<float>::infinity();
  return static_cast<float>(byteAt(row, rank) % 16) / 4;
}

/// One rank's buffers, with the expected merge.
struct Merge {
  Merge(size_t bytes, int aType, long heads, bool scattered, Group& aGroup)
      : movement(bytes, bytes, aGroup),
        lse(bytes / bytesOf(aType) / kHeadDim * sizeof(float), aGroup.comm()),
        lseMerged(lse.bytes(), aGroup.comm()),
        type(aType),
        byHeads(scattered) {
    const int ranks = aGroup.size(), rank = aGroup.rank();
    results = lse.bytes() / sizeof(float);
    params.dataType = type;
    params.heads = heads;
    params.rows = static_cast<int64_t>(results) / params.heads;
    params.headDim = kHeadDim;
    std::vector<float> out(results * kHeadDim);
    for (size_t i = 0; i < out.size(); ++i) out[i] = outAt(i, rank);
    encode(out, type, movement.send.as<unsigned char>());
    movement.send.upload();
    for (size_t row = 0; row < results; ++row) lse.as<float>()[row] = lseAt(row, rank);
    lse.upload();
    int64_t first = 0, count = params.heads;
    if (byHeads)
      require(seqparHeadsOfMember(params.heads, 0, ranks, rank, &first, &count), "seqparHeadsOfMember", aGroup.comm());
    firstHead = static_cast<size_t>(first);
    ownHeads = static_cast<size_t>(count);
  }

  /// Whether the heads divide by the ranks: peers by heads need it.
  bool divides() const { return params.heads % movement.group.size() == 0; }

  size_t rowOf(size_t i) const { return i / ownHeads * static_cast<size_t>(params.heads) + firstHead + i % ownHeads; }

  /// Wrong elements of the result: further from fp64 than the type's rounding allows.
  size_t wrong() {
    movement.receive.download();
    const double tolerance = type == seqparBfloat16 ? 0.05 : type == seqparFloat16 ? 0.01 : 1e-4;
    size_t count = 0;
    for (size_t i = 0; i < static_cast<size_t>(params.rows) * ownHeads; ++i) {
      const size_t row = rowOf(i);
      double sum = 0;
      for (int rank = 0; rank < movement.group.size(); ++rank) sum += std::exp(lseAt(row, rank));
      for (size_t e = 0; e < kHeadDim; ++e) {
        double value = 0;
        for (int rank = 0; rank < movement.group.size(); ++rank) {
          value += std::exp(lseAt(row, rank)) / sum * outAt(row * kHeadDim + e, rank);
        }
        count += std::abs(decode(movement.receive.as<unsigned char>(), i * kHeadDim + e, type) - value) <=
                         tolerance * (1 + std::abs(value))
                     ? 0
                     : 1;
      }
    }
    return count;
  }

  Movement movement;
  Buffer lse, lseMerged;
  int type;
  bool byHeads;
  size_t results = 0, firstHead = 0, ownHeads = 0;
  seqparLseParams_t params = SEQPAR_LSE_PARAMS_INITIALIZER;
};

inline Work workOn(const std::shared_ptr<Merge>& merge, bool checked = true) {
  Work work;
  work.prepare = [merge] { merge->movement.receive.fill(0xff); };
  work.wrong = [merge, checked] { return checked ? merge->wrong() : size_t{0}; };
  return work;
}

/// MPI on hosts, fp32 only: all-gather of lse, scaling, and a sum ("mpi"); the sum alone ("mpi_sum").
void addMpiPeers(Session& session, Rows& rows, const std::shared_ptr<Merge>& merge);

/// NCCL on GPUs: the same ("nccl", "nccl_sum"), and the sum alone in symmetric memory ("nccl_sym").
void addNcclPeers(Session& session, Rows& rows, const std::shared_ptr<Merge>& merge, const std::shared_ptr<Nccl>& nccl);

}  // namespace seqpar::perf
