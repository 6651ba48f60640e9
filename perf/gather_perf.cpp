// gather_perf: all-gather and reduce-scatter along the sequence, also of partial softmax results; peers by MPI and
// NCCL.
#include <algorithm>
#include <limits>

#include "common/values.h"
#include "exchange/exchange.h"
#include "exchange/group_gather.h"
#include "seqpar/exchange.h"

#ifdef SEQPAR_PERF_MPI
#include <mpi.h>
#endif

namespace seqpar::perf {
namespace {

enum Operation { kGather, kScatter, kScatterLse, kGroup };
const Names kOperations{{"allgather", kGather}, {"reducescatter", kScatter}, {"lse", kScatterLse}, {"group", kGroup}};

constexpr size_t kHeadDim = 128;  ///< of `lse`

struct Choices {
  std::vector<int> operations{kGather};
  std::vector<int> types{seqparFloat32};
  int type = seqparFloat32;  ///< the current one of `types`
  long outer = 1;            ///< of an all-gather
};

/// Small integers with exact sums over the ranks.
float valueAt(size_t index, int rank) {
  return static_cast<float>(byteAt(index, rank) % 9) - 4;
}

/// Rank r's elements [first, first + count), encoded; with `ranks` > 1 the sums over ranks r to r + ranks - 1, times
/// `factor`.
Bytes valuesOf(size_t first, size_t count, int rank, int ranks, float factor, int type) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    for (int r = rank; r < rank + ranks; ++r) values[i] += valueAt(first + i, r);
    values[i] *= factor;
  }
  Bytes out(count * bytesOf(type));
  encode(values, type, out.data());
  return out;
}

/// SIZE bytes for all tokens; all ranks have equal shards.
struct Shape {
  Shape(size_t bytes, const Choices& choices, Operation operation, int ranks) {
    const auto members = static_cast<size_t>(ranks);
    const size_t element = bytesOf(choices.type);
    const size_t inner = operation == kScatterLse ? kHeadDim : 1;
    outer = operation == kGather ? static_cast<size_t>(choices.outer) : 1;
    params.dataType = choices.type;
    params.inner = static_cast<int64_t>(inner);
    const size_t tokens = std::max<size_t>(1, bytes / (members * element * inner * outer));
    params.tokens = static_cast<int64_t>(tokens);
    params.outer = static_cast<int64_t>(outer);
    shardElements = outer * tokens * inner;
    wholeElements = shardElements * members;
    shardBytes = shardElements * element;
    wholeBytes = wholeElements * element;
  }

  seqparShards_t params = SEQPAR_SHARDS_INITIALIZER;
  size_t outer, shardElements, wholeElements, shardBytes, wholeBytes;
};

void setInput(Movement& movement, const Bytes& values) {
  movement.setInput([&](size_t i) { return values[i]; });
}

/// A rank's shard of an all-gather.
Bytes shardOf(const Shape& shape, int rank, int type) {
  const size_t part = shape.shardElements / shape.outer, row = shape.wholeElements / shape.outer;
  Bytes all;
  for (size_t o = 0; o < shape.outer; ++o) {
    const Bytes values = valuesOf(o * row + static_cast<size_t>(rank) * part, part, 0, 1, 1, type);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

/// NCCL's result: the ranks' shards, one after another, whatever `outer` is.
Bytes shardsOf(const Shape& shape, int ranks, int type) {
  Bytes all;
  for (int rank = 0; rank < ranks; ++rank) {
    const Bytes shard = shardOf(shape, rank, type);
    all.insert(all.end(), shard.begin(), shard.end());
  }
  return all;
}

void addGather(Session& session, const Shape& shape, const Choices& choices, const std::shared_ptr<Nccl>& nccl) {
  const auto movement = std::make_shared<Movement>(shape.shardBytes, shape.wholeBytes, session.group);
  setInput(*movement, shardOf(shape, session.group.rank(), choices.type));
  const Bytes expected = valuesOf(0, shape.wholeElements, 0, 1, 1, choices.type);
  const Bytes inRankOrder = shardsOf(shape, session.group.size(), choices.type);
  Rows rows(session, shape.wholeBytes, "allgather", choices.type);
  Work work = workOn(movement, expected);
  work.run = [movement, params = shape.params, stream = session.stream] {
    const seqparComm_t comm = movement->group.comm();
    require(seqparAllGather(movement->send.data(), movement->receive.data(), &params, comm, stream), "seqparAllGather",
            comm);
  };
  rows.add("seqpar", std::move(work));
  if (nccl != nullptr) {
    Work peer = workOn(movement, inRankOrder);
    peer.run = [movement, nccl] {
      nccl->allGather(movement->send.data(), movement->receive.data(), movement->send.bytes());
    };
    rows.add("nccl", std::move(peer));
  }
#ifdef SEQPAR_PERF_MPI
  if (session.settings.peers && session.group.gpu() == nullptr) {
    Work peer = workOn(movement, inRankOrder);
    peer.run = [movement] {
      const auto bytes = static_cast<int>(movement->send.bytes());
      MPI_Allgather(movement->send.data(), bytes, MPI_BYTE, movement->receive.data(), bytes, MPI_BYTE, MPI_COMM_WORLD);
    };
    rows.add("mpi", std::move(peer));
  }
#endif
  rows.measure();
}

/// The peers' sum of floats, also for lse: they have no closer operation.
void addSum(Session& session, Rows& rows, const std::shared_ptr<Movement>& movement, const Shape& shape, int type,
            const std::shared_ptr<Nccl>& nccl) {
  if (!session.settings.peers || type != seqparFloat32) return;
  const auto first = static_cast<size_t>(session.group.rank()) * shape.shardElements;
  Work work = workOn(movement, valuesOf(first, shape.shardElements, 0, session.group.size(), 1, type));
  if (nccl != nullptr) {
    work.run = [movement, nccl, count = shape.shardElements] {
      nccl->reduceScatter(movement->send.data(), movement->receive.data(), count, seqparFloat32);
    };
    rows.add("nccl", std::move(work));
    return;
  }
#ifdef SEQPAR_PERF_MPI
  if (session.group.gpu() != nullptr) return;
  work.run = [movement, count = static_cast<int>(shape.shardElements)] {
    MPI_Reduce_scatter_block(movement->send.data(), movement->receive.data(), count, MPI_FLOAT, MPI_SUM,
                             MPI_COMM_WORLD);
  };
  rows.add("mpi", std::move(work));
#endif
}

void addScatter(Session& session, const Shape& shape, const Choices& choices, const std::shared_ptr<Nccl>& nccl) {
  const auto movement = std::make_shared<Movement>(shape.wholeBytes, shape.shardBytes, session.group);
  const int rank = session.group.rank();
  setInput(*movement, valuesOf(0, shape.wholeElements, rank, 1, 1, choices.type));
  const auto first = static_cast<size_t>(rank) * shape.shardElements;
  Rows rows(session, shape.wholeBytes, "reducescatter", choices.type);
  Work work = workOn(movement, valuesOf(first, shape.shardElements, 0, session.group.size(), 1, choices.type));
  work.run = [movement, params = shape.params, stream = session.stream] {
    const seqparComm_t comm = movement->group.comm();
    require(seqparReduceScatter(movement->send.data(), movement->receive.data(), &params, comm, stream),
            "seqparReduceScatter", comm);
  };
  rows.add("seqpar", std::move(work));
  addSum(session, rows, movement, shape, choices.type, nccl);
  rows.measure();
}

/// A power of 2 of ranks have equal log-sum-exps in every row, the others are empty: the weights are exact.
void addScatterLse(Session& session, const Shape& shape, const Choices& choices, const std::shared_ptr<Nccl>& nccl) {
  const auto movement = std::make_shared<Movement>(shape.wholeBytes, shape.shardBytes, session.group);
  const int rank = session.group.rank();
  int parts = 1;
  while (parts * 2 <= session.group.size()) parts *= 2;
  setInput(*movement, valuesOf(0, shape.wholeElements, rank, 1, 1, choices.type));
  const auto first = static_cast<size_t>(rank) * shape.shardElements;
  const size_t lses = shape.wholeElements / kHeadDim;
  const auto lse = std::make_shared<Buffer>(lses * sizeof(float), session.group.comm());
  const auto lseShard = std::make_shared<Buffer>(shape.shardElements / kHeadDim * sizeof(float), session.group.comm());
  std::fill_n(lse->as<float>(), lses, rank < parts ? 5.0f : -std::numeric_limits<float>::infinity());
  lse->upload();
  Rows rows(session, shape.wholeBytes, "lse", choices.type);
  Work work =
      workOn(movement, valuesOf(first, shape.shardElements, 0, parts, 1 / static_cast<float>(parts), choices.type));
  work.run = [movement, lse, lseShard, params = shape.params, stream = session.stream] {
    const seqparComm_t comm = movement->group.comm();
    require(
        seqparReduceScatterLse(movement->send.data(), static_cast<const float*>(lse->data()), movement->receive.data(),
                               static_cast<float*>(lseShard->data()), 1, &params, comm, stream),
        "seqparReduceScatterLse", comm);
  };
  rows.add("seqpar", std::move(work));
  addSum(session, rows, movement, shape, choices.type, nccl);
  rows.measure();
}

void runAll(Session& session, const Choices& choices) {
  const auto nccl = ncclPeer(session);
  for (const int operation : choices.operations) {
    if (operation == kGroup) {
      runGroupGathers(session, choices.type);
      continue;
    }
    for (const size_t size : session.settings.sizes()) {
      const Shape shape(size, choices, static_cast<Operation>(operation), session.group.size());
      if (operation == kGather) addGather(session, shape, choices, nccl);
      if (operation == kScatter) addScatter(session, shape, choices, nccl);
      if (operation == kScatterLse) addScatterLse(session, shape, choices, nccl);
    }
  }
}

}  // namespace
}  // namespace seqpar::perf

int main(int argc, char** argv) {
  using namespace seqpar::perf;
  Choices choices;
  Program program = exchangeProgram(
      "gather_perf",
      "seqparAllGather, seqparReduceScatter and seqparReduceScatterLse (heads of 128): SIZE is the whole array;\n"
      "all ranks have equal shards of it. group: seqparMeshAllGather in the KV groups of the most nearly square mesh,\n"
      "all groups concurrently. Peers: MPI_Allgather or ncclAllGather over the same ranks; for the other operations\n"
      "MPI_Reduce_scatter_block or ncclReduceScatter, a sum of floats. With --outer the peers' shards stay in rank "
      "order.");
  program.addOptions = [&](OptionParser& parser) {
    parser.addNames(0, "operation", "allgather, reducescatter, lse, group or all (allgather)", kOperations,
                    choices.operations);
    parser.addNames('d', "datatype", "of the elements: float, half, bfloat16 or all (float)", typeNames(),
                    choices.types);
    parser.add(0, "outer", "N",
               "of an all-gather: parts of the array that are each sharded, such as queries by heads (1)",
               [&](const std::string& text) { choices.outer = parseInteger(text, 1, 1 << 20); });
  };
  program.body = [&](Session& session) { forEachType(choices, [&](const Choices& one) { runAll(session, one); }); };
  return runProgram(program, argc, argv);
}
