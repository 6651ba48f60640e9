// Declarations that the algorithms of All-Scan over NCCL share. Each is an NcclRun that registry.cpp names: collective
// over the ranks, writes prefix and total, in stream order.
#pragma once

#include <cstddef>

#include "device/group.h"
#include "device/nccl_comm.h"
#include "scan/algorithms.h"
#include "scan/nccl/affine.h"

namespace seqpar {

/// Environment of an algorithm.
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

/// Sends and receives of one step.
struct NcclTransfers {
  std::vector<NcclSend> sends;
  std::vector<NcclReceive> receives;

  void run(const NcclScanSetting& setting) const { setting.nccl.exchange(sends, receives, setting.stream); }
};

}  // namespace seqpar
