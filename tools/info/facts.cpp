#include "facts.h"

#include <unistd.h>

#include <array>
#include <cstdlib>

#include "ranks.h"
#include "seqpar/attn_plan.h"

namespace seqpar::info {
namespace {

constexpr size_t kSizes[] = {4 << 10, 64 << 10, 1 << 20, 16 << 20};
constexpr int64_t kTokens[] = {1 << 10, 8 << 10, 64 << 10};
constexpr int64_t kStateRows = 128, kStateColumns = 128;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string libraryVersion() {
  int code = 0;
  require(seqparGetVersion(&code), "seqparGetVersion");
  return std::to_string(code / 10000) + '.' + std::to_string(code / 100 % 100) + '.' + std::to_string(code % 100);
}

std::vector<Node> nodesOf(const seqparCommInfo_t& info, seqparComm_t comm) {
  Report mine{info.node, {}};
  gethostname(mine.host, sizeof(mine.host) - 1);
  const auto reports = gather(mine, comm);
  std::vector<Node> nodes(static_cast<size_t>(info.nodes));
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    Node& node = nodes[static_cast<size_t>(reports[rank].node)];
    if (node.ranks.empty()) node.host = reports[rank].host;
    node.ranks.push_back(static_cast<int>(rank));
  }
  return nodes;
}

/// A gated scan of fp32 states of 128 x 128, or fewer rows if that is too large.
ScanChoice scanOf(size_t bytes, seqparComm_t comm) {
  const auto head = static_cast<size_t>(kStateRows * kStateColumns) * sizeof(float);
  seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
  params.heads = bytes < head ? 1 : static_cast<int64_t>(bytes / head);
  params.dv = kStateColumns;
  params.dk = bytes < head ? static_cast<int64_t>(bytes / sizeof(float)) / kStateColumns : kStateRows;
  ScanChoice choice{bytes, std::vector<seqparScanEstimate_t>(SEQPAR_SCAN_ALGORITHMS + 1)};
  require(seqparAllScanPlan(&params, comm, choice.estimates.data()), "seqparAllScanPlan", comm);
  return choice;
}

MoveTimes movesOf(size_t bytes, seqparComm_t comm) {
  MoveTimes times{bytes, std::vector<double>(SEQPAR_MOVES)};
  for (int move = 0; move < SEQPAR_MOVES; ++move) {
    require(seqparMoveEstimate(move, bytes, nullptr, 0, comm, &times.us[static_cast<size_t>(move)]),
            "seqparMoveEstimate", comm);
  }
  return times;
}

MeshChoice meshOf(int64_t tokens, seqparComm_t comm) {
  seqparMeshParams_t params = SEQPAR_MESH_PARAMS_INITIALIZER;
  params.tokens = tokens;
  params.heads = kHeads;
  params.kvHeads = kKvHeads;
  params.headDim = kHeadDim;
  int count = 0;
  require(seqparMeshPlan(&params, comm, nullptr, &count), "seqparMeshPlan", comm);
  MeshChoice choice{tokens, std::vector<seqparMeshEstimate_t>(static_cast<size_t>(count))};
  require(seqparMeshPlan(&params, comm, choice.shapes.data(), &count), "seqparMeshPlan", comm);
  return choice;
}

}  // namespace

Facts collect(seqparComm_t comm, const std::string& launch) {
  Facts facts;
  facts.version = libraryVersion();
  facts.launch = launch;
  facts.comm = SEQPAR_COMM_INFO_INITIALIZER;
  require(seqparCommQuery(comm, &facts.comm), "seqparCommQuery", comm);
  facts.nodes = nodesOf(facts.comm, comm);
  for (int linkClass = 0; linkClass < SEQPAR_LINK_CLASSES; ++linkClass) {
    seqparLinkInfo_t link = SEQPAR_LINK_INFO_INITIALIZER;
    require(seqparLinkQuery(comm, linkClass, &link), "seqparLinkQuery", comm);
    facts.links.push_back(link);
  }
  facts.gpuKernels = seqparAttnGpuKernels();
  facts.chosenBy = environment("SEQPAR_ALGO");
  facts.cache = environment("SEQPAR_TUNING_CACHE");
  for (const size_t bytes : kSizes) {
    facts.scans.push_back(scanOf(bytes, comm));
    facts.moves.push_back(movesOf(bytes, comm));
  }
  for (const int64_t tokens : kTokens) facts.meshes.push_back(meshOf(tokens, comm));
  return facts;
}

const char* nameOfClass(int linkClass) {
  constexpr std::array kNames{"process", "node", "network"};
  return kNames[static_cast<size_t>(linkClass)];
}

const char* nameOfMove(int move) {
  constexpr std::array kNames{"shift", "ring", "all-gather", "reduce-scatter", "all-to-all"};
  return kNames[static_cast<size_t>(move)];
}

}  // namespace seqpar::info
