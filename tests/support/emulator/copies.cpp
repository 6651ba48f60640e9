// Asynchronous copies of an emulated CTA, in flight from their call until the wait for them: the source is read as late
// as possible, and the destination is invalidated at once.
#include <algorithm>
#include <cstring>

#include "kernels/arch/async_copy.h"
#include "support/emulator/cta.h"

namespace seqpar::emulator {
void perform(const Copy& copy) {
  test::writes(copy.to, static_cast<size_t>(copy.bytes));
  if (!copy.valid) {
    std::memset(copy.to, 0, copy.bytes);
    return;
  }
  test::reads(copy.from, static_cast<size_t>(copy.bytes));
  std::memcpy(copy.to, copy.from, copy.bytes);
}

void corrupt(const Copy& copy) {
  constexpr char kNan = static_cast<char>(0xff);
  test::writes(copy.to, static_cast<size_t>(copy.bytes));
  std::memset(copy.to, kNan, copy.bytes);
}

}  // namespace seqpar::emulator

namespace seqpar::ptx {
namespace {

using namespace emulator;

Fiber& self() {
  return cta->fibers[cta->current];
}

}  // namespace

void cpAsync(void* to, const void* from, bool valid, int bytes) {
  const auto aligned = [&](const void* place) {
    return reinterpret_cast<uintptr_t>(place) % static_cast<uintptr_t>(bytes) == 0;
  };
  if (!aligned(to) || (valid && !aligned(from))) throw std::logic_error("an asynchronous copy is not aligned");
  const Copy copy{to, from, valid, bytes};
  corrupt(copy);
  self().groups.back().push_back(copy);
}
void cpAsyncCommitGroup() {
  self().groups.emplace_back();
}
void cpAsyncWaitGroup(int left) {
  CopyGroups& groups = self().groups;
  while (static_cast<int>(groups.size()) - 1 > left) {
    for (const Copy& copy : groups.front()) perform(copy);
    groups.erase(groups.begin());
  }
}

void cpAsyncBulkStore(void* to, const void* from, int bytes) {
  asUnits([&] { test::reads(from, static_cast<size_t>(bytes)); });
  self().bulk.back().push_back({to, from, true, bytes});
}
void cpAsyncBulkCommitGroup() {
  self().bulk.emplace_back();
}
/// Until their source, in shared memory, may be replaced.
void cpAsyncBulkWaitGroupRead(int left) {
  Fiber& fiber = self();
  asUnits([&] {
    for (; static_cast<int>(fiber.bulk.size() - 1 - fiber.bulkTaken) > left; ++fiber.bulkTaken) {
      for (Copy& copy : fiber.bulk[fiber.bulkTaken]) {
        const auto* from = static_cast<const char*>(copy.from);
        test::reads(from, static_cast<size_t>(copy.bytes));
        copy.taken.assign(from, from + copy.bytes);
      }
    }
  });
  followUnits();
}
/// Until they have been written.
void cpAsyncBulkWaitGroup() {
  cpAsyncBulkWaitGroupRead(0);
  Fiber& fiber = self();
  asUnits([&] {
    for (const auto& group : fiber.bulk) {
      for (const Copy& copy : group) {
        test::writes(copy.to, copy.taken.size());
        std::copy(copy.taken.begin(), copy.taken.end(), static_cast<char*>(copy.to));
      }
    }
  });
  followUnits();
  fiber.bulk.assign(1, {});
  fiber.bulkTaken = 0;
}

}  // namespace seqpar::ptx
