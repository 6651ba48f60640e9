// One rank's affine map in device memory: the parts that NCCL sends, and the computations between NCCL's steps.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "device/arena.h"
#include "kernels/scan/nccl_map.h"
#include "scan/affine/affine.h"

namespace seqpar {

/// The arrays of a map, or of a block of it. They are sent separately, without copying.
enum MapPart { kMapState = 0, kMapFactors = 1, kMapMatrices = 2 };
constexpr std::size_t kMapParts = 3;

/// The maps of one block of several positions, in device memory: part k of map q at data[k] + q * stride[k].
struct MapSlots {
  std::array<std::byte*, kMapParts> data{};
  std::array<std::ptrdiff_t, kMapParts> stride{};
  Block block;

  std::byte* at(int map, std::size_t part) const { return data[part] + map * stride[part]; }
};

/// A block's composed map, in fp32.
struct ComposedMap {
  Block block;
  MapFactors a;
  Values s;
};

/// Blocks are ranges of elements: inner bounds are multiples of 16, or with matrices of whole heads. All work runs on
/// `stream`, with memory of `arena`.
class NcclAffine {
 public:
  NcclAffine(const ScanProblem& problem, DeviceArena& arena, cudaStream_t stream);

  Block whole() const { return {0, problem_.elements()}; }
  /// At most `parts` blocks of nearly equal size, the same on all ranks.
  std::vector<Block> split(Block block, std::size_t parts) const;

  /// Length of a part of a block's map; 0: the operator has no such part.
  std::size_t partBytes(Block block, std::size_t part) const;
  std::size_t stateBytes(Block block) const { return partBytes(block, kMapState); }
  /// Number of parts of a position's map: only the state at position 0, because its map is absolute.
  static std::size_t partsAt(int position) { return position == 0 ? 1 : kMapParts; }

  /// Address of a part of this rank's own map. The state is in the wire type; at position 0 it is A x_0 + S.
  const std::byte* own(Block block, std::size_t part);

  MapSlots takeSlots(Block block, int maps, std::size_t alignment);
  std::byte* takeStates(Block block, int count = 1) { return arena_.take(stateBytes(block) * std::size_t(count)); }

  /// This rank's hop: reads x of the block (no data: x_0, or zeros, at position 0), writes the requested outputs, and A
  /// x + S to `wire` unless it is null.
  void hop(Block block, const void* x, seqparDataType_t xType, void* wire);

  /// The state after `maps` maps, in fp32; the first map is absolute.
  const float* fold(const MapSlots& slots, int maps);

  /// The states before map 0 to before map `maps`, consecutive, in the wire type; x is the state before map 0. With x
  /// null, the first map is absolute and the state before it is omitted.
  std::byte* between(const MapSlots& slots, int maps, const void* x);

  /// Composes all maps. If the first is absolute, so is the result: its A is null.
  ComposedMap compose(const MapSlots& slots, int maps, bool absolute);

  /// Writes A x + s of a block of `map` to `wire`; x is of the wire type, null if the map is absolute.
  void apply(const ComposedMap& map, Block block, const void* x, void* wire);

 private:
  std::size_t unit() const { return shape_.matrix ? shape_.headElements() : 16; }
  std::size_t firstFactor(Block block) const { return block.begin / shape_.span; }
  std::size_t factorCount(Block block) const;
  const float* prepareFactors();
  const float* composeMatrices(const MapSlots& slots, int maps);
  MapFold foldOf(const MapSlots& slots, int maps) const;
  template <typename WireAfter>
  float* stepThrough(const MapSlots& slots, int maps, Values x, const WireAfter& wireAfter);
  void step(Block block, const MapSlots& slots, int map, Values x, float* after, void* wire);

  const ScanProblem& problem_;
  DeviceArena& arena_;
  cudaStream_t stream_;
  MapShape shape_;
  const std::uint8_t* flags_ = nullptr;  ///< null: none set
  const float* factors_ = nullptr;       ///< of the whole state
  const std::byte* wireState_ = nullptr;
};

}  // namespace seqpar
