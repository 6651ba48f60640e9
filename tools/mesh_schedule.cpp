// mesh_schedule NAME=VALUE..: prints the schedule of a mesh for given costs, without ranks.
#include <charconv>
#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>

#include "mesh/print.h"

using namespace seqpar;

namespace {

constexpr const char* kHelp =
    "Usage: mesh_schedule a=A b=B [pass=forward|backward] [json=0|1] [tile=US] [recv_q=US] [recv_kv=US] [send_o=US]\n"
    "                     [recv_odoq=US] [send_dq=US] [send_dkv=US]\n"
    "Prints the schedule of a rank of a mesh of A x B ranks. US: microseconds of a tile, of a movement; default 1.\n";

template <typename Number>
Number parse(const std::string& name, const std::string& text, Number least, Number most) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= least && value <= most)) {
    throw std::invalid_argument(name + " is '" + text + "', expected a number from " + std::to_string(least) + " to " +
                                std::to_string(most));
  }
  return value;
}

struct Request {
  MeshShape shape{0, 0};
  seqparMeshPass_t pass = seqparMeshForward;
  bool json = false;
  MeshCosts costs;
};

Request parse(int argc, char** argv) {
  constexpr int kMostRanks = 4096;
  constexpr double kMostUs = 1e12, kUs = 1e-6;
  Request request;
  request.costs.tile = kUs;
  std::map<std::string, double*> costs{{"tile", &request.costs.tile}};
  for (int operation = seqparMeshRecvQ; operation < SEQPAR_MESH_OPERATIONS; ++operation) {
    double& cost = request.costs.step[static_cast<size_t>(operation)];
    cost = kUs;
    costs[meshOperationName(operation)] = &cost;
  }
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto equals = argument.find('=');
    const auto name = argument.substr(0, equals);
    const auto text = equals == std::string::npos ? "" : argument.substr(equals + 1);
    if (name == "a" || name == "b") {
      (name == "a" ? request.shape.a : request.shape.b) = parse(name, text, 1, kMostRanks);
    } else if (name == "pass" && (text == "forward" || text == "backward")) {
      request.pass = text == "forward" ? seqparMeshForward : seqparMeshBackward;
    } else if (name == "json") {
      request.json = parse(name, text, 0, 1) == 1;
    } else if (const auto cost = costs.find(name); cost != costs.end()) {
      *cost->second = parse(name, text, 0.0, kMostUs) * kUs;
    } else {
      throw std::invalid_argument("'" + argument + "' is not understood");
    }
  }
  if (request.shape.a == 0 || request.shape.b == 0) throw std::invalid_argument("a and b are needed");
  return request;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && (std::string(argv[1]) == "--help" || std::string(argv[1]) == "-h")) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  try {
    const auto request = parse(argc, argv);
    const auto schedule = meshSchedule(request.pass, request.shape, request.costs);
    const auto text =
        request.json ? scheduleJson(schedule, request.costs) + "\n" : scheduleDiagram(schedule, request.costs);
    std::fputs(text.c_str(), stdout);
    return 0;
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "mesh_schedule: %s\n%s", error.what(), kHelp);
    return 2;
  }
}
