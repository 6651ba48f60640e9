// NCCL's windows as peer memory: every rank writes to every other's by plain stores. Needs two GPUs; exit status 77
// without, and where NCCL has no windows, with its reason.
#include <cstdint>

#include "device/nccl_window.h"
#include "support/nccl_ranks.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

constexpr std::size_t kWords = 1 << 16;

__global__ void writeTo(std::uint32_t* remote, int from, int to) {
  for (std::size_t i = threadIdx.x; i < kWords; i += blockDim.x) {
    remote[i] = static_cast<std::uint32_t>(i * 31 + static_cast<unsigned>(from) * 7 + static_cast<unsigned>(to));
  }
}

void barrier(NcclRank& mine) {
  const char here = 0;
  std::vector<char> all(static_cast<std::size_t>(mine.nccl->size()));
  mine.control.gatherValues(here, std::span(all));
}

void writeEverywhere(NcclRank& mine, const PeerWindow& window) {
  const int ranks = mine.nccl->size();
  const StreamHandle stream = makeStream();
  const auto size = static_cast<std::size_t>(ranks);
  std::vector<std::uint32_t> own(kWords * size, 1);
  expectCuda(cudaMemcpy(own.data(), window.at(mine.rank), own.size() * 4, cudaMemcpyDeviceToHost), "cudaMemcpy");
  expect(own == std::vector<std::uint32_t>(kWords * size, 0), "a new window is all zeros");
  barrier(mine);
  for (int to = 0; to < ranks; ++to) {
    auto* const remote = reinterpret_cast<std::uint32_t*>(window.at(to)) + kWords * static_cast<std::size_t>(mine.rank);
    writeTo<<<1, 256, 0, stream.get()>>>(remote, mine.rank, to);
  }
  expectCuda(cudaStreamSynchronize(stream.get()), "writing to peers");
  barrier(mine);
  expectCuda(cudaMemcpy(own.data(), window.at(mine.rank), own.size() * 4, cudaMemcpyDeviceToHost), "cudaMemcpy");
  for (std::size_t i = 0; i < own.size(); ++i) {
    const std::size_t from = i / kWords;
    const auto expected = static_cast<std::uint32_t>(i % kWords * 31 + from * 7 + static_cast<std::size_t>(mine.rank));
    expect(own[i] == expected, "word ", i % kWords, " from rank ", from, " is ", own[i], ", expected ", expected);
  }
}

}  // namespace

int main() {
  limitSeconds(120);
  const int gpus = requireNcclRanks();
  std::string reason;
  const std::string problem = onNcclRanks(gpus, patience(std::chrono::seconds(60)), [&reason](NcclRank& mine) {
    for (int round = 0; round < 3; ++round) {
      std::string why;
      const auto window = makeNcclWindow(*mine.nccl, kWords * 4 * static_cast<std::size_t>(mine.nccl->size()), why);
      expect((window == nullptr) == !why.empty(), "either a window or a reason");
      if (mine.rank == 0) reason = why;
      if (window == nullptr) return;
      writeEverywhere(mine, *window);
      barrier(mine);
    }
    // A refused window leaves the communicator usable.
    std::string why;
    const auto group = mine.nccl->subset({mine.rank}, mine.health);
    expect(makeNcclWindow(*group, 4096, why) == nullptr && !why.empty(), "a window of a part of a communicator");
  });
  if (problem.empty() && !reason.empty()) {
    std::printf("skipped: %s\n", reason.c_str());
    return kSkipped;
  }
  std::printf("%s, %d ranks: %s\n", ncclReport().c_str(), gpus, problem.empty() ? "ok" : problem.c_str());
  return problem.empty() ? 0 : 1;
}
