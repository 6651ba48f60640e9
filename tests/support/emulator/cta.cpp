// Threads and barriers of an emulated CTA.
#include "kernels/arch/ptx.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <random>

#include "support/emulator/cta.h"

namespace seqpar::emulator {

Cta* cta = nullptr;

namespace {

constexpr size_t kStack = 256 << 10;
constexpr int kOfBlock = 16;

std::vector<std::unique_ptr<char[]>>& unusedStacks() {
  static std::vector<std::unique_ptr<char[]>> stacks;
  return stacks;
}

void fiberMain() {
  test::follow(cta->begin);
  // No exception may leave a fiber: the stack ends here.
  try {
    (*cta->kernel)();
  } catch (...) {
    cta->failure = std::current_exception();
  }
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
std::unique_ptr<Cta> makeCta(int index, const Grid& grid, Launched& launch) {
  auto made = std::make_unique<Cta>();
  made->launch = &launch;
  made->index = index;
  made->count = grid.blocks;
  made->threads = grid.threads;
  made->kernel = &grid.kernel;
  made->shared.assign(grid.sharedBytes + 1024, static_cast<char>(0xff));  // NaN
  made->sharedStart = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(made->shared.data()) + 1023) / 1024 * 1024);
  made->warps = std::vector<Meeting>(static_cast<size_t>(grid.threads / 32));
  made->fibers = std::vector<Fiber>(static_cast<size_t>(grid.threads));
  for (Fiber& fiber : made->fibers) {
    getcontext(&fiber.start);
    fiber.stack.giveTo(fiber.start);
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, fiberMain, 0);
  }
  test::lead(made->begin);
  return made;
}

/// Runs a CTA to its end, or until all of its threads wait for earlier launches or for threads that do.
void runCta(Cta& own, std::mt19937_64& random) {
  cta = &own;
  std::vector<int> order(own.warps.size());
  std::iota(order.begin(), order.end(), 0);
  const auto left = [&] { return std::any_of(own.fibers.begin(), own.fibers.end(), [](auto& f) { return !f.done; }); };
  while (left()) {
    std::shuffle(order.begin(), order.end(), random);
    bool any = false;
    own.held = false;
    for (const int w : order) {
      do {  // a warp runs until none of its lanes progresses
        own.moved = false;
        for (int t = w * 32; t < w * 32 + 32; ++t) {
          if (!own.fibers[t].done) resume(t);
          if (own.failure != nullptr) std::rethrow_exception(own.failure);
        }
        any |= own.moved;
      } while (own.moved);
    }
    if (any || !left()) continue;
    if (own.held) return;
    throw std::logic_error("threads of a CTA wait for each other");
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
  ++cta->fibers[cta->current].barriers;
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

/// The launches of a stream.
class Stream {
 public:
  Stream(const std::vector<Grid>& grids, uint64_t seed) : grids_(grids), random_(seed) {}

  void run() {
    for (size_t i = 0; i < grids_.size(); ++i) {
      if (started_ == i) start(i);
      Launched& launch = *launches_[i];
      launch.ready = true;
      if (started_ == i + 1 && mayStart(i + 1)) start(i);  // this launch has reached its wait
      advance(launch);
      if (grids_[i].early && !launch.waited) throw std::logic_error("a launch ends without griddepcontrol.wait");
      if (grids_[i].nextAfterWait && (launch.triggersBefore || !launch.triggersAfter)) {
        throw std::logic_error("a launch does not let the next one start after its wait");
      }
    }
    followTo(grids_.size());
    cta = nullptr;
  }

 private:
  bool mayStart(size_t i) const { return i < grids_.size() && grids_[i].early; }
  /// Orders all that follows after the launches before `end`.
  void followTo(size_t end) {
    for (; followed_ < end; ++followed_) {
      for (const auto& own : launches_[followed_]->ctas) test::follow(own->end);
    }
  }
  /// Starts launches that run concurrently, after the launches before `after` have ended.
  void start(size_t after) {
    followTo(after);
    const size_t from = started_;
    do {
      auto launch = std::make_unique<Launched>();
      if (started_ > 0) launch->previous = launches_.back().get();
      const Grid& grid = grids_[started_++];
      for (int block = 0; block < grid.blocks; ++block) launch->ctas.push_back(makeCta(block, grid, *launch));
      launches_.push_back(std::move(launch));
    } while (mayStart(started_) && !grids_[started_ - 1].nextAfterWait);
    for (size_t i = started_; i-- > from;) advance(*launches_[i]);
  }
  void advance(const Launched& launch) {
    for (const auto& own : launch.ctas) runCta(*own, random_);
  }

  const std::vector<Grid>& grids_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Launched>> launches_;  // all are kept, since accesses to freed memory would be races
  size_t started_ = 0, followed_ = 0;
};

}  // namespace

Stack::Stack() {
  auto& unused = unusedStacks();
  if (unused.empty()) {
    bytes_ = std::make_unique_for_overwrite<char[]>(kStack);
    return;
  }
  bytes_ = std::move(unused.back());
  unused.pop_back();
}
Stack::~Stack() {
  if (bytes_ != nullptr) unusedStacks().push_back(std::move(bytes_));
}
void Stack::giveTo(ucontext_t& context) const {
  context.uc_stack.ss_sp = bytes_.get();
  context.uc_stack.ss_size = kStack;
}

/// Jumps need no system call, as swapcontext() does.
void yield() {
  if (_setjmp(cta->fibers[cta->current].state) != 0) return;
  cta->ofScheduler.enter();
  _longjmp(cta->scheduler, 1);
}

void run(int blocks, int threads, size_t sharedBytes, uint64_t seed, const std::function<void()>& kernel) {
  runStream({Grid{blocks, threads, sharedBytes, kernel}}, seed);
}

void runStream(const std::vector<Grid>& launches, uint64_t seed) {
  Stream(launches, seed).run();
}

Meeting& meet(int what) {
  Meeting& warp = ownWarp();
  const uint64_t barriers = cta->fibers[cta->current].barriers;
  if (warp.arrived > 0 && warp.what != what) throw std::logic_error("lanes of a warp meet for different things");
  if (warp.arrived > 0 && warp.barriers != barriers) throw std::logic_error("lanes of a warp wait where others do not");
  warp.what = what;
  warp.barriers = barriers;
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
  return cta->sharedStart;
}

void griddepcontrolWait() {
  Launched& launch = *cta->launch;
  while (!launch.ready) {
    cta->held = true;
    yield();
  }
  cta->moved = true;
  launch.waited = true;
  if (launch.previous == nullptr) return;
  for (const auto& own : launch.previous->ctas) test::follow(own->end);
}
void griddepcontrolLaunchDependents() {
  (cta->launch->waited ? cta->launch->triggersAfter : cta->launch->triggersBefore) = true;
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
bool voteAll(bool value) {
  return reduxMax(value ? 0 : 1) == 0;
}

}  // namespace seqpar::ptx
