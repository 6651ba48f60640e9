// Helpers for a communicator: failing calls throw; a few collective steps.
#pragma once

#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "seqpar/seqpar.h"

/// Throws the error text of `comm` (may be null) for a failed call.
inline void require(seqparResult_t result, seqparComm_t comm = nullptr) {
  if (result == seqparSuccess) return;
  throw std::runtime_error(std::string(seqparGetErrorString(result)) + ": " + seqparGetLastError(comm));
}

class Ranks {
 public:
  explicit Ranks(seqparComm_t comm) : comm_(comm) {
    require(seqparCommUserRank(comm, &rank_), comm);
    require(seqparCommCount(comm, &count_), comm);
  }

  seqparComm_t comm() const { return comm_; }
  size_t rank() const { return static_cast<size_t>(rank_); }
  size_t count() const { return static_cast<size_t>(count_); }

  /// Rank 0's bytes, on every rank.
  template <typename T>
  void broadcast(std::span<T> values) const {
    for (int peer = 1; peer < count_; ++peer) {
      if (rank_ == 0) sendRecv(values.data(), values.size_bytes(), peer, nullptr, 0, SEQPAR_NO_PEER);
      if (rank_ == peer) sendRecv(nullptr, 0, SEQPAR_NO_PEER, values.data(), values.size_bytes(), 0);
    }
  }

  /// The values of all ranks, in rank order, on rank 0; empty on other ranks.
  template <typename T>
  std::vector<T> gather(const std::vector<T>& mine) const {
    const size_t bytes = mine.size() * sizeof(T);
    if (rank_ != 0) {
      sendRecv(mine.data(), bytes, 0, nullptr, 0, SEQPAR_NO_PEER);
      return {};
    }
    std::vector<T> all = mine;
    all.resize(mine.size() * count());
    for (int peer = 1; peer < count_; ++peer) {
      sendRecv(nullptr, 0, SEQPAR_NO_PEER, all.data() + mine.size() * static_cast<size_t>(peer), bytes, peer);
    }
    return all;
  }

  /// Returns when all ranks have called it.
  void barrier() const {
    char token = 0;
    gather(std::vector<char>{token});
    broadcast(std::span(&token, 1));
  }

 private:
  void sendRecv(const void* send, size_t sendBytes, int to, void* receive, size_t receiveBytes, int from) const {
    require(seqparSendRecv(send, sendBytes, to, receive, receiveBytes, from, comm_, nullptr), comm_);
  }

  seqparComm_t comm_;
  int rank_ = 0, count_ = 0;
};
