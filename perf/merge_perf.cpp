// merge_perf: seqparAllReduceLse and seqparReduceScatterLseByHeads; peers by MPI and NCCL: the merge in separate
// collectives, and a sum of the same size.
#include <algorithm>

#include "merge/merge.h"

namespace seqpar::perf {
namespace {

enum Operation { kAll, kHeads };
const Names kOperations{{"allreduce", kAll}, {"heads", kHeads}};

struct Choices {
  std::vector<int> operations{kAll};
  std::vector<int> types{seqparFloat32};
  int type = seqparFloat32;  ///< the current one of `types`
  long heads = 32;
};

void runOne(Session& session, size_t size, const Choices& choices, Operation operation,
            [[maybe_unused]] const std::shared_ptr<Nccl>& nccl) {
  const size_t row = static_cast<size_t>(choices.heads) * kHeadDim * bytesOf(choices.type);
  const auto merge = std::make_shared<Merge>(std::max<size_t>(1, size / row) * row, choices.type, choices.heads,
                                             operation == kHeads, session.group);
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
  addMpiPeers(session, rows, merge);
#ifdef SEQPAR_PERF_CUDA
  addNcclPeers(session, rows, merge, nccl);
#endif
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
      "Peers: mpi (float): MPI_Allgather of lse, scaling, MPI_Allreduce or MPI_Reduce_scatter_block; mpi_sum: the\n"
      "last of these alone. On GPUs: nccl: ncclAllGather of lse, a kernel that scales, ncclAllReduce or\n"
      "ncclReduceScatter; nccl_sum: the last of these alone; nccl_sym: that in symmetric memory.");
  program.addOptions = [&](OptionParser& parser) {
    parser.addNames(0, "operation", "allreduce, heads or all (allreduce)", kOperations, choices.operations);
    parser.addNames('d', "datatype", "of the outputs: float, half, bfloat16 or all (float)", typeNames(),
                    choices.types);
    parser.add(0, "heads", "N", "query heads (32)",
               [&](const std::string& text) { choices.heads = parseInteger(text, 1, 1 << 20); });
  };
  program.body = [&](Session& session) {
    const auto nccl = ncclPeer(session);
    forEachType(choices, [&](const Choices& one) {
      for (const int operation : one.operations) {
        for (const size_t size : session.settings.sizes())
          runOne(session, size, one, static_cast<Operation>(operation), nccl);
      }
    });
  };
  return runProgram(program, argc, argv);
}
