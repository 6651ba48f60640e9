// The tensors that travel on a mesh, with numbers that show whether they are right.
#pragma once

#include <vector>

#include "common/buffer.h"
#include "seqpar/mesh.h"

namespace seqpar::perf {

/// A mesh for a scope.
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
  /// The rank whose block lies in a slot: slots are by #u for steps, by position at once.
  int rankAt(size_t slot, bool atOnce) const {
    return ranks[atOnce ? slot : (position + ranks.size() - slot) % ranks.size()];
  }
  int self() const { return ranks[position]; }

  seqparMesh_t mesh;
  seqparMeshAxis_t axis;
  std::vector<int> ranks;
  size_t position = 0;
};

/// Blocks that are received: one tensor's, each of equal size.
class Blocks {
 public:
  Blocks(const MeshGroup& group, size_t bytes, seqparComm_t comm);

  /// This rank's block in its slot; all others spoilt.
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
  Buffer all_, carry_;  ///< at once the carry is the result
};

/// Partial outputs with their lse. Of each row one member has nearly all: its lse is 0, the others' so small that they
/// change nothing in fp32, but are not left out either. So the result is exact, with all the arithmetic.
class Outputs {
 public:
  Outputs(const MeshGroup& group, int64_t tokens, int64_t heads, int64_t dim, int type, seqparComm_t comm);

  void prepare(bool atOnce);
  size_t wrong(bool atOnce);
  void send(int index, void* stream);
  void scatter(void* stream);

 private:
  /// The member that has nearly all of a row.
  size_t mainOf(size_t token, size_t head) const { return (token + head) % group_->size(); }

  const MeshGroup* group_;
  int64_t tokens_, heads_, dim_;
  seqparDataType_t type_;
  size_t rows_, numbers_;
  Buffer o_, lse_, carry_, carryLse_;  ///< at once the carries are the results
};

}  // namespace seqpar::perf
