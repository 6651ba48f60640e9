// CPU emulation of a CTA: runs kernels written with kernels/attn/linear/warp_ops.h, one fiber per thread. Warp-wide
// operations wait for all lanes of the warp. The order of the warps between two barriers is random, so that a missing
// barrier gives wrong results, and an asynchronous copy takes effect as late as allowed.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>

#include "kernels/numbers.h"

namespace seqpar::attn::warp {

/// Runs `kernel` on every thread of `blocks` CTAs, one CTA after another.
void run(int blocks, int threads, size_t sharedBytes, uint64_t seed, const std::function<void()>& kernel);

int thread();
inline int opaqueThread() {
  return thread();
}
int block();
int blocks();
void syncBlock();
bool allOfBlock(bool value);
void syncWarp();
void syncWarpgroup(int group);  ///< warpgroup_ops.h's sync()
void syncBarrier(int id, int threads, bool wait);
bool anyAtBarrier(int id, int threads, bool value);
template <int kId, int kThreads>
void syncNamed() {
  syncBarrier(kId, kThreads, true);
}
template <int kId, int kThreads>
void arriveNamed() {
  syncBarrier(kId, kThreads, false);
}
char* sharedMemory();
inline uint32_t sharedAddress(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const char*>(pointer) - sharedMemory());
}
inline char* sharedAt(uint32_t address) {
  return sharedMemory() + address;
}
inline void griddepcontrolWait() {}

inline int opaque(int value) {
  return value;
}
inline int64_t opaque(int64_t value) {
  return value;
}
inline int uniform(int value) {
  return value;
}
float shuffle(float value, int lane);
float shuffleXor(float value, int mask);

float exp2(float x);
void loadMatrices(uint32_t (&to)[4], const void* row);
void loadTransposed(uint32_t (&to)[4], const void* row);
void storeMatrices(void* row, const uint32_t (&from)[4]);
void storeTransposed(void* row, const uint32_t (&from)[4]);
uint32_t transpose(uint32_t pair);
void copyAsync(void* to, const void* from, bool valid, int bytes = 16);
void commitCopies();
void awaitAllBut(int left);
template <int kLeft>
void awaitCopies() {
  awaitAllBut(kLeft);
}
void storeBulk(void* to, const void* from, int bytes);
void commitBulk();
void awaitBulkBut(int left);
template <int kLeft>
void awaitBulkRead() {
  awaitBulkBut(kLeft);
}
void awaitBulk();
inline void prefetch(const void*) {}
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

inline void loadConstant(uint32_t& word, const void* from, bool valid) {
  word = valid ? *static_cast<const uint32_t*>(from) : 0;
}
inline void loadConstant(uint32_t& low, uint32_t& high, const void* from, bool valid) {
  loadConstant(low, from, valid);
  loadConstant(high, static_cast<const uint32_t*>(from) + 1, valid);
}

void multiplyAddTf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
inline uint32_t bitsOf(float x) {
  return std::bit_cast<uint32_t>(x);
}
inline float ofBits(uint32_t x) {
  return std::bit_cast<float>(x);
}
uint32_t largestOfWarp(uint32_t x);
inline uint32_t largerOfPairs(uint32_t a, uint32_t b) {
  return std::max(a & 0xffffu, b & 0xffffu) | std::max(a >> 16, b >> 16) << 16;
}
inline float reciprocal(float x) {
  return 1 / x;
}

void multiplyAddAs(bool bf16, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

/// As on the GPU: fp16 saturates.
template <class T>
uint32_t pack(float low, float high) {
  if constexpr (kIsBf16<T>) return floatsToBfloats(low, high);
  const auto saturated = [](float value) { return value > 65504.f ? 65504.f : value < -65504.f ? -65504.f : value; };
  return floatsToHalves(saturated(low), saturated(high));
}
template <class T>
float lowOf(uint32_t both) {
  return kIsBf16<T> ? bfloatToFloat(both) : halfToFloat(both);
}
template <class T>
float highOf(uint32_t both) {
  return lowOf<T>(both >> 16);
}
template <class T>
void multiplyAdd(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  multiplyAddAs(kIsBf16<T>, c, a, b0, b1);
}

}  // namespace seqpar::attn::warp
