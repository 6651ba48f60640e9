// Kernels on an emulated CTA with one race each; a second argument adds the missing ordering. ThreadSanitizer must
// report the race, and nothing with the ordering.
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <string>

#include "kernels/arch/async_copy.h"
#include "kernels/arch/warpgroup.h"

namespace {

using namespace seqpar;  // NOLINT(google-build-using-namespace)

bool ordered = false;
/// Destination of this thread's reads; each thread has its own location.
volatile float& taken() {
  static volatile float places[2 * 2 * warpgroup::kThreads];
  return places[ptx::block() * 2 * warpgroup::kThreads + ptx::thread()];
}

float* numbers() {
  return reinterpret_cast<float*>(ptx::sharedMemory());
}
bool inGroup(int group) {
  return ptx::thread() / warpgroup::kThreads == group;
}

/// The second warpgroup reads values that the first one has written.
void barrier() {
  if (inGroup(0)) numbers()[ptx::thread()] = 1;
  if (ordered) ptx::syncthreads();
  if (inGroup(1)) taken() = numbers()[ptx::thread() - warpgroup::kThreads];
}

/// An arrival at a barrier orders the thread before the threads that wait at it, not after them.
void arrival() {
  const bool writes = inGroup(0) == ordered;
  const int place = ptx::thread() % warpgroup::kThreads;
  if (writes) numbers()[place] = 1;
  if (inGroup(0)) {
    ptx::barrierArrive<5, 2 * warpgroup::kThreads>();
  } else {
    ptx::barrierSync<5, 2 * warpgroup::kThreads>();
  }
  if (!writes) taken() = numbers()[place];
}

/// A product reads only stores that have been published to it.
void publication() {
  auto* operands = reinterpret_cast<uint16_t*>(ptx::sharedMemory());
  for (int i = ptx::thread(); i < 2 * 64 * 64; i += 2 * warpgroup::kThreads) operands[i] = 0;
  if (ordered) warpgroup::fenceProxyAsync();
  ptx::syncthreads();
  float c[8][4] = {};
  warpgroup::arrive();
  warpgroup::multiplyAll<Bf16, warpgroup::Terms::AlongRows, warpgroup::Terms::Rows, 1>(c, {operands}, 64,
                                                                                       {operands + 64 * 64}, 64, false);
  warpgroup::commit();
  warpgroup::wait<0>();
  taken() = c[0][0];
}

/// A bulk copy may read its source until a wait for the copy has returned.
void copy() {
  static uint32_t memory[2][64];
  if (ptx::thread() != 0) return;
  ptx::cpAsyncBulkStore(memory[ptx::block()], numbers(), sizeof memory[0]);
  ptx::cpAsyncBulkCommitGroup();
  if (ordered) ptx::cpAsyncBulkWaitGroup();
  numbers()[0] = 1;
  ptx::cpAsyncBulkWaitGroup();
}

/// Nothing orders two CTAs.
void ctas() {
  static volatile float memory[2];
  if (ptx::thread() == 0) memory[ordered ? ptx::block() : 0] = 1;
}

}  // namespace

int main(int count, char** arguments) {
  const std::map<std::string, void (*)()> kernels{
      {"barrier", barrier}, {"arrival", arrival}, {"publication", publication}, {"copy", copy}, {"ctas", ctas}};
  const auto kernel = count > 1 ? kernels.find(arguments[1]) : kernels.end();
  if (kernel == kernels.end()) {
    std::fprintf(stderr, "usage: emulated_race barrier|arrival|publication|copy|ctas [ordered]\n");
    return 2;
  }
  ordered = count > 2 && std::strcmp(arguments[2], "ordered") == 0;
  emulator::run(2, 2 * warpgroup::kThreads, 1 << 15, 1, kernel->second);
  return 0;
}
