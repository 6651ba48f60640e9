#include <algorithm>

#include "merge/merge.h"

#ifdef SEQPAR_PERF_MPI
#include <mpi.h>
#endif

namespace seqpar::perf {

#ifdef SEQPAR_PERF_MPI
namespace {

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

}  // namespace

void addMpiPeers(Session& session, Rows& rows, const std::shared_ptr<Merge>& merge) {
  if (!session.settings.peers || session.group.gpu() != nullptr || merge->type != seqparFloat32) return;
  if (merge->byHeads && !merge->divides()) return;
  const auto mpi = std::make_shared<MpiMerge>(merge);
  Work separate = workOn(merge);
  separate.run = [mpi] { mpi->run(); };
  rows.add("mpi", std::move(separate));
  Work bare = workOn(merge, false);
  bare.run = [mpi] { mpi->sum(); };
  rows.add("mpi_sum", std::move(bare));
}
#else
void addMpiPeers(Session&, Rows&, const std::shared_ptr<Merge>&) {}
#endif

}  // namespace seqpar::perf
