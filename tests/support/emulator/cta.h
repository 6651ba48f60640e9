// The CTA that is emulated at the moment: its threads, which are fibers, and how the lanes of a warp meet.
#pragma once

#include <ucontext.h>

#include <csetjmp>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <stdexcept>
#include <vector>

#include "support/emulator/strands.h"

namespace seqpar::emulator {

/// A copy in flight.
struct Copy {
  void* to;
  const void* from;
  bool valid;
  int bytes = 16;
  std::vector<char> taken = {};  ///< of a bulk copy with its source already read
};
using CopyGroups = std::vector<std::vector<Copy>>;  ///< the last one is not committed yet
using Products = std::vector<std::function<void()>>;

/// A thread's stack, in memory of earlier launches if there is any: a system call and page faults for each would take
/// much of a test's time.
class Stack {
 public:
  Stack();
  Stack(Stack&&) = default;
  ~Stack();
  void giveTo(ucontext_t& context) const;

 private:
  std::unique_ptr<char[]> bytes_;
};

struct Fiber {
  ucontext_t start;
  jmp_buf state;
  bool started = false, done = false;
  Stack stack;
  test::Strand strand;
  CopyGroups groups{1}, bulk{1};
  size_t bulkTaken = 0;  ///< number of groups of `bulk` that have been read
  Products products;     ///< that are not committed yet
  std::deque<Products> committed;
  uint64_t barriers = 0;  ///< number of the CTA's barriers that it has reached
};

/// What the lanes of a warp meet for.
struct Meeting {
  int arrived = 0;
  uint64_t round = 0;
  int what = 0;
  uint64_t barriers = 0;  ///< Fiber::barriers of the lanes, which must be equal
  uint32_t in[32][7];
  const void* rows[32];
  uint32_t out[32][4];
  char mark;

  test::Strand units;  ///< the asynchronous units that work for this warp
  char toUnits, fromUnits;
};

/// Marks that order the rounds of a barrier: one per round, since threads that do not wait may be a round ahead.
struct Marks {
  static constexpr int kMarks = 64;
  char ofThreads[kMarks], ofUnits[kMarks];

  void arrive(uint64_t round);
  void leave(uint64_t round);
};

/// What threads of a CTA wait at.
struct Barrier {
  int arrived = 0;
  uint64_t round = 0;
  bool any[2] = {};  ///< a thread's vote in this round, and in the next one
  Marks marks;
};

/// A box of a tensor on its way.
struct Transfer {
  std::vector<Copy> copies;
  test::Strand engine;
};

/// A barrier in shared memory: a round ends when all threads have arrived and all bytes have been transferred.
struct TransferBarrier {
  int count = 0, arrived = 0;
  int64_t bytesPending = 0;
  uint64_t round = 0;
  std::list<Transfer> transfers;
  Marks marks;
};

struct Launched;

struct Cta {
  Launched* launch = nullptr;
  int index = 0, count = 0, threads = 0;
  std::vector<Fiber> fibers;
  std::vector<Meeting> warps;
  std::vector<char> shared;
  char* sharedStart = nullptr;  ///< in `shared`, aligned to 1024 bytes
  int current = 0;
  Barrier barriers[17];  ///< named ones, and that of the block
  std::map<uint32_t, TransferBarrier> transferBarriers;
  std::list<Transfer> ended;  ///< kept, since the thread that ends a round may differ from the thread that started it
  jmp_buf scheduler;
  test::Strand ofScheduler = test::Strand::current();
  char begin, end;
  const std::function<void()>* kernel = nullptr;
  bool moved = false;
  bool held = false;           ///< a thread waits for earlier launches
  std::exception_ptr failure;  ///< that a thread threw
};
extern Cta* cta;

/// A launch of a stream, from its start.
struct Launched {
  const Launched* previous = nullptr;
  bool ready = false;                                  ///< all earlier launches have ended
  bool waited = false;                                 ///< a thread has executed griddepcontrol.wait
  bool triggersBefore = false, triggersAfter = false;  ///< launch_dependents, before and after griddepcontrol.wait
  std::vector<std::unique_ptr<Cta>> ctas;
};

/// Switches to the scheduler, which resumes this thread later.
void yield();

inline int lane() {
  return cta->current % 32;
}
inline Meeting& ownWarp() {
  return cta->warps[cta->current / 32];
}
/// The lanes of a warp must meet for the same thing.
Meeting& meet(int what);

/// Waits until all lanes of the warp have arrived; the last lane computes `result`.
template <class Result>
void together(Meeting& warp, const Result& result) {
  cta->moved = true;
  test::lead(warp.mark);
  if (++warp.arrived == 32) {
    test::follow(warp.mark);
    result();
    test::lead(warp.mark);
    warp.arrived = 0;
    ++warp.round;
    return;
  }
  for (const uint64_t round = warp.round; warp.round == round;) yield();
  test::follow(warp.mark);
}

/// Runs `act` as this warp's asynchronous units, which see only data that has been published to them.
template <class Act>
void asUnits(const Act& act) {
  ownWarp().units.enter();
  act();
  cta->fibers[cta->current].strand.enter();
}
inline void Marks::arrive(uint64_t round) {
  test::lead(ofThreads[round % kMarks]);
  asUnits([&] { test::lead(ofUnits[round % kMarks]); });
}
inline void Marks::leave(uint64_t round) {
  test::follow(ofThreads[round % kMarks]);
  asUnits([&] { test::follow(ofUnits[round % kMarks]); });
}
/// Performs a copy on behalf of the current strand.
void perform(const Copy& copy);
/// Invalidates a copy's destination.
void corrupt(const Copy& copy);

/// Orders this thread's next accesses after all work of these units.
inline void followUnits() {
  Meeting& warp = ownWarp();
  asUnits([&] { test::lead(warp.fromUnits); });
  test::follow(warp.fromUnits);
}

}  // namespace seqpar::emulator
