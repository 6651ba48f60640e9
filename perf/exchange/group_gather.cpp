#include "exchange/group_gather.h"

#include "exchange/exchange.h"
#include "mesh/tensors.h"

#ifdef SEQPAR_PERF_MPI
#include <mpi.h>
#endif

namespace seqpar::perf {
namespace {

/// a of the most nearly square mesh a x b, a <= b.
int smallerSide(int ranks) {
  int a = 1;
  for (int i = 2; i * i <= ranks; ++i) a = ranks % i == 0 ? i : a;
  return a;
}

#ifdef SEQPAR_PERF_MPI
/// MPI's communicator of a group.
struct GroupComm {
  explicit GroupComm(const MeshGroup& members) {
    MPI_Comm_split(MPI_COMM_WORLD, members.ranks.front(), static_cast<int>(members.position), &comm);
  }
  GroupComm(const GroupComm&) = delete;
  GroupComm& operator=(const GroupComm&) = delete;
  ~GroupComm() { MPI_Comm_free(&comm); }
  MPI_Comm comm = MPI_COMM_NULL;
};
#endif

Bytes bytesOfRank(int rank, size_t count) {
  Bytes bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = byteAt(i, rank);
  return bytes;
}

}  // namespace

void runGroupGathers(Session& session, int type) {
  const int a = smallerSide(session.group.size());
  const Mesh mesh(a, session.group.size() / a, nullptr, session.group.comm());
  const MeshGroup members(mesh.get(), seqparMeshAxisKv);
  const auto nccl = ncclPeer(session, members.ranks);
#ifdef SEQPAR_PERF_MPI
  std::shared_ptr<GroupComm> mpi;
  if (session.settings.peers && session.group.gpu() == nullptr) mpi = std::make_shared<GroupComm>(members);
#endif
  for (const size_t size : session.settings.sizes()) {
    const size_t block = std::max<size_t>(1, size / members.size());
    const auto movement = std::make_shared<Movement>(block, block * members.size(), session.group);
    const Bytes own = bytesOfRank(members.self(), block);
    movement->setInput([&](size_t i) { return own[i]; });
    Bytes expected;
    for (const int rank : members.ranks) {
      const Bytes remote = bytesOfRank(rank, block);
      expected.insert(expected.end(), remote.begin(), remote.end());
    }

    Rows rows(session, expected.size(), "group", type);
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
