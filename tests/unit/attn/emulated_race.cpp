// Kernels on an emulated CTA with one race each; a second argument adds the missing ordering. ThreadSanitizer must
// report the race, and nothing with the ordering.
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <string>

#include "kernels/attn/linear/warpgroup_ops.h"

namespace {

using namespace seqpar::attn;  // NOLINT(google-build-using-namespace)

bool ordered = false;
/// Destination of this thread's reads; each thread has its own location.
volatile float& taken() {
  static volatile float places[2 * 2 * warpgroup::kThreads];
  return places[warp::block() * 2 * warpgroup::kThreads + warp::thread()];
}

float* numbers() {
  return reinterpret_cast<float*>(warp::sharedMemory());
}
bool inGroup(int group) {
  return warp::thread() / warpgroup::kThreads == group;
}

/// The second warpgroup reads values that the first one has written.
void barrier() {
  if (inGroup(0)) numbers()[warp::thread()] = 1;
  if (ordered) warp::syncBlock();
  if (inGroup(1)) taken() = numbers()[warp::thread() - warpgroup::kThreads];
}

/// An arrival at a barrier orders the thread before the threads that wait at it, not after them.
void arrival() {
  const bool writes = inGroup(0) == ordered;
  const int place = warp::thread() % warpgroup::kThreads;
  if (writes) numbers()[place] = 1;
  if (inGroup(0)) {
    warp::arriveNamed<5, 2 * warpgroup::kThreads>();
  } else {
    warp::syncNamed<5, 2 * warpgroup::kThreads>();
  }
  if (!writes) taken() = numbers()[place];
}

/// A product reads only stores that have been published to it.
void publication() {
  auto* operands = reinterpret_cast<uint16_t*>(warp::sharedMemory());
  for (int i = warp::thread(); i < 2 * 64 * 64; i += 2 * warpgroup::kThreads) operands[i] = 0;
  if (ordered) warpgroup::fenceProxyAsync();
  warp::syncBlock();
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
  if (warp::thread() != 0) return;
  warp::storeBulk(memory[warp::block()], numbers(), sizeof memory[0]);
  warp::commitBulk();
  if (ordered) warp::awaitBulk();
  numbers()[0] = 1;
  warp::awaitBulk();
}

/// Nothing orders two CTAs.
void ctas() {
  static volatile float memory[2];
  if (warp::thread() == 0) memory[ordered ? warp::block() : 0] = 1;
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
  warp::run(2, 2 * warpgroup::kThreads, 1 << 15, 1, kernel->second);
  return 0;
}
