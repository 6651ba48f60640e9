// Scaled dot-product attention by cuDNN. Only cudnn.cpp includes cuDNN and its frontend.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "seqpar/types.h"

namespace seqpar::attn {

/// Strides in elements: batch, token, head.
using SdpaStrides = std::array<int64_t, 3>;

/// The parameters of a cuDNN plan. Query i sees key j if i' - left < j <= i' + right, where i' is i, or with
/// bottomRight i + columns - rows.
struct SdpaShape {
  static constexpr int64_t kUnbounded = -1;

  bool backward = false;
  bool ragged = false;  ///< batch entries are rectangles of different lengths at any address in the tensors
  bool padded = false;  ///< lengths of rows and columns are in device memory; implied by `ragged`
  bool deterministic = false;
  bool bottomRight = false;
  seqparDataType_t type = seqparBfloat16;
  int64_t batch = 0, heads = 0, kvHeads = 0, rows = 0, columns = 0, headDim = 0, valueDim = 0;
  int64_t allRows = 0, allColumns = 0;  ///< ragged, backward: the tensors have at most as many tokens; 0: not known
  int64_t left = kUnbounded, right = kUnbounded;
  float scale = 1;
  SdpaStrides q{}, k{}, v{}, out{}, dOut{}, dq{}, dk{}, dv{};

  auto operator<=>(const SdpaShape&) const = default;
};

/// Device memory of a call. Without `ragged` lse is [batch][heads][rows]; with it, in cuDNN's format, [rows of all]
/// [heads].
struct SdpaPointers {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* out = nullptr;   ///< forward: out; backward: in
  float* lse = nullptr;  ///< natural logarithms. Forward: out; backward: in
  const void* dOut = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  const int32_t *rows = nullptr, *columns = nullptr;  ///< padded: [batch] lengths
  /// ragged: [batch + 1] start of each entry, in elements of q, k, v, out and lse; gradients have the same offsets.
  const int64_t *qOffset = nullptr, *kOffset = nullptr, *vOffset = nullptr, *outOffset = nullptr, *lseOffset = nullptr;
};

/// cuDNN of one rank. cuDNN does not promise that two threads may run one plan concurrently, so ranks
/// of a process that share a GPU have plans of their own; all other calls share the process's plans.
class Sdpa {
 public:
  /// The reason why cuDNN cannot be used on this machine; empty if it can.
  static const std::string& problem();

  /// The kernels for attention of 16-bit tensors: cuDNN with its version, or band kernels with problem().
  static const std::string& kernels();

  /// For the current device. `sharer`: differs between ranks that share it. Throws InvalidUsage with problem().
  explicit Sdpa(int sharer);
  ~Sdpa();

  /// Builds the plan if necessary (about a second) and stores the workspace size of run(). Returns cuDNN's message if
  /// it refuses the shape, empty otherwise.
  std::string prepare(const SdpaShape& shape, size_t* workspaceBytes);

  /// Whether this rank may build a dense plan for rectangles that change. The first kMostReserved shapes may, so that
  /// training with changing masks waits for few plans.
  bool reserve(const SdpaShape& shape);
  static constexpr size_t kMostReserved = 12;

  /// Calls load(), once per plan of the process.
  void loadOnce(const SdpaShape& shape, const std::function<void()>& load);

  /// The number of plans that the process has built.
  static int64_t built();

  /// Enqueues on `stream` (a cudaStream_t). Builds the plan if prepare() has not. Throws
  /// UnhandledCudaError.
  void run(const SdpaShape& shape, const SdpaPointers& pointers, void* workspace, void* stream);

 private:
  struct Rank;
  std::unique_ptr<Rank> rank_;
};

}  // namespace seqpar::attn
