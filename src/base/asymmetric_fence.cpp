#include "base/asymmetric_fence.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace seqpar {
namespace {

bool membarrier(int command) noexcept {
  return syscall(SYS_membarrier, command, 0, 0) == 0;
}

bool registerProcess() noexcept {
  return membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
}

}  // namespace

const bool kFencesOthers = registerProcess();

void heavyFence() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!kFencesOthers || membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return;
  if (registerProcess() && membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return;
  // A filter of system calls that the program has installed since. A store becomes visible within microseconds.
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

}  // namespace seqpar
