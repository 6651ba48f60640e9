// The movements of a mesh, as data: steps of a ring in a group, of which those that send merge before they move.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "exchange/route.h"
#include "exchange/shards.h"
#include "mesh/rows.h"
#include "mesh/shape.h"

namespace seqpar {

/// Tensors that go to the successor in a group while others come from the predecessor.
struct MeshShift {
  std::vector<const std::byte*> sends;
  std::vector<std::byte*> receives;
  std::vector<size_t> sendBytes, receiveBytes;

  void add(const void* send, size_t bytes, void* receive, size_t received);
  /// Buffer k is sends[k], or receives[k].
  Route route(const MeshGroup& group) const;
};

/// One tensor's blocks by position, `inner` bytes a token.
Shards groupShards(const MeshGroup& group, std::vector<size_t> tokens, size_t inner);

/// What steps of both kinds have: in a group of more than one, the first of them merges nothing, and the last sends
/// nothing.
struct MergeStep {
  MeshGroup group;
  int index = 0;  ///< counts down to 0
  PartialTypes types;

  bool merges() const { return index != 1; }
  bool last() const { return index == 0; }
  /// What partial results are afterwards: as they travel, or, in the last, as they are held.
  seqparDataType_t result() const { return last() ? types.data : types.wire; }
};

/// seqparMeshReduceO() of one rank.
struct OutputStep : MergeStep {
  void* o = nullptr;
  float* lse = nullptr;
  void* carry = nullptr;
  float* carryLse = nullptr;
  OutputShape shape;
  size_t carryTokens = 0;
};
/// What such a step sends, with its results at `out`, unless it is the last.
MeshShift shiftOf(const OutputStep& step, const void* out);

/// seqparMeshReduceSum() of one rank.
struct SumStep : MergeStep {
  std::vector<seqparMeshSum_t> parts;
};

}  // namespace seqpar
