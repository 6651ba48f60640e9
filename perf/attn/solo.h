// One rank alone: a communicator and a group with this rank only.
#pragma once

#include <algorithm>

#include "common/group.h"

namespace seqpar::perf {

class SoloGroup final : public Group {
 public:
  /// Collective over `all`.
  explicit SoloGroup(const Group& all) : Group(0, 1) {
    seqparComm_t comm = nullptr;
    require(seqparCommSplit(all.comm(), all.rank(), 0, &comm, nullptr), "seqparCommSplit", all.comm());
    setComm(comm);
  }
  ~SoloGroup() override { seqparCommDestroy(comm()); }
  SoloGroup(const SoloGroup&) = delete;
  SoloGroup& operator=(const SoloGroup&) = delete;

  void gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    std::copy(mine.begin(), mine.end(), all.begin());
  }
  void barrier() override {}
};

}  // namespace seqpar::perf
