#include "kernels/attn/linear/warp_ops.h"

#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <csetjmp>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

namespace seqpar::attn::warp {
namespace {

constexpr size_t kStack = 256 << 10;

struct Copy {
  void* to;
  const void* from;
  bool valid;
  int bytes = 16;
};

struct Fiber {
  ucontext_t start;
  jmp_buf state;
  bool begun = false, done = false;
  std::unique_ptr<char[]> stack;
  std::vector<std::vector<Copy>> groups{1}, bulk{1};  // the last one is not committed yet
};

/// What the lanes of a warp meet for.
struct Meeting {
  int arrived = 0;
  uint64_t round = 0;
  int what = 0;
  uint32_t in[32][7];
  const void* rows[32];
  uint32_t out[32][4];
};

struct Cta {
  int index = 0, count = 0, threads = 0;
  std::vector<Fiber> fibers;
  std::vector<Meeting> warps;
  std::vector<char> shared;
  int current = 0, atBarrier = 0;
  uint64_t barrier = 0;
  int atNamed[16] = {};  // threads at the named barriers
  uint64_t named[16] = {};
  bool all[2] = {true, true};  // what the threads at this barrier say, and at the next one
  ucontext_t start;
  jmp_buf scheduler;
  const std::function<void()>* kernel = nullptr;
  bool moved = false;
};
Cta* cta = nullptr;

/// Back to the scheduler, which comes back later. Jumps need no system call, as swapcontext() does.
void yield() {
  if (_setjmp(cta->fibers[cta->current].state) == 0) _longjmp(cta->scheduler, 1);
}

void fiberMain() {
  (*cta->kernel)();
  cta->fibers[cta->current].done = true;
  _longjmp(cta->scheduler, 1);
}

void resume(int thread) {
  cta->current = thread;
  Fiber& fiber = cta->fibers[thread];
  if (_setjmp(cta->scheduler) != 0) return;
  if (fiber.begun) _longjmp(fiber.state, 1);
  fiber.begun = true;
  setcontext(&fiber.start);
}

Meeting& meet(int what) {
  Meeting& warp = cta->warps[cta->current / 32];
  if (warp.arrived > 0 && warp.what != what) throw std::logic_error("lanes of a warp meet for different things");
  warp.what = what;
  return warp;
}

/// Waits until all lanes of the warp have come, the last of which makes `result`.
template <class Result>
void together(Meeting& warp, const Result& result) {
  cta->moved = true;
  if (++warp.arrived == 32) {
    result();
    warp.arrived = 0;
    ++warp.round;
    return;
  }
  for (const uint64_t round = warp.round; warp.round == round;) yield();
}

int lane() {
  return cta->current % 32;
}

uint16_t half(uint32_t both, int which) {
  return static_cast<uint16_t>(both >> (16 * which));
}

void load(uint32_t (&to)[4], const void* row, bool transposed) {
  Meeting& warp = meet(transposed ? 2 : 1);
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) throw std::logic_error("a row of a matrix is not aligned");
  const char* first = cta->shared.data();
  if (row < first || static_cast<const char*>(row) + 16 > first + cta->shared.size()) {
    throw std::logic_error("a row of a matrix is not in shared memory");
  }
  warp.rows[lane()] = row;
  together(warp, [&] {
    for (int l = 0; l < 32; ++l) {
      for (int m = 0; m < 4; ++m) {
        uint16_t pair[2];
        for (int e = 0; e < 2; ++e) {
          const int r = transposed ? l % 4 * 2 + e : l / 4;
          const int c = transposed ? l / 4 : l % 4 * 2 + e;
          pair[e] = static_cast<const uint16_t*>(warp.rows[m * 8 + r])[c];
        }
        warp.out[l][m] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
      }
    }
  });
  std::copy_n(warp.out[lane()], 4, to);
}

void perform(const std::vector<Copy>& copies) {
  for (const Copy& copy : copies) {
    if (copy.valid) {
      std::memcpy(copy.to, copy.from, copy.bytes);
    } else {
      std::memset(copy.to, 0, copy.bytes);
    }
  }
}

}  // namespace

void run(int blocks, int threads, size_t sharedBytes, uint64_t seed, const std::function<void()>& kernel) {
  std::mt19937_64 random(seed);
  Cta own;
  own.count = blocks;
  own.threads = threads;
  own.kernel = &kernel;
  own.fibers.resize(threads);
  for (Fiber& fiber : own.fibers) fiber.stack = std::make_unique<char[]>(kStack);
  cta = &own;
  for (own.index = 0; own.index < blocks; ++own.index) {
    own.shared.assign(sharedBytes + 1024, static_cast<char>(0xff));  // NaN
    own.warps.assign(threads / 32, {});
    own.atBarrier = 0;
    for (Fiber& fiber : own.fibers) {
      fiber.begun = fiber.done = false;
      fiber.groups.assign(1, {});
      fiber.bulk.assign(1, {});
      getcontext(&fiber.start);
      fiber.start.uc_stack.ss_sp = fiber.stack.get();
      fiber.start.uc_stack.ss_size = kStack;
      fiber.start.uc_link = nullptr;
      makecontext(&fiber.start, fiberMain, 0);
    }
    std::vector<int> order(threads / 32);
    std::iota(order.begin(), order.end(), 0);
    const auto left = [&] {
      return std::any_of(own.fibers.begin(), own.fibers.end(), [](auto& f) { return !f.done; });
    };
    while (left()) {
      std::shuffle(order.begin(), order.end(), random);
      bool any = false;
      for (const int w : order) {
        do {  // a warp runs until none of its lanes gets on
          own.moved = false;
          for (int t = w * 32; t < w * 32 + 32; ++t) {
            if (!own.fibers[t].done) resume(t);
          }
          any |= own.moved;
        } while (own.moved);
      }
      if (!any && left()) throw std::logic_error("threads of a CTA wait for each other");
    }
  }
  cta = nullptr;
}

int thread() {
  return cta->current;
}
int block() {
  return cta->index;
}
int blocks() {
  return cta->count;
}

char* sharedMemory() {
  return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(cta->shared.data()) + 1023) / 1024 * 1024);
}

void syncBlock() {
  cta->moved = true;
  const uint64_t round = cta->barrier;
  if (++cta->atBarrier == cta->threads) {
    cta->atBarrier = 0;
    ++cta->barrier;
    return;
  }
  while (cta->barrier == round) yield();
}

void syncBarrier(int id, int threads, bool wait) {
  cta->moved = true;
  const uint64_t round = cta->named[id];
  if (++cta->atNamed[id] == threads) {
    cta->atNamed[id] = 0;
    ++cta->named[id];
    return;
  }
  while (wait && cta->named[id] == round) yield();
}

void syncWarpgroup(int group) {
  syncBarrier(group + 1, 128, true);
}

bool allOfBlock(bool value) {
  const uint64_t round = cta->barrier;
  cta->all[round % 2] &= value;
  cta->all[(round + 1) % 2] = true;
  syncBlock();
  return cta->all[round % 2];
}

void syncWarp() {
  together(meet(8), [] {});
}

float shuffle(float value, int from) {
  Meeting& warp = meet(3);
  warp.in[lane()][0] = std::bit_cast<uint32_t>(value);
  const int me = lane();
  together(warp, [&] {
    for (int l = 0; l < 32; ++l) warp.out[l][0] = warp.in[l][0];
  });
  (void)me;
  return std::bit_cast<float>(warp.out[from & 31][0]);
}
float shuffleXor(float value, int mask) {
  return shuffle(value, lane() ^ mask);
}

uint32_t largestOfWarp(uint32_t x) {
  for (int mask = 1; mask < 32; mask *= 2) x = std::max(x, bitsOf(shuffleXor(ofBits(x), mask)));
  return x;
}

float exp2(float x) {
  if (x > 0) throw std::logic_error("an exponent above 0");
  return x < -126 ? 0.f : std::exp2(x);
}

void loadMatrices(uint32_t (&to)[4], const void* row) {
  load(to, row, false);
}
void loadTransposed(uint32_t (&to)[4], const void* row) {
  load(to, row, true);
}

void storeMatrices(void* row, const uint32_t (&from)[4]) {
  Meeting& warp = meet(9);
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) throw std::logic_error("a row of a matrix is not aligned");
  warp.rows[lane()] = row;
  std::copy_n(from, 4, warp.in[lane()]);
  together(warp, [&] {
    for (int l = 0; l < 32; ++l) {
      for (int m = 0; m < 4; ++m) {
        auto* to = static_cast<uint16_t*>(const_cast<void*>(warp.rows[m * 8 + l / 4])) + l % 4 * 2;
        for (int e = 0; e < 2; ++e) to[e] = half(warp.in[l][m], e);
      }
    }
  });
}

uint32_t transpose(uint32_t pair) {
  Meeting& warp = meet(4);
  warp.in[lane()][0] = pair;
  together(warp, [&] {
    for (int l = 0; l < 32; ++l) {
      uint16_t to[2];
      for (int e = 0; e < 2; ++e) {  // element (row l/4, column l%4*2+e) of the result
        const int r = l % 4 * 2 + e, c = l / 4;
        to[e] = half(warp.in[r * 4 + c / 2][0], c % 2);
      }
      warp.out[l][0] = to[0] | static_cast<uint32_t>(to[1]) << 16;
    }
  });
  return warp.out[lane()][0];
}

void multiplyAddAs(bool bf16, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  Meeting& warp = meet(bf16 ? 5 : 6);
  std::copy_n(a, 4, warp.in[lane()]);
  warp.in[lane()][4] = b0;
  warp.in[lane()][5] = b1;
  together(warp, [&] {
    const auto number = [&](uint32_t both, int which) {
      return bf16 ? bfloatToFloat(half(both, which)) : halfToFloat(half(both, which));
    };
    float left[16][16], right[16][8];
    for (int l = 0; l < 32; ++l) {
      const int g = l / 4, t = l % 4 * 2;
      for (int e = 0; e < 2; ++e) {
        for (int r = 0; r < 4; ++r) left[g + r % 2 * 8][t + e + r / 2 * 8] = number(warp.in[l][r], e);
        for (int r = 0; r < 2; ++r) right[t + e + r * 8][g] = number(warp.in[l][4 + r], e);
      }
    }
    for (int l = 0; l < 32; ++l) {
      for (int e = 0; e < 4; ++e) {
        float sum = 0;
        for (int k = 0; k < 16; ++k) sum += left[l / 4 + e / 2 * 8][k] * right[k][l % 4 * 2 + e % 2];
        warp.out[l][e] = std::bit_cast<uint32_t>(sum);
      }
    }
  });
  for (int e = 0; e < 4; ++e) c[e] += std::bit_cast<float>(warp.out[lane()][e]);
}

void multiplyAddTf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  Meeting& warp = meet(7);
  std::copy_n(a, 4, warp.in[lane()]);
  warp.in[lane()][4] = b0;
  warp.in[lane()][5] = b1;
  together(warp, [&] {
    const auto number = [](uint32_t bits) { return std::bit_cast<float>(bits & 0xffffe000u); };
    for (int l = 0; l < 32; ++l) {
      for (int e = 0; e < 4; ++e) {
        float sum = 0;
        for (int k = 0; k < 8; ++k) {
          const int row = l / 4 * 4 + k % 4, column = (l % 4 * 2 + e % 2) * 4 + k % 4;
          sum += number(warp.in[row][e / 2 + k / 4 * 2]) * number(warp.in[column][4 + k / 4]);
        }
        warp.out[l][e] = std::bit_cast<uint32_t>(sum);
      }
    }
  });
  for (int e = 0; e < 4; ++e) c[e] += std::bit_cast<float>(warp.out[lane()][e]);
}

void copyAsync(void* to, const void* from, bool valid) {
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || (valid && reinterpret_cast<uintptr_t>(from) % 16 != 0)) {
    throw std::logic_error("an asynchronous copy is not aligned");
  }
  cta->fibers[cta->current].groups.back().push_back({to, from, valid});
}
void commitCopies() {
  cta->fibers[cta->current].groups.emplace_back();
}
void performAllBut(int left, std::vector<std::vector<Copy>>& groups) {
  while (static_cast<int>(groups.size()) - 1 > left) {
    perform(groups.front());
    groups.erase(groups.begin());
  }
}
void awaitAllBut(int left) {
  performAllBut(left, cta->fibers[cta->current].groups);
}
void storeBulk(void* to, const void* from, int bytes) {
  cta->fibers[cta->current].bulk.back().push_back({to, from, true, bytes});
}
void commitBulk() {
  cta->fibers[cta->current].bulk.emplace_back();
}
void awaitBulkBut(int left) {
  performAllBut(left, cta->fibers[cta->current].bulk);
}

}  // namespace seqpar::attn::warp
