#include "transport/waiter.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "transport/network.h"

namespace seqpar {
namespace {

// About 20 ns each. A peer on another processor answers within this time or is computing; a peer on the same processor
// cannot answer before this rank yields.
constexpr unsigned kSpins = 100;
// Each yield lets ranks that wait for the processor run, so a few suffice.
constexpr unsigned kYields = 100;
// With a processor for each rank, a rank that sleeps at once is woken on its waker's processor, and both then alternate
// there permanently. If both stay awake for a millisecond, the scheduler moves one of them.
constexpr unsigned kYieldsWithOwnCore = 4000;
// Network progress costs a system call, so it is not part of every iteration of a spin on memory.
constexpr unsigned kSpinsBetweenProgress = 64;
// Bound on noticing a failure.
constexpr std::chrono::milliseconds kNap{5};

void pauseCore() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

long futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

std::string seconds(std::chrono::milliseconds time) {
  return concat(static_cast<double>(time.count()) / 1000, " s");
}

}  // namespace

void ring(Doorbell& doorbell) {
  if (doorbell.asleep.load(std::memory_order_seq_cst) == 0) return;
  if (doorbell.asleep.exchange(0, std::memory_order_seq_cst) != 0) futex(doorbell.asleep, FUTEX_WAKE, 1, nullptr);
}

bool Waiter::relax(By by, unsigned round) {
  const unsigned spins = options_.spins ? kSpins : 0;
  const unsigned yields = options_.spins ? kYieldsWithOwnCore : kYields;
  if (round >= spins + yields) return false;
  if (network_ != nullptr && (by == By::Network || round >= spins || round % kSpinsBetweenProgress == 0)) {
    if (network_->progress()) return true;
  }
  if (round < spins)
    pauseCore();
  else
    sched_yield();
  return true;
}

void Waiter::fallAsleep(By by) {
  if (by == By::Network) return;
  // Messages for and from other hosts must progress while this thread sleeps on memory.
  if (network_ != nullptr) network_->rest();
  doorbell_.asleep.store(1, std::memory_order_seq_cst);
}

void Waiter::sleep(By by) {
  if (by == By::Network) {
    network_->doze(kNap);
    return;
  }
  const timespec nap{0, std::chrono::nanoseconds(kNap).count()};
  futex(doorbell_.asleep, FUTEX_WAIT, 1, &nap);
}

void Waiter::wakeUp(By by) {
  if (by == By::Network) return;
  doorbell_.asleep.store(0, std::memory_order_seq_cst);
  if (network_ != nullptr) network_->resume();
}

void Waiter::warn(std::chrono::seconds lasted, const std::string& description) {
  writeLog(LogLevel::Warn, concat(operation_, " #", number_, ": rank ", options_.rank, " has waited ", lasted.count(),
                                  " s ", description));
}

void Waiter::giveUp(const std::string& description) {
  health_.check();
  // A rank that is stopped is noticed at about the same time, by its heartbeats. It is the cause: the rank that this
  // one waits for may wait for it, too.
  health_.awaitFailure(std::min<std::chrono::milliseconds>(options_.timeout / 2, std::chrono::seconds(1)));
  health_.check();
  health_.fail(seqparRemoteError, concat(operation_, " #", number_, ": rank ", options_.rank, " waited ",
                                         seconds(options_.timeout), " ", description));
  health_.check();
  fail(seqparInternalError, "a failed communicator reports success");
}

}  // namespace seqpar
