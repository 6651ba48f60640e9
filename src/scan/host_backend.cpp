// All-Scan on host memory, through the mailbox.
#include "scan/backend.h"

#include "base/log.h"
#include "scan/cut.h"
#include "scan/order.h"

namespace seqpar {
namespace {

inline void traceChoice(const Communicator& comm, const ScanAlgorithm& row, int blocks) {
  if (!logs(LogLevel::Trace)) return;
  log(LogLevel::Trace, "seqparAllScan: rank ", comm.rank(), ": ", row.name, ", ", blocks, " blocks");
}

class PreparedHostScan : public PreparedScan, public std::enable_shared_from_this<PreparedHostScan> {
 public:
  PreparedHostScan(Communicator& comm, const ScanProblem& problem, const ScanAlgorithm& row, int blocks)
      : comm_(comm),
        problem_(problem),
        row_(row),
        blocks_(blocks),
        ranks_(scanRanks(comm.size(), problem.direction)),
        nodes_(scanNodes(comm.topology().nodes, problem.direction)),
        order_{ranks_, scanPosition(comm.rank(), comm.size(), problem.direction), nodes_, {}} {}

  void run(const ScanArrays<void>& arrays, const CallerStream& stream) override {
    traceChoice(comm_, row_, blocks_);
    if (stream.host == nullptr) {
      return comm_.run("seqparAllScan", nullptr, [&](Mailbox& mail) { runInTurn(arrays, mail); });
    }
    comm_.run("seqparAllScan", stream.host.get(),
              [self = shared_from_this(), arrays](Mailbox& mail) { self->runInTurn(arrays, mail); });
  }

 private:
  /// Operations of a communicator run one at a time, so no two threads use the members.
  void runInTurn(const ScanArrays<void>& arrays, Mailbox& mail) {
    static_cast<ScanArrays<void>&>(problem_) = arrays;
    if (!problem_.first) problem_.initial = nullptr;
    if (affine_ == nullptr) {
      affine_ = makeAffine(problem_);
      if (row_.traffic != ScanTraffic::Bytes) {
        cut_ = cutScan(row_.id, *affine_, problem_, order_, mail, static_cast<size_t>(blocks_));
      }
      order_.cut = cut_;
    } else {
      affine_->refresh();
    }
    row_.host.run(*affine_, problem_, order_, mail, static_cast<size_t>(blocks_));
  }

  Communicator& comm_;
  ScanProblem problem_;
  const ScanAlgorithm& row_;
  const int blocks_;
  const std::vector<int> ranks_, nodes_;
  ScanOrder order_;
  std::unique_ptr<Affine> affine_;  ///< null until the first run
  std::vector<Block> cut_;
};

class HostScans : public ScanBackend {
 public:
  explicit HostScans(Communicator& comm) : comm_(comm) {}

  std::vector<seqparScanEstimate_t> estimates(const ScanProblem& problem, int blocks) const override {
    const auto nodes = scanNodes(comm_.topology().nodes, problem.direction);
    const Mailbox& mail = comm_.mailbox();
    const auto access = comm_.size() == 2 ? PairAccess(mail, 1 - comm_.rank()) : PairAccess();
    const ScanSetting setting{comm_.size(), nodes, comm_.links(), mail.maxMessage(), mail.window(), access};
    return estimateScan(problem, setting, blocks);
  }

  bool multiplies(const ScanAlgorithm& row) const override { return multipliesAmong(row, comm_.size()); }

  void run(std::shared_ptr<const ScanProblem> problem, const ScanAlgorithm& row, int blocks,
           const CallerStream& stream) override {
    if (row.host.run == nullptr) {
      refuseAlgorithm(row, "on host memory", [](const ScanAlgorithm& other) { return other.host.run != nullptr; });
    }
    traceChoice(comm_, row, blocks);
    auto nodes = scanNodes(comm_.topology().nodes, problem->direction);
    comm_.run("seqparAllScan", stream.host.get(),
              [problem = std::move(problem), &row, blocks, nodes = std::move(nodes)](Mailbox& mail) {
                const auto ranks = scanRanks(mail.size(), problem->direction);
                const int position = scanPosition(mail.rank(), mail.size(), problem->direction);
                const auto affine = makeAffine(*problem);
                row.host.run(*affine, *problem, {ranks, position, nodes, {}}, mail, static_cast<size_t>(blocks));
              });
  }

  std::shared_ptr<PreparedScan> prepare(const ScanProblem& problem, const ScanAlgorithm& row, int blocks) override {
    return std::make_shared<PreparedHostScan>(comm_, problem, row, blocks);
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
