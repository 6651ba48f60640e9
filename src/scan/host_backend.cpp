// All-Scan on host memory, by the mailbox.
#include "scan/backend.h"

#include "base/log.h"
#include "scan/order.h"

namespace seqpar {
namespace {

class HostScans : public ScanBackend {
 public:
  explicit HostScans(Communicator& comm) : comm_(comm) {}

  std::vector<seqparScanEstimate_t> estimates(const ScanProblem& problem, int blocks) const override {
    const auto nodes = scanNodes(comm_.topology().nodes, problem.direction);
    const Mailbox& mail = comm_.mailbox();
    const bool readable = comm_.size() == 2 && mail.readable(1 - comm_.rank());
    return estimateScan(problem, {comm_.size(), nodes, comm_.links(), mail.maxMessage(), mail.window(), readable},
                        blocks);
  }

  void run(std::shared_ptr<const ScanProblem> problem, const ScanAlgorithm& row, int blocks,
           const CallerStream& stream) override {
    if (row.host.run == nullptr) {
      refuseAlgorithm(row, "on host memory", [](const ScanAlgorithm& other) { return other.host.run != nullptr; });
    }
    log(LogLevel::Trace, "seqparAllScan: rank ", comm_.rank(), ": ", row.name, ", ", blocks, " blocks");
    auto nodes = scanNodes(comm_.topology().nodes, problem->direction);
    comm_.run("seqparAllScan", stream.host.get(),
              [problem = std::move(problem), &row, blocks, nodes = std::move(nodes)](Mailbox& mail) {
                const auto ranks = scanRanks(mail.size(), problem->direction);
                const int position = scanPosition(mail.rank(), mail.size(), problem->direction);
                const auto affine = makeAffine(*problem);
                row.host.run(*affine, *problem, {ranks, position, nodes}, mail, static_cast<size_t>(blocks));
              });
  }

  std::string limits() const override {
    return concat("a head's transition must fit a message of ", comm_.mailbox().maxMessage(), " bytes");
  }

 private:
  Communicator& comm_;
};

}  // namespace

std::unique_ptr<ScanBackend> makeHostScans(Communicator& comm) {
  return std::make_unique<HostScans>(comm);
}

}  // namespace seqpar
