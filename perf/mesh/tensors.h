// A mesh's tensors, with values that reveal errors.
#pragma once

#include <vector>

#include "common/buffer.h"
#include "seqpar/mesh.h"

namespace seqpar::perf {

/// RAII wrapper of a mesh.
class Mesh {
 public:
  Mesh(int a, int b, const seqparMeshParams_t* params, seqparComm_t comm) {
    require(seqparMeshCreate(&mesh_, a, b, params, comm), "seqparMeshCreate", comm);
  }
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;
  ~Mesh() { seqparMeshDestroy(mesh_); }
  seqparMesh_t get() const { return mesh_; }

 private:
  seqparMesh_t mesh_ = nullptr;
};

/// A group of a mesh by position.
struct MeshGroup {
  MeshGroup(seqparMesh_t mesh, seqparMeshAxis_t itsAxis);
  size_t size() const { return ranks.size(); }
  /// The rank that owns the block in a slot: slots are by #u for steps, by position for atOnce.
  int rankAt(size_t slot, bool atOnce) const {
    return ranks[atOnce ? slot : (position + ranks.size() - slot) % ranks.size()];
  }
  int self() const { return ranks[position]; }

  seqparMesh_t mesh;
  seqparMeshAxis_t axis;
  std::vector<int> ranks;
  size_t position = 0;
};

/// The received blocks of one tensor, all of equal size.
class Blocks {
 public:
  Blocks(const MeshGroup& group, size_t bytes, seqparComm_t comm);

  /// Fills this rank's block in its slot and invalidates the others.
  void prepare(bool atOnce);
  size_t wrong(bool atOnce);
  /// For step `index`.
  seqparMeshPart_t part(int index);
  void gather(void* stream);

 private:
  std::byte* at(size_t slot) { return static_cast<std::byte*>(all_.data()) + slot * bytes_; }

  const MeshGroup* group_;
  size_t bytes_;
  Buffer all_;
};

/// One tensor's partial sums.
class Sums {
 public:
  Sums(const MeshGroup& group, size_t count, int type, seqparComm_t comm);

  void prepare(bool atOnce);
  size_t wrong(bool atOnce);
  seqparMeshSum_t part(int index);
  void scatter(void* stream);

 private:
  std::byte* at(size_t slot) { return static_cast<std::byte*>(all_.data()) + slot * carry_.bytes(); }

  const MeshGroup* group_;
  size_t count_;
  int type_;
  Buffer all_, carry_;  ///< in the atOnce form, the carry is the result
};

/// Partial outputs with their lse. In each row, one member dominates: its lse is 0, and those of the others are so
/// small that they do not change the fp32 result, but large enough to be included. The result is exact, with all of the
/// arithmetic.
class Outputs {
 public:
  Outputs(const MeshGroup& group, int64_t tokens, int64_t heads, int64_t dim, int type, seqparComm_t comm);

  void prepare(bool atOnce);
  size_t wrong(bool atOnce);
  void send(int index, void* stream);
  void scatter(void* stream);

 private:
  /// The dominant member of a row.
  size_t mainOf(size_t token, size_t head) const { return (token + head) % group_->size(); }

  const MeshGroup* group_;
  int64_t tokens_, heads_, dim_;
  seqparDataType_t type_;
  size_t rows_, numbers_;
  Buffer o_, lse_, carry_, carryLse_;  ///< in the atOnce form, the carries are the results
};

}  // namespace seqpar::perf
