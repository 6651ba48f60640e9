#include "exchange/group_gather.h"

#include "exchange/exchange.h"
#include "mesh/tensors.h"

#ifdef SEQPAR_PERF_MPI
#include <mpi.h>
#endif

namespace seqpar::perf {
namespace {

struct DestroyMesh {
  void operator()(seqparMesh* mesh) const { seqparMeshDestroy(mesh); }
};
using MeshHandle = std::unique_ptr<seqparMesh, DestroyMesh>;

/// The mesh a x b whose a is the largest divisor of the ranks that is at most b.
MeshHandle makeMesh(const Group& group) {
  int a = 1;
  for (int i = 2; i * i <= group.size(); ++i) a = group.size() % i == 0 ? i : a;
  seqparMesh_t mesh = nullptr;
  require(seqparMeshCreate(&mesh, a, group.size() / a, nullptr, group.comm()), "seqparMeshCreate", group.comm());
  return MeshHandle(mesh);
}

#ifdef SEQPAR_PERF_MPI
struct FreeComm {
  explicit FreeComm(const MeshGroup& members) {
    MPI_Comm_split(MPI_COMM_WORLD, members.ranks.front(), static_cast<int>(members.position), &comm);
  }
  FreeComm(const FreeComm&) = delete;
  FreeComm& operator=(const FreeComm&) = delete;
  ~FreeComm() { MPI_Comm_free(&comm); }
  MPI_Comm comm = MPI_COMM_NULL;
};
#endif

Bytes bytesOfRank(int rank, size_t count) {
  Bytes bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = byteAt(i, rank);
  return bytes;
}

}  // namespace

void runGroupGathers(Session& session) {
  const MeshHandle mesh = makeMesh(session.group);
  const MeshGroup members(mesh.get(), seqparMeshAxisKv);
  const auto nccl = ncclPeer(session, members.ranks);
#ifdef SEQPAR_PERF_MPI
  std::shared_ptr<FreeComm> mpi;
  if (session.settings.peers && session.group.gpu() == nullptr) mpi = std::make_shared<FreeComm>(members);
#endif
  for (const size_t size : session.settings.sizes()) {
    const size_t block = std::max<size_t>(1, size / members.size());
    const auto movement = std::make_shared<Movement>(block, block * members.size(), session.group);
    const Bytes own = bytesOfRank(members.self(), block);
    movement->setInput([&](size_t i) { return own[i]; });
    Bytes expected;
    for (const int rank : members.ranks) {
      const Bytes theirs = bytesOfRank(rank, block);
      expected.insert(expected.end(), theirs.begin(), theirs.end());
    }

    Rows rows(session, expected.size(), "group");
    Work work = workOn(movement, expected);
    work.run = [movement, &members, bytes = std::vector<size_t>(members.size(), block), stream = session.stream] {
      require(seqparMeshAllGather(members.axis, movement->send.data(), movement->receive.data(), bytes.data(),
                                  members.mesh, stream),
              "seqparMeshAllGather", movement->group.comm());
    };
    rows.add("seqpar", std::move(work));
    if (nccl != nullptr) {
      Work peer = workOn(movement, expected);
      peer.run = [movement, nccl, block] { nccl->allGather(movement->send.data(), movement->receive.data(), block); };
      rows.add("nccl", std::move(peer));
    }
#ifdef SEQPAR_PERF_MPI
    if (mpi != nullptr) {
      Work peer = workOn(movement, expected);
      peer.run = [movement, mpi, count = static_cast<int>(block)] {
        MPI_Allgather(movement->send.data(), count, MPI_BYTE, movement->receive.data(), count, MPI_BYTE, mpi->comm);
      };
      rows.add("mpi", std::move(peer));
    }
#endif
    rows.measure();
  }
}

}  // namespace seqpar::perf
