#include "device/nccl_handle.h"

#include <future>
#include <thread>
#include <utility>

#include "base/deadline.h"

namespace seqpar {
namespace {

constexpr int kSpins = 2000;  // polls before a wait sleeps; enqueuing takes microseconds, connecting milliseconds
constexpr std::chrono::microseconds kNap{100};
constexpr std::chrono::seconds kAbortWait{1};

}  // namespace

NcclHandle::NcclHandle(const NcclLibrary& library, ncclComm_t comm, bool owned, std::chrono::milliseconds timeout,
                       std::unique_ptr<NcclHandle> guard)
    : library_(library), owned_(owned), timeout_(timeout), guard_(std::move(guard)), comm_(comm) {}

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
  // Success is no proof for a non-blocking communicator: ncclCommSplit() returns it at once.
  (void)isDone(name, health, work);
  finish(name, health);
}

bool NcclHandle::isDone(const char* name, const Health& health, const std::function<ncclResult_t(ncclComm_t)>& work) {
  ncclResult_t result = ncclInProgress;
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    requireAlive(name, health);
    result = work(comm_);
    if (result == ncclSuccess || result == ncclInProgress) return result == ncclSuccess;
    text = library_.describe(result, name, comm_);
  }
  // NCCL names no rank; the control connections are about to name the one that is lost.
  if (ncclResultAsOurs(result) == seqparRemoteError) health.awaitFailure();
  health.check();
  fail(ncclResultAsOurs(result), text);
}

void NcclHandle::finish(const char* name, const Health& health) {
  const Deadline deadline(timeout_);
  const auto state = [this](ncclComm_t comm) {
    ncclResult_t now = ncclInProgress;
    const ncclResult_t result = library_.commGetAsyncError(comm, &now);
    return result == ncclSuccess ? now : result;
  };
  for (int spins = 0;; ++spins) {
    if (isDone(name, health, state)) return;
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
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) {
    // A blocking call may wait because the GPU's queue is full. Both communicators have one flag that ends their work.
    if (guard_) guard_->abort();
    lock.lock();
  }
  ncclComm_t const comm = std::exchange(comm_, nullptr);
  lock.unlock();
  if (comm == nullptr) return;
  // NCCL ends its kernels at once, but returns only when all graphs with its work are destroyed, which the caller may
  // do later.
  try {
    auto ended = std::make_shared<std::promise<void>>();
    const auto wait = ended->get_future();
    std::thread([&library = library_, comm, ended] {
      (void)library.commAbort(comm);
      ended->set_value();
    }).detach();
    wait.wait_for(kAbortWait);
  } catch (...) {
    (void)library_.commAbort(comm);  // no thread can be started
  }
}

}  // namespace seqpar
