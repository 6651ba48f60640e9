// The measured works of the MPI peers.
#include <algorithm>

#include "mpi_scan.h"
#include "problem.h"

namespace seqpar::perf {
namespace {

Work exscanWork(std::shared_ptr<Problem> problem, std::shared_ptr<MpiExscan> scan, bool inPlace) {
  const AffineMap map = problem->map();
  const auto total = [=] { return problem->wantsPrefix() ? static_cast<float*>(problem->total(inPlace)) : nullptr; };
  Work work;
  work.prepare = [=] {
    problem->reset();
    std::copy_n(static_cast<const float*>(problem->state()), map.shape.elements(), scan->state());
    std::copy_n(problem->transition(), map.coefficients(), scan->transition());
    if (!inPlace) std::fill_n(scan->result(false), map.shape.elements(), static_cast<float>(Timing::kNone));
  };
  work.run = [=] { scan->run(inPlace, problem->wantsPrefix(), total()); };
  work.wrong = [=] {
    const float* const result = scan->result(inPlace);
    if (!problem->wantsPrefix()) return problem->wrongTotal(result);
    return problem->wrongPrefix(result) + (total() != nullptr ? problem->wrongTotal(total()) : 0);
  };
  work.repeatable = !inPlace;
  return work;
}

Work chainWork(std::shared_ptr<Problem> problem, std::shared_ptr<MpiChain> chain, int blocks, bool inPlace) {
  Work work;
  work.prepare = [=] { problem->reset(); };
  work.run = [=] {
    chain->run(problem->transition(), static_cast<const float*>(problem->state()),
               static_cast<float*>(problem->prefix(inPlace)), static_cast<float*>(problem->total(inPlace)),
               static_cast<size_t>(blocks));
  };
  work.wrong = [=] { return problem->wrong(inPlace); };
  work.repeatable = !inPlace;
  return work;
}

}  // namespace

std::vector<Peer> makePeers(std::shared_ptr<Problem> problem, int blocks) {
  const auto scan = std::make_shared<MpiExscan>(problem->map(), problem->direction(), problem->comm());
  const auto chain = std::make_shared<MpiChain>(problem->map(), problem->direction(), problem->comm());
  return {{"mpi_exscan", 0, exscanWork(problem, scan, false), exscanWork(problem, scan, true)},
          {"mpi_chain", 1, chainWork(problem, chain, 1, false), chainWork(problem, chain, 1, true)},
          {"mpi_pipe", blocks, chainWork(problem, chain, blocks, false), chainWork(problem, chain, blocks, true)}};
}

}  // namespace seqpar::perf
