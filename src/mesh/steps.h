// The movements of a mesh: steps of a ring in a group, of which those that send merge before they move.
#pragma once

#include <span>
#include <vector>

#include "exchange/route.h"
#include "exchange/shards.h"
#include "mesh/rows.h"
#include "mesh/shape.h"
#include "transport/mailbox.h"

namespace seqpar {

/// Buffer k of `sendBytes` to the successor, buffer k of `receiveBytes` from the predecessor.
Route shiftRoute(const MeshGroup& group, std::span<const size_t> sendBytes, std::span<const size_t> receiveBytes);

/// One tensor's blocks by position, `inner` bytes a token.
Shards groupShards(const MeshGroup& group, std::vector<size_t> tokens, size_t inner);

/// seqparMeshReduceO() of one rank, in a group of more than one.
struct OutputStep {
  MeshGroup group;
  int index = 0;
  void* o = nullptr;
  float* lse = nullptr;
  void* carry = nullptr;
  float* carryLse = nullptr;
  OutputShape shape;
  size_t carryTokens = 0;
  PartialTypes types;
};
void reduceOutputs(Mailbox& mail, const OutputStep& step);

/// seqparMeshReduceSum() of one rank, in a group of more than one.
struct SumStep {
  MeshGroup group;
  int index = 0;
  std::vector<seqparMeshSum_t> parts;
  PartialTypes types;
};
void reduceSums(Mailbox& mail, const SumStep& step);

}  // namespace seqpar
