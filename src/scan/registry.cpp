#include "scan/registry.h"

#include <array>
#include <iterator>

#include "base/current_call.h"
#include "base/error.h"

namespace seqpar {

// Functions that the files of kernels/scan define,
ScanLaunch launchChain, launchOneshot, launchTransposed, launchDoubling, launchLasp1, launchLasp2;
MatrixLaunch launchMatrixChain, launchMatrixOneshot, launchMatrixTransposed, launchMatrixDoubling, launchMatrixLasp1,
    launchMatrixLasp2;
// and functions of algorithms/ and nccl/.
namespace chain {
HostRun run;
HostSeconds hostSeconds;
PeerSeconds peerSeconds;
MatrixSeconds matrixSeconds;
NcclSeconds ncclSeconds;
NcclRun ncclRun;
}  // namespace chain
namespace oneshot {
HostRun run;
HostSeconds hostSeconds;
PeerSeconds peerSeconds;
MatrixSeconds matrixSeconds;
NcclSeconds ncclSeconds;
NcclRun ncclRun;
}  // namespace oneshot
namespace transposed {
HostRun run;
HostSeconds hostSeconds;
PeerSeconds peerSeconds;
MatrixSeconds matrixSeconds;
NcclSeconds ncclSeconds;
NcclRun ncclRun;
}  // namespace transposed
namespace doubling {
HostRun run;
HostSeconds hostSeconds;
PeerSeconds peerSeconds;
MatrixSeconds matrixSeconds;
}  // namespace doubling
namespace hier {
HostRun run;
HostSeconds hostSeconds;
NcclSeconds ncclSeconds;
NcclRun ncclRun;
}  // namespace hier
namespace lasp1 {
HostRun run;
HostSeconds hostSeconds;
PeerSeconds peerSeconds;
MatrixSeconds matrixSeconds;
NcclSeconds ncclSeconds;
NcclRun ncclRun;
}  // namespace lasp1
namespace lasp2 {
HostRun run;
HostSeconds hostSeconds;
PeerSeconds peerSeconds;
MatrixSeconds matrixSeconds;
NcclSeconds ncclSeconds;
NcclRun ncclRun;
}  // namespace lasp2

namespace {

// Functions that are absent from a build are null.
template <typename Launch>
constexpr Launch* inCuda(Launch* launch) {
  return SEQPAR_HAS_CUDA ? launch : nullptr;
}
constexpr NcclRun* inNccl(NcclRun* run) {
  return SEQPAR_HAS_NCCL ? run : nullptr;
}

constexpr ScanAlgorithm kAlgorithms[] = {
    // In the order of their ids.
    {seqparScanChain,
     "chain",
     "ZeCO, arXiv 2507.01004, the All-Scan of Algorithms 1 and 3",
     true,
     ScanTraffic::States,
     Products::Never,
     {chain::run, chain::hostSeconds},
     {inCuda(launchChain), chain::peerSeconds},
     {inCuda(launchMatrixChain), chain::matrixSeconds, 0, false},
     {inNccl(chain::ncclRun), chain::ncclSeconds}},
    {seqparScanOneshot,
     "oneshot",
     "no paper: every map is read by all later positions",
     false,
     ScanTraffic::Maps,
     Products::Never,
     {oneshot::run, oneshot::hostSeconds},
     {inCuda(launchOneshot), oneshot::peerSeconds},
     {inCuda(launchMatrixOneshot), oneshot::matrixSeconds, 1, false},
     {inNccl(oneshot::ncclRun), oneshot::ncclSeconds}},
    {seqparScanTransposed,
     "transposed",
     "no paper: all-to-all, a scan of one's shard, all-to-all back",
     false,
     ScanTraffic::Shards,
     Products::Never,
     {transposed::run, transposed::hostSeconds},
     {inCuda(launchTransposed), transposed::peerSeconds},
     {inCuda(launchMatrixTransposed), transposed::matrixSeconds, 1, false},
     {inNccl(transposed::ncclRun), transposed::ncclSeconds}},
    {seqparScanDoubling,
     "doubling",
     "123-doubling, Traeff, exclusive scan, arXiv 2507.04785",
     false,
     ScanTraffic::Maps,
     Products::Always,
     {doubling::run, doubling::hostSeconds},
     {inCuda(launchDoubling), doubling::peerSeconds},
     {inCuda(launchMatrixDoubling), doubling::matrixSeconds, 2, false},
     {nullptr, nullptr}},
    // Peers are on one node, where HIER equals TRANSPOSED.
    {seqparScanHier,
     "hier",
     "no paper: TRANSPOSED inside the nodes, a chain of shards between them",
     true,
     ScanTraffic::NodeShards,
     Products::BetweenNcclNodes,
     {hier::run, hier::hostSeconds},
     {inCuda(launchTransposed), transposed::peerSeconds},
     {inCuda(launchMatrixTransposed), transposed::matrixSeconds, 1, false},
     {inNccl(hier::ncclRun), hier::ncclSeconds}},
    {seqparScanLasp1,
     "lasp1",
     "LASP, arXiv 2404.02882, the ring of states of Algorithms 2 and 3",
     false,
     ScanTraffic::Bytes,
     Products::Never,
     {lasp1::run, lasp1::hostSeconds},
     {inCuda(launchLasp1), lasp1::peerSeconds},
     {inCuda(launchMatrixLasp1), lasp1::matrixSeconds, 0, false},
     {inNccl(lasp1::ncclRun), lasp1::ncclSeconds}},
    {seqparScanLasp2,
     "lasp2",
     "LASP-2, arXiv 2502.07563, the all-gather of Algorithms 2 and 4",
     false,
     ScanTraffic::Maps,
     Products::Never,
     {lasp2::run, lasp2::hostSeconds},
     {inCuda(launchLasp2), lasp2::peerSeconds},
     {inCuda(launchMatrixLasp2), lasp2::matrixSeconds, 1, true},
     {inNccl(lasp2::ncclRun), lasp2::ncclSeconds}}};

static_assert(std::size(kAlgorithms) == SEQPAR_SCAN_ALGORITHMS, "seqpar/scan.h counts the rows");

std::string allChoices() {
  std::string text;
  for (const auto& [name, id] : scanAlgorithmChoices()) text += concat(text.empty() ? "" : ", ", id, " (", name, ")");
  return text;
}

}  // namespace

std::span<const ScanAlgorithm> scanAlgorithms() {
  return kAlgorithms;
}

const ScanAlgorithm& scanAlgorithm(int id, const char* argument) {
  for (const ScanAlgorithm& row : kAlgorithms) {
    if (row.id == id) return row;
  }
  const std::string call = CurrentCall::name();
  fail(seqparInvalidArgument, call.empty() ? "All-Scan" : call, ": ", argument, " is ", id, ", expected one of ",
       allChoices());
}

std::span<const Choice> scanAlgorithmChoices() {
  static const auto kChoices = [] {
    std::array<Choice, std::size(kAlgorithms) + 1> choices{{{"auto", seqparScanAuto}}};
    for (size_t i = 0; i < std::size(kAlgorithms); ++i) choices[i + 1] = {kAlgorithms[i].name, kAlgorithms[i].id};
    return choices;
  }();
  return kChoices;
}

}  // namespace seqpar
