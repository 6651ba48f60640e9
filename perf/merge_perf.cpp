// merge_perf: seqparAllReduceLse and seqparReduceScatterLseByHeads; peers by MPI: the merge in separate collectives,
// and a sum of the same size.
#include <algorithm>
#include <cmath>
#include <limits>

#include "common/values.h"
#include "exchange/exchange.h"
#include "seqpar/exchange.h"
#include "seqpar/lse.h"

#ifdef SEQPAR_PERF_MPI
#include <mpi.h>
#endif

namespace seqpar::perf {
namespace {

enum Operation { kAll, kHeads };
const Names kOperations{{"allreduce", kAll}, {"heads", kHeads}};

constexpr size_t kHeadDim = 128;

struct Choices {
  std::vector<int> operations{kAll};
  std::vector<int> types{seqparFloat32};
  int type = seqparFloat32;  ///< the current one of `types`
  long heads = 32;
};

/// A rank's partial results in fp32. Every third row is empty on every second rank.
float outAt(size_t index, int rank) {
  return static_cast<float>(byteAt(index, rank) % 9) - 4;
}
float lseAt(size_t row, int rank) {
  if (row % 3 == 2 && rank % 2 == 1) return -std::numeric_limits<float>::infinity();
  return static_cast<float>(byteAt(row, rank) % 16) / 4;
}

/// One rank's buffers, with the expected merge.
struct Merge {
  Merge(size_t bytes, const Choices& choices, Operation operation, Group& aGroup)
      : movement(bytes, bytes, aGroup),
        lse(bytes / bytesOf(choices.type) / kHeadDim * sizeof(float), aGroup.comm()),
        lseMerged(lse.bytes(), aGroup.comm()),
        type(choices.type),
        byHeads(operation == kHeads) {
    const int ranks = aGroup.size(), rank = aGroup.rank();
    results = lse.bytes() / sizeof(float);
    params.dataType = type;
    params.heads = choices.heads;
    params.rows = static_cast<int64_t>(results) / params.heads;
    params.headDim = kHeadDim;
    std::vector<float> out(results * kHeadDim);
    for (size_t i = 0; i < out.size(); ++i) out[i] = outAt(i, rank);
    encode(out, type, movement.send.as<unsigned char>());
    movement.send.upload();
    for (size_t row = 0; row < results; ++row) lse.as<float>()[row] = lseAt(row, rank);
    lse.upload();
    int64_t first = 0, count = params.heads;
    if (byHeads)
      require(seqparHeadsOfMember(params.heads, 0, ranks, rank, &first, &count), "seqparHeadsOfMember", aGroup.comm());
    firstHead = static_cast<size_t>(first);
    ownHeads = static_cast<size_t>(count);
  }

  size_t rowOf(size_t i) const { return i / ownHeads * static_cast<size_t>(params.heads) + firstHead + i % ownHeads; }

  /// Wrong elements of the result: further from fp64 than the type's rounding allows.
  size_t wrong() {
    movement.receive.download();
    const double tolerance = type == seqparBfloat16 ? 0.05 : type == seqparFloat16 ? 0.01 : 1e-4;
    size_t count = 0;
    for (size_t i = 0; i < static_cast<size_t>(params.rows) * ownHeads; ++i) {
      const size_t row = rowOf(i);
      double sum = 0;
      for (int rank = 0; rank < movement.group.size(); ++rank) sum += std::exp(lseAt(row, rank));
      for (size_t e = 0; e < kHeadDim; ++e) {
        double value = 0;
        for (int rank = 0; rank < movement.group.size(); ++rank) {
          value += std::exp(lseAt(row, rank)) / sum * outAt(row * kHeadDim + e, rank);
        }
        count += std::abs(decode(movement.receive.as<unsigned char>(), i * kHeadDim + e, type) - value) <=
                         tolerance * (1 + std::abs(value))
                     ? 0
                     : 1;
      }
    }
    return count;
  }

  Movement movement;
  Buffer lse, lseMerged;
  int type;
  bool byHeads;
  size_t results = 0, firstHead = 0, ownHeads = 0;
  seqparLseParams_t params = SEQPAR_LSE_PARAMS_INITIALIZER;
};

Work workOn(const std::shared_ptr<Merge>& merge, bool checked = true) {
  Work work;
  work.prepare = [merge] { merge->movement.receive.fill(0xff); };
  work.wrong = [merge, checked] { return checked ? merge->wrong() : size_t{0}; };
  return work;
}

#ifdef SEQPAR_PERF_MPI
/// The merge in separate collectives, as serving systems do it: all-gather of lse, scaling of the own part, sum.
struct MpiMerge {
  explicit MpiMerge(std::shared_ptr<Merge> aMerge)
      : merge(std::move(aMerge)),
        all(merge->results * static_cast<size_t>(merge->movement.group.size())),
        scaled(merge->results * kHeadDim) {}

  /// Row `row` in the sum: for a reduce-scatter the rows of each rank's heads follow each other.
  size_t placeOf(size_t row) const {
    if (!merge->byHeads) return row;
    const auto heads = static_cast<size_t>(merge->params.heads);
    const size_t each = merge->ownHeads;
    const size_t head = row % heads;
    return (head / each * static_cast<size_t>(merge->params.rows) + row / heads) * each + head % each;
  }

  void run() {
    const auto results = static_cast<int>(merge->results);
    const auto* const out = merge->movement.send.as<float>();
    const auto* const lse = merge->lse.as<float>();
    MPI_Allgather(lse, results, MPI_FLOAT, all.data(), results, MPI_FLOAT, MPI_COMM_WORLD);
    const auto ranks = static_cast<size_t>(merge->movement.group.size());
    for (size_t row = 0; row < merge->results; ++row) {
      float most = all[row];
      for (size_t r = 1; r < ranks; ++r) most = std::max(most, all[r * merge->results + row]);
      float sum = 0;
      for (size_t r = 0; r < ranks; ++r) sum += std::exp(all[r * merge->results + row] - most);
      const float factor = std::exp(lse[row] - most) / sum;
      float* const into = scaled.data() + placeOf(row) * kHeadDim;
      for (size_t e = 0; e < kHeadDim; ++e) into[e] = factor * out[row * kHeadDim + e];
    }
    if (merge->byHeads) return scatter(scaled.data());
    MPI_Allreduce(scaled.data(), merge->movement.receive.data(), results * static_cast<int>(kHeadDim), MPI_FLOAT,
                  MPI_SUM, MPI_COMM_WORLD);
  }

  void scatter(const float* from) {
    const auto each = static_cast<int>(static_cast<size_t>(merge->params.rows) * merge->ownHeads * kHeadDim);
    MPI_Reduce_scatter_block(from, merge->movement.receive.data(), each, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }

  /// Only the sum.
  void sum() {
    if (merge->byHeads) return scatter(merge->movement.send.as<float>());
    MPI_Allreduce(merge->movement.send.data(), merge->movement.receive.data(),
                  static_cast<int>(merge->results * kHeadDim), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }

  std::shared_ptr<Merge> merge;
  std::vector<float> all, scaled;
};
#endif

void addPeers([[maybe_unused]] Session& session, [[maybe_unused]] Rows& rows,
              [[maybe_unused]] const std::shared_ptr<Merge>& merge) {
#ifdef SEQPAR_PERF_MPI
  const bool divides = merge->params.heads % session.group.size() == 0;
  if (!session.settings.peers || session.group.gpu() != nullptr || merge->type != seqparFloat32) return;
  if (merge->byHeads && !divides) return;
  const auto mpi = std::make_shared<MpiMerge>(merge);
  Work separate = workOn(merge);
  separate.run = [mpi] { mpi->run(); };
  rows.add("mpi", std::move(separate));
  Work bare = workOn(merge, false);
  bare.run = [mpi] { mpi->sum(); };
  rows.add("mpi_sum", std::move(bare));
#endif
}

void runOne(Session& session, size_t size, const Choices& choices, Operation operation) {
  const size_t row = static_cast<size_t>(choices.heads) * kHeadDim * bytesOf(choices.type);
  const auto merge = std::make_shared<Merge>(std::max<size_t>(1, size / row) * row, choices, operation, session.group);
  Rows rows(session, merge->movement.send.bytes(), nameOf(operation, kOperations), choices.type);
  Work work = workOn(merge);
  work.run = [merge, stream = session.stream] {
    const seqparComm_t comm = merge->movement.group.comm();
    const auto call = merge->byHeads ? seqparReduceScatterLseByHeads : seqparAllReduceLse;
    require(
        call(merge->movement.send.data(), static_cast<const float*>(merge->lse.data()), merge->movement.receive.data(),
             static_cast<float*>(merge->lseMerged.data()), &merge->params, comm, stream),
        merge->byHeads ? "seqparReduceScatterLseByHeads" : "seqparAllReduceLse", comm);
  };
  rows.add("seqpar", std::move(work));
  addPeers(session, rows, merge);
  rows.measure();
}

}  // namespace
}  // namespace seqpar::perf

int main(int argc, char** argv) {
  using namespace seqpar::perf;
  Choices choices;
  Program program = exchangeProgram(
      "merge_perf",
      "seqparAllReduceLse and seqparReduceScatterLseByHeads: SIZE is a rank's partial output [rows][heads][128].\n"
      "Peers (float): mpi: MPI_Allgather of lse, scaling, MPI_Allreduce or MPI_Reduce_scatter_block; mpi_sum: the "
      "last\n"
      "of these alone.");
  program.addOptions = [&](OptionParser& parser) {
    parser.addNames(0, "operation", "allreduce, heads or all (allreduce)", kOperations, choices.operations);
    parser.addNames('d', "datatype", "of the outputs: float, half, bfloat16 or all (float)", typeNames(),
                    choices.types);
    parser.add(0, "heads", "N", "query heads (32)",
               [&](const std::string& text) { choices.heads = parseInteger(text, 1, 1 << 20); });
  };
  program.body = [&](Session& session) {
    forEachType(choices, [&](const Choices& one) {
      for (const int operation : one.operations) {
        for (const size_t size : session.settings.sizes())
          runOne(session, size, one, static_cast<Operation>(operation));
      }
    });
  };
  return runProgram(program, argc, argv);
}
