#include "common/json.h"

#include "facts.h"

namespace seqpar::info {
namespace {

using perf::Json;

void addTopology(Json& json, const Facts& facts) {
  json.key("version").text(facts.version);
  json.key("launch").text(facts.launch);
  json.key("nranks").number(facts.comm.nranks);
  json.key("device").boolean(facts.comm.device != SEQPAR_HOST_DEVICE);
  json.key("transport").text(facts.comm.transport);
  json.key("reason").text(facts.comm.reason);
  json.key("contention").number(facts.comm.contention);
  json.key("nodes").beginArray();
  for (const auto& node : facts.nodes) {
    json.beginObject();
    json.key("host").text(node.host);
    json.key("ranks").beginArray();
    for (const int rank : node.ranks) json.number(rank);
    json.endArray();
    json.endObject();
  }
  json.endArray();
}

void addLinks(Json& json, const Facts& facts) {
  json.key("links").beginArray();
  for (size_t i = 0; i < facts.links.size(); ++i) {
    const auto& link = facts.links[i];
    json.beginObject();
    json.key("class").text(nameOfClass(static_cast<int>(i)));
    json.key("pairs").number(link.pairs);
    json.key("remembered").boolean(link.remembered == 1);
    json.key("alpha_us").number(link.alphaUs);
    json.key("bytes_per_second").number(link.bandwidth);
    json.key("overhead_us").number(link.overheadUs);
    json.endObject();
  }
  json.endArray();
}

void addScans(Json& json, const Facts& facts) {
  json.key("algorithm_from_environment").text(facts.chosenBy);
  json.key("all_scan").beginArray();
  for (const auto& scan : facts.scans) {
    json.beginObject();
    json.key("bytes").number(static_cast<double>(scan.bytes));
    json.key("choice").text(seqparScanAlgorithmName(scan.estimates[0].algorithm));
    json.key("estimates").beginArray();
    for (size_t i = 1; i < scan.estimates.size(); ++i) {
      json.beginObject();
      json.key("algorithm").text(seqparScanAlgorithmName(scan.estimates[i].algorithm));
      json.key("blocks").number(scan.estimates[i].blocks);
      json.key("model_us").number(scan.estimates[i].modelUs);
      json.endObject();
    }
    json.endArray();
    json.endObject();
  }
  json.endArray();
}

void addMoves(Json& json, const Facts& facts) {
  json.key("moves").beginArray();
  for (const auto& times : facts.moves) {
    json.beginObject();
    json.key("bytes").number(static_cast<double>(times.bytes));
    json.key("model_us").beginObject();
    for (int move = 0; move < SEQPAR_MOVES; ++move) {
      json.key(nameOfMove(move)).number(times.us[static_cast<size_t>(move)]);
    }
    json.endObject();
    json.endObject();
  }
  json.endArray();
}

void addMeshes(Json& json, const Facts& facts) {
  json.key("mesh").beginArray();
  for (const auto& mesh : facts.meshes) {
    json.beginObject();
    json.key("tokens").number(static_cast<double>(mesh.tokens));
    json.key("shapes").beginArray();
    for (const auto& shape : mesh.shapes) {
      json.beginObject();
      json.key("a").number(shape.a);
      json.key("b").number(shape.b);
      json.key("forward_us").number(shape.forwardUs);
      json.key("backward_us").number(shape.backwardUs);
      json.key("forward_bytes").number(static_cast<double>(shape.forwardBytes));
      json.key("backward_bytes").number(static_cast<double>(shape.backwardBytes));
      json.endObject();
    }
    json.endArray();
    json.endObject();
  }
  json.endArray();
}

}  // namespace

std::string jsonOf(const Facts& facts) {
  Json json;
  json.beginObject();
  addTopology(json, facts);
  addLinks(json, facts);
  addScans(json, facts);
  addMoves(json, facts);
  addMeshes(json, facts);
  json.endObject();
  return json.str() + "\n";
}

}  // namespace seqpar::info
