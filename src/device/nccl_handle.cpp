#include "device/nccl_handle.h"

#include <thread>

#include "base/deadline.h"

namespace seqpar {
namespace {

constexpr int kSpins = 2000;  // polls before a wait sleeps; enqueuing takes microseconds, connecting milliseconds
constexpr std::chrono::microseconds kNap{100};

}  // namespace

NcclHandle::NcclHandle(const NcclLibrary& library, ncclComm_t comm, bool owned, std::chrono::milliseconds timeout)
    : library_(library), owned_(owned), timeout_(timeout), comm_(comm) {}

// ncclCommDestroy() may wait for other ranks, which may have exited; abort does not.
NcclHandle::~NcclHandle() {
  abort();
}

void NcclHandle::requireAlive(const char* name, const Health& health) const {
  health.check();
  if (aborted_.load()) fail(seqparRemoteError, name, ": this rank's NCCL communicator was aborted");
}

void NcclHandle::call(const char* name, const Health& health, const std::function<ncclResult_t(ncclComm_t)>& work) {
  const std::lock_guard serial(calls_);
  {
    const std::lock_guard lock(mutex_);
    requireAlive(name, health);
    // Success is no proof for a non-blocking communicator: ncclCommSplit() returns it at once.
    library_.check(work(comm_), name, comm_);
  }
  finish(name, health);
}

void NcclHandle::finish(const char* name, const Health& health) {
  const Deadline deadline(timeout_);
  for (int spins = 0;; ++spins) {
    {
      const std::lock_guard lock(mutex_);
      requireAlive(name, health);
      ncclResult_t state = ncclInProgress;
      library_.check(library_.commGetAsyncError(comm_, &state), "ncclCommGetAsyncError", comm_);
      if (state == ncclSuccess) return;
      library_.check(state, name, comm_);
    }
    if (deadline.passed()) {
      // Work that NCCL did launch would never end, and freeing memory waits for it.
      abort();
      fail(seqparRemoteError, name, ": NCCL was not done after ", timeout_.count(), " ms");
    }
    if (spins < kSpins) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }
}

seqparResult_t NcclHandle::asyncError(std::string& text) {
  // A blocking borrowed communicator may hold the lock indefinitely.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || aborted_.load()) return seqparSuccess;
  ncclResult_t state = ncclSuccess;
  ncclResult_t result = library_.commGetAsyncError(comm_, &state);
  if (result == ncclSuccess) result = state;
  if (result == ncclSuccess || result == ncclInProgress) return seqparSuccess;
  text = library_.describe(result, "NCCL", comm_);
  return ncclResultAsOurs(result);
}

void NcclHandle::abort() noexcept {
  aborted_.store(true);
  if (!owned_) return;
  const std::lock_guard lock(mutex_);
  if (comm_ != nullptr) (void)library_.commAbort(comm_);
  comm_ = nullptr;
}

}  // namespace seqpar
