// An ncclComm_t that several groups use from several threads, and that any thread can abort.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "base/health.h"
#include "device/nccl_library.h"

namespace seqpar {

class NcclHandle {
 public:
  /// Takes `comm`, which may still be initializing. The destructor aborts it if it is `owned`. A blocking communicator
  /// that can be aborted at any time needs a `guard`: a non-blocking one that shares its resources.
  NcclHandle(const NcclLibrary& library, ncclComm_t comm, bool owned, std::chrono::milliseconds timeout,
             std::unique_ptr<NcclHandle> guard = nullptr);
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;
  ~NcclHandle();

  const NcclLibrary& library() const { return library_; }

  /// Runs `work`, which calls NCCL, after all other calls, and waits on the host until NCCL has executed (enqueued) it.
  /// `name` is for errors: NCCL's, RemoteError after the timeout or abort(), or the failure of `health`.
  void call(const char* name, const Health& health, const std::function<ncclResult_t(ncclComm_t)>& work);

  /// Waits until NCCL has executed the earlier calls.
  void finish(const char* name, const Health& health);

  /// NCCL's asynchronous error, as text and as a result; Success if there is none or if it cannot be queried now.
  seqparResult_t asyncError(std::string& text);

  /// Ends NCCL's work and frees the communicator if it is owned, at the latest with the last graph that contains work
  /// of it; later calls throw.
  void abort() noexcept;

 private:
  void requireAlive(const char* name, const Health& health) const;
  /// Runs `work`; false: in progress. Throws its failure.
  bool isDone(const char* name, const Health& health, const std::function<ncclResult_t(ncclComm_t)>& work);

  const NcclLibrary& library_;
  const bool owned_;
  const std::chrono::milliseconds timeout_;
  const std::unique_ptr<NcclHandle> guard_;
  std::mutex calls_;  ///< held for a whole call
  std::mutex mutex_;  ///< held while NCCL is inside a function, and while `comm_` must stay alive
  ncclComm_t comm_;
  std::atomic<bool> aborted_{false};
};

}  // namespace seqpar
