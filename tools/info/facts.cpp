#include "facts.h"

#include <unistd.h>

#include <array>
#include <cstdlib>

#include "seqpar/attn_plan.h"

namespace seqpar::info {
namespace {

using perf::require;

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

std::vector<Node> nodesOf(perf::Group& group, const seqparCommInfo_t& info) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const double mine = info.node;
  const auto numbers = group.gather(std::span(&mine, 1));
  const auto hosts = group.gatherText(host.data());
  std::vector<Node> nodes(static_cast<size_t>(info.nodes));
  for (size_t rank = 0; rank < numbers.size(); ++rank) {
    Node& node = nodes[static_cast<size_t>(numbers[rank])];
    if (node.ranks.empty()) node.host = hosts[rank];
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

Facts collect(perf::Group& group, const std::string& launch) {
  auto* const comm = group.comm();
  Facts facts;
  facts.version = libraryVersion();
  facts.launch = launch;
  facts.comm = SEQPAR_COMM_INFO_INITIALIZER;
  require(seqparCommQuery(comm, &facts.comm), "seqparCommQuery", comm);
  facts.nodes = nodesOf(group, facts.comm);
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
