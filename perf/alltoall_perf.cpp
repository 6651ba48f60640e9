// alltoall_perf: between shards of the sequence and shards of the heads; the peers are all-to-alls without the
// transposition.
#include "common/values.h"
#include "exchange/exchange.h"
#include "seqpar/exchange.h"

#ifdef SEQPAR_PERF_MPI
#include <mpi.h>
#endif

namespace seqpar::perf {
namespace {

enum Direction { kToHeads, kToSequence };
const Names kDirections{{"to_heads", kToHeads}, {"to_sequence", kToSequence}};

struct Choices {
  std::vector<int> directions{kToHeads};
  size_t heads = 32;
  size_t headDim = 128;
  std::vector<int> types{seqparBfloat16};
  int type = seqparBfloat16;  ///< the current one of `types`
};

/// Heads are a multiple of the ranks; sizes below one token shorten the heads.
struct Shape {
  Shape(size_t bytes, const Choices& choices, int ranks) {
    const size_t element = bytesOf(choices.type);
    const auto members = static_cast<size_t>(ranks);
    const size_t heads = (choices.heads + members - 1) / members * members;
    const size_t headDim = std::min(choices.headDim, std::max<size_t>(1, bytes / (heads * element)));
    params.dataType = choices.type;
    params.heads = static_cast<int64_t>(heads);
    params.headDim = static_cast<int64_t>(headDim);
    headBytes = headDim * element;
    tokens = std::max<size_t>(1, bytes / (heads * headBytes));
    params.tokens = static_cast<int64_t>(tokens);
    headsOfRank = heads / members;
    arrayBytes = tokens * heads * headBytes;
  }

  seqparHeadShards_t params = SEQPAR_HEAD_SHARDS_INITIALIZER;
  size_t headBytes, tokens, headsOfRank, arrayBytes;
};

/// The whole array's byte at offset `place` of a rank's sequence array, or of its head array.
unsigned char inSequence(const Shape& shape, int rank, size_t place) {
  return byteAt(static_cast<size_t>(rank) * shape.arrayBytes + place);
}
unsigned char inHeads(const Shape& shape, int rank, size_t place) {
  const size_t row = shape.headsOfRank * shape.headBytes;
  const size_t all = static_cast<size_t>(shape.params.heads) * shape.headBytes;
  return byteAt(place / row * all + static_cast<size_t>(rank) * row + place % row);
}

Work libraryWork(const std::shared_ptr<Movement>& movement, const Shape& shape, Direction direction, void* stream) {
  const int rank = movement->group.rank();
  movement->setInput(
      [&](size_t i) { return direction == kToHeads ? inSequence(shape, rank, i) : inHeads(shape, rank, i); });
  Bytes expected(shape.arrayBytes);
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] = direction == kToHeads ? inHeads(shape, rank, i) : inSequence(shape, rank, i);
  }
  Work work = workOn(movement, std::move(expected));
  work.run = [movement, params = shape.params, direction, stream] {
    const auto call = direction == kToHeads ? seqparSequenceToHeads : seqparHeadsToSequence;
    const seqparComm_t comm = movement->group.comm();
    require(call(movement->send.data(), movement->receive.data(), &params, comm, stream),
            direction == kToHeads ? "seqparSequenceToHeads" : "seqparHeadsToSequence", comm);
  };
  return work;
}

/// The result of an all-to-all: from each rank, the block with this rank's number.
Bytes blocksOfAll(const Movement& movement, const Shape& shape, Direction direction) {
  const size_t block = shape.arrayBytes / static_cast<size_t>(movement.group.size());
  const auto rank = static_cast<size_t>(movement.group.rank());
  Bytes expected;
  for (int source = 0; source < movement.group.size(); ++source) {
    for (size_t i = rank * block; i < (rank + 1) * block; ++i) {
      expected.push_back(direction == kToHeads ? inSequence(shape, source, i) : inHeads(shape, source, i));
    }
  }
  return expected;
}

Work ncclWork(const std::shared_ptr<Movement>& movement, const std::shared_ptr<Nccl>& nccl, Bytes expected) {
  Work work = workOn(movement, std::move(expected));
  work.run = [movement, nccl] {
    const size_t block = movement->send.bytes() / static_cast<size_t>(movement->group.size());
    nccl->groupStart();
    for (int peer = 0; peer < movement->group.size(); ++peer) {
      const size_t at = static_cast<size_t>(peer) * block;
      nccl->send(static_cast<std::byte*>(movement->send.data()) + at, block, peer);
      nccl->receive(static_cast<std::byte*>(movement->receive.data()) + at, block, peer);
    }
    nccl->groupEnd();
  };
  return work;
}

#ifdef SEQPAR_PERF_MPI
Work mpiWork(const std::shared_ptr<Movement>& movement, Bytes expected) {
  Work work = workOn(movement, std::move(expected));
  work.run = [movement] {
    const auto block = static_cast<int>(movement->send.bytes() / static_cast<size_t>(movement->group.size()));
    MPI_Alltoall(movement->send.data(), block, MPI_BYTE, movement->receive.data(), block, MPI_BYTE, MPI_COMM_WORLD);
  };
  return work;
}

/// Copies between the sequence array, which interleaves the ranks' heads, and one block of heads per rank.
void transpose(unsigned char* blocks, unsigned char* sequence, const Shape& shape, size_t ranks, bool toBlocks) {
  const size_t run = shape.headsOfRank * shape.headBytes;
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (size_t token = 0; token < shape.tokens; ++token) {
      unsigned char* const inBlock = blocks + (rank * shape.tokens + token) * run;
      unsigned char* const inRow = sequence + (token * ranks + rank) * run;
      std::memcpy(toBlocks ? inBlock : inRow, toBlocks ? inRow : inBlock, run);
    }
  }
}

/// MPI_Alltoall plus the copies before or after it that give the library's result.
Work packedMpiWork(const std::shared_ptr<Movement>& movement, const Shape& shape, Direction direction, Work work) {
  const auto blocks = std::make_shared<Buffer>(shape.arrayBytes, movement->group.comm());
  work.run = [movement, shape, direction, blocks] {
    const auto ranks = static_cast<size_t>(movement->group.size());
    const auto block = static_cast<int>(shape.arrayBytes / ranks);
    auto* const packed = blocks->as<unsigned char>();
    const bool toHeads = direction == kToHeads;
    if (toHeads) transpose(packed, movement->send.as<unsigned char>(), shape, ranks, true);
    MPI_Alltoall(toHeads ? packed : movement->send.data(), block, MPI_BYTE, toHeads ? movement->receive.data() : packed,
                 block, MPI_BYTE, MPI_COMM_WORLD);
    if (!toHeads) transpose(packed, movement->receive.as<unsigned char>(), shape, ranks, false);
  };
  return work;
}
#endif

void runAll(Session& session, const Choices& choices) {
  const auto nccl = ncclPeer(session);
  for (const int each : choices.directions) {
    const auto direction = static_cast<Direction>(each);
    for (const size_t size : session.settings.sizes()) {
      const Shape shape(size, choices, session.group.size());
      const auto movement = std::make_shared<Movement>(shape.arrayBytes, shape.arrayBytes, session.group);
      Rows rows(session, shape.arrayBytes, nameOf(direction, kDirections), choices.type);
      const Work library = libraryWork(movement, shape, direction, session.stream);
      rows.add("seqpar", library);
      if (nccl != nullptr) rows.add("nccl", ncclWork(movement, nccl, blocksOfAll(*movement, shape, direction)));
#ifdef SEQPAR_PERF_MPI
      if (session.settings.peers && session.group.gpu() == nullptr) {
        rows.add("mpi", mpiWork(movement, blocksOfAll(*movement, shape, direction)));
        rows.add("mpi_pack", packedMpiWork(movement, shape, direction, library));
      }
#endif
      rows.measure();
    }
  }
}

}  // namespace
}  // namespace seqpar::perf

int main(int argc, char** argv) {
  using namespace seqpar::perf;
  Choices choices;
  Program program = exchangeProgram(
      "alltoall_perf",
      "seqparSequenceToHeads and seqparHeadsToSequence: every rank holds SIZE bytes and keeps 1 / nranks of\n"
      "them. Peers: MPI_Alltoall, or ncclSend and ncclRecv, of equal volume without the transposition; mpi_pack\n"
      "includes the transposition, by copies before or after MPI_Alltoall.");
  program.addOptions = [&](OptionParser& parser) {
    parser.addNames(0, "direction", "to_heads, to_sequence or all (to_heads)", kDirections, choices.directions);
    parser.addNames('d', "datatype", "of the elements: float, half, bfloat16 or all (bfloat16)", typeNames(),
                    choices.types);
    parser.addCount(0, "heads", "heads, rounded up to a multiple of the ranks (32)", 1 << 20, choices.heads);
    parser.addCount(0, "head-dim,--dim", "elements of a head, fewer if one token does not fit SIZE (128)", 1 << 20,
                    choices.headDim);
  };
  program.body = [&](Session& session) { forEachType(choices, [&](const Choices& one) { runAll(session, one); }); };
  return runProgram(program, argc, argv);
}
