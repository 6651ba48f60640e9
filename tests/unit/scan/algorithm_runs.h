// Running an All-Scan algorithm on threads.
#pragma once

#include <random>
#include <span>
#include <string>
#include <vector>

#include "memory_mailbox.h"
#include "scan_case.h"
#include "scan_rows.h"

namespace seqpar::test {

/// Nodes of random sizes from 1 to `largest`, each a run of consecutive positions, numbered in random order.
std::vector<int> randomNodes(std::mt19937_64& random, int positions, int largest);

/// Runs `scanCase` on all ranks of `lanes`, with outputs[rank], and returns every rank's buffers.
std::vector<ScanBuffers> runScan(const ScanCase& scanCase, seqparScanAlgorithm_t algorithm, size_t blocks,
                                 std::span<const Outputs> outputs, std::span<const int> nodes, MemoryLanes& lanes,
                                 bool bounded = false);

/// The first element of `got` that is not bitwise the fp32 value `expected` (any NaN equals any other), as text; "" if
/// there is none.
std::string differenceFrom(const std::vector<double>& expected, const std::vector<float>& got);

}  // namespace seqpar::test
