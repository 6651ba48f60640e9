// Three ranks as threads, a DIAG scan in the reverse direction on a host stream. Throws if anything is wrong.
#include <seqpar/seqpar.h>

#include <cstdio>
#include <future>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int kRanks = 3, kHeads = 2, kRows = 4, kColumns = 3;

void require(seqparResult_t result, seqparComm_t comm) {
  if (result == seqparSuccess) return;
  throw std::runtime_error(std::string(seqparGetErrorString(result)) + ": " + seqparGetLastError(comm));
}

void runRank(seqparComm_t comm, int rank) {
  std::vector<float> state(kHeads * kRows * kColumns, 1.f), transition(kHeads * kRows, 0.5f), prefix(state.size());
  seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
  params.direction = seqparReverse;
  params.heads = kHeads;
  params.dk = kRows;
  params.dv = kColumns;
  seqparStream_t stream = nullptr;
  require(seqparStreamCreate(&stream), nullptr);
  require(seqparAllScan(state.data(), transition.data(), nullptr, prefix.data(), nullptr, &params, comm, stream), comm);
  require(seqparStreamSynchronize(stream), comm);
  require(seqparStreamDestroy(stream), nullptr);

  float expected = 0.f;
  for (int after = kRanks - 1; after > rank; --after) expected = 0.5f * expected + 1.f;
  for (float value : prefix) {
    if (value != expected) {
      throw std::runtime_error("rank " + std::to_string(rank) + ": prefix " + std::to_string(value) + ", expected " +
                               std::to_string(expected));
    }
  }
  require(seqparCommDestroy(comm), nullptr);
}

}  // namespace

int main() {
  std::vector<seqparComm_t> comms(kRanks);
  require(seqparCommInitAll(comms.data(), kRanks, nullptr), nullptr);
  std::vector<std::future<void>> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.push_back(std::async(std::launch::async, runRank, comms[static_cast<size_t>(rank)], rank));
  }
  for (auto& rank : ranks) rank.get();
  std::puts("C++ consumer: ok");
}
