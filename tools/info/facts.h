// The data that seqpar_info prints, collected through the public interface.
#pragma once

#include <string>
#include <vector>

#include "seqpar/mesh.h"
#include "seqpar/plan.h"
#include "seqpar/seqpar.h"

namespace seqpar::info {

struct Node {
  std::string host;
  std::vector<int> ranks;
};

struct ScanChoice {
  size_t bytes;                                 ///< of a rank's state
  std::vector<seqparScanEstimate_t> estimates;  ///< the choice, then all, fastest first
};

struct MoveTimes {
  size_t bytes;
  std::vector<double> us;  ///< by seqparMove_t
};

struct MeshChoice {
  int64_t tokens;                            ///< of a rank
  std::vector<seqparMeshEstimate_t> shapes;  ///< best first
};

struct Facts {
  std::string version, launch;
  seqparCommInfo_t comm;
  std::vector<Node> nodes;
  std::vector<seqparLinkInfo_t> links;  ///< by seqparLinkClass_t
  std::string gpuKernels;               ///< seqparAttnGpuKernels()
  std::string chosenBy;                 ///< SEQPAR_ALGO's value, or ""
  std::string cache;                    ///< SEQPAR_TUNING_CACHE's value, or ""
  std::vector<ScanChoice> scans;
  std::vector<MoveTimes> moves;
  std::vector<MeshChoice> meshes;
};

/// Attention shape for the mesh's estimates.
inline constexpr int kHeads = 32, kKvHeads = 8, kHeadDim = 128;

/// Collective.
Facts collect(seqparComm_t comm, const std::string& launch);

std::string textOf(const Facts& facts);
std::string jsonOf(const Facts& facts);

const char* nameOfClass(int linkClass);
const char* nameOfMove(int move);

}  // namespace seqpar::info
