#include "scan/peers/task.h"

#include <algorithm>
#include <cstdint>

#include "base/convert.h"
#include "base/error.h"

namespace seqpar {
namespace {

/// Elements per CTA: few, since small scans are bound by instruction issue, and each SM issues its own.
constexpr std::size_t kElementsOfChannel = 512;

bool isAligned(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
}

void placePositions(ScanTask& task, const PeerView& view, std::span<const int> order) {
  std::fill_n(task.positionOf, kMostPeers, std::int8_t{-1});
  task.positions = static_cast<int>(order.size());
  task.position = -1;
  for (int p = 0; p < task.positions; ++p) {
    const int peer = order[static_cast<std::size_t>(p)];
    task.peerAt[p] = static_cast<std::int8_t>(peer);
    task.positionOf[peer] = static_cast<std::int8_t>(p);
    if (peer == view.self) task.position = p;
  }
  if (task.position < 0) fail(seqparInternalError, "a scan among ", order.size(), " peers was passed to another peer");
}

void placeFlags(ScanTask& task, std::span<const unsigned char> flags) {
  for (std::size_t head = 0; head < flags.size(); ++head) {
    const std::uint32_t bit = 1U << (head % 32);
    if ((flags[head] & (SEQPAR_SCAN_RESET_IN | SEQPAR_SCAN_CUT)) != 0) task.forgets[head / 32] |= bit;
    if ((flags[head] & SEQPAR_SCAN_RESET_IN) != 0) task.resets[head / 32] |= bit;
  }
}

}  // namespace

std::vector<ScanTask> makeScanTasks(const PeerView& view, const ScanProblem& problem, std::span<const int> order) {
  const std::size_t head = problem.dk * problem.dv;
  if (head > ScanTask::kMostElements) {
    fail(seqparInvalidUsage, "a head of dk ", problem.dk, " x dv ", problem.dv, " elements, expected fewer than 2^31");
  }
  const std::size_t factors = problem.op == seqparScanDiag ? problem.dk : 1;  // per head
  ScanTask common;
  placePositions(common, view, order);
  common.head = Divider(static_cast<std::uint32_t>(head));
  common.span = Divider(static_cast<std::uint32_t>(head / factors));
  common.stateType = problem.stateType;
  common.wireType = problem.wireType;
  common.decayForm = problem.op == seqparScanSum ? seqparDecayLinear : problem.decayForm;
  // The number of launches must not depend on flags, which may differ between ranks.
  const std::size_t most = std::min<std::size_t>(ScanTask::kMostHeads, ScanTask::kMostElements / head);

  std::vector<ScanTask> tasks;
  for (std::size_t begin = 0; begin < problem.heads; begin += most) {
    const std::size_t heads = std::min(most, problem.heads - begin);
    ScanTask& task = tasks.emplace_back(common);
    static_cast<ScanArrays<std::byte>&>(task) =
        problem.from<std::byte>(begin * head * sizeOf(problem.stateType), begin * factors);
    if (!common.first()) task.initial = nullptr;
    if (problem.op == seqparScanSum) task.transition = nullptr;
    task.aligned = isAligned(task.state) && isAligned(task.initial) && isAligned(task.prefix) && isAligned(task.total);
    task.elements = static_cast<std::uint32_t>(heads * head);
    const auto flags = std::span(problem.headFlags).subspan(begin, heads);
    task.flags = std::any_of(flags.begin(), flags.end(), [](unsigned char each) { return each != 0; });
    placeFlags(task, flags);
    task.cut(static_cast<int>(std::clamp<std::size_t>(task.elements / kElementsOfChannel, 1, view.channels)));
  }
  return tasks;
}

}  // namespace seqpar
