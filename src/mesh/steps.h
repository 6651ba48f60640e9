// Movements of a mesh as data: ring steps in a group. Send steps merge before they move.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "exchange/route.h"
#include "exchange/shards.h"
#include "mesh/rows.h"
#include "mesh/shape.h"

namespace seqpar {

/// Tensors sent to the successor in a group, and tensors received from the predecessor.
struct MeshShift {
  std::vector<const std::byte*> sends;
  std::vector<std::byte*> receives;
  std::vector<size_t> sendBytes, receiveBytes;

  void add(const void* send, size_t bytes, void* receive, size_t received);
  /// Buffer k is sends[k] on the sending side and receives[k] on the receiving side.
  Route route(const MeshGroup& group) const;
};

/// One tensor's blocks by position, `inner` bytes per token.
Shards groupShards(const MeshGroup& group, std::vector<size_t> tokens, size_t inner);

/// Common part of both send steps: in a group of more than one rank, the first step merges nothing and the last sends
/// nothing.
struct MergeStep {
  MeshGroup group;
  int index = 0;  ///< counts down to 0
  PartialTypes types;

  bool merges() const { return index != 1; }
  bool last() const { return index == 0; }
  /// The element type of the merged partial results: the wire type, or types.data in the last step.
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
/// The movement of a step with its results at `out`. Not for the last step, which sends nothing.
MeshShift shiftOf(const OutputStep& step, const void* out);

/// seqparMeshReduceSum() of one rank.
struct SumStep : MergeStep {
  std::vector<seqparMeshSum_t> parts;
};

}  // namespace seqpar
