// What the algorithms of All-Scan over NCCL have in common. Each is an NcclRun that registry.cpp names: collective over
// the ranks, leaves prefix and total written, in stream order.
#pragma once

#include <cstddef>

#include "device/group.h"
#include "device/nccl_comm.h"
#include "scan/algorithms.h"
#include "scan/nccl/affine.h"

namespace seqpar {

/// What an algorithm works with.
struct NcclScanSetting {
  NcclComm& nccl;
  NcclAffine& affine;
  seqparDataType_t wireType;
  ScanOrder order;
  DeviceStream stream;

  int position() const { return order.position; }
  int size() const { return order.size(); }
  int rankAt(int p) const { return order.ranks[static_cast<std::size_t>(p)]; }
};

/// What one step sends and receives.
struct NcclTransfers {
  std::vector<NcclSend> sends;
  std::vector<NcclReceive> receives;

  void run(const NcclScanSetting& setting) const { setting.nccl.exchange(sends, receives, setting.stream); }
};

}  // namespace seqpar
