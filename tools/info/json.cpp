#include <nlohmann/json.hpp>

#include "facts.h"

namespace seqpar::info {
namespace {

using Json = nlohmann::ordered_json;

Json nodesOf(const Facts& facts) {
  Json nodes = Json::array();
  for (const auto& node : facts.nodes) nodes.push_back({{"host", node.host}, {"ranks", node.ranks}});
  return nodes;
}

Json linksOf(const Facts& facts) {
  Json links = Json::array();
  for (size_t i = 0; i < facts.links.size(); ++i) {
    const auto& link = facts.links[i];
    links.push_back({{"class", nameOfClass(static_cast<int>(i))},
                     {"pairs", link.pairs},
                     {"remembered", link.remembered == 1},
                     {"alpha_us", link.alphaUs},
                     {"bytes_per_second", link.bandwidth},
                     {"overhead_us", link.overheadUs}});
  }
  return links;
}

Json scansOf(const Facts& facts) {
  Json scans = Json::array();
  for (const auto& scan : facts.scans) {
    Json estimates = Json::array();
    for (size_t i = 1; i < scan.estimates.size(); ++i) {
      const auto& estimate = scan.estimates[i];
      estimates.push_back({{"algorithm", seqparScanAlgorithmName(estimate.algorithm)},
                           {"blocks", estimate.blocks},
                           {"model_us", estimate.modelUs}});
    }
    scans.push_back({{"bytes", scan.bytes},
                     {"choice", seqparScanAlgorithmName(scan.estimates[0].algorithm)},
                     {"estimates", std::move(estimates)}});
  }
  return scans;
}

Json movesOf(const Facts& facts) {
  Json moves = Json::array();
  for (const auto& times : facts.moves) {
    Json us = Json::object();
    for (int move = 0; move < SEQPAR_MOVES; ++move) us[nameOfMove(move)] = times.us[static_cast<size_t>(move)];
    moves.push_back({{"bytes", times.bytes}, {"model_us", std::move(us)}});
  }
  return moves;
}

Json meshesOf(const Facts& facts) {
  Json meshes = Json::array();
  for (const auto& mesh : facts.meshes) {
    Json shapes = Json::array();
    for (const auto& shape : mesh.shapes) {
      shapes.push_back({{"a", shape.a},
                        {"b", shape.b},
                        {"forward_us", shape.forwardUs},
                        {"backward_us", shape.backwardUs},
                        {"forward_bytes", shape.forwardBytes},
                        {"backward_bytes", shape.backwardBytes}});
    }
    meshes.push_back({{"tokens", mesh.tokens}, {"shapes", std::move(shapes)}});
  }
  return meshes;
}

}  // namespace

std::string jsonOf(const Facts& facts) {
  const Json json = {{"version", facts.version},
                     {"launch", facts.launch},
                     {"nranks", facts.comm.nranks},
                     {"device", facts.comm.device != SEQPAR_HOST_DEVICE},
                     {"transport", facts.comm.transport},
                     {"reason", facts.comm.reason},
                     {"gpu_attention_kernels", facts.gpuKernels},
                     {"contention", facts.comm.contention},
                     {"nodes", nodesOf(facts)},
                     {"links", linksOf(facts)},
                     {"algorithm_from_environment", facts.chosenBy},
                     {"all_scan", scansOf(facts)},
                     {"moves", movesOf(facts)},
                     {"mesh", meshesOf(facts)}};
  return json.dump(2) + "\n";
}

}  // namespace seqpar::info
