#include "algorithm_runs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "base/error.h"

namespace seqpar::test {

std::vector<int> randomNodes(std::mt19937_64& random, int positions, int largest) {
  std::vector<int> names(static_cast<size_t>(positions));
  std::iota(names.begin(), names.end(), 0);
  for (size_t i = names.size(); i > 1; --i) std::swap(names[i - 1], names[random() % i]);
  std::vector<int> nodes;
  for (size_t node = 0; nodes.size() < names.size(); ++node) {
    const size_t size =
        std::min(1 + static_cast<size_t>(random() % static_cast<size_t>(largest)), names.size() - nodes.size());
    nodes.insert(nodes.end(), size, names[node]);
  }
  return nodes;
}

std::vector<ScanBuffers> runScan(const ScanCase& scanCase, seqparScanAlgorithm_t algorithm, size_t blocks,
                                 std::span<const Outputs> outputs, std::span<const int> nodes, MemoryLanes& lanes,
                                 bool bounded) {
  const ScanSpec& spec = scanCase.spec;
  std::vector<ScanBuffers> buffers;
  std::vector<int> ranks;
  for (int i = 0; i < spec.size; ++i) {
    buffers.emplace_back(scanCase, i, outputs[i]);
    ranks.push_back(spec.rankAt(i));
  }
  lanes.run([&](Mailbox& mail) {
    ScanProblem problem = buffers[mail.rank()].problem();
    problem.bounded = bounded;
    const auto affine = makeAffine(problem);
    // Ranks and positions are each other's inverse in the same way.
    scanAlgorithm(algorithm).host.run(*affine, problem, {ranks, spec.rankAt(mail.rank()), nodes}, mail, blocks);
  });
  return buffers;
}

std::string differenceFrom(const std::vector<double>& expected, const std::vector<float>& got) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const float number = static_cast<float>(expected[i] + 0.0);  // never -0
    if (std::isnan(number) && std::isnan(got[i])) continue;
    if (std::bit_cast<std::uint32_t>(number) == std::bit_cast<std::uint32_t>(got[i])) continue;
    return concat("element ", i, " is ", got[i], ", expected ", number);
  }
  return "";
}

}  // namespace seqpar::test
