// A machine file: JSON with a value and a source for each number. docs/simulator.md describes the keys.
#pragma once

#include <algorithm>
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

/// Kernels of linear attention: times in ms of a GPU, or of a processor of a host, against tokens x heads / 32.
struct LinearKernels {
  Curve forward, backward;
  double splitForward = 1, splitBackward = 1;  ///< times of the passes around a scan / the time without a scan
};

/// A kernel of All-Scan: constants in addition to those of all kernels.
struct ScanProgram {
  double startUs = 0, rowsUs = 0;  ///< of each call; of a state of more than a row, which all channels hold at once
  double rateTbs = 0;              ///< its additions
};

/// Ranks on host memory, which share the processors of their node.
struct HostParameters {
  double processors = 0;              ///< of a node; 0: the ranks are GPUs
  double callUs = 0;                  ///< a collective call
  double threadUs = 0;                ///< handing work to another thread, and waiting for it
  double alphaUs = 0;                 ///< a hop between ranks with processors of their own
  double switchUs = 0;                ///< of a processor that runs another of its ranks when one waits
  bool sendsMessages = false;         ///< ranks of a node send payloads below Mailbox::kMostMessages in messages
  bool maps = true;                   ///< ranks of a node map each other's buffers of seqparMemAlloc() and of rings
  double messageUs = 0, linkGbs = 0;  ///< the library's link model: o, B
  double memoryGbs = 0;               ///< element-wise work of a processor: bytes read and written
  Curve copyGbs;                      ///< of a processor that copies messages, against the bytes of the call's tensors
  Curve readGbs;                      ///< that reads tensors in place
  Curve ownGbs;                       ///< that copies within the rank's memory
  Curve scanGbs;                      ///< of a processor's hops in All-Scan, against the bytes of the state
};

struct Machine {
  std::string name, about;
  int gpus = 1;  ///< of a node; on hosts its ranks
  HostParameters host;
  struct {
    double sms = 0, hbmGbs = 0, launchUs = 0, apiUs = 0, gemmTflops = 0;
    int arch = 0;  ///< compute capability, such as 90
  } gpu;
  struct {
    bool direct = false;  ///< GPUs of a node load and store each other's memory
    double alphaUs = 0, gbs = 0, portGbs = 0, copyGbs = 0, copyStartUs = 0, callUs = 0, exchangeUs = 0;
  } local;
  struct {
    double startUs = 0, hopUs = 0, gbs = 0, ctas = 0, gatherStartUs = 0, gatherHopUs = 0, gatherGbs = 0;
    Curve flowGbs;  ///< most of one message to one peer at a time, against its bytes; no points: gbs
    double flow(double bytes) const { return flowGbs.points.empty() ? gbs : std::min(gbs, flowGbs.at(bytes)); }
  } nccl;  ///< between GPUs of a node
  struct {
    double alphaUs = 0, overheadUs = 0, gbs = 0, oversubscription = 1, leafNodes = 1;
    double adapters = 0;  ///< of a node, shared by neighbors; 0: one for each GPU, or one for a host
    double flowGbs = 0;   ///< most of one message; 0: all of the adapter's rate
    double most() const { return flowGbs > 0 && flowGbs < gbs ? flowGbs : gbs; }
  } net;  ///< rates are of an adapter
  struct {
    double callUs = 0, rowsUs = 0, hopUs = 0, peerUs = 0, streamTbs = 0, foldTbs = 0, chunkKib = 0, matrixTflops = 0;
    std::map<std::string, ScanProgram> programs;  ///< kernels without pipeline
  } scan;
  std::map<std::string, Curve>
      softmax;  ///< "full forward", ...; hosts "fp32 full forward", ...: TFLOP/s against tokens
  std::map<std::string, LinearKernels> linear;
  double statesShare = 0;                                    ///< of a linear forward: states of the rank
  std::map<int, std::map<std::string, double>> rankFactors;  ///< what-if: rank -> {"rate", "local", "net"} -> factor

  std::set<int> failedAdapters;  ///< what-if: ranks that use the network adapter of the next GPU of their node

  std::vector<std::string> guesses;  ///< keys with a guess as source

  double factor(int rank, const char* what) const;
  bool onHosts() const { return host.processors > 0; }
  /// The first rank at the adapter that carries a rank's bytes: its own, or after a failure the next of the node; -1:
  /// none is left.
  int adapterOf(int rank) const;
  /// Network adapters of a node.
  int adapters() const;
  /// The rate of each rank while all ranks of its node send to others, as when the library measures links over NCCL.
  double sharedNetGbs() const { return std::min(net.most(), net.gbs / ranksOfAdapter()); }
  int ranksOfAdapter() const { return (gpus + adapters() - 1) / adapters(); }
  /// Threads of a rank on a host.
  double threads() const;
  /// Bytes in the caches of a processor on a host, if each of its ranks uses `bytes`.
  double inCaches(double bytes) const;
};

/// Reads a machine from JSON text after applying `changes`: "KEY*=FACTOR" or "KEY=VALUE" with keys such as net.gbs, or
/// "rank[R].rate*=FACTOR" (also .local, .net), "rank[R].net=down". Throws std::invalid_argument that names the key.
Machine readMachine(const std::string& text, const std::vector<std::string>& changes);

/// Throws std::invalid_argument if a change names a rank that does not exist, or removes all adapters of a node.
void checkRanks(const Machine& machine, int ranks);

/// The text of a machine: a path, or the name of an installed machine.
std::string machineText(const std::string& nameOrPath);

}  // namespace seqpar::sim
