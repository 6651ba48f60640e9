// A machine file: JSON with a value and a source for each number. docs/simulator.md describes the keys.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace seqpar::sim {

/// Points of (x, y), interpolated in logarithms; outside the points, the nearest y.
struct Curve {
  std::vector<std::pair<double, double>> points;
  double at(double x) const;
  /// Extended beyond the points in proportion to x: for times of work that is proportional to x.
  double proportional(double x) const;
};

/// Kernels of linear attention: times in ms of a GPU against tokens x heads / 32.
struct LinearKernels {
  Curve forward, backward;
};

struct Machine {
  std::string name, about;
  int gpus = 1;  ///< of a node
  struct {
    double sms = 0, hbmGbs = 0, launchUs = 0, apiUs = 0, gemmTflops = 0;
  } gpu;
  struct {
    bool direct = false;  ///< GPUs of a node load and store each other's memory
    double alphaUs = 0, gbs = 0, portGbs = 0, copyGbs = 0, copyStartUs = 0, callUs = 0;
  } local;
  struct {
    double startUs = 0, hopUs = 0, gbs = 0, ctas = 0;
  } nccl;  ///< between GPUs of a node
  struct {
    double alphaUs = 0, overheadUs = 0, gbs = 0, oversubscription = 1, leafNodes = 1;
  } net;  ///< per GPU
  struct {
    double callUs = 0, hopUs = 0, streamTbs = 0, foldTbs = 0, chunkKib = 0, matrixTflops = 0;
  } scan;
  std::map<std::string, Curve> softmax;  ///< "full forward", ...: TFLOP/s against tokens
  std::map<std::string, LinearKernels> linear;
  double statesShare = 0;                                    ///< of a linear forward: states of the rank
  std::map<int, std::map<std::string, double>> rankFactors;  ///< what-if: rank -> {"rate", "local", "net"} -> factor

  std::set<int> failedAdapters;  ///< what-if: ranks that use the network adapter of the next GPU of their node

  std::vector<std::string> guesses;  ///< keys with a guess as source

  double factor(int rank, const char* what) const;
};

/// Reads a machine from JSON text after applying `changes`: "KEY*=FACTOR" or "KEY=VALUE" with keys such as net.gbs, or
/// "rank[R].rate*=FACTOR" (also .local, .net), "rank[R].net=down". Throws std::invalid_argument that names the key.
Machine readMachine(const std::string& text, const std::vector<std::string>& changes);

/// The text of a machine: a path, or the name of an installed machine.
std::string machineText(const std::string& nameOrPath);

}  // namespace seqpar::sim
