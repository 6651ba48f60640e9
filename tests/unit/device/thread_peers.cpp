#include "thread_peers.h"

#include <algorithm>
#include <numeric>

namespace seqpar::test {

bool Meeting::meet(bool mine) {
  if (threads_ == 1) return mine;
  std::unique_lock lock(mutex_);
  any_ = any_ || mine;
  if (++arrived_ == threads_) {
    result_ = any_;
    any_ = false;
    arrived_ = 0;
    ++round_;
    all_.notify_all();
    return result_;
  }
  const unsigned before = round_;
  all_.wait(lock, [&] { return round_ != before; });
  return result_;
}

ThreadPeers::ThreadPeers(int size, int lanes, std::chrono::milliseconds timeout)
    : lanes_(lanes), gaveUp_(static_cast<std::size_t>(size), 0), views_(static_cast<std::size_t>(size)) {
  const std::size_t window = ChannelLayout::windowBytes(size, lanes) / sizeof(Line);
  const std::size_t rings = ChannelLayout::ringsBytes(size, lanes) / sizeof(Line);
  for (int peer = 0; peer < size; ++peer) {
    auto& lines = windows_.emplace_back(window, Line{});
    std::fill_n(lines.begin(), rings, Line{{kAbsent, kAbsent, kAbsent, kAbsent}});
    states_.emplace_back(ChannelLayout::stateBytes(size, lanes) / sizeof(ChannelState));
  }
  for (int peer = 0; peer < size; ++peer) {
    const auto number = static_cast<std::size_t>(peer);
    PeerView& view = views_[number];
    view.self = peer;
    view.size = size;
    view.lanes = lanes;
    for (int other = 0; other < size; ++other) {
      view.windows[other] = reinterpret_cast<std::byte*>(windows_[static_cast<std::size_t>(other)].data());
    }
    view.state = reinterpret_cast<std::byte*>(states_[number].data());
    view.abort = &abort_;
    view.gaveUp = &gaveUp_[number];
    view.timeoutNs = static_cast<std::uint64_t>(timeout / std::chrono::nanoseconds(1));
  }
}

void ThreadPeers::run(int threadsOfLane, const std::function<void(const LaneThread&)>& body,
                      const std::vector<int>& present) {
  std::vector<int> peers = present;
  if (peers.empty()) {
    peers.resize(views_.size());
    std::iota(peers.begin(), peers.end(), 0);
  }
  const std::size_t lanes = peers.size() * static_cast<std::size_t>(lanes_);
  std::vector<std::unique_ptr<Meeting>> meetings;
  std::vector<LanePositions> positions(lanes);
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < lanes; ++i) {
    Meeting& meeting = *meetings.emplace_back(std::make_unique<Meeting>(threadsOfLane));
    const PeerView& peer = view(peers[i / static_cast<std::size_t>(lanes_)]);
    const int lane = static_cast<int>(i) % lanes_;
    for (int thread = 0; thread < threadsOfLane; ++thread) {
      threads.emplace_back([&body, &meeting, &peer, &shared = positions[i], lane, thread] {
        const ThreadGroup group(meeting, thread);
        body({peer, lane, group, shared});
      });
    }
  }
}

std::size_t ThreadPeers::linesPublished(int sender, int receiver) const {
  const auto* const rings =
      reinterpret_cast<const Line*>(view(receiver).windows[receiver] + ChannelLayout::ringOffset(lanes_, sender, 0));
  const auto isPublished = [](const Line& line) {
    return std::any_of(line.word, line.word + 4, [](std::uint32_t word) { return word != kAbsent; });
  };
  return static_cast<std::size_t>(
      std::count_if(rings, rings + static_cast<std::size_t>(lanes_) * kRingLines, isPublished));
}

std::uint64_t ThreadPeers::creditGiven(int sender, int receiver) const {
  std::uint64_t sum = 0;
  for (int lane = 0; lane < lanes_; ++lane) {
    sum += ThreadMemory::acquire(Sender<ThreadMemory>::creditWord(view(sender), receiver, lane));
  }
  return sum;
}

}  // namespace seqpar::test
