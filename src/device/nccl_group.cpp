#include "device/nccl_group.h"

#include <algorithm>
#include <thread>

#include "base/deadline.h"
#include "base/env.h"
#include "kernels/nccl/mark.h"

namespace seqpar {
namespace {

/// After an error of NCCL, for the rank that caused it.
constexpr std::chrono::seconds kCauseWait{1};

/// The first failure of several NCCL calls; a group must be ended even if a call in it failed.
class FirstFailure {
 public:
  void note(ncclResult_t result) {
    if (result_ == ncclSuccess || result_ == ncclInProgress) result_ = result;
  }
  ncclResult_t get() const { return result_; }

 private:
  ncclResult_t result_ = ncclSuccess;
};

const std::byte* at(const void* data, std::size_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}

std::byte* at(void* data, std::size_t offset) {
  return static_cast<std::byte*>(data) + offset;
}

}  // namespace

NcclGroup::NcclGroup(std::shared_ptr<NcclHandle> handle, std::vector<int> ranks, int rank, int device,
                     std::chrono::milliseconds timeout, Health& health)
    : handle_(std::move(handle)),
      ranks_(std::move(ranks)),
      rank_(rank),
      device_(device),
      timeout_(timeout),
      health_(health) {
  if (timeout_.count() == 0) return;
  marks_ = allocateMapped(sizeof(std::uint32_t), "a flag of a communicator");
  *flags() = 0;
}

// Runs both gather paths once, so that NCCL connects now.
void NcclGroup::connect() {
  whole_ = true;
  const auto all = gatherByte(envText("NCCL_NVLS_ENABLE") == "0" ? 1 : 0);
  nativeGather_ = std::all_of(all.begin(), all.end(), [](std::uint8_t answer) { return answer == 1; });
  if (nativeGather_) gatherByte(0);
}

std::vector<std::uint8_t> NcclGroup::gatherByte(std::uint8_t mine) {
  const auto count = static_cast<std::size_t>(size());
  std::vector<std::uint8_t> all(count);
  const StreamHandle setup = makeStream();
  DeviceMemory memory = allocateDevice(count + 1, "settings of all ranks");
  std::byte* const own = memory.get() + count;
  checkCuda(cudaMemcpyAsync(own, &mine, 1, cudaMemcpyHostToDevice, setup.get()), "cudaMemcpyAsync");
  allGather(own, memory.get(), 1, setup.get());
  wait(setup.get());
  checkCuda(cudaMemcpyAsync(all.data(), memory.get(), count, cudaMemcpyDeviceToHost, setup.get()), "cudaMemcpyAsync");
  wait(setup.get());
  return all;
}

void NcclGroup::wait(void* stream) {
  const Deadline deadline(timeout_);
  try {
    for (cudaError_t state = cudaStreamQuery(static_cast<cudaStream_t>(stream)); state != cudaSuccess;
         state = cudaStreamQuery(static_cast<cudaStream_t>(stream))) {
      if (state != cudaErrorNotReady) checkCuda(state, "work over NCCL");
      health_.check();
      if (deadline.passed()) fail(seqparRemoteError, "work over NCCL was not done after ", timeout_.count(), " ms");
      std::this_thread::yield();
    }
  } catch (...) {
    abort();
    throw;
  }
}

std::shared_ptr<NcclComm> NcclGroup::subset(const std::vector<int>& ranks, Health& health) const {
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  if (own == ranks.end()) fail(seqparInternalError, "a group of NCCL without this rank, ", rank_);
  std::vector<int> mapped;
  for (const int member : ranks) mapped.push_back(ranks_.at(static_cast<std::size_t>(member)));
  const CurrentDevice current(device_);
  return std::make_shared<NcclGroup>(handle_, std::move(mapped), static_cast<int>(own - ranks.begin()), device_,
                                     timeout_, health);
}

void NcclGroup::exchange(std::span<const NcclSend> sends, std::span<const NcclReceive> receives, void* stream) {
  const auto empty = [](const auto& part) { return part.bytes == 0; };
  if (std::all_of(sends.begin(), sends.end(), empty) && std::all_of(receives.begin(), receives.end(), empty)) return;
  const NcclStep step(*this, stream);
  handle_->call("NCCL send and receive", health_, [&](ncclComm_t comm) {
    const NcclLibrary& nccl = handle_->library();
    FirstFailure result;
    result.note(nccl.groupStart());
    for (const NcclSend& part : sends) {
      if (part.bytes == 0) continue;
      result.note(nccl.send(part.data, part.bytes, ncclInt8, ranks_.at(static_cast<std::size_t>(part.peer)), comm,
                            static_cast<cudaStream_t>(stream)));
    }
    for (const NcclReceive& part : receives) {
      if (part.bytes == 0) continue;
      result.note(nccl.recv(part.data, part.bytes, ncclInt8, ranks_.at(static_cast<std::size_t>(part.peer)), comm,
                            static_cast<cudaStream_t>(stream)));
    }
    result.note(nccl.groupEnd());
    return result.get();
  });
}

void NcclGroup::gatherNatively(std::span<const NcclGather> parts, void* stream) {
  const NcclStep step(*this, stream);
  handle_->call("ncclAllGather", health_, [&](ncclComm_t comm) {
    const NcclLibrary& nccl = handle_->library();
    FirstFailure result;
    result.note(nccl.groupStart());
    for (const NcclGather& part : parts) {
      if (part.bytes == 0) continue;
      result.note(
          nccl.allGather(part.send, part.receive, part.bytes, ncclInt8, comm, static_cast<cudaStream_t>(stream)));
    }
    result.note(nccl.groupEnd());
    return result.get();
  });
}

void NcclGroup::allGather(std::span<const NcclGather> parts, void* stream) {
  if (std::all_of(parts.begin(), parts.end(), [](const NcclGather& part) { return part.bytes == 0; })) return;
  if (nativeGather_) {
    gatherNatively(parts, stream);
    return;
  }
  std::vector<NcclSend> sends;
  std::vector<NcclReceive> receives;
  for (const NcclGather& part : parts) {
    for (int peer = 0; peer < size(); ++peer) {
      std::byte* const place = at(part.receive, static_cast<std::size_t>(peer) * part.bytes);
      if (peer == rank_ && place == part.send) continue;
      sends.push_back({peer, part.send, part.bytes});
      receives.push_back({peer, place, part.bytes});
    }
  }
  exchange(sends, receives, stream);
}

void NcclGroup::allToAll(const void* send, void* receive, std::size_t bytes, void* stream) {
  std::vector<NcclSend> sends;
  std::vector<NcclReceive> receives;
  for (int peer = 0; peer < size(); ++peer) {
    const std::size_t offset = static_cast<std::size_t>(peer) * bytes;
    sends.push_back({peer, at(send, offset), bytes});
    receives.push_back({peer, at(receive, offset), bytes});
  }
  exchange(sends, receives, stream);
}

void NcclGroup::begin(void* stream) {
  if (depth_++ == 0) flag(stream);
}

void NcclGroup::end(void* stream) noexcept {
  if (--depth_ > 0) return;
  try {
    flag(stream);
  } catch (const Error& error) {
    health_.fail(error.result(), concat("rank ", rank_, ": ", error.what()));
  }
}

void NcclGroup::flag(void* stream) {
  if (timeout_.count() == 0) return;
  checkCuda(launchMark(flags(), static_cast<cudaStream_t>(stream)), "the kernel that counts operations");
}

void NcclGroup::poll() {
  std::string text;
  const seqparResult_t result = handle_->asyncError(text);
  const auto time = Clock::now();
  if (result != seqparSuccess) {
    // NCCL names no rank; the control connections are about to name the one that is lost.
    if (!failedSince_) failedSince_ = time;
    if (result != seqparRemoteError || time - *failedSince_ >= kCauseWait) {
      health_.fail(seqparRemoteError, concat("rank ", rank_, ": ", text));
    }
  }
  if (timeout_.count() == 0) return;
  const std::uint32_t now = *flags();
  if (now != seen_ || now % 2 == 0) {
    seen_ = now;
    since_ = time;
  } else if (time - since_ > timeout_) {
    health_.fail(seqparRemoteError,
                 concat("rank ", rank_, ": an operation over NCCL was not done after ", timeout_.count(), " ms"));
  }
}

}  // namespace seqpar
