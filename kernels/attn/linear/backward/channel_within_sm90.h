// Gradients within chunks of strong channel decays on sm_90a (channel_chunks_sm90.h): dq, dk and the gates' gradients
// from products of tokens of the same chunk, and from those with states, which channel_group_sm90.h has stored. Tokens
// are combined at six levels (decay.h): at level n, queries with bit n set, and keys with bit n not set, times
// their decays from and to the border between them, are x, and
//
//     dx = (dA + dA^T) x, of the level's pairs    dq, dk = sum of decay * dx, over the levels
//
// so that all exponents are at most 0. dA and x are rounded to T. Terms x dx of the gates' gradients, which are added
// from the last token, cancel if both tokens of a pair follow. Sums of log-decays restart in each strip of 16 tokens,
// which keeps their differences exact.
//
// Work      a CTA of 512 threads, one per SM, takes items (sequence, head, chunk) in steps of the grid
// Roles     a warp has a strip and 64 channels, 16 at a time (channel_levels_sm90.h). At levels 1 to 8, x stays in
//           registers; the warps of a warpgroup exchange x of levels 16 and 32
// Smem      ChannelWithinMemory: q and k (64 KiB), v and dO, then dq and dk (64), sums of log-decays, then terms of the
//           gates' gradients (72), dA (8), x (16)
// Barriers  mbarriers: q and k, v and dO, products with states are loaded. Named: of warpgroups. __syncthreads()
// Overlap   q, k, v and dO of the next item are loaded while the gates' gradients are written. The kernel may start
//           before channel_group_sm90.h's has ended
#pragma once

#include "kernels/arch/pdl.h"
#include "kernels/attn/linear/backward/channel_levels_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// The kernel.
template <class T>
class ChannelWithinKernel {
 public:
  using Memory = ChannelWithinMemory<T>;
  using Record = ChunkRecord<T>;
  static constexpr int kThreads = 4 * warpgroup::kThreads;
  static_assert(sizeof(Memory) <= ptx::kSharedBytesSm90);

  SEQPAR_BOTH_INLINE static int64_t itemsOf(const ChannelTask& task) {
    return int64_t{task.batch} * task.heads * task.chunksOfSegment;
  }
  SEQPAR_DEVICE static void run(const ChannelTask& task) {
    auto& memory = *reinterpret_cast<Memory*>(ptx::sharedMemory());
    if (ptx::thread() == 0) memory.init();
    ptx::griddepcontrolWait();
    ptx::syncthreads();
    if (!task.isStrong()) return;
    ChannelWithinKernel kernel(task, memory);
    Item item = kernel.next(ptx::block());
    if (ptx::thread() == 0) kernel.load(item);
    while (item.index < itemsOf(task)) {
      const Item following = kernel.next(item.index + ptx::blocks());
      kernel.run(item, following);
      item = following;
    }
  }

 private:
  /// Adjacent CTAs have adjacent heads, as the tensors.
  struct Item {
    int index, sequence, head, chunk;

    SEQPAR_DEVICE Item(const ChannelTask& task, int number) : index(number) {
      const auto heads = static_cast<uint32_t>(task.heads), chunks = static_cast<uint32_t>(task.chunksOfSegment),
                 row = static_cast<uint32_t>(number) / heads;
      head = static_cast<int>(static_cast<uint32_t>(number) - row * heads);
      sequence = static_cast<int>(row / chunks);
      chunk = static_cast<int>(row - row / chunks * chunks);
    }
    SEQPAR_DEVICE int token() const { return chunk * kChunk; }
    SEQPAR_DEVICE int rows(const ChannelTask& task) const {
      const int64_t left = task.tokens - token();
      return left < kChunk ? static_cast<int>(left) : kChunk;
    }
    SEQPAR_DEVICE Record& record(const ChannelTask& task) const { return task.recordOf<Record>(sequence, head, chunk); }
  };
  using Tiles = float[2][4];
  using Words = uint32_t[4];

  SEQPAR_DEVICE ChannelWithinKernel(const ChannelTask& task, Memory& memory) : task_(task), memory_(memory) {}

  /// The CTA's first item with strong decays, from `index` on.
  SEQPAR_DEVICE Item next(int index) const {
    Item item(task_, index);
    while (item.index < itemsOf(task_) && !item.record(task_).isStrong()) {
      item = Item(task_, item.index + ptx::blocks());
    }
    return item;
  }
  SEQPAR_DEVICE void run(const Item& item, const Item& following) {
    const uint32_t forgotten = addUpDecays(item);
    multiplyValues(item);
    warpgroup::fenceProxyAsync();
    ptx::syncthreads();
    if (ptx::thread() == 0) loadStates(item);
    ptx::mbarrierWaitParity(ptx::sharedAddress(&memory_.operands), phase_);
    float carry[4];
    ChannelLevels<T>(memory_, task_.scale, phase_).run(carry);
    phase_ ^= 1;
    ptx::syncwarp();
    writeKeys(task_.dq, memory_.results[0], item);
    writeKeys(task_.dkOut, memory_.results[1], item);
    warpgroup::fenceProxyAsync();
    ptx::syncthreads();
    if (ptx::thread() == 0) load(following);
    if (me_.g < 4) {
      float* const to = memory_.carry(me_.warp) + me_.panel * kPanel + me_.g * kStrip + me_.c * 2;
      ptx::storePair(to, carry[0], carry[1]);
      ptx::storePair(to + 8, carry[2], carry[3]);
    }
    writeGates(item, forgotten);
    ptx::syncthreads();
  }

  // Loads, by one thread.
  SEQPAR_DEVICE void load(const Item& item) const {
    if (item.index >= itemsOf(task_)) return;
    loadValues(item, 0);
    const uint32_t full = ptx::sharedAddress(&memory_.operands);
    ptx::mbarrierArriveExpectTx(full, int{sizeof(memory_.queries) + sizeof(memory_.keys)});
    SEQPAR_UNROLL
    for (int panel = 0; panel < Memory::kPanels; ++panel) {
      const int at = panel * kTilePanel, column = panel * kPanel;
      ptx::tmaLoad(ptx::sharedAddress(memory_.queries + at), task_.queries, full, column, item.head, item.token(),
                   item.sequence);
      ptx::tmaLoad(ptx::sharedAddress(memory_.keys + at), task_.keys, full, column, item.head, item.token(),
                   item.sequence);
    }
  }
  /// Panels of v and dO from `first` on.
  SEQPAR_DEVICE void loadValues(const Item& item, int first) const {
    const uint32_t full = ptx::sharedAddress(&memory_.values);
    const int left = task_.panels() - first, count = left < Memory::kStages ? left : Memory::kStages;
    ptx::mbarrierArriveExpectTx(full, count * 2 * kTilePanelBytes);
    for (int i = 0; i < count; ++i) {
      const int column = (first + i) * kPanel;
      ptx::tmaLoad(ptx::sharedAddress(memory_.value(i)), task_.values, full, column, item.head, item.token(),
                   item.sequence);
      ptx::tmaLoad(ptx::sharedAddress(memory_.dOut(i)), task_.outputs, full, column, item.head, item.token(),
                   item.sequence);
    }
  }
  SEQPAR_DEVICE void loadStates(const Item& item) const {
    const uint32_t full = ptx::sharedAddress(&memory_.states);
    constexpr int kBytes = kTile * int{sizeof(T)};
    ptx::mbarrierArriveExpectTx(full, 2 * Record::kKeyBlocks * kBytes);
    SEQPAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      SEQPAR_UNROLL
      for (int block = 0; block < Record::kKeyBlocks; ++block) {
        ptx::cpAsyncBulkLoad(memory_.results[i] + block * kTile, item.record(task_).rests[block][i], kBytes, full);
      }
    }
  }

  /// A thread has two channels of a strip. Returns a bit for each decay of 0: bit 2 t + e of token t and channel e.
  SEQPAR_DEVICE uint32_t addUpDecays(const Item& item) const {
    const int channel = ptx::thread() % (Memory::kChannels / 2) * 2,
              first = ptx::thread() / (Memory::kChannels / 2) * kStrip;
    const int bytes = task_.gateType == seqparBfloat16 ? 2 : 4;
    const int left = channel < task_.dk ? item.rows(task_) - first : 0;
    const int64_t at = item.sequence * task_.gates.batch + item.head * task_.gates.head +
                       int64_t{item.token() + first} * task_.gates.token + channel;
    const char* const gates = static_cast<const char*>(task_.gates.data) + at * bytes;
    float logs[kStrip][2] = {};
    if (task_.gateType == seqparBfloat16) {
      SEQPAR_UNROLL
      for (int t = 0; t < kStrip; ++t) {
        if (t >= left) continue;
        const uint32_t both = *reinterpret_cast<const uint32_t*>(gates + t * task_.gates.token * 2);
        logs[t][0] = ptx::lowOf<Bf16>(both);
        logs[t][1] = ptx::highOf<Bf16>(both);
      }
    } else {
      SEQPAR_UNROLL
      for (int t = 0; t < kStrip; ++t) {
        if (t < left) {
          ptx::loadPair(reinterpret_cast<const float*>(gates + t * task_.gates.token * 4), logs[t][0], logs[t][1]);
        }
      }
    }
    uint32_t forgotten = 0;
    float sum[2] = {0, 0};
    float* const to = memory_.sums[channel / kPanel] + first * Memory::kStride + channel % kPanel;
    SEQPAR_UNROLL
    for (int t = 0; t < kStrip; ++t) {
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        const float log = bounded(logs[t][e]);
        if (log < kForgottenLog2) forgotten |= 1u << (2 * t + e);
        sum[e] += log;
      }
      ptx::storePair(to + t * Memory::kStride, sum[0], sum[1]);
    }
    return forgotten;
  }
  /// Stores dA: by the warps with strips of queries and, in place of a panel, of keys.
  SEQPAR_DEVICE void multiplyValues(const Item& item) {
    const int keys = me_.panel;
    Tiles x = {};
    for (int first = 0; first < task_.panels(); first += Memory::kStages) {
      if (first > 0) {
        ptx::syncthreads();
        if (ptx::thread() == 0) loadValues(item, first);
      }
      ptx::mbarrierWaitParity(ptx::sharedAddress(&memory_.values), round_);
      round_ ^= 1;
      if (keys > me_.warp) continue;
      const int left = task_.panels() - first;
      for (int stage = 0; stage < Memory::kStages && stage < left; ++stage) {
        SEQPAR_UNROLL
        for (int unit = 0; unit < kPanel / 8; unit += 2) {
          Words a, b;
          ptx::ldmatrixX4(a, me_.at(memory_.dOut(stage), me_.warp, unit));
          ptx::ldmatrixX4(b, me_.at(memory_.value(stage), keys, unit));
          ptx::mmaM16N8K16<T>(x[0], a, b[0], b[2]);
          ptx::mmaM16N8K16<T>(x[1], a, b[1], b[3]);
        }
      }
    }
    if (keys > me_.warp) return;
    SEQPAR_UNROLL
    for (auto& tile : x) {
      SEQPAR_UNROLL
      for (float& element : tile) element *= task_.scale;
    }
    if (keys == me_.warp) takeDiagonal(x);
    Words words;
    packTiles<T>(words, x, 0);
    if (keys == me_.warp) {
      words[0] |= ptx::movmatrixTrans(words[0]);
      words[2] = ptx::movmatrixTrans(words[1]);
      words[3] |= ptx::movmatrixTrans(words[3]);
    } else {
      ptx::stmatrixX4Trans(ptx::sharedAddress(me_.across(memory_.scores, keys, me_.warp * 2)), words);
    }
    ptx::stmatrixX4(me_.at(memory_.scores, me_.warp, keys * 2), words);
  }
  /// Stores the diagonal, and leaves the elements below it.
  SEQPAR_DEVICE void takeDiagonal(Tiles& x) const {
    SEQPAR_UNROLL
    for (int e = 0; e < 2; ++e) {
      const int key = me_.c * 2 + e;
      if (key == me_.g) {
        memory_.diagonal[me_.row] = x[0][e];
        memory_.diagonal[me_.row + 8] = x[1][2 + e];
      }
      if (key >= me_.g) x[0][e] = x[1][2 + e] = 0;
      x[1][e] = 0;
    }
  }

  /// Writes the warp's rows and channels of dq or dk.
  SEQPAR_DEVICE void writeKeys(const Target& to, const T* from, const Item& item) const {
    if (to.data == nullptr) return;
    const T* const tile = from + me_.panel * kTilePanel;
    auto* const data =
        static_cast<uint16_t*>(to.data) + item.sequence * to.batch + item.token() * to.token + item.head * to.head;
    SEQPAR_UNROLL
    for (int i = 0; i < kStrip / 4; ++i) {
      const int row = me_.warp * kStrip + i * 4 + me_.lane / 8, unit = me_.lane % 8;
      const int channel = me_.panel * kPanel + unit * 8;
      if (row >= item.rows(task_) || channel >= task_.dk) continue;
      Words words;
      ptx::load(words, tile + row * kPanel + (unit ^ row % 8) * 8);
      putUnit(to, data + row * to.token + channel, words);
    }
  }
  /// A thread has two channels of a strip. The gradients of decays of 0 are 0.
  SEQPAR_DEVICE void writeGates(const Item& item, uint32_t forgotten) const {
    const Target& to = task_.dGates;
    const int channel = ptx::thread() % (Memory::kChannels / 2) * 2, strip = ptx::thread() / (Memory::kChannels / 2);
    const float* const all = memory_.sums[channel / kPanel] + strip * kStrip * Memory::kStride + channel % kPanel;
    float terms[kStrip][2], sum[2] = {0, 0};
    SEQPAR_UNROLL
    for (int t = 0; t < kStrip; ++t) {
      ptx::loadPair(all + t * Memory::kStride, terms[t][0], terms[t][1]);
      sum[0] += terms[t][0];
      sum[1] += terms[t][1];
    }
    ptx::storePair(memory_.totals(strip) + channel, sum[0], sum[1]);
    ptx::syncthreads();
    if (to.data == nullptr || channel >= task_.dk) return;
    ptx::loadPair(item.record(task_).carry + channel, sum[0], sum[1]);
    const auto add = [&](const float* from) {
      float low, high;
      ptx::loadPair(from + channel, low, high);
      sum[0] += low;
      sum[1] += high;
    };
    for (int i = 0; i < kChunk / kStrip; ++i) add(memory_.carry(i));
    for (int i = kChunk / kStrip - 1; i > strip; --i) add(memory_.totals(i));
    const int rows = item.rows(task_) - strip * kStrip;
    const bool two = channel + 1 < task_.dk;
    int64_t at = item.sequence * to.batch + int64_t{item.token() + strip * kStrip + kStrip - 1} * to.token +
                 item.head * to.head + channel;
    SEQPAR_UNROLL
    for (int t = kStrip - 1; t >= 0; --t, at -= to.token) {
      sum[0] += terms[t][0];
      sum[1] += terms[t][1];
      if (t >= rows) continue;
      float pair[2];
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) pair[e] = (forgotten >> (2 * t + e) & 1) != 0 ? 0.f : sum[e];
      if (to.type == seqparFloat32) {
        float* const data = static_cast<float*>(to.data) + at;
        if (to.wide && two) {
          ptx::storePair(data, pair[0], pair[1]);
          continue;
        }
        data[0] = pair[0];
        if (two) data[1] = pair[1];
      } else {
        uint16_t* const data = static_cast<uint16_t*>(to.data) + at;
        const uint32_t word = ptx::pack<Bf16>(pair[0], pair[1]);
        data[0] = static_cast<uint16_t>(word);
        if (two) data[1] = static_cast<uint16_t>(word >> 16);
      }
    }
  }

  const ChannelTask& task_;
  Memory& memory_;
  StripPlace me_;
  int phase_ = 0, round_ = 0;
};

}  // namespace seqpar::attn::backward::sm90
