// halo_perf: halos of both sides and their adjoint; the peer is MPI_Sendrecv in both directions.
#include "common/values.h"
#include "exchange/exchange.h"
#include "seqpar/exchange.h"

#ifdef SEQPAR_PERF_MPI
#include <mpi.h>
#endif

namespace seqpar::perf {
namespace {

enum Operation { kFetch, kAdjoint };
const Names kOperations{{"halo", kFetch}, {"adjoint", kAdjoint}};

struct Choices {
  std::vector<int> operations{kFetch};
  size_t tokens = 4;  ///< of a shard, in halos
};

/// A ring of ranks with float elements: a halo of SIZE bytes on each side of a shard, as one token.
struct Shape {
  Shape(size_t bytes, const Choices& choices) {
    elements = std::max<size_t>(1, bytes / sizeof(float));
    haloBytes = elements * sizeof(float);
    tokens = choices.tokens;
    shards.dataType = seqparFloat32;
    shards.tokens = static_cast<int64_t>(tokens);
    shards.inner = static_cast<int64_t>(elements);
    halo.left = halo.right = 1;
    halo.periodic = 1;
  }

  seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER;
  seqparHalo_t halo = SEQPAR_HALO_INITIALIZER;
  size_t elements, haloBytes, tokens;
};

float valueAt(size_t index, int rank) {
  return static_cast<float>(byteAt(index, rank) % 9) - 4;
}

/// Elements [first, first + count) of a rank's data, encoded.
Bytes valuesOf(size_t first, size_t count, int rank) {
  Bytes bytes(count * sizeof(float));
  for (size_t i = 0; i < count; ++i) {
    const float value = valueAt(first + i, rank);
    std::memcpy(bytes.data() + i * sizeof(float), &value, sizeof(value));
  }
  return bytes;
}

Bytes operator+(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct Neighbors {
  explicit Neighbors(const Group& group)
      : left((group.rank() + group.size() - 1) % group.size()), right((group.rank() + 1) % group.size()) {}
  int left, right;
};

/// The shard is sent; both halos arrive, the left one first.
void measureFetch(Session& session, const Shape& shape, const std::shared_ptr<Nccl>& nccl) {
  const auto movement = std::make_shared<Movement>(shape.tokens * shape.haloBytes, 2 * shape.haloBytes, session.group);
  const Neighbors neighbors(session.group);
  const Bytes shard = valuesOf(0, shape.tokens * shape.elements, session.group.rank());
  movement->setInput([&](size_t i) { return shard[i]; });
  const Bytes expected = valuesOf((shape.tokens - 1) * shape.elements, shape.elements, neighbors.left) +
                         valuesOf(0, shape.elements, neighbors.right);
  const auto part = [movement, bytes = shape.haloBytes](Buffer& buffer, size_t at) {
    return static_cast<std::byte*>(buffer.data()) + at * bytes;
  };
  Rows rows(session, shape.haloBytes, "halo", seqparFloat32);
  Work work = workOn(movement, expected);
  work.run = [movement, part, shape, stream = session.stream] {
    const seqparComm_t comm = movement->group.comm();
    require(seqparHaloExchange(movement->send.data(), part(movement->receive, 0), part(movement->receive, 1),
                               &shape.halo, &shape.shards, comm, stream),
            "seqparHaloExchange", comm);
  };
  rows.add("seqpar", std::move(work));
  if (nccl != nullptr) {
    Work peer = workOn(movement, expected);
    peer.run = [=] {
      nccl->groupStart();
      nccl->send(part(movement->send, shape.tokens - 1), shape.haloBytes, neighbors.right);
      nccl->receive(part(movement->receive, 0), shape.haloBytes, neighbors.left);
      nccl->send(part(movement->send, 0), shape.haloBytes, neighbors.left);
      nccl->receive(part(movement->receive, 1), shape.haloBytes, neighbors.right);
      nccl->groupEnd();
    };
    rows.add("nccl", std::move(peer));
  }
#ifdef SEQPAR_PERF_MPI
  if (session.settings.peers && session.group.gpu() == nullptr) {
    Work peer = workOn(movement, expected);
    peer.run = [=] {
      const auto bytes = static_cast<int>(shape.haloBytes);
      MPI_Sendrecv(part(movement->send, shape.tokens - 1), bytes, MPI_BYTE, neighbors.right, 0,
                   part(movement->receive, 0), bytes, MPI_BYTE, neighbors.left, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      MPI_Sendrecv(part(movement->send, 0), bytes, MPI_BYTE, neighbors.left, 1, part(movement->receive, 1), bytes,
                   MPI_BYTE, neighbors.right, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    };
    rows.add("mpi", std::move(peer));
  }
#endif
  rows.measure();
}

/// Sends both halos, the left one first; adds to the shard, so every iteration changes it.
void measureAdjoint(Session& session, const Shape& shape) {
  const auto movement = std::make_shared<Movement>(2 * shape.haloBytes, shape.tokens * shape.haloBytes, session.group);
  const Neighbors neighbors(session.group);
  const int rank = session.group.rank();
  const size_t elements = shape.elements;
  const Bytes halos = valuesOf(0, 2 * elements, rank);
  movement->setInput([&](size_t i) { return halos[i]; });
  const auto part = [movement, bytes = shape.haloBytes](Buffer& buffer, size_t at) {
    return static_cast<std::byte*>(buffer.data()) + at * bytes;
  };
  Bytes expected = valuesOf(2 * elements, shape.tokens * elements, rank);
  const auto addTo = [&](size_t token, int neighbor, size_t side) {
    for (size_t i = 0; i < elements; ++i) {
      float value = 0;
      unsigned char* const at = expected.data() + (token * elements + i) * sizeof(float);
      std::memcpy(&value, at, sizeof(value));
      value += valueAt(side * elements + i, neighbor);
      std::memcpy(at, &value, sizeof(value));
    }
  };
  addTo(0, neighbors.left, 1);
  addTo(shape.tokens - 1, neighbors.right, 0);
  const auto spoilt = [=](Work work) {
    work.repeatable = false;
    work.prepare = [=] {
      const Bytes first = valuesOf(2 * elements, shape.tokens * elements, rank);
      std::memcpy(movement->receive.as<unsigned char>(), first.data(), first.size());
      movement->receive.upload();
    };
    return work;
  };
  Rows rows(session, shape.haloBytes, "adjoint", seqparFloat32);
  Work work = spoilt(workOn(movement, expected));
  work.run = [movement, part, shape, stream = session.stream] {
    const seqparComm_t comm = movement->group.comm();
    require(seqparHaloAdjoint(part(movement->send, 0), part(movement->send, 1), movement->receive.data(), &shape.halo,
                              &shape.shards, comm, stream),
            "seqparHaloAdjoint", comm);
  };
  rows.add("seqpar", std::move(work));
#ifdef SEQPAR_PERF_MPI
  if (session.settings.peers && session.group.gpu() == nullptr) {
    const auto arrived = std::make_shared<std::vector<float>>(elements);
    Work peer = spoilt(workOn(movement, expected));
    peer.run = [=] {
      const auto bytes = static_cast<int>(shape.haloBytes);
      const auto add = [&](size_t token) {
        float* const into = movement->receive.as<float>() + token * elements;
        for (size_t i = 0; i < elements; ++i) into[i] += (*arrived)[i];
      };
      MPI_Sendrecv(part(movement->send, 1), bytes, MPI_BYTE, neighbors.right, 0, arrived->data(), bytes, MPI_BYTE,
                   neighbors.left, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      add(0);
      MPI_Sendrecv(part(movement->send, 0), bytes, MPI_BYTE, neighbors.left, 1, arrived->data(), bytes, MPI_BYTE,
                   neighbors.right, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      add(shape.tokens - 1);
    };
    rows.add("mpi", std::move(peer));
  }
#endif
  rows.measure();
}

void runAll(Session& session, const Choices& choices) {
  const auto nccl = ncclPeer(session);
  forEachSize(session, choices.operations, [&](int operation, size_t size) {
    const Shape shape(size, choices);
    if (operation == kFetch) measureFetch(session, shape, nccl);
    if (operation == kAdjoint) measureAdjoint(session, shape);
  });
}

}  // namespace
}  // namespace seqpar::perf

int main(int argc, char** argv) {
  using namespace seqpar::perf;
  Choices choices;
  Program program = exchangeProgram(
      "halo_perf",
      "seqparHaloExchange and seqparHaloAdjoint on a ring of ranks, of floats: SIZE is the halo of one side; every\n"
      "rank gets one from each neighbor. Peers: MPI_Sendrecv to the right, then to the left, followed by an\n"
      "addition each for the adjoint; or ncclSend and ncclRecv, for the halo alone.");
  program.leastRanks = 2;
  program.addOptions = [&](OptionParser& parser) {
    parser.addNames(0, "operation", "halo, adjoint or all (halo)", kOperations, choices.operations);
    parser.addCount(0, "shard", "length of a shard, in halos (4)", 1 << 20, choices.tokens);
  };
  program.body = [&](Session& session) { runAll(session, choices); };
  return runProgram(program, argc, argv);
}
