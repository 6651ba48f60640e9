// The algorithms of All-Scan over NCCL. Each is collective over the ranks and leaves prefix and total written, in
// stream order.
#pragma once

#include <cstddef>

#include "device/group.h"
#include "device/nccl_comm.h"
#include "scan/algorithms.h"
#include "scan/nccl_affine.h"

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

/// ZeCO's pipeline in `blocks` blocks; with one block LASP-1's chain.
void ncclChain(const NcclScanSetting& setting, std::size_t blocks);
/// One step: everybody's map to all later positions.
void ncclOneshot(const NcclScanSetting& setting);
/// LASP-2: all maps to everybody, by NCCL's all-gather.
void ncclGatherScan(const NcclScanSetting& setting);
/// All-to-all, a scan of one's shard, all-to-all back.
void ncclTransposed(const NcclScanSetting& setting);
/// ncclTransposed() inside the nodes around a chain of shards between them, in `blocks` blocks, on `rails` rails.
void ncclHier(const NcclScanSetting& setting, std::size_t blocks, int rails);

}  // namespace seqpar
