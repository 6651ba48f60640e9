#include "scan/registry.h"

#include <array>

#include "base/current_call.h"
#include "base/error.h"

namespace seqpar {

// What the files of algorithms/ define.
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

/// What a build without NCCL does not have is null there.
constexpr NcclRun* inNccl(NcclRun* run) {
  return SEQPAR_HAS_NCCL ? run : nullptr;
}

constexpr std::array kAlgorithms{ScanAlgorithm{seqparScanChain,
                                               "chain",
                                               "ZeCO, arXiv 2507.01004, the All-Scan of Algorithms 1 and 3",
                                               true,
                                               ScanTraffic::States,
                                               {chain::run, chain::hostSeconds},
                                               {chain::peerSeconds},
                                               {chain::matrixSeconds},
                                               {inNccl(chain::ncclRun), chain::ncclSeconds}},
                                 ScanAlgorithm{seqparScanOneshot,
                                               "oneshot",
                                               "no paper: every map is read by all positions behind its own",
                                               false,
                                               ScanTraffic::Maps,
                                               {oneshot::run, oneshot::hostSeconds},
                                               {oneshot::peerSeconds},
                                               {oneshot::matrixSeconds},
                                               {inNccl(oneshot::ncclRun), oneshot::ncclSeconds}},
                                 ScanAlgorithm{seqparScanTransposed,
                                               "transposed",
                                               "no paper: all-to-all, a scan of one's shard, all-to-all back",
                                               false,
                                               ScanTraffic::Shards,
                                               {transposed::run, transposed::hostSeconds},
                                               {transposed::peerSeconds},
                                               {transposed::matrixSeconds},
                                               {inNccl(transposed::ncclRun), transposed::ncclSeconds}},
                                 ScanAlgorithm{seqparScanDoubling,
                                               "doubling",
                                               "123-doubling, Traeff, exclusive scan, arXiv 2507.04785",
                                               false,
                                               ScanTraffic::Maps,
                                               {doubling::run, doubling::hostSeconds},
                                               {doubling::peerSeconds},
                                               {doubling::matrixSeconds},
                                               {nullptr, nullptr}},
                                 // Between peers, which are of one node, it is TRANSPOSED.
                                 ScanAlgorithm{seqparScanHier,
                                               "hier",
                                               "no paper: TRANSPOSED inside the nodes, a chain of shards between them",
                                               true,
                                               ScanTraffic::NodeShards,
                                               {hier::run, hier::hostSeconds},
                                               {transposed::peerSeconds},
                                               {transposed::matrixSeconds},
                                               {inNccl(hier::ncclRun), hier::ncclSeconds}},
                                 ScanAlgorithm{seqparScanLasp1,
                                               "lasp1",
                                               "LASP, arXiv 2404.02882, the ring of states of Algorithms 2 and 3",
                                               false,
                                               ScanTraffic::Bytes,
                                               {lasp1::run, lasp1::hostSeconds},
                                               {lasp1::peerSeconds},
                                               {lasp1::matrixSeconds},
                                               {inNccl(lasp1::ncclRun), lasp1::ncclSeconds}},
                                 ScanAlgorithm{seqparScanLasp2,
                                               "lasp2",
                                               "LASP-2, arXiv 2502.07563, the all-gather of Algorithms 2 and 4",
                                               false,
                                               ScanTraffic::Maps,
                                               {lasp2::run, lasp2::hostSeconds},
                                               {lasp2::peerSeconds},
                                               {lasp2::matrixSeconds},
                                               {inNccl(lasp2::ncclRun), lasp2::ncclSeconds}}};

static_assert(kAlgorithms.size() == SEQPAR_SCAN_ALGORITHMS, "seqpar/scan.h counts as many algorithms as have rows");

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
    std::array<Choice, kAlgorithms.size() + 1> choices{{{"auto", seqparScanAuto}}};
    for (size_t i = 0; i < kAlgorithms.size(); ++i) choices[i + 1] = {kAlgorithms[i].name, kAlgorithms[i].id};
    return choices;
  }();
  return kChoices;
}

}  // namespace seqpar
