// A program that leaves its handles to a global object's destructor, which runs after those of the library's static and
// thread variables, while another thread still calls. Exits with 1 if a call there fails.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "common/ranks.h"
#include "common/timeouts.h"
#include "seqpar/shrink.h"

using namespace seqpar::test;

namespace {

constexpr int kRanks = 2;

struct Handles {
  std::vector<seqparComm_t> comms = std::vector<seqparComm_t>(kRanks);
  seqparStream_t stream = nullptr;
  bool made = false;

  ~Handles() {
    if (!made) return;
    auto wrong = onThreads(kRanks, [this](int rank) {
      int received = -1;
      seqparComm_t comm = comms[static_cast<size_t>(rank)];
      expectSuccess(seqparSendRecv(&rank, sizeof(rank), 1 - rank, &received, sizeof(received), 1 - rank, comm,
                                   rank == 0 ? stream : nullptr),
                    "seqparSendRecv", comm);
      expectSuccess(seqparStreamSynchronize(stream), "seqparStreamSynchronize");
      expect(received == 1 - rank, "received ", received);
      expectSuccess(seqparCommDestroy(comm), "seqparCommDestroy");
    });
    if (seqparStreamDestroy(stream) != seqparSuccess) wrong += seqparGetLastError(nullptr);
    if (seqparStreamDestroy(stream) != seqparInvalidArgument) wrong += "a stream was destroyed twice";
    if (std::string(seqparGetLastError(nullptr)).find("seqparStreamDestroy: ") != 0) wrong += "no text of an error";
    std::printf("%s", wrong.c_str());
    std::fflush(stdout);
    if (!wrong.empty()) std::_Exit(1);
  }
} handles;

}  // namespace

int main() {
  seqparUniqueId id;
  if (seqparGetUniqueId(&id) != seqparSuccess || seqparStreamCreate(&handles.stream) != seqparSuccess) return 1;
  const auto wrong = onThreads(kRanks, [&id](int rank) {
    seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
    config.timeoutMs = kNoTimeoutMs;
    seqparComm_t first = nullptr;
    expectSuccess(seqparCommInitRankConfig(&first, kRanks, id, rank, &config), "seqparCommInitRankConfig");
    // The leader of the agreement has started a server for the next communicator.
    seqparComm_t& next = handles.comms[static_cast<size_t>(rank)];
    expectSuccess(seqparCommShrink(first, nullptr, &next), "seqparCommShrink", first);
    expectSuccess(seqparCommDestroy(first), "seqparCommDestroy");
  });
  std::printf("%s", wrong.c_str());
  if (!wrong.empty()) return 1;
  handles.made = true;
  seqparStreamSynchronize(handles.stream);
  static std::atomic<bool> began{false};
  std::thread([] {
    seqparUniqueId other;
    for (int call = 0; call < 50 && seqparGetUniqueId(&other) == seqparSuccess; ++call) {
      began = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }).detach();
  while (!began) std::this_thread::yield();
  return 0;
}
