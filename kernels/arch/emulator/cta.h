// Instructions of kernels/arch/ptx.h, async_copy.h and mma.h on an emulated CTA (README.md). Tests implement them in
// tests/support/emulator.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace seqpar::emulator {

/// Runs `kernel` on every thread of `blocks` CTAs, one CTA after another.
void run(int blocks, int threads, size_t sharedBytes, uint64_t seed, const std::function<void()>& kernel);

/// A kernel launch of a stream.
struct Grid {
  int blocks = 1, threads = 32;
  size_t sharedBytes = 0;
  std::function<void()> kernel;
  bool early = false;          ///< programmatic dependent launch: may start before the previous launch ends
  bool nextAfterWait = false;  ///< executes griddepcontrol.launch_dependents after griddepcontrol.wait and a fence
};

/// Runs the launches of a stream in the order that differs most from theirs: a launch with `early` runs up to
/// griddepcontrol.wait before its predecessors, the latest launch first. It starts after its predecessor's wait if the
/// predecessor has `nextAfterWait`. Otherwise no earlier result is visible to it before its own wait, even if its
/// predecessor has no launch_dependents. Throws std::logic_error if a launch with `early` ends without a wait, since
/// the next one waits for that launch only, or if `nextAfterWait` is wrong.
void runStream(const std::vector<Grid>& launches, uint64_t seed);

}  // namespace seqpar::emulator

namespace seqpar::ptx {

int thread();
inline int opaqueThread() {
  return thread();
}
int block();
int blocks();
char* sharedMemory();
inline uint32_t sharedAddress(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const char*>(pointer) - sharedMemory());
}
inline char* sharedAt(uint32_t address) {
  return sharedMemory() + address;
}

void griddepcontrolWait();
void griddepcontrolLaunchDependents();

void syncthreads();
bool syncthreadsAnd(bool value);
void syncwarp();
bool voteAll(bool value);
void barrierSync(int id, int threads);
void barrierArrive(int id, int threads);
bool barrierRedOr(int id, int threads, bool mine);
template <int kId, int kThreads>
void barrierSync() {
  barrierSync(kId, kThreads);
}
template <int kId, int kThreads>
void barrierArrive() {
  barrierArrive(kId, kThreads);
}
template <int kThreads>
bool barrierRedOr(int id, bool mine) {
  return barrierRedOr(id, kThreads, mine);
}

inline int uniform(int value) {
  return value;
}
float shfl(float value, int lane);
float shflXor(float value, int mask);
uint32_t reduxMax(uint32_t x);
inline int opaque(int value) {
  return value;
}
inline int64_t opaque(int64_t value) {
  return value;
}

inline float ex2Approx(float x) {
  return x < -126 ? 0.f : std::exp2(x);
}
float ex2ApproxOfDecay(float x);
inline float rcpApprox(float x) {
  return 1 / x;
}
inline float maxNan(float a, float b) {
  return a != a || b != b ? NAN : std::max(a, b);
}
inline uint32_t maxU16x2(uint32_t a, uint32_t b) {
  return std::max(a & 0xffffu, b & 0xffffu) | std::max(a >> 16, b >> 16) << 16;
}

inline void storePair(float* to, float low, float high) {
  to[0] = low;
  to[1] = high;
}
inline void storeStreaming(float* to, float low, float high) {
  storePair(to, low, high);
}
inline void storeStreaming(uint16_t* to, uint32_t pair) {
  *reinterpret_cast<uint32_t*>(to) = pair;
}
inline void storeStreaming(uint16_t* to, uint32_t pair, uint32_t next) {
  storeStreaming(to, pair);
  storeStreaming(to + 2, next);
}
inline void store(void* to, const uint32_t (&words)[4]) {
  for (int i = 0; i < 4; ++i) static_cast<uint32_t*>(to)[i] = words[i];
}
inline void storeGlobal(void* to, const uint32_t (&words)[4]) {
  store(to, words);
}
inline void storeStreaming(void* to, const uint32_t (&words)[4]) {
  store(to, words);
}
inline void load(uint32_t (&words)[4], const void* from) {
  for (int i = 0; i < 4; ++i) words[i] = static_cast<const uint32_t*>(from)[i];
}
inline void loadPair(const float* from, float& low, float& high) {
  low = from[0];
  high = from[1];
}
inline void prefetch(const void*) {}

void cpAsync(void* to, const void* from, bool valid, int bytes);
inline void cpAsync16(void* to, const void* from, bool valid) {
  cpAsync(to, from, valid, 16);
}
inline void cpAsync16(uint32_t to, const void* from, bool valid) {
  cpAsync(sharedAt(to), from, valid, 16);
}
inline void cpAsync4(uint32_t to, const void* from, bool valid) {
  cpAsync(sharedAt(to), from, valid, 4);
}
void cpAsyncCommitGroup();
void cpAsyncWaitGroup(int left);
template <int kLeft>
void cpAsyncWaitGroup() {
  cpAsyncWaitGroup(kLeft);
}
void cpAsyncBulkStore(void* to, const void* from, int bytes);
void cpAsyncBulkCommitGroup();
void cpAsyncBulkWaitGroupRead(int left);
template <int kLeft>
void cpAsyncBulkWaitGroupRead() {
  cpAsyncBulkWaitGroupRead(kLeft);
}
void cpAsyncBulkWaitGroup();

void ldmatrixX4(uint32_t (&to)[4], const void* row);
void ldmatrixX4Trans(uint32_t (&to)[4], const void* row);
void stmatrixX4(void* row, const uint32_t (&from)[4]);
void stmatrixX4Trans(void* row, const uint32_t (&from)[4]);
inline void ldmatrixX4(uint32_t (&to)[4], uint32_t row) {
  ldmatrixX4(to, sharedAt(row));
}
inline void ldmatrixX4Trans(uint32_t (&to)[4], uint32_t row) {
  ldmatrixX4Trans(to, sharedAt(row));
}
inline void stmatrixX4(uint32_t row, const uint32_t (&from)[4]) {
  stmatrixX4(sharedAt(row), from);
}
inline void stmatrixX4Trans(uint32_t row, const uint32_t (&from)[4]) {
  stmatrixX4Trans(sharedAt(row), from);
}
uint32_t movmatrixTrans(uint32_t pair);
/// Of bf16 or fp16.
void mmaM16N8K16Of(bool bf16, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
void mmaM16N8K8Tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

}  // namespace seqpar::ptx
