// Scaled dot-product attention by cuDNN: the only door to it. cuDNN and its frontend are seen by cudnn.cpp alone.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "seqpar/types.h"

namespace seqpar::attn {

/// Strides in elements: batch, token, head.
using SdpaStrides = std::array<int64_t, 3>;

/// All that a plan of cuDNN depends on. Query i sees key j if i' - left < j <= i' + right, where i' is i, or with
/// bottomRight i + columns - rows.
struct SdpaShape {
  static constexpr int64_t kUnbounded = -1;

  bool backward = false;
  bool ragged = false;  ///< batch entries are rectangles of their own lengths anywhere in the tensors
  bool padded = false;  ///< lengths of rows and columns stand in device memory; implied by `ragged`
  bool deterministic = false;
  bool bottomRight = false;
  seqparDataType_t type = seqparBfloat16;
  int64_t batch = 0, heads = 0, kvHeads = 0, rows = 0, columns = 0, headDim = 0, valueDim = 0;
  int64_t left = kUnbounded, right = kUnbounded;
  float scale = 1;
  SdpaStrides q{}, k{}, v{}, out{}, dOut{}, dq{}, dk{}, dv{};

  auto operator<=>(const SdpaShape&) const = default;
};

/// Device memory of a call. Without `ragged` lse is [batch][heads][rows]; with it, as cuDNN wants it, [rows of all]
/// [heads].
struct SdpaPointers {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* out = nullptr;   ///< forward: out; backward: in
  float* lse = nullptr;  ///< natural logarithms. Forward: out; backward: in
  const void* dOut = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  const int32_t *rows = nullptr, *columns = nullptr;  ///< padded: [batch] lengths
  /// ragged: [batch + 1] where each begins, in elements of q, k, v, out and lse; gradients lie like their tensors.
  const int64_t *qOffset = nullptr, *kOffset = nullptr, *vOffset = nullptr, *outOffset = nullptr, *lseOffset = nullptr;
};

/// One rank's cuDNN. Plans are shared by all ranks of the process.
class Sdpa {
 public:
  /// Why cuDNN cannot be used on this machine; empty if it can.
  static const std::string& problem();

  /// For the current device. Throws InvalidUsage with problem().
  Sdpa();
  ~Sdpa();

  /// Builds the plan if need be (about a second) and tells the bytes of workspace that run() needs. Returns cuDNN's
  /// words if it refuses the shape, empty otherwise.
  std::string prepare(const SdpaShape& shape, size_t* workspaceBytes);

  /// Enqueues on `stream` (a cudaStream_t). The plan is built at this call if prepare() has not. Throws
  /// UnhandledCudaError.
  void run(const SdpaShape& shape, const SdpaPointers& pointers, void* workspace, void* stream);

 private:
  struct Rank;
  std::unique_ptr<Rank> rank_;
};

}  // namespace seqpar::attn
