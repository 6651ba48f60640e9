// NcclComm over an NcclHandle: some or all ranks of an NCCL communicator.
#pragma once

#include <cstdint>

#include "device/cuda.h"
#include "device/nccl_comm.h"
#include "device/nccl_handle.h"

namespace seqpar {

class NcclGroup final : public NcclComm {
 public:
  /// ranks[i] is member i's rank in the NCCL communicator.
  NcclGroup(std::shared_ptr<NcclHandle> handle, std::vector<int> ranks, int rank, int device,
            std::chrono::milliseconds timeout, Health& health);

  /// Collective: connects a group of all ranks. Throws if that takes longer than the timeout.
  void connect();

  std::shared_ptr<NcclComm> subset(const std::vector<int>& ranks, Health& health) const override;
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  int device() const override { return device_; }
  void exchange(std::span<const NcclSend> sends, std::span<const NcclReceive> receives, void* stream) override;
  bool gathersNatively() const override { return nativeGather_; }
  using NcclComm::allGather;
  void allGather(std::span<const NcclGather> parts, void* stream) override;
  void allToAll(const void* send, void* receive, std::size_t bytes, void* stream) override;
  void begin(void* stream) override;
  void end(void* stream) noexcept override;
  void wait(void* stream) override;
  void poll() override;
  void abort() noexcept override { handle_->abort(); }

  /// Collective over the group, waits on the host: gathers a byte of every rank. Throws if that takes longer than the
  /// timeout.
  std::vector<std::uint8_t> gatherByte(std::uint8_t mine);

  NcclHandle& handle() { return *handle_; }
  const Health& health() const { return health_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  /// True if the group spans a whole NCCL communicator.
  bool whole() const { return whole_; }

 private:
  using Clock = std::chrono::steady_clock;

  void gatherNatively(std::span<const NcclGather> parts, void* stream);
  void flag(void* stream);

  std::shared_ptr<NcclHandle> handle_;
  std::vector<int> ranks_;
  int rank_;
  int device_;
  std::chrono::milliseconds timeout_;
  Health& health_;
  bool whole_ = false;
  bool nativeGather_ = false;

  // Counts starts and ends of operations on the device: an odd count means that one is running.
  volatile std::uint32_t* flags() const { return reinterpret_cast<volatile std::uint32_t*>(marks_.get()); }
  MappedMemory marks_;
  int depth_ = 0;
  std::uint32_t seen_ = 0;
  Clock::time_point since_{};
  std::optional<Clock::time_point> failedSince_;  ///< NCCL's error
};

}  // namespace seqpar
