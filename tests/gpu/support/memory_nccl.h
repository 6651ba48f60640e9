// NcclComm between threads that may share a GPU, by copies: runs code for NCCL with any number of ranks. Every exchange
// is finished on return.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>

#include "bounds.h"
#include "common/ranks.h"
#include "device/cuda.h"
#include "device/nccl_comm.h"

namespace seqpar::test {

/// Messages in flight, shared by all ranks.
class MemoryNcclBoard {
 public:
  struct Message {
    const void* data;
    std::size_t bytes;
    bool taken = false;
  };

  /// Posts a message; it stays at its address until it is received.
  std::shared_ptr<Message> offer(int from, int to, const void* data, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto message = std::make_shared<Message>(Message{data, bytes});
    channels_[{from, to}].push_back(message);
    changed_.notify_all();
    return message;
  }
  std::shared_ptr<Message> next(int from, int to) {
    std::unique_lock lock(mutex_);
    auto& channel = channels_[{from, to}];
    expect(changed_.wait_for(lock, patience(std::chrono::seconds(30)), [&] { return !channel.empty(); }),
           "no message from ", from, " to ", to);
    auto message = channel.front();
    channel.pop_front();
    return message;
  }
  void taken(Message& message) {
    const std::lock_guard lock(mutex_);
    message.taken = true;
    changed_.notify_all();
  }
  void awaitTaken(const Message& message) {
    std::unique_lock lock(mutex_);
    expect(changed_.wait_for(lock, patience(std::chrono::seconds(30)), [&] { return message.taken; }),
           "a message was not received");
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> channels_;
};

class MemoryNccl final : public NcclComm {
 public:
  MemoryNccl(MemoryNcclBoard& board, int rank, int size, int device)
      : board_(board), rank_(rank), size_(size), device_(device) {}

  std::shared_ptr<NcclComm> subset(const std::vector<int>&, Health&) const override { return nullptr; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int device() const override { return device_; }

  void exchange(std::span<const NcclSend> sends, std::span<const NcclReceive> receives, void* stream) override {
    const auto given = static_cast<cudaStream_t>(stream);
    checkCuda(cudaStreamSynchronize(given), "cudaStreamSynchronize");
    std::vector<std::shared_ptr<MemoryNcclBoard::Message>> sent;
    for (const NcclSend& part : sends) {
      if (part.bytes > 0) sent.push_back(board_.offer(rank_, part.peer, part.data, part.bytes));
    }
    for (const NcclReceive& part : receives) {
      if (part.bytes == 0) continue;
      const auto message = board_.next(part.peer, rank_);
      expect(message->bytes == part.bytes, message->bytes, " bytes came from ", part.peer, " for ", part.bytes);
      checkCuda(cudaMemcpyAsync(part.data, message->data, part.bytes, cudaMemcpyDefault, given), "cudaMemcpyAsync");
      checkCuda(cudaStreamSynchronize(given), "cudaStreamSynchronize");
      board_.taken(*message);
    }
    for (const auto& message : sent) board_.awaitTaken(*message);
  }

  bool gathersNatively() const override { return true; }
  using NcclComm::allGather;
  void allGather(std::span<const NcclGather> parts, void* stream) override {
    std::vector<NcclSend> sends;
    std::vector<NcclReceive> receives;
    for (const NcclGather& part : parts) {
      for (int peer = 0; peer < size_; ++peer) {
        sends.push_back({peer, part.send, part.bytes});
        auto* const place = static_cast<std::byte*>(part.receive) + static_cast<std::size_t>(peer) * part.bytes;
        receives.push_back({peer, place, part.bytes});
      }
    }
    exchange(sends, receives, stream);
  }
  void allToAll(const void*, void*, std::size_t, void*) override { fail(seqparInternalError, "not needed here"); }

  void begin(void*) override {}
  void end(void*) noexcept override {}
  void wait(void* stream) override {
    checkCuda(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "cudaStreamSynchronize");
  }
  void poll() override {}
  void abort() noexcept override {}

 private:
  MemoryNcclBoard& board_;
  int rank_, size_, device_;
};

}  // namespace seqpar::test
