// The table of All-Scan's algorithms: everything that depends on which there are comes from it.
#pragma once

#include <span>
#include <string>

#include "base/env.h"
#include "kernels/scan/launch.h"
#include "scan/algorithms.h"
#include "scan/host_model.h"
#include "scan/nccl_model.h"
#include "scan/peers_matrix_model.h"
#include "scan/peers_model.h"

namespace seqpar {

/// One algorithm, and what it is on each backend. A null function: the algorithm cannot be done there, which is
/// InvalidUsage for who names it, and an infinite time for who compares.
struct ScanAlgorithm {
  seqparScanAlgorithm_t id;
  const char* name;   ///< as SEQPAR_ALGO and the perf binaries spell it
  const char* paper;  ///< title or system, arXiv number, section
  bool pipelined;     ///< works block by block: the number of blocks is worth a choice
  ScanTraffic traffic;

  struct {
    HostRun* run;
    HostSeconds* seconds;
  } host;
  struct {
    ScanLaunch* launch;  ///< null in a build without CUDA too
    PeerSeconds* seconds;
  } peers;  ///< SUM, SCALAR and DIAG between GPUs that reach each other's memory
  struct {
    MatrixLaunch* launch;  ///< null in a build without CUDA too
    MatrixSeconds* seconds;
    int matrices;  ///< of a head that a CTA keeps in shared memory (kernels/scan/matrix_fits.h)
  } matrix;        ///< MATRIX between them
  struct {
    NcclRun* run;  ///< null in a build without NCCL too
    NcclSeconds* seconds;
  } nccl;
};

/// All that this version has, in the order of their numbers. AUTO is no row.
std::span<const ScanAlgorithm> scanAlgorithms();

/// The row of a seqparScanAlgorithm_t. InvalidArgument in the name of the call that the thread is in, as `argument`, if
/// there is none: AUTO has none either.
const ScanAlgorithm& scanAlgorithm(int id, const char* argument = "algorithm");

/// The spellings of all algorithms and of AUTO.
std::span<const Choice> scanAlgorithmChoices();

/// "chain, oneshot or auto": the algorithms for which `can` holds.
template <typename Can>
std::string scanAlgorithmsThat(const Can& can) {
  std::string names;
  for (const ScanAlgorithm& row : scanAlgorithms()) {
    if (can(row)) names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  return names.empty() ? "auto" : names + " or auto";
}

}  // namespace seqpar
