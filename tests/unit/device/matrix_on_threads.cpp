#include "matrix_on_threads.h"

#include <stdexcept>

#include "kernels/scan/matrix_chain.h"
#include "kernels/scan/matrix_doubling.h"
#include "kernels/scan/matrix_gather.h"
#include "kernels/scan/matrix_gather_large.h"
#include "kernels/scan/matrix_transposed.h"
#include "scan/peers/matrix_task.h"

namespace seqpar::test {
namespace {

ChannelShares sharesOf(const MatrixScan& scan, const ChannelThread& thread) {
  return {scan.groups(), thread.view.channels};
}

void runChain(const MatrixScan& scan, const ChannelThread& thread, SplitPair* pairs) {
  MatrixChain<ThreadMemory, ThreadGroup, FastProduct> channel(thread.view, scan, thread.channel, thread.group, pairs);
  channel.run(sharesOf(scan, thread).of(thread.channel));
}

template <int Threads>
class ThreadTeam {
 public:
  static constexpr int kTeams = 2;
  static constexpr int kThreads = Threads;

  ThreadTeam(const ThreadGroup& channel, std::array<Meeting, 2>& teams) : channel_(channel), teams_(teams) {}
  int thread() const { return channel_.thread() % Threads; }
  int threads() const { return Threads; }
  int number() const { return channel_.thread() / Threads; }
  bool any(bool mine) const { return teams_[static_cast<std::size_t>(number())].meet(mine); }
  bool anyOfChannel(bool mine) const { return channel_.any(mine); }

 private:
  const ThreadGroup& channel_;
  std::array<Meeting, 2>& teams_;
};

class FragmentProduct {
 public:
  void load(const MatrixView& a) { a_ = a; }
  static void endStep() {}
  void multiply(int fragment, const SplitPair* panel, bool, float (&numbers)[4]) const {
    multiplyFragment(a_, panel, PanelFragment(fragment), numbers);
  }

 private:
  MatrixView a_;
};

template <int Rows, int Threads>
void runTeams(const MatrixScan& scan, const ChannelThread& thread, MatrixShared& memory) {
  using Team = ThreadTeam<Threads>;
  using Channel = MatrixTeams<Rows, ThreadMemory, Team, FragmentProduct>;
  auto& shared = *reinterpret_cast<typename Channel::Shared*>(memory.teamMemory.data());
  const Team team(thread.group, *memory.teams);
  Channel(thread.view, scan, thread.channel, team, shared, scan.reverse).run(sharesOf(scan, thread).of(thread.channel));
}

/// False: there are no teams for the shape, or for this number of threads.
bool runTeams(const MatrixScan& scan, const ChannelThread& thread, MatrixShared& memory) {
  if (!areFast(scan) || scan.group != 1 || (scan.dk != 16 && scan.dk != 48)) return false;
  if (thread.group.threads() == 2) {
    scan.dk == 16 ? runTeams<16, 1>(scan, thread, memory) : runTeams<48, 1>(scan, thread, memory);
  } else if (thread.group.threads() == 4) {
    scan.dk == 16 ? runTeams<16, 2>(scan, thread, memory) : runTeams<48, 2>(scan, thread, memory);
  } else {
    return false;
  }
  return true;
}

void runGather(const MatrixScan& scan, const ChannelThread& thread, const MapMemory& memory, bool toAll) {
  MatrixGather<ThreadMemory, ThreadGroup, FastProduct>(thread.view, scan, thread.channel,
                                                       mostCursors(thread.view.channels), toAll, thread.group, memory)
      .run();
}

void runGatherLarge(const MatrixScan& scan, const ChannelThread& thread, MatrixShared& memory) {
  const GatheredMaps maps{memory.gathered.data(), scan.dk, scan.group};
  MatrixGatherLarge<ThreadMemory, ThreadGroup, FastProduct>(
      thread.view, scan, thread.channel, mostCursors(thread.view.channels), thread.group, memory.memory(), maps)
      .run();
}

void runTransposed(const MatrixScan& scan, const ChannelThread& thread, const MapMemory& memory) {
  MatrixTransposed<ThreadMemory, ThreadGroup, FastProduct>(thread.view, scan, thread.channel,
                                                           mostCursors(thread.view.channels), thread.group, memory)
      .run();
}

void runDoubling(const MatrixScan& scan, const ChannelThread& thread, const MapMemory& memory) {
  MatrixDoubling<ThreadMemory, ThreadGroup, FastProduct>(thread.view, scan, thread.channel,
                                                         mostCursors(thread.view.channels), thread.group, memory)
      .run();
}

}  // namespace

MatrixShared::MatrixShared(int dk, int group, int positions, int threadsOfChannel)
    : pairs(static_cast<std::size_t>(2 * group + 2) * pairsOf(dk)),
      teamMemory(8 * pairsOf(dk)),  // more than two teams have
      matrix(2 * static_cast<std::size_t>(dk * matrixStride(dk))),
      gathered(static_cast<std::size_t>(positions) * GatheredMaps{nullptr, dk, group}.mapNumbers()),
      teams(new std::array<Meeting, 2>{Meeting(threadsOfChannel / 2), Meeting(threadsOfChannel / 2)}) {}

MapMemory MatrixShared::memory() {
  return {pairs.data(), {matrix.data(), matrix.data() + matrix.size() / 2}, &out, &in};
}

ThreadMatrixScan::ThreadMatrixScan(const ThreadPeers& peers, ScanCase scanCase, const std::vector<Outputs>& outputs,
                                   int group, int threadsOfChannel)
    : case_(std::make_unique<const ScanCase>(std::move(scanCase))) {
  const ScanSpec& spec = case_->spec;
  std::vector<int> order;
  for (int position = 0; position < spec.size; ++position) order.push_back(spec.rankAt(position));
  for (int rank = 0; rank < spec.size; ++rank) {
    buffers_.emplace_back(*case_, rank, outputs[static_cast<std::size_t>(rank)]);
    RankScan& mine = ranks_.emplace_back();
    mine.scans = makeMatrixScans(peers.view(rank), buffers_.back().problem(), order);
    for (MatrixScan& scan : mine.scans) scan.group = group;
    for (int channel = 0; channel < peers.channels(); ++channel) {
      mine.shared.emplace_back(mine.scans[0].dk, group, spec.size, threadsOfChannel);
    }
    mine.all = std::make_unique<Meeting>(peers.channels() * threadsOfChannel);
  }
}

void ThreadMatrixScan::run(seqparScanAlgorithm_t algorithm, const ChannelThread& thread) {
  RankScan& mine = ranks_[static_cast<std::size_t>(thread.view.self)];
  MatrixShared& shared = mine.shared[static_cast<std::size_t>(thread.channel)];
  const MapMemory memory = shared.memory();
  for (const MatrixScan& scan : mine.scans) {
    const bool sendsMaps = scanAlgorithm(algorithm).matrix.matrices > 0;
    // They have several channels each; the threads of further channels have nothing to do.
    if (sendsMaps && thread.channel >= mostCursors(thread.view.channels)) {
      mine.all->meet(false);
      continue;
    }
    switch (algorithm) {
      case seqparScanOneshot:
        runGather(scan, thread, memory, false);
        break;
      case seqparScanLasp2:
        // Both programs, as if half of the matrices exceeded shared memory.
        scan.dk % 2 == 0 ? runGatherLarge(scan, thread, shared) : runGather(scan, thread, memory, true);
        break;
      case seqparScanTransposed:
      case seqparScanHier:
        runTransposed(scan, thread, memory);
        break;
      case seqparScanDoubling:
        runDoubling(scan, thread, memory);
        break;
      case seqparScanChain:
      case seqparScanLasp1:
        if (algorithm != seqparScanChain || thread.view.self % 3 == 2 || !runTeams(scan, thread, shared)) {
          runChain(scan, thread, memory.pairs);
        }
        break;
      default:
        throw std::logic_error("not an algorithm of kernels");
    }
    mine.all->meet(false);
  }
}

}  // namespace seqpar::test
