// Peers that are threads: windows in ordinary memory, and the memory operations and groups of kernels on them.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "common/timeouts.h"
#include "kernels/channel.h"

namespace seqpar::test {

struct ThreadMemory {
  static std::uint32_t load(const std::uint32_t* from) {
    return std::atomic_ref(*const_cast<std::uint32_t*>(from)).load(std::memory_order_relaxed);
  }
  static void store(std::uint32_t* to, std::uint32_t word) {
    std::atomic_ref(*to).store(word, std::memory_order_relaxed);
  }
  static LamportPacket load(const LamportPacket* from) {
    return {{load(&from->word[0]), load(&from->word[1]), load(&from->word[2]), load(&from->word[3])}};
  }
  static void store(LamportPacket* to, const LamportPacket& packet) {
    for (int i = 0; i < 4; ++i) store(&to->word[i], packet.word[i]);
  }
  static void storeIf(bool live, LamportPacket* to, const LamportPacket& packet) {
    if (live) store(to, packet);
  }
  static void writeIf(bool live, LamportPacket* to, const LamportPacket& packet) {
    if (live) *to = packet;
  }
  static std::uint32_t increment(std::uint32_t* counter, std::uint32_t last) {
    const std::atomic_ref count(*counter);
    std::uint32_t before = count.load(std::memory_order_relaxed);
    while (!count.compare_exchange_weak(before, before == last ? 0 : before + 1, std::memory_order_acq_rel)) {
    }
    return before;
  }
  static std::uint64_t acquire(const std::uint64_t* from) {
    return std::atomic_ref(*const_cast<std::uint64_t*>(from)).load(std::memory_order_acquire);
  }
  static void release(std::uint64_t* to, std::uint64_t value) {
    std::atomic_ref(*to).store(value, std::memory_order_release);
  }
  static std::uint64_t now() {
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                                      std::chrono::nanoseconds(1));
  }
  static void pause() { std::this_thread::yield(); }
  static void prefetch(const void*) {}
};

/// What the threads of a channel share.
class Meeting {
 public:
  explicit Meeting(int threads) : threads_(threads) {}
  int threads() const { return threads_; }
  /// A barrier; true if any thread brought true.
  bool meet(bool mine);

 private:
  int threads_;
  std::mutex mutex_;
  std::condition_variable all_;
  int arrived_ = 0;
  unsigned round_ = 0;
  bool any_ = false, result_ = false;
};

class ThreadGroup {
 public:
  struct Warp {
    static int thread() { return 0; }
    static int threads() { return 1; }
  };

  ThreadGroup(Meeting& meeting, int thread) : meeting_(&meeting), thread_(thread) {}
  int thread() const { return thread_; }
  int threads() const { return meeting_->threads(); }
  void sync() const { meeting_->meet(false); }
  bool any(bool mine) const { return meeting_->meet(mine); }
  int warps() const { return threads(); }
  static bool leads() { return true; }
  bool inFirstWarp() const { return thread_ == 0; }
  static Warp warp() { return {}; }
  static bool warpAll(bool mine) { return mine; }

 private:
  Meeting* meeting_;
  int thread_;
};

/// A channel of a peer, as its threads see it.
struct ChannelThread {
  const PeerView& view;
  int channel;
  const ThreadGroup& group;
  ChannelPositions& positions;
};

class ThreadPeers {
 public:
  ThreadPeers(int size, int channels, std::chrono::milliseconds timeout = kNoTimeout);

  int size() const { return static_cast<int>(views_.size()); }
  int channels() const { return channels_; }
  const PeerView& view(int peer) const { return views_[static_cast<std::size_t>(peer)]; }
  void abort() { std::atomic_ref(abort_).store(1); }
  /// 1 + the peer that `peer` waited for until the timeout; 0: none.
  std::uint32_t timedOut(int peer) const { return timedOut_[static_cast<std::size_t>(peer)]; }

  /// Runs body(thread) in all threads of all channels of the peers in `present` (empty: all).
  void run(int threadsOfChannel, const std::function<void(const ChannelThread&)>& body,
           const std::vector<int>& present = {});

  /// Packets of the rings of `receiver` from `sender` that hold anything.
  std::size_t packetsPublished(int sender, int receiver) const;
  /// The sum of the credits that `receiver` gave `sender`.
  std::uint64_t creditSent(int sender, int receiver) const;
  /// The state that `peer` keeps of its FIFO with `other`.
  FifoState state(int peer, int other, int channel) const { return *fifoState(view(peer), other, channel); }

 private:
  int channels_;
  std::vector<std::vector<LamportPacket>> windows_;
  std::vector<std::vector<FifoState>> states_;
  std::vector<std::uint32_t> timedOut_;
  std::uint32_t abort_ = 0;
  std::vector<PeerView> views_;
};

}  // namespace seqpar::test
