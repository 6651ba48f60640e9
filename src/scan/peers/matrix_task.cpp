#include "scan/peers/matrix_task.h"

#include <algorithm>
#include <cstdint>

#include "base/convert.h"
#include "base/error.h"

namespace seqpar {
namespace {

constexpr std::size_t kMostExtent = std::size_t{1} << 30;

MatrixScan describeShape(const PeerView& view, const ScanProblem& problem, std::span<const int> order) {
  MatrixScan scan;
  scan.dk = static_cast<int>(problem.dk);
  scan.dv = static_cast<int>(problem.dv);
  scan.stateType = problem.stateType;
  scan.wireType = problem.wireType;
  scan.reverse = problem.direction == seqparReverse;
  scan.positions = static_cast<int>(order.size());
  scan.position = -1;
  for (int position = 0; position < scan.positions; ++position) {
    const int peer = order[static_cast<std::size_t>(position)];
    scan.order[position] = static_cast<std::int8_t>(peer);
    if (peer == view.self) scan.position = position;
  }
  if (scan.position < 0) fail(seqparInternalError, "a scan among ", order.size(), " peers was passed to another peer");
  const std::size_t pair = 2 * sizeOf(problem.stateType);
  const void* const buffers[] = {problem.state, problem.initial, problem.prefix, problem.total};
  scan.paired = problem.dv % 2 == 0 && std::all_of(std::begin(buffers), std::end(buffers), [&](const void* buffer) {
                  return reinterpret_cast<std::uintptr_t>(buffer) % pair == 0;
                });
  return scan;
}

}  // namespace

std::vector<MatrixScan> makeMatrixScans(const PeerView& view, const ScanProblem& problem, std::span<const int> order) {
  if (problem.dk > kMostExtent || problem.dv > kMostExtent) {
    fail(seqparInvalidUsage, "a head of ", problem.dk, " x ", problem.dv, ", expected at most ", kMostExtent,
         " rows and columns");
  }
  const MatrixScan shape = describeShape(view, problem, order);
  std::vector<MatrixScan> scans;
  for (std::size_t head = 0; head < problem.heads; head += kMatrixHeads) {
    MatrixScan& scan = scans.emplace_back(shape);
    scan.heads = static_cast<int>(std::min<std::size_t>(kMatrixHeads, problem.heads - head));
    static_cast<ScanArrays<void>&>(scan) =
        problem.from<void>(head * problem.dk * problem.dv * sizeOf(problem.stateType), head * problem.dk * problem.dk);
    for (int i = 0; i < scan.heads; ++i) {
      const unsigned flags = problem.headFlags[head + static_cast<std::size_t>(i)];
      if ((flags & SEQPAR_SCAN_RESET_IN) != 0) scan.resets.set(i);
      if ((flags & SEQPAR_SCAN_CUT) != 0) scan.cuts.set(i);
    }
  }
  return scans;
}

}  // namespace seqpar
