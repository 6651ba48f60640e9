#include "unit/exchange/pipes_on_threads.h"

#include <atomic>
#include <mutex>
#include <thread>

#include "exchange/chunks.h"
#include "exchange/lines.h"

namespace seqpar::test {
namespace {

struct ThreadMemory {
  /// One lock for many lines: x86 has no plain access of 16 bytes that the language knows.
  static std::mutex& lockOf(const Unit* line) {
    static std::array<std::mutex, 64> locks;
    return locks[reinterpret_cast<std::uintptr_t>(line) / sizeof(Unit) % locks.size()];
  }
  static Unit loadLine(const Unit* from) {
    const std::lock_guard lock(lockOf(from));
    return *from;
  }
  static void storeLine(Unit* to, const Unit& line) {
    const std::lock_guard lock(lockOf(to));
    *to = line;
  }
  static std::uint64_t acquire(const std::uint64_t* from) {
    return std::atomic_ref(*const_cast<std::uint64_t*>(from)).load(std::memory_order_acquire);
  }
  static void release(std::uint64_t* to, std::uint64_t value) {
    std::atomic_ref(*to).store(value, std::memory_order_release);
  }
  static std::uint64_t look(const std::uint64_t* from) { return acquire(from); }
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

struct PipePeers::Rank {
  DeviceStrings sends, receives;
  std::vector<device::PieceArg> pieces;
  Patience patience;
  Taking taking = Taking::Each;
  std::atomic<bool> ok{true};

  void lines(int lane) {
    const OneThread group;
    const int out = static_cast<int>(sends.others.size());
    const int in = static_cast<int>(receives.others.size());
    const device::LineSends<OneThread> sent(sends.others.data(), out, lane, group);
    const device::LineReceives<OneThread> received(receives.others.data(), in, lane, group);
    if (lane == 0 && sends.self.count > 0) {
      device::OwnString::copy(pieces.data(), sends.self, receives.self, 0, 1);
    }
    if (!device::sendLines<ThreadMemory>(patience, pieces.data(), sends.others.data(), out, lane, group) ||
        !device::receiveLines<ThreadMemory>(patience, pieces.data(), receives.others.data(), in, lane, group)) {
      ok = false;
      return;
    }
    sent.finish(sends.others.data(), out, lane, group);
    received.finish<ThreadMemory>(receives.others.data(), in, lane, group);
  }
  void chunksOut(int lane, int track) {
    device::ChunkCounts counts{};
    if (!device::sendChunks<ThreadMemory, OneThreadWarp>(patience, pieces.data(), sends.others.data(),
                                                         static_cast<int>(sends.others.size()), lane, track, counts)) {
      ok = false;
    }
  }
  void chunksIn(int lane, int track) {
    if (taking == Taking::Together) return chunksTogether(lane, track);
    device::ChunkCounts counts{};
    if (!device::receiveChunks<ThreadMemory, OneThreadWarp>(patience, pieces.data(), receives.others.data(),
                                                            static_cast<int>(receives.others.size()), lane, track,
                                                            counts)) {
      ok = false;
    }
  }
  void chunksTogether(int lane, int track) {
    if (receives.others.empty()) return;
    device::ChunkCounts counts{};
    const std::byte* slots[kMostPeers];
    const auto take = [&](const device::Part& part, const std::byte* const* from) {
      for (std::size_t i = 0; i < receives.others.size(); ++i) {
        device::copyString<false>(pieces.data(), receives.others[i], part, const_cast<std::byte*>(from[i]), 0, 1);
      }
    };
    if (!device::takeChunks<ThreadMemory, OneThreadWarp>(patience, receives.others.data(),
                                                         static_cast<int>(receives.others.size()), lane, track, counts,
                                                         slots, take)) {
      ok = false;
    }
  }
};

PipePeers::PipePeers(int size, int lanes, std::chrono::milliseconds timeout)
    : size_(size),
      lanes_(lanes),
      timeoutNs_(static_cast<std::uint64_t>(timeout / std::chrono::nanoseconds(1))),
      gaveUp_(static_cast<std::size_t>(size), 0) {
  for (int rank = 0; rank < size; ++rank) {
    windows_.emplace_back(PipeLayout::windowBytes(size, lanes) / sizeof(std::max_align_t));
    states_.emplace_back(PipeState::bytes(size, lanes) / sizeof(PipeState));
  }
}

void PipePeers::abort() {
  ThreadMemory::store(&abort_, 1);
}

void PipePeers::connect(int rank, std::vector<device::StringArg>& strings) {
  const auto endOf = [&](int owner, int other) {
    return reinterpret_cast<std::byte*>(windows_[static_cast<std::size_t>(owner)].data()) +
           PipeLayout::end(other, 0, lanes_);
  };
  for (auto& string : strings) {
    string.end = {endOf(rank, string.peer), endOf(string.peer, rank),
                  states_[static_cast<std::size_t>(rank)].data() + PipeLayout::number(string.peer, 0, lanes_)};
  }
}

std::vector<bool> PipePeers::exchange(const std::vector<Route>& routes, const Buffers& sends, Buffers& receives,
                                      const std::vector<int>& present, Taking taking) {
  const std::vector<int> ranks = present.empty() ? inOrder(static_cast<std::size_t>(size_)) : present;
  std::vector<Rank> states(static_cast<std::size_t>(size_));
  std::vector<std::jthread> threads;
  for (const int rank : ranks) {
    const auto number = static_cast<std::size_t>(rank);
    Rank& state = states[number];
    const auto from = pointersTo(sends[number]);
    const auto into = pointersTo(receives[number]);
    state.sends = makeStrings(routes[number].sends, from, rank, size_, lanes_, 0);
    state.receives = makeStrings(routes[number].receives, std::vector<const std::byte*>(into.begin(), into.end()), rank,
                                 size_, lanes_, static_cast<int>(state.sends.pieces.size()));
    state.pieces = state.sends.pieces;
    state.pieces.insert(state.pieces.end(), state.receives.pieces.begin(), state.receives.pieces.end());
    connect(rank, state.sends.others);
    connect(rank, state.receives.others);
    state.patience = {&abort_, &gaveUp_[number], timeoutNs_};
    state.taking = taking;
  }
  for (const int rank : ranks) {
    Rank& state = states[static_cast<std::size_t>(rank)];
    for (int lane = 0; lane < lanes_; ++lane) {
      threads.emplace_back([&state, lane] { state.lines(lane); });
      for (int track = 0; track < static_cast<int>(PipeLayout::kTracks); ++track) {
        threads.emplace_back([&state, lane, track] { state.chunksOut(lane, track); });
        threads.emplace_back([&state, lane, track] { state.chunksIn(lane, track); });
      }
    }
  }
  threads.clear();
  std::vector<bool> ok;
  for (const Rank& state : states) ok.push_back(state.ok);
  return ok;
}

}  // namespace seqpar::test
