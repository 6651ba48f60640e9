// The table of All-Scan's algorithms; everything that depends on the set of algorithms uses it.
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

/// Where an algorithm multiplies transitions of several positions before it applies them to a state. Such a product may
/// overflow although no state does.
enum class Products { Never, BetweenNcclNodes, Always };

/// One algorithm, and its functions on each backend. A null function: the backend does not support the algorithm;
/// naming it is InvalidUsage, and its estimated time is infinite.
struct ScanAlgorithm {
  seqparScanAlgorithm_t id;
  const char* name;   ///< as SEQPAR_ALGO and the perf binaries spell it
  const char* paper;  ///< title or system, arXiv number, section
  bool pipelined;     ///< works block by block: the number of blocks is a parameter
  ScanTraffic traffic;
  Products products;

  struct {
    HostRun* run;
    HostSeconds* seconds;
  } host;
  struct {
    ScanLaunch* launch;  ///< also null in a build without CUDA
    PeerSeconds* seconds;
  } peers;  ///< SUM, SCALAR and DIAG between GPUs that reach each other's memory
  struct {
    MatrixLaunch* launch;  ///< also null in a build without CUDA
    MatrixSeconds* seconds;
    int matrices;  ///< per head that a CTA keeps in shared memory (kernels/scan/matrix_fits.h)
    bool large;    ///< keeps larger ones in device memory
  } matrix;        ///< MATRIX between such GPUs
  struct {
    NcclRun* run;  ///< also null in a build without NCCL
    NcclSeconds* seconds;
  } nccl;
};

/// All algorithms of this version, in the order of their ids. AUTO has no row.
std::span<const ScanAlgorithm> scanAlgorithms();

/// The row of a seqparScanAlgorithm_t. Throws InvalidArgument for `argument`, naming the thread's current call, if
/// there is none; AUTO has none.
const ScanAlgorithm& scanAlgorithm(int id, const char* argument = "algorithm");

/// The names of all algorithms and of AUTO.
std::span<const Choice> scanAlgorithmChoices();

/// Whether `row` multiplies transitions of several of `positions` on all backends. With four positions each product
/// includes the map of position 0, which is a state.
inline bool multipliesAmong(const ScanAlgorithm& row, int positions) {
  return row.products == Products::Always && positions > 4;
}

/// "chain, oneshot or auto": the algorithms that satisfy `can`.
template <typename Can>
std::string scanAlgorithmsThat(const Can& can) {
  std::string names;
  for (const ScanAlgorithm& row : scanAlgorithms()) {
    if (can(row)) names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  return names.empty() ? "auto" : names + " or auto";
}

}  // namespace seqpar
