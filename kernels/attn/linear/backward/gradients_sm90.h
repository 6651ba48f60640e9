// Pass 3 of the backward on sm_90a, bf16 and fp16: all gradients of a segment, by the algorithm of gradients.h with
// wgmma. With channel decays, a kernel leaves segments to one with kStrong (strong_consumer_sm90.h) if a chunk decays
// too much for products relative to its start, or its queries, keys, or products of dOut and v differ much for fp16.
//
// Work      a CTA of 512 threads, one per SM, takes items (sequence, head, 128 channels, 128 columns of v, segment) in
//           steps of the grid. A sweep stores the states before the chunks to device memory; then the chunks are
//           processed from the last to the first. kPair: two heads of 64 columns (pair_sm90.h; with channel decays,
//           and 64 channels: heads_sm90.h). kWide: all blocks of 128 channels of a segment.
// Roles     warpgroups 0, 1: producers load and decay chunks and hold E, the gradient of the state; warpgroups 2, 3:
//           consumers multiply and write gradients; in the sweep, they hold S and add gates of channels. Registers per
//           thread: kProducerRegisters, kConsumerRegisters.
// Tiles     chunks of 64 tokens x 128; S and E 128 x 128, E fp32 in the registers of the producers
// Smem      q k v dO [2][64][128] 128 KiB, images of S and E 64 KiB; decays, scales and the item follow (memory_sm90.h)
// Barriers  named, Roles: prepared, added (producers arrive, consumers wait), read, done, stateRead (the reverse),
//           loaded, summed (in the sweep)
//           Token decays: mbarriers of loads, TileLoad
// Overlap   may start before the previous kernel ends. griddepcontrol.wait: producers before they read the gradient
//           after the segment; consumers before they read the state before it, unless Task::beforeVisible; all before
//           they exit, because the next kernel waits for this one only.
//
// With token decays one thread loads tiles with the TMA, and the producers clear the rows after a segment's end, where
// another sequence may follow. With channel decays cp.async zero-fills these rows. Tiles have the TMA's swizzle.
#pragma once

#include "kernels/arch/pdl.h"
#include "kernels/arch/tma.h"
#include "kernels/attn/linear/backward/channel_producer_sm90.h"
#include "kernels/attn/linear/backward/heads_sm90.h"
#include "kernels/attn/linear/backward/pair_consumer_sm90.h"
#include "kernels/attn/linear/backward/strong_consumer_sm90.h"
#include "kernels/attn/linear/backward/strong_producer_sm90.h"
#include "kernels/attn/linear/backward/swept_states_sm90.h"
#include "kernels/attn/linear/backward/token_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// kWide: as TokenConsumer's; kTerms: as ChannelConsumer's.
template <class T, bool kChannel, bool kGated = false, bool kPair = false, bool kStrong = false, bool kWide = false,
          bool kTerms = false>
struct GradientsKernel {
  static constexpr int kHeads = kChannel && kPair ? 2 : 1;  ///< of an item, each with queries and keys of its own
  static constexpr bool kShared = kPair && !kChannel;       ///< two heads share queries and keys
  template <class OfChannels, class OfTokens, class OfPairs>
  using Choice = std::conditional_t<kChannel, OfChannels, std::conditional_t<kPair, OfPairs, OfTokens>>;
  static_assert(kChannel ? !kWide && (!kPair || !kTerms) : !kStrong && !kTerms);
  using Producer = Choice<std::conditional_t<kStrong, StrongChannelProducer<T, kHeads>, ChannelProducer<T, kHeads>>,
                          TokenProducer<T, kGated>, PairProducer<T, kGated>>;
  using MildConsumer = std::conditional_t<kHeads == 1, ChannelConsumer<T, kTerms>, TwoHeadsConsumer<T>>;
  using Consumer = Choice<std::conditional_t<kStrong, StrongChannelConsumer<T, kTerms, kHeads>, MildConsumer>,
                          TokenConsumer<T, kGated, kWide>, PairConsumer<T, kGated, kWide>>;
  using Memory = typename Producer::Memory;
  using Arguments = std::conditional_t<kChannel, Task, MappedTask>;
  using StateOf = State<T, Half, kHeads>;
  /// Whether consumers add the sweep's gates: where their registers suffice.
  static constexpr bool kConsumersAdd = kChannel && (kStrong || kHeads > 1 || (std::is_same_v<T, Bf16> && !kTerms));
  using Swept = SweptStates<T, Producer, kChannel, kShared, kStrong, kHeads, kConsumersAdd>;
  static constexpr int kProducerRegisters = kHeads > 1             ? 96
                                            : kChannel && !kStrong ? 120
                                                                   : 104,
                       kConsumerRegisters = 256 - kProducerRegisters;
  static_assert((kProducerRegisters + kConsumerRegisters) * Half::kThreads <= warpgroup::kSmRegisters);
  static_assert(sizeof(ChunkTiles<T>) == 192 << 10 && sizeof(Memory) <= ptx::kSharedBytesSm90);

  SEQPAR_DEVICE static Memory& opaque() { return opaqueMemory<Memory>(); }

  SEQPAR_DEVICE static void run(const Arguments& task) {
    auto& memory = opaque();
    const Half me;
    if constexpr (kChannel) {
      if (task.onlyIf != nullptr) {
        ptx::griddepcontrolWait();
        if (*task.onlyIf == 0) return;
      }
    } else {
      if (ptx::thread() == 0) memory.initLoads();
    }
    if constexpr (kStrong) ptx::griddepcontrolWait();  // for the other kernel's choice of segments
    if (Roles::produces()) {
      warpgroup::setmaxnregDec<kProducerRegisters>();
      LoadPhases phases;
      each(task, memory, [&](const Item<T>& item, int64_t index) {
        if constexpr (kChannel) {
          produce(task, item, index, memory, me);
        } else {
          produceTokens(task, item, memory, phases, me);
        }
      });
    } else {
      warpgroup::setmaxnregInc<kConsumerRegisters>();
      each(task, memory, [&](const Item<T>& item, int64_t) { consume(task, item, memory, me); });
    }
    ptx::griddepcontrolWait();  // the next kernel only waits for this one, which exits at once for strong decays
  }

  /// Calls act(item, its index) for the items of this CTA.
  template <class Act>
  SEQPAR_DEVICE static void each(const Task& task, Memory& memory, const Act& act) {
    for (int64_t index = firstItem<kWide>(task); index < itemsOf(task); index = nextItem<kWide>(task, index)) {
      if (kStrong && task.strong[index] == 0) continue;
      act(itemAt<T>(memory.item, task, index, ptx::thread()), index);
    }
  }

  SEQPAR_DEVICE static void produce(const Task& task, const Item<T>& item, int64_t index, Memory& memory,
                                    const Half& me) {
    const bool mild = ptx::syncthreadsAnd(Producer::template sweep<kConsumersAdd>(task, item, me.opaque()));
    if constexpr (kChannel && !kStrong) {
      if (me.thread == 0) task.strong[index] = mild ? 0 : 1;
      if (!mild) return;
      if (me.thread < 2 * Memory::kWarps) memory.wide[me.thread] = 0;
    }
    Producer producer;
    if (item.chunks > 0) {
      producer.load(task, item, item.chunks - 1, me.opaque());
      memory.fetchKeys(task, item, item.chunks - 1, me.opaque());
      ptx::cpAsyncCommitGroup();
      memory.fetchValues(task, item, item.chunks - 1, me.opaque());
    }
    ptx::cpAsyncCommitGroup();
    StateOf gradient;
    loadAfter(gradient, task, item, memory, me);
    ptx::cpAsyncCommitGroup();  // of the last chunk's state, which the sweep stored
    for (int i = item.chunks - 1; i >= 0; --i) {
      if constexpr (kStrong) {
        produceStrong(task, item, i, opaque(), gradient, me.opaque());
      } else {
        produceChunk(task, item, i, opaque(), producer, gradient, me.opaque());
      }
    }
    awaitConsumers(item);
    if constexpr (kChannel && !kStrong) {
      const bool wide = me.thread < 2 * Memory::kWarps && memory.wide[me.thread] != 0;
      if (me.thread < 32 && ptx::reduxMax(wide ? 1U : 0U) != 0 && me.thread == 0) task.strong[index] = 1;
    }
    if (item.chunks > 0) Producer::finish(task, item, 0, memory, me.opaque());
    if (!storesInitial(task, item) || (kHeads > 1 && me.group >= item.heads)) return;
    const int offset = kHeads == 1 ? 0 : me.group * task.dk * task.dv;
    gradient.storeFull(initialOf(task, item) + offset, task.dv, item.keys, item.values, me.opaque());
  }
  SEQPAR_DEVICE static void produceTokens(const MappedTask& task, const Item<T>& item, Memory& memory,
                                          LoadPhases& phases, const Half& me) {
    sweepTokens<Producer>(task, item, phases, me.opaque());
    ptx::syncthreadsAnd(true);
    Producer producer;
    if (item.chunks > 0) {
      producer.load(task, item, item.chunks - 1, me.opaque());
      if (me.thread == 0) memory.fetchTiles(task, item, item.chunks - 1);
    }
    StateOf gradient;
    loadAfter(gradient, task, item, memory, me);
    for (int i = item.chunks - 1; i >= 0; --i) {
      produceLoaded(task, item, i, opaque(), producer, gradient, phases, me.opaque());
    }
    awaitConsumers(item);
    if (!storesInitial(task, item)) return;
    float* to = initialOf(task, item);
    if constexpr (kShared) {
      gradient.template storeFull<0, kOfHead>(to, task.dv, item.keys, kPanel, me.opaque());
      to += task.dk * task.dv - kPanel;
      gradient.template storeFull<kOfHead, 2 * kOfHead>(to, task.dv, item.keys, 2 * kPanel, me.opaque());
    } else {
      gradient.storeFull(to, task.dv, item.keys, item.values, me.opaque());
    }
  }

  SEQPAR_DEVICE static void consume(const Task& task, const Item<T>& item, Memory& memory, const Half& me) {
    bool mild = true;  // the decays of this thread's channels
    {
      StateOf state;
      if (item.before > 0 && task.beforeVisible == Visible::AfterWait) ptx::griddepcontrolWait();
      loadFull(
          state, task, item, [&](int which) { return Incoming::before(task, item, which); }, me);
      if (!Swept::compute(task, item, state, mild, me)) {
        ptx::syncthreadsAnd(false);
        return;
      }
      if constexpr (kKeepsEnd) {
        Roles::syncConsumers();  // all reads are complete
        state.store(memory.after, me.opaque());
        warpgroup::fenceProxyAsync();
      }
    }
    if (!ptx::syncthreadsAnd(mild)) return;
    for (int i = item.chunks - 1; i >= 0; --i) {
      Roles::awaitPrepared(i);
      Consumer{task, item, opaque(), me.opaque(), i}.run();
    }
    if constexpr (!kChannel) {
      Roles::syncConsumers();
      if (item.chunks > 0) Consumer{task, item, opaque(), me.opaque(), 0}.finish();
    }
  }

 private:
  static constexpr bool kKeepsEnd = !kChannel || kStrong;  ///< the state after the segment, in place of E
  static constexpr int kOfHead = StateOf::kTiles8 / 2;     ///< kShared: tiles of the first head's columns

  /// Loads the gradient of the state after the segment.
  SEQPAR_DEVICE static void loadAfter(StateOf& gradient, const Task& task, const Item<T>& item, Memory& memory,
                                      const Half& me) {
    ptx::griddepcontrolWait();
    loadFull(
        gradient, task, item, [&](int which) { return Incoming::after(task, item, which); }, me);
    if constexpr (kKeepsEnd) {
      keepCarry(gradient, memory.after, kChannel ? item.chunks : item.chunks - 1, memory, me.opaque());
    }
    Roles::syncProducers();
  }
  /// Waits until the consumers have processed the item.
  SEQPAR_DEVICE static void awaitConsumers(const Item<T>& item) {
    if (item.chunks == 0) return;
    Roles::awaitStateRead();
    Roles::awaitRead();
    Roles::awaitDone(0);
  }

  /// Loads the sum of incoming(which) for the item's heads.
  template <class Incomings>
  SEQPAR_DEVICE static void loadFull(StateOf& state, const Task& task, const Item<T>& item, const Incomings& incoming,
                                     const Half& me) {
    state.clear();
    if constexpr (kShared) {
      state.template addFull<0, kOfHead>(incoming(0), task.dv, item.keys, kPanel, me.opaque());
      Incoming second = incoming(1);
      second.states -= kPanel;  // its columns follow those of the first head
      if (second.intoRank != nullptr) second.intoRank -= kPanel;
      state.template addFull<kOfHead, 2 * kOfHead>(second, task.dv, item.keys, 2 * kPanel, me.opaque());
    } else if (kHeads == 1 || me.group < item.heads) {
      state.addFull(incoming(kHeads == 1 ? 0 : me.group), task.dv, item.keys, item.values, me.opaque());
    }
  }

  /// Stores row sums of S * E between two chunks for the gates' gradients of chunk `of`: with channel decays, the later
  /// chunk (channel_sm90.h), otherwise the earlier one.
  SEQPAR_DEVICE static void keepCarry(const StateOf& gradient, const T* state, int of, Memory& memory, const Half& me) {
    float sums[2];
    if constexpr (kShared) {
      float second[2];
      gradient.template rowSums<0, kOfHead>(sums, state, me);
      gradient.template rowSums<kOfHead, 2 * kOfHead>(second, state, me);
      Producer::storeCarry(memory, of, 1, second, me.opaque());
      Producer::storeCarry(memory, of, 0, sums, me.opaque());
    } else {
      gradient.rowSums(sums, state, me);
      Producer::storeCarry(memory, of, sums, me.opaque());
    }
  }

  /// Processes one chunk; on return, `gradient` is the gradient of the state before it.
  SEQPAR_DEVICE static void produceChunk(const Task& task, const Item<T>& item, int chunk, Memory& memory,
                                         Producer& producer, StateOf& gradient, Half me) {
    const bool isLast = chunk == item.chunks - 1;
    producer.addUp(task, item, chunk, memory, me);
    ptx::cpAsyncWaitGroup<Producer::kLaterGroups>();  // of: queries and keys; values and dOut; the state
    producer.measure(chunk, memory, me);
    Roles::syncProducers();
    me = me.opaque();
    producer.scale(task, chunk, memory, me);
    if (Producer::kDecaysFirst) Swept::decay(gradient, chunk, memory, me);
    if (!isLast) Roles::awaitRead();
    me = me.opaque();
    gradient.store(memory.after, me);
    Producer::copyScaled(task, chunk, memory, me);
    if (!Producer::kDecaysFirst) Swept::decay(gradient, chunk, memory, me);
    ptx::cpAsyncWaitGroup<0>();
    warpgroup::fenceProxyAsync();
    Roles::syncProducers();
    Roles::arrivePrepared(chunk);
    Producer::addTo(task, gradient, chunk, memory, me.opaque());
    warpgroup::commit();
    if (!isLast) Roles::awaitDone(chunk + 1);
    if (chunk > 0) {
      memory.fetchKeys(task, item, chunk - 1, me.opaque());
      ptx::cpAsyncCommitGroup();
    }
    warpgroup::wait<0>();
    warpgroup::fenceOperand(gradient.x);
    Roles::arriveAdded();
    if (!isLast) Producer::finish(task, item, chunk + 1, memory, me.opaque());
    if (chunk > 0) {
      memory.fetchValues(task, item, chunk - 1, me.opaque());
      ptx::cpAsyncCommitGroup();
    }
    if (kChannel || chunk > 0) keepCarry(gradient, memory.before, kChannel ? chunk : chunk - 1, memory, me.opaque());
    if (chunk > 0) {
      producer.load(task, item, chunk - 1, me.opaque());
      Roles::awaitStateRead();  // also of all producers, which have computed their sums
      memory.fetchState(Swept::statesOf(task), chunk - 1, me.opaque().thread);
      ptx::cpAsyncCommitGroup();
    }
  }

  /// The same for strong decays. The consumers need the state after `added`, and replace it.
  SEQPAR_DEVICE static void produceStrong(const Task& task, const Item<T>& item, int chunk, Memory& memory,
                                          StateOf& gradient, Half me) {
    const bool isLast = chunk == item.chunks - 1;
    if (!isLast) Roles::awaitRead();
    gradient.store(memory.after, me);
    ptx::cpAsyncWaitGroup<1>();  // except for the state
    warpgroup::fenceProxyAsync();
    Roles::syncProducers();
    Roles::arrivePrepared(chunk);
    Swept::decay(gradient, chunk, memory, me.opaque());
    Producer::addTo(task, gradient, chunk, memory, me.opaque());
    warpgroup::commit();
    ptx::cpAsyncWaitGroup<0>();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(gradient.x);
    warpgroup::fenceProxyAsync();
    Roles::syncProducers();
    float carry[2];
    gradient.rowSums(carry, memory.before, me.opaque());
    Roles::arriveAdded();
    if (!isLast) {
      Roles::awaitDone(chunk + 1);
      Producer::finish(task, item, chunk + 1, memory, me.opaque());
    }
    Producer::storeCarry(memory, chunk, carry, me.opaque());
    if (chunk == 0) return;
    memory.fetchKeys(task, item, chunk - 1, me.opaque());
    ptx::cpAsyncCommitGroup();
    memory.fetchValues(task, item, chunk - 1, me.opaque());
    ptx::cpAsyncCommitGroup();
    Roles::awaitStateRead();
    memory.fetchState(Swept::statesOf(task), chunk - 1, me.opaque().thread);
    ptx::cpAsyncCommitGroup();
  }

  /// The same for token decays, with loads by the first thread.
  SEQPAR_DEVICE static void produceLoaded(const MappedTask& task, const Item<T>& item, int chunk, Memory& memory,
                                          Producer& producer, StateOf& gradient, LoadPhases& phases, Half me) {
    const bool isLast = chunk == item.chunks - 1;
    producer.addUp(task, item, chunk, memory, me);
    Roles::syncProducers();
    if (!isLast) Roles::awaitRead();
    me = me.opaque();
    gradient.store(memory.after, me);
    Swept::decay(gradient, chunk, memory, me);
    awaitTiles(item, chunk, memory, phases, me);
    if (!isLast) phases.await(memory, kState);
    warpgroup::fenceProxyAsync();
    Roles::syncProducers();
    Roles::arrivePrepared(chunk);
    Producer::addTo(gradient, chunk, memory, me.opaque());
    if (!isLast) Roles::awaitDone(chunk + 1);
    Roles::arriveAdded();  // the consumers have passed this barrier of the later chunk
    if (chunk == 0) return;
    me = me.opaque();
    if (me.thread == 0) memory.fetchTiles(task, item, chunk - 1);
    producer.load(task, item, chunk - 1, me);
    keepCarry(gradient, memory.before, chunk - 1, memory, me);
    Roles::awaitStateRead();  // also of all producers, which have computed their sums
    if (me.opaque().thread == 0) memory.fetchState(Swept::statesOf(task), chunk - 1);
  }
};

}  // namespace seqpar::attn::backward::sm90
