// Compiled with CUDA only.
#include "merge/merge.h"
#include "merge/scale.h"

namespace seqpar::perf {
namespace {

/// The merge in separate collectives, as serving systems do it: all-gather of lse, scaling of the own part, sum.
struct NcclMerge {
  NcclMerge(std::shared_ptr<Merge> aMerge, std::shared_ptr<Nccl> aNccl)
      : merge(std::move(aMerge)),
        nccl(std::move(aNccl)),
        lseOfAll(merge->lse.bytes() * static_cast<size_t>(merge->movement.group.size()), merge->movement.group.comm()),
        scaled(merge->movement.send.bytes(), merge->movement.group.comm()) {}

  void run() {
    nccl->allGather(merge->lse.data(), lseOfAll.data(), merge->lse.bytes());
    Scale scale;
    scale.out = merge->movement.send.data();
    scale.lseOfAll = static_cast<const float*>(lseOfAll.data());
    scale.scaled = scaled.data();
    scale.lseMerged = static_cast<float*>(merge->lseMerged.data());
    scale.type = merge->type;
    scale.ranks = merge->movement.group.size();
    scale.rank = merge->movement.group.rank();
    scale.results = static_cast<unsigned>(merge->results);
    scale.heads = static_cast<unsigned>(merge->params.heads);
    scale.byHeads = merge->byHeads;
    launchScale(scale, static_cast<cudaStream_t>(merge->movement.group.gpu()->stream()));
    sum(scaled.data(), merge->movement.receive.data());
  }

  void sum(const void* from, void* into) {
    const size_t count = merge->results * kHeadDim;
    if (!merge->byHeads) return nccl->allReduce(from, into, count, merge->type);
    nccl->reduceScatter(from, into, count / static_cast<size_t>(merge->movement.group.size()), merge->type);
  }

  std::shared_ptr<Merge> merge;
  std::shared_ptr<Nccl> nccl;
  Buffer lseOfAll, scaled;
};

}  // namespace

void addNcclPeers(Session& session, Rows& rows, const std::shared_ptr<Merge>& merge,
                  const std::shared_ptr<Nccl>& nccl) {
  if (nccl == nullptr || (merge->byHeads && !merge->divides())) return;
  const auto peer = std::make_shared<NcclMerge>(merge, nccl);
  Work separate = workOn(merge);
  separate.run = [peer] { peer->run(); };
  rows.add("nccl", std::move(separate));
  Work bare = workOn(merge, false);
  bare.run = [peer] { peer->sum(peer->merge->movement.send.data(), peer->merge->movement.receive.data()); };
  rows.add("nccl_sum", std::move(bare));
  const auto from = nccl->symmetric(merge->movement.send.bytes());
  const auto into = from == nullptr ? nullptr : nccl->symmetric(merge->movement.receive.bytes());
  if (into == nullptr) return session.report.note("no symmetric memory of NCCL");
  Work symmetric = workOn(merge, false);
  symmetric.run = [peer, from, into] { peer->sum(from.get(), into.get()); };
  rows.add("nccl_sym", std::move(symmetric));
}

}  // namespace seqpar::perf
