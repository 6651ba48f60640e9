#include "matrix_on_threads.h"

#include "scan/device_matrix_task.h"
#include "scan/matrix_chain.h"
#include "scan/matrix_doubling.h"
#include "scan/matrix_gather.h"
#include "scan/matrix_transposed.h"

namespace seqpar::test {
namespace {

LaneShares sharesOf(const MatrixScan& scan, const LaneThread& thread) {
  return {scan.groups(), thread.view.lanes};
}

void runChain(const MatrixScan& scan, const LaneThread& thread, SplitPair* pairs) {
  MatrixChain<ThreadMemory, ThreadGroup, PlainProduct> lane(thread.view, scan, thread.lane, thread.group, pairs);
  lane.run(sharesOf(scan, thread).of(thread.lane));
}

template <int Threads>
class ThreadTeam {
 public:
  static constexpr int kTeams = 2;
  static constexpr int kThreads = Threads;

  ThreadTeam(const ThreadGroup& lane, std::array<Meeting, 2>& teams) : lane_(lane), teams_(teams) {}
  int thread() const { return lane_.thread() % Threads; }
  int threads() const { return Threads; }
  int number() const { return lane_.thread() / Threads; }
  bool any(bool mine) const { return teams_[static_cast<std::size_t>(number())].meet(mine); }
  bool anyOfLane(bool mine) const { return lane_.any(mine); }

 private:
  const ThreadGroup& lane_;
  std::array<Meeting, 2>& teams_;
};

class SlotProduct {
 public:
  void load(const MatrixView& a) { a_ = a; }
  static void settle() {}
  void multiply(int slot, const SplitPair* panel, bool, float (&numbers)[4]) const {
    multiplySlot(a_, panel, PanelSlot(slot), numbers);
  }

 private:
  MatrixView a_;
};

template <int Rows, int Threads>
void runTeams(const MatrixScan& scan, const LaneThread& thread, MatrixShared& memory) {
  using Team = ThreadTeam<Threads>;
  using Lane = MatrixTeams<Rows, ThreadMemory, Team, SlotProduct>;
  auto& shared = *reinterpret_cast<typename Lane::Shared*>(memory.teamMemory.data());
  const Team team(thread.group, *memory.teams);
  Lane(thread.view, scan, thread.lane, team, shared, scan.reverse).run(sharesOf(scan, thread).of(thread.lane));
}

/// False: there are no teams for the shape, or for so many threads.
bool runTeams(const MatrixScan& scan, const LaneThread& thread, MatrixShared& memory) {
  if (!arePlain(scan) || scan.group != 1 || (scan.dk != 16 && scan.dk != 48)) return false;
  if (thread.group.threads() == 2) {
    scan.dk == 16 ? runTeams<16, 1>(scan, thread, memory) : runTeams<48, 1>(scan, thread, memory);
  } else if (thread.group.threads() == 4) {
    scan.dk == 16 ? runTeams<16, 2>(scan, thread, memory) : runTeams<48, 2>(scan, thread, memory);
  } else {
    return false;
  }
  return true;
}

void runGather(const MatrixScan& scan, const LaneThread& thread, const MapMemory& memory, bool toAll) {
  MatrixGather<ThreadMemory, ThreadGroup, PlainProduct>(thread.view, scan, thread.lane, mostPorts(thread.view.lanes),
                                                        toAll, thread.group, memory)
      .run();
}

void runTransposed(const MatrixScan& scan, const LaneThread& thread, const MapMemory& memory) {
  MatrixTransposed<ThreadMemory, ThreadGroup, PlainProduct>(thread.view, scan, thread.lane,
                                                            mostPorts(thread.view.lanes), thread.group, memory)
      .run();
}

void runDoubling(const MatrixScan& scan, const LaneThread& thread, const MapMemory& memory) {
  MatrixDoubling<ThreadMemory, ThreadGroup, PlainProduct>(thread.view, scan, thread.lane, mostPorts(thread.view.lanes),
                                                          thread.group, memory)
      .run();
}

}  // namespace

MatrixShared::MatrixShared(int dk, int group, int threadsOfLane)
    : pairs(static_cast<std::size_t>(2 * group + 2) * pairsOf(dk)),
      teamMemory(8 * pairsOf(dk)),  // more than two teams have
      matrix(2 * static_cast<std::size_t>(dk * matrixStride(dk))),
      teams(new std::array<Meeting, 2>{Meeting(threadsOfLane / 2), Meeting(threadsOfLane / 2)}) {}

MapMemory MatrixShared::memory() {
  return {pairs.data(), {matrix.data(), matrix.data() + matrix.size() / 2}, &out, &in};
}

ThreadMatrixScan::ThreadMatrixScan(const ThreadPeers& peers, ScanCase scanCase, const std::vector<Outputs>& outputs,
                                   int group, int threadsOfLane)
    : case_(std::make_unique<const ScanCase>(std::move(scanCase))) {
  const ScanSpec& spec = case_->spec;
  std::vector<int> order;
  for (int position = 0; position < spec.size; ++position) order.push_back(spec.rankAt(position));
  for (int rank = 0; rank < spec.size; ++rank) {
    buffers_.emplace_back(*case_, rank, outputs[static_cast<std::size_t>(rank)]);
    RankScan& mine = ranks_.emplace_back();
    mine.scans = makeMatrixScans(peers.view(rank), buffers_.back().problem(), order);
    for (MatrixScan& scan : mine.scans) scan.group = group;
    for (int lane = 0; lane < peers.lanes(); ++lane) {
      mine.shared.emplace_back(mine.scans[0].dk, group, threadsOfLane);
    }
    mine.all = std::make_unique<Meeting>(peers.lanes() * threadsOfLane);
  }
}

void ThreadMatrixScan::run(seqparScanAlgorithm_t algorithm, const LaneThread& thread) {
  RankScan& mine = ranks_[static_cast<std::size_t>(thread.view.self)];
  MatrixShared& shared = mine.shared[static_cast<std::size_t>(thread.lane)];
  const MapMemory memory = shared.memory();
  for (const MatrixScan& scan : mine.scans) {
    const bool sendsMaps = algorithm != seqparScanChain && algorithm != seqparScanLasp1;
    // They have several lanes each; the threads of further lanes have nothing to do.
    if (sendsMaps && thread.lane >= mostPorts(thread.view.lanes)) {
      mine.all->meet(false);
      continue;
    }
    switch (algorithm) {
      case seqparScanOneshot:
      case seqparScanLasp2:
        runGather(scan, thread, memory, algorithm == seqparScanLasp2);
        break;
      case seqparScanTransposed:
        runTransposed(scan, thread, memory);
        break;
      case seqparScanDoubling:
        runDoubling(scan, thread, memory);
        break;
      default:
        if (algorithm != seqparScanChain || thread.view.self % 3 == 2 || !runTeams(scan, thread, shared)) {
          runChain(scan, thread, memory.pairs);
        }
    }
    mine.all->meet(false);
  }
}

}  // namespace seqpar::test
