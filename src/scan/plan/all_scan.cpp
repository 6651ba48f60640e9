#include "scan/plan/all_scan.h"

#include <algorithm>
#include <numeric>

#include "base/log.h"
#include "scan/registry.h"

namespace seqpar {
std::vector<int> scanRanks(int size, seqparDirection_t direction) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  if (direction == seqparReverse) std::reverse(ranks.begin(), ranks.end());
  return ranks;
}

std::vector<int> scanNodes(const Communicator& comm, seqparDirection_t direction) {
  std::vector<int> nodes;
  for (const int rank : scanRanks(comm.size(), direction))
    nodes.push_back(comm.topology().nodes[static_cast<size_t>(rank)]);
  return nodes;
}

void runScan(Communicator& comm, std::shared_ptr<const ScanProblem> problem, const seqparScanEstimate_t& choice,
             HostStream* stream) {
  const ScanAlgorithm& row = scanAlgorithm(choice.algorithm);
  if (row.host.run == nullptr) {
    fail(seqparInvalidUsage, "seqparAllScan: the algorithm ", row.name, " is not done on host memory; expected ",
         scanAlgorithmsThat([](const ScanAlgorithm& other) { return other.host.run != nullptr; }));
  }
  log(LogLevel::Trace, "seqparAllScan: rank ", comm.rank(), ": ", row.name, ", ", choice.blocks, " blocks, model ",
      choice.modelUs, " us");
  auto nodes = scanNodes(comm, problem->direction);
  comm.run("seqparAllScan", stream,
           [problem = std::move(problem), &row, choice, nodes = std::move(nodes)](Mailbox& mail) {
             const auto ranks = scanRanks(mail.size(), problem->direction);
             const int position = problem->direction == seqparReverse ? mail.size() - 1 - mail.rank() : mail.rank();
             const auto affine = makeAffine(*problem);
             row.host.run(*affine, *problem, {ranks, position, nodes}, mail, static_cast<size_t>(choice.blocks));
           });
}

}  // namespace seqpar
