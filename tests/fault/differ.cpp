// differ CASE: a job of three ranks, threads of one process; rank 1 differs after five All-Scans.
// SEQPAR_TRACE_FILE says where the flight records are written. Exit status 0 if every rank has an error.
#include <barrier>
#include <cstdio>
#include <cstring>
#include <vector>

#include "common/ranks.h"
#include "common/timeouts.h"
#include "seqpar/exchange.h"
#include "seqpar/scan.h"

using namespace seqpar::test;

namespace {

constexpr int kRanks = 3, kDeviating = 1, kAlike = 5;

/// An All-Scan of `heads` heads of 4 x 4.
seqparResult_t scan(seqparComm_t comm, size_t heads) {
  std::vector<float> state(heads * 16, 1.0f), prefix(state.size());
  seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
  params.op = seqparScanSum;
  params.algorithm = seqparScanTransposed;  // each rank waits for each
  params.heads = static_cast<int64_t>(heads);
  params.dk = params.dv = 4;
  return seqparAllScan(state.data(), nullptr, nullptr, prefix.data(), nullptr, &params, comm, nullptr);
}

seqparResult_t gather(seqparComm_t comm) {
  std::vector<float> shard(1000), whole(shard.size() * kRanks);
  seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER;
  shards.tokens = static_cast<int64_t>(shard.size());
  return seqparAllGather(shard.data(), whole.data(), &shards, comm, nullptr);
}

/// Rank 1 differs in this call. A rank that completes it gets the error in the next call.
seqparResult_t differ(seqparComm_t comm, int rank, const char* how) {
  const bool deviating = rank == kDeviating;
  if (deviating && std::strcmp(how, "call") == 0) return gather(comm);
  if (deviating && std::strcmp(how, "leave") == 0) return seqparCommAbort(comm), seqparRemoteError;
  seqparResult_t result = scan(comm, deviating ? 5 : 2);
  while (result == seqparSuccess) result = scan(comm, 2);
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  seqparUniqueId id;
  if (seqparGetUniqueId(&id) != seqparSuccess) return 1;
  std::barrier<> alike(kRanks);
  const auto errors = onThreads(kRanks, [&](int rank) {
    seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
    config.timeoutMs = kNoTimeoutMs;
    seqparComm_t comm = nullptr;
    expectSuccess(seqparCommInitRankConfig(&comm, kRanks, id, rank, &config), "seqparCommInitRankConfig");
    for (int i = 0; i < kAlike; ++i) expectSuccess(scan(comm, 2), "seqparAllScan", comm);
    alike.arrive_and_wait();
    const seqparResult_t result = differ(comm, rank, argv[1]);
    expect(result != seqparSuccess, "seqparSuccess, although rank 1 called something else");
    const bool left = rank == kDeviating && std::strcmp(argv[1], "leave") == 0;
    if (!left) seqparCommDestroy(comm);
  });
  std::fputs(errors.c_str(), stdout);
  return errors.empty() ? 0 : 1;
}
