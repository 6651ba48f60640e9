#include "scan/all_scan.h"

#include <algorithm>
#include <numeric>

#include "base/log.h"
#include "scan/algorithms.h"

namespace seqpar {
namespace {

void scan(const ScanProblem& problem, const ScanOrder& order, const seqparScanEstimate_t& choice, Mailbox& mail) {
  const auto affine = makeAffine(problem);
  const auto blocks = static_cast<size_t>(choice.blocks);
  switch (choice.algorithm) {
    case seqparScanChain:
      return scanChain(*affine, problem, order, mail, blocks);
    case seqparScanOneshot:
      return scanOneshot(*affine, problem, order, mail, blocks);
    case seqparScanTransposed:
      return scanTransposed(*affine, problem, order, mail, blocks);
    case seqparScanDoubling:
      return scanDoubling(*affine, problem, order, mail, blocks);
    case seqparScanHier:
      return scanHier(*affine, problem, order, mail, blocks);
    case seqparScanLasp1:
      return scanLasp1(*affine, problem, order, mail);
    case seqparScanLasp2:
      return scanLasp2(*affine, problem, order, mail, blocks);
    default:
      fail(seqparInternalError, "seqparAllScan: no algorithm ", choice.algorithm);
  }
}

}  // namespace

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
  log(LogLevel::Trace, "seqparAllScan: rank ", comm.rank(), ": ", seqparScanAlgorithmName(choice.algorithm), ", ",
      choice.blocks, " blocks, model ", choice.modelUs, " us");
  auto nodes = scanNodes(comm, problem->direction);
  comm.run("seqparAllScan", stream, [problem = std::move(problem), choice, nodes = std::move(nodes)](Mailbox& mail) {
    const auto ranks = scanRanks(mail.size(), problem->direction);
    const int position = problem->direction == seqparReverse ? mail.size() - 1 - mail.rank() : mail.rank();
    scan(*problem, ScanOrder{ranks, position, nodes}, choice, mail);
  });
}

}  // namespace seqpar
