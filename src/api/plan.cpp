// The calls of seqpar/plan.h.
#include "seqpar/plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "api/boundary.h"
#include "base/versioned.h"
#include "device/group.h"
#include "plan/cost.h"

using namespace seqpar;

namespace {

/// Pairs of ranks of one node; with `processes`, of one process of one node.
int pairsInside(const std::vector<int>& nodes, const std::vector<int>* processes) {
  std::map<std::pair<int, int>, int> ranks;
  int pairs = 0;
  for (size_t i = 0; i < nodes.size(); ++i) pairs += ranks[{nodes[i], processes == nullptr ? 0 : (*processes)[i]}]++;
  return pairs;
}

int pairsOf(const Topology& topology, int linkClass) {
  const auto ranks = static_cast<int>(topology.nodes.size());
  const int ofProcesses = pairsInside(topology.nodes, &topology.processes);
  const int ofNodes = pairsInside(topology.nodes, nullptr);
  if (linkClass == seqparLinkProcess) return ofProcesses;
  return linkClass == seqparLinkNode ? ofNodes - ofProcesses : ranks * (ranks - 1) / 2 - ofNodes;
}

const Link& linkOf(const LinkModel& model, int linkClass) {
  if (linkClass == seqparLinkProcess) return model.process;
  return linkClass == seqparLinkNode ? model.node : model.network;
}

void requireRange(const char* call, const char* argument, int value, int least, int most) {
  if (value < least || value > most) {
    fail(seqparInvalidArgument, call, ": ", argument, " is ", value, ", expected ", least, " to ", most);
  }
}

std::vector<int> readGroup(const char* call, const int* ranks, int nranks, const Communicator& comm) {
  std::vector<int> group(static_cast<size_t>(comm.size()));
  std::iota(group.begin(), group.end(), 0);
  if (ranks == nullptr) return group;
  requireRange(call, "nranks", nranks, 1, comm.size());
  group.assign(ranks, ranks + nranks);
  std::vector<bool> seen(static_cast<size_t>(comm.size()));
  for (size_t i = 0; i < group.size(); ++i) {
    if (group[i] < 0 || group[i] >= comm.size() || seen[static_cast<size_t>(group[i])]) {
      fail(seqparInvalidArgument, call, ": ranks[", i, "] is ", group[i], ", expected 0 to ", comm.size() - 1,
           ", each once");
    }
    seen[static_cast<size_t>(group[i])] = true;
  }
  return group;
}

double estimate(int move, double bytes, const std::vector<int>& group, const Communicator& comm) {
  const auto& model = comm.links();
  const double contention = model.contention;
  const auto ranks = static_cast<int>(group.size());
  const Link ring = linkOfRing(model, comm.topology(), group);
  const Link all = linkOfGroup(model, comm.topology(), group);
  switch (move) {
    case seqparMoveShift:
      return ranks == 1 ? 0 : shiftSeconds(ring, contention, bytes);
    case seqparMoveRing:
      return ringSeconds(ring, contention, bytes, ranks - 1);
    case seqparMoveAllGather:
      return allGatherSeconds(all, contention, bytes, ranks);
    case seqparMoveReduceScatter:
      return reduceScatterSeconds(all, contention, bytes, ranks);
    default:
      return allToAllSeconds(all, contention, bytes, ranks);
  }
}

}  // namespace

extern "C" {

SEQPAR_API seqparResult_t seqparLinkQuery(seqparComm_t handle, int linkClass, seqparLinkInfo_t* info) {
  const char* call = "seqparLinkQuery";
  return onComm(call, handle, [&](Communicator& comm) {
    requireRange(call, "linkClass", linkClass, 0, SEQPAR_LINK_CLASSES - 1);
    seqparLinkInfo_t out = SEQPAR_LINK_INFO_INITIALIZER;
    const Link& link = linkOf(comm.links(), linkClass);
    out.pairs = pairsOf(comm.topology(), linkClass);
    out.remembered = comm.links().remembered ? 1 : 0;
    out.alphaUs = link.alpha * 1e6;
    out.bandwidth = link.secondsPerByte > 0 ? 1 / link.secondsPerByte : 0;
    out.overheadUs = link.overhead * 1e6;
    writeVersioned(call, "info", info, out);
  });
}

SEQPAR_API seqparResult_t seqparPlanQuery(seqparComm_t handle, seqparPlanInfo_t* info) {
  const char* call = "seqparPlanQuery";
  return onComm(call, handle, [&](Communicator& comm) {
    seqparPlanInfo_t out = SEQPAR_PLAN_INFO_INITIALIZER;
    std::vector<int> ranks(static_cast<size_t>(comm.topology().nodeCount));
    for (const int node : comm.topology().nodes) ++ranks[static_cast<size_t>(node)];
    out.ranksPerNode = *std::max_element(ranks.begin(), ranks.end());
    if (comm.device() != nullptr) {
      const GpuKind gpu = comm.device()->slowest();
      out.gpuArch = gpu.arch;
      out.gpuSms = gpu.sms;
    }
    writeVersioned(call, "info", info, out);
  });
}

SEQPAR_API seqparResult_t seqparMoveEstimate(int move, size_t bytes, const int* ranks, int nranks, seqparComm_t handle,
                                             double* us) {
  const char* call = "seqparMoveEstimate";
  return onComm(call, handle, [&](Communicator& comm) {
    requireRange(call, "move", move, 0, SEQPAR_MOVES - 1);
    requirePointer(call, "us", us);
    const auto group = readGroup(call, ranks, nranks, comm);
    *us = estimate(move, static_cast<double>(bytes), group, comm) * 1e6;
  });
}

}  // extern "C"
