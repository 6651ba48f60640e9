#include "unit/exchange/byte_fifos_on_threads.h"

#include <atomic>
#include <mutex>
#include <thread>

#include "kernels/exchange/chunks.h"
#include "kernels/exchange/ll_packets.h"

namespace seqpar::test {
namespace {

struct ThreadMemory {
  /// One lock for many packets: x86 has no plain access of 16 bytes that the language knows.
  static std::mutex& lockOf(const Vec16* packet) {
    static std::array<std::mutex, 64> locks;
    return locks[reinterpret_cast<std::uintptr_t>(packet) / sizeof(Vec16) % locks.size()];
  }
  static Vec16 loadPacket(const Vec16* from) {
    const std::lock_guard lock(lockOf(from));
    return *from;
  }
  static void storePacket(Vec16* to, const Vec16& packet) {
    const std::lock_guard lock(lockOf(to));
    *to = packet;
  }
  static std::uint64_t acquire(const std::uint64_t* from) {
    return std::atomic_ref(*const_cast<std::uint64_t*>(from)).load(std::memory_order_acquire);
  }
  static void release(std::uint64_t* to, std::uint64_t value) {
    std::atomic_ref(*to).store(value, std::memory_order_release);
  }
  static std::uint64_t poll(const std::uint64_t* from) { return acquire(from); }
  static void tell(std::uint64_t* to, std::uint64_t value) { release(to, value); }
  static std::uint32_t load(const std::uint32_t* from) {
    return std::atomic_ref(*const_cast<std::uint32_t*>(from)).load(std::memory_order_relaxed);
  }
  static void store(std::uint32_t* to, std::uint32_t word) {
    std::atomic_ref(*to).store(word, std::memory_order_relaxed);
  }
  static std::uint64_t now() {
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                                      std::chrono::nanoseconds(1));
  }
  static void pause() { std::this_thread::yield(); }
};

/// A single thread that does the work of all.
struct OneThread {
  static constexpr int kShare = kMostPeers;
  static int warps() { return 1; }
  static int warp() { return 0; }
  static int thread() { return 0; }
  static int threads() { return 1; }
  template <class Work>
  static void forEach32(const Work& work) {
    for (std::uint32_t t = 0; t < 32; ++t) work(t);
  }
};

struct OneThreadWarp {
  static int thread() { return 0; }
  static int threads() { return 1; }
  static void sync() {}
  static bool any(bool mine) { return mine; }
};

}  // namespace

struct ByteFifoPeers::Rank {
  DevicePayloads sends, receives;
  std::vector<device::RegionArg> regions;
  WaitPolicy waitPolicy;
  Taking taking = Taking::Each;
  std::atomic<bool> ok{true};

  void packets(int channel) {
    const OneThread group;
    const int out = static_cast<int>(sends.others.size());
    const int in = static_cast<int>(receives.others.size());
    const device::PacketSends<OneThread> sent(sends.others.data(), out, channel, group);
    const device::PacketReceives<OneThread> received(receives.others.data(), in, channel, group);
    if (channel == 0 && sends.self.count > 0) {
      device::OwnPayload::copy(regions.data(), sends.self, receives.self, 0, 1);
    }
    if (!device::sendPackets<ThreadMemory>(waitPolicy, regions.data(), sends.others.data(), out, channel, group) ||
        !device::receivePackets<ThreadMemory>(waitPolicy, regions.data(), receives.others.data(), in, channel, group)) {
      ok = false;
      return;
    }
    sent.finish(sends.others.data(), out, channel, group);
    received.finish<ThreadMemory>(receives.others.data(), in, channel, group);
  }
  void chunksOut(int channel, int warpFifo) {
    device::ChunkCounts counts{};
    if (!device::sendChunks<ThreadMemory, OneThreadWarp>(waitPolicy, regions.data(), sends.others.data(),
                                                         static_cast<int>(sends.others.size()), channel, warpFifo,
                                                         counts)) {
      ok = false;
    }
  }
  void chunksIn(int channel, int warpFifo) {
    if (taking == Taking::Together) return chunksTogether(channel, warpFifo);
    device::ChunkCounts counts{};
    if (!device::receiveChunks<ThreadMemory, OneThreadWarp>(waitPolicy, regions.data(), receives.others.data(),
                                                            static_cast<int>(receives.others.size()), channel, warpFifo,
                                                            counts)) {
      ok = false;
    }
  }
  void chunksTogether(int channel, int warpFifo) {
    if (receives.others.empty()) return;
    device::ChunkCounts counts{};
    const std::byte* slots[kMostPeers];
    const auto take = [&](const device::Part& part, const std::byte* const* from) {
      for (std::size_t i = 0; i < receives.others.size(); ++i) {
        device::copyPayload<false>(regions.data(), receives.others[i], part, const_cast<std::byte*>(from[i]), 0, 1);
      }
    };
    if (!device::takeChunks<ThreadMemory, OneThreadWarp>(waitPolicy, receives.others.data(),
                                                         static_cast<int>(receives.others.size()), channel, warpFifo,
                                                         counts, slots, take)) {
      ok = false;
    }
  }
};

ByteFifoPeers::ByteFifoPeers(int size, int channels, std::chrono::milliseconds timeout)
    : size_(size),
      channels_(channels),
      timeoutNs_(static_cast<std::uint64_t>(timeout / std::chrono::nanoseconds(1))),
      timedOut_(static_cast<std::size_t>(size), 0) {
  for (int rank = 0; rank < size; ++rank) {
    windows_.emplace_back(ByteFifoLayout::windowBytes(size, channels) / sizeof(std::max_align_t));
    states_.emplace_back(ByteFifoState::bytes(size, channels) / sizeof(ByteFifoState));
  }
}

void ByteFifoPeers::abort() {
  ThreadMemory::store(&abort_, 1);
}

void ByteFifoPeers::connect(int rank, std::vector<device::PeerPayload>& payloads) {
  const auto endOf = [&](int owner, int other) {
    return reinterpret_cast<std::byte*>(windows_[static_cast<std::size_t>(owner)].data()) +
           ByteFifoLayout::end(other, 0, channels_);
  };
  for (auto& payload : payloads) {
    payload.end = {endOf(rank, payload.peer), endOf(payload.peer, rank),
                   states_[static_cast<std::size_t>(rank)].data() + ByteFifoLayout::number(payload.peer, 0, channels_)};
  }
}

std::vector<bool> ByteFifoPeers::exchange(const std::vector<Route>& routes, const Buffers& sends, Buffers& receives,
                                          const std::vector<int>& present, Taking taking) {
  const std::vector<int> ranks = present.empty() ? inOrder(static_cast<std::size_t>(size_)) : present;
  std::vector<Rank> states(static_cast<std::size_t>(size_));
  std::vector<std::jthread> threads;
  for (const int rank : ranks) {
    const auto number = static_cast<std::size_t>(rank);
    Rank& state = states[number];
    const auto from = pointersTo(sends[number]);
    const auto into = pointersTo(receives[number]);
    state.sends = makePayloads(routes[number].sends, from, rank, size_, channels_, 0);
    state.receives = makePayloads(routes[number].receives, std::vector<const std::byte*>(into.begin(), into.end()),
                                  rank, size_, channels_, static_cast<int>(state.sends.regions.size()));
    state.regions = state.sends.regions;
    state.regions.insert(state.regions.end(), state.receives.regions.begin(), state.receives.regions.end());
    connect(rank, state.sends.others);
    connect(rank, state.receives.others);
    state.waitPolicy = {&abort_, &timedOut_[number], timeoutNs_};
    state.taking = taking;
  }
  for (const int rank : ranks) {
    Rank& state = states[static_cast<std::size_t>(rank)];
    for (int channel = 0; channel < channels_; ++channel) {
      threads.emplace_back([&state, channel] { state.packets(channel); });
      for (int warpFifo = 0; warpFifo < static_cast<int>(ByteFifoLayout::kWarpFifos); ++warpFifo) {
        threads.emplace_back([&state, channel, warpFifo] { state.chunksOut(channel, warpFifo); });
        threads.emplace_back([&state, channel, warpFifo] { state.chunksIn(channel, warpFifo); });
      }
    }
  }
  threads.clear();
  std::vector<bool> ok;
  for (const Rank& state : states) ok.push_back(state.ok);
  return ok;
}

}  // namespace seqpar::test
