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

ThreadPeers::ThreadPeers(int size, int channels, std::chrono::milliseconds timeout)
    : channels_(channels), timedOut_(static_cast<std::size_t>(size), 0), views_(static_cast<std::size_t>(size)) {
  const std::size_t window = FifoLayout::windowBytes(size, channels) / sizeof(LamportPacket);
  const std::size_t rings = FifoLayout::ringsBytes(size, channels) / sizeof(LamportPacket);
  for (int peer = 0; peer < size; ++peer) {
    auto& packets = windows_.emplace_back(window, LamportPacket{});
    std::fill_n(packets.begin(), rings, LamportPacket{{kAbsent, kAbsent, kAbsent, kAbsent}});
    states_.emplace_back(FifoLayout::stateBytes(size, channels) / sizeof(FifoState));
  }
  for (int peer = 0; peer < size; ++peer) {
    const auto number = static_cast<std::size_t>(peer);
    PeerView& view = views_[number];
    view.self = peer;
    view.size = size;
    view.channels = channels;
    for (int other = 0; other < size; ++other) {
      view.windows[other] = reinterpret_cast<std::byte*>(windows_[static_cast<std::size_t>(other)].data());
    }
    view.state = reinterpret_cast<std::byte*>(states_[number].data());
    view.waits.abort = &abort_;
    view.waits.timedOut = &timedOut_[number];
    view.waits.timeoutNs = static_cast<std::uint64_t>(timeout / std::chrono::nanoseconds(1));
  }
}

void ThreadPeers::run(int threadsOfChannel, const std::function<void(const ChannelThread&)>& body,
                      const std::vector<int>& present) {
  std::vector<int> peers = present;
  if (peers.empty()) {
    peers.resize(views_.size());
    std::iota(peers.begin(), peers.end(), 0);
  }
  const std::size_t channels = peers.size() * static_cast<std::size_t>(channels_);
  std::vector<std::unique_ptr<Meeting>> meetings;
  std::vector<ChannelPositions> positions(channels);
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < channels; ++i) {
    Meeting& meeting = *meetings.emplace_back(std::make_unique<Meeting>(threadsOfChannel));
    const PeerView& peer = view(peers[i / static_cast<std::size_t>(channels_)]);
    const int channel = static_cast<int>(i) % channels_;
    for (int thread = 0; thread < threadsOfChannel; ++thread) {
      threads.emplace_back([&body, &meeting, &peer, &shared = positions[i], channel, thread] {
        const ThreadGroup group(meeting, thread);
        body({peer, channel, group, shared});
      });
    }
  }
}

std::size_t ThreadPeers::packetsPublished(int sender, int receiver) const {
  const auto* const rings = reinterpret_cast<const LamportPacket*>(view(receiver).windows[receiver] +
                                                                   FifoLayout::ringOffset(channels_, sender, 0));
  const auto isPublished = [](const LamportPacket& packet) {
    return std::any_of(packet.word, packet.word + 4, [](std::uint32_t word) { return word != kAbsent; });
  };
  return static_cast<std::size_t>(
      std::count_if(rings, rings + static_cast<std::size_t>(channels_) * kRingPackets, isPublished));
}

std::uint64_t ThreadPeers::creditSent(int sender, int receiver) const {
  std::uint64_t sum = 0;
  for (int channel = 0; channel < channels_; ++channel) {
    sum += ThreadMemory::acquire(Sender<ThreadMemory>::creditWord(view(sender), receiver, channel));
  }
  return sum;
}

}  // namespace seqpar::test
