// Threads and barriers of an emulated CTA.
#include "kernels/arch/ptx.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "support/emulator/cta.h"

namespace seqpar::emulator {

Cta* cta = nullptr;

namespace {

constexpr size_t kStack = 256 << 10;
constexpr int kOfBlock = 16;

void fiberMain() {
  test::follow(cta->begin);
  (*cta->kernel)();
  Fiber& fiber = cta->fibers[cta->current];
  test::lead(cta->end);
  fiber.done = true;
  cta->ofScheduler.enter();
  _longjmp(cta->scheduler, 1);
}

void resume(int thread) {
  cta->current = thread;
  Fiber& fiber = cta->fibers[thread];
  if (_setjmp(cta->scheduler) != 0) return;
  fiber.strand.enter();
  if (fiber.started) _longjmp(fiber.state, 1);
  fiber.started = true;
  setcontext(&fiber.start);
}

/// A CTA before its first step. Each has separate shared memory and strands: on a GPU, CTAs run concurrently.
std::unique_ptr<Cta> makeCta(int index, int count, int threads, size_t sharedBytes,
                             const std::function<void()>& kernel) {
  auto made = std::make_unique<Cta>();
  made->index = index;
  made->count = count;
  made->threads = threads;
  made->kernel = &kernel;
  made->shared.assign(sharedBytes + 1024, static_cast<char>(0xff));  // NaN
  made->warps = std::vector<Meeting>(static_cast<size_t>(threads / 32));
  made->fibers = std::vector<Fiber>(static_cast<size_t>(threads));
  for (Fiber& fiber : made->fibers) {
    fiber.stack = std::make_unique_for_overwrite<char[]>(kStack);
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.get();
    fiber.start.uc_stack.ss_size = kStack;
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, fiberMain, 0);
  }
  test::lead(made->begin);
  return made;
}

void runCta(Cta& own, std::mt19937_64& random) {
  cta = &own;
  std::vector<int> order(own.warps.size());
  std::iota(order.begin(), order.end(), 0);
  const auto left = [&] { return std::any_of(own.fibers.begin(), own.fibers.end(), [](auto& f) { return !f.done; }); };
  while (left()) {
    std::shuffle(order.begin(), order.end(), random);
    bool any = false;
    for (const int w : order) {
      do {  // a warp runs until none of its lanes progresses
        own.moved = false;
        for (int t = w * 32; t < w * 32 + 32; ++t) {
          if (!own.fibers[t].done) resume(t);
        }
        any |= own.moved;
      } while (own.moved);
    }
    if (!any && left()) throw std::logic_error("threads of a CTA wait for each other");
  }
  const auto copies = [](const CopyGroups& groups) {
    return std::any_of(groups.begin(), groups.end(), [](const auto& group) { return !group.empty(); });
  };
  for (const Fiber& fiber : own.fibers) {
    if (copies(fiber.groups) || copies(fiber.bulk)) throw std::logic_error("a thread of a CTA ends before its copies");
  }
}

/// Returns whether any thread passed true.
bool syncAt(Barrier& barrier, int threads, bool wait, bool mine = false) {
  cta->moved = true;
  const uint64_t round = barrier.round;
  barrier.any[round % 2] |= mine;
  barrier.marks.arrive(round);
  if (++barrier.arrived == threads) {
    barrier.any[(round + 1) % 2] = false;
    barrier.arrived = 0;
    ++barrier.round;
  } else {
    while (wait && barrier.round == round) yield();
  }
  if (!wait) return false;
  barrier.marks.leave(round);
  return barrier.any[round % 2];
}

}  // namespace

/// Jumps need no system call, as swapcontext() does.
void yield() {
  if (_setjmp(cta->fibers[cta->current].state) != 0) return;
  cta->ofScheduler.enter();
  _longjmp(cta->scheduler, 1);
}

void run(int blocks, int threads, size_t sharedBytes, uint64_t seed, const std::function<void()>& kernel) {
  std::mt19937_64 random(seed);
  std::vector<std::unique_ptr<Cta>> ctas;  // all are kept, since accesses to freed memory would be races
  for (int block = 0; block < blocks; ++block) {
    ctas.push_back(makeCta(block, blocks, threads, sharedBytes, kernel));
  }
  for (const auto& own : ctas) runCta(*own, random);
  for (const auto& own : ctas) test::follow(own->end);
  cta = nullptr;
}

Meeting& meet(int what) {
  Meeting& warp = ownWarp();
  if (warp.arrived > 0 && warp.what != what) throw std::logic_error("lanes of a warp meet for different things");
  warp.what = what;
  return warp;
}

}  // namespace seqpar::emulator

namespace seqpar::ptx {

using namespace emulator;

int thread() {
  return cta->current;
}
int block() {
  return cta->index;
}
int blocks() {
  return cta->count;
}

char* sharedMemory() {
  return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(cta->shared.data()) + 1023) / 1024 * 1024);
}

void syncthreads() {
  syncAt(cta->barriers[kOfBlock], cta->threads, true);
}

void barrierSync(int id, int threads) {
  syncAt(cta->barriers[id], threads, true);
}
void barrierArrive(int id, int threads) {
  syncAt(cta->barriers[id], threads, false);
}
bool barrierRedOr(int id, int threads, bool mine) {
  return syncAt(cta->barriers[id], threads, true, mine);
}

bool syncthreadsAnd(bool value) {
  return !syncAt(cta->barriers[kOfBlock], cta->threads, true, !value);
}

void syncwarp() {
  together(meet(8), [] {});
}

}  // namespace seqpar::ptx
