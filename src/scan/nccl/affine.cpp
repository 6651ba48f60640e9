#include "scan/nccl/affine.h"

#include <algorithm>
#include <utility>

#include "base/convert.h"

namespace seqpar {
namespace {

const void* at(const void* data, std::size_t bytes) {
  return data == nullptr ? nullptr : static_cast<const std::byte*>(data) + bytes;
}

void* at(void* data, std::size_t bytes) {
  return data == nullptr ? nullptr : static_cast<std::byte*>(data) + bytes;
}

MapShape shapeOf(const ScanProblem& problem) {
  MapShape shape;
  shape.heads = problem.heads;
  shape.dk = problem.dk;
  shape.dv = problem.dv;
  shape.matrix = problem.op == seqparScanMatrix;
  shape.transposed = shape.matrix && problem.direction == seqparReverse;
  shape.span = problem.op == seqparScanDiag ? problem.dv : problem.dk * problem.dv;
  return shape;
}

}  // namespace

NcclAffine::NcclAffine(const ScanProblem& problem, DeviceArena& arena, cudaStream_t stream)
    : problem_(problem), arena_(arena), stream_(stream), shape_(shapeOf(problem)) {
  const auto& flags = problem.headFlags;
  if (std::any_of(flags.begin(), flags.end(), [](unsigned char flag) { return flag != 0; })) {
    auto* const copy = arena.take<std::uint8_t>(problem.heads);
    checkCuda(launchFlags(flags.data(), problem.heads, copy, stream), "flagsKernel");
    flags_ = copy;
  }
  factors_ = prepareFactors();
}

// With matrices, the factors select the heads that keep their state.
const float* NcclAffine::prepareFactors() {
  const bool given = problem_.op == seqparScanScalar || problem_.op == seqparScanDiag;
  const std::size_t perHead = problem_.op == seqparScanDiag ? problem_.dk : 1;
  if (given && flags_ == nullptr && problem_.decayForm == seqparDecayLinear) {
    return static_cast<const float*>(problem_.transition);
  }
  const std::size_t count = problem_.heads * perHead;
  auto* const factors = arena_.take<float>(count);
  checkCuda(launchFactors(given ? static_cast<const float*>(problem_.transition) : nullptr, problem_.decayForm, flags_,
                          perHead, count, factors, stream_),
            "factorsKernel");
  return factors;
}

std::vector<Block> NcclAffine::split(Block block, std::size_t parts) const {
  const std::size_t units = (block.end - block.begin + unit() - 1) / unit();
  const std::size_t count = std::min(std::max<std::size_t>(1, parts), units);
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < count; ++i) {
    blocks.push_back({block.begin + unit() * (units * i / count),
                      std::min(block.end, block.begin + unit() * (units * (i + 1) / count))});
  }
  return blocks;
}

std::size_t NcclAffine::factorCount(Block block) const {
  return block.begin == block.end ? 0 : (block.end - 1) / shape_.span - firstFactor(block) + 1;
}

std::size_t NcclAffine::partBytes(Block block, std::size_t part) const {
  switch (part) {
    case kMapState:
      return (block.end - block.begin) * sizeOf(problem_.wireType);
    case kMapFactors:
      return factorCount(block) * sizeof(float);
    default:
      return shape_.matrix ? factorCount(block) * shape_.dk * shape_.dk * sizeof(float) : 0;
  }
}

const std::byte* NcclAffine::own(Block block, std::size_t part) {
  if (part == kMapFactors) return reinterpret_cast<const std::byte*>(factors_ + firstFactor(block));
  if (part == kMapMatrices) {
    if (!shape_.matrix) return nullptr;
    return static_cast<const std::byte*>(
        at(problem_.transition, firstFactor(block) * shape_.dk * shape_.dk * sizeof(float)));
  }
  if (wireState_ == nullptr && !problem_.first && problem_.stateType == problem_.wireType) {
    wireState_ = static_cast<const std::byte*>(problem_.state);
  }
  if (wireState_ == nullptr) {
    std::byte* const wire = takeStates(whole());
    MapHop pack;
    pack.count = problem_.elements();
    pack.a = {factors_, static_cast<const float*>(problem_.transition)};
    pack.x = {problem_.initial, problem_.stateType};
    pack.s = {problem_.state, problem_.stateType};
    pack.flags = flags_;
    pack.wire = wire;
    pack.wireType = problem_.wireType;
    checkCuda(launchHop(shape_, pack, stream_), "hopKernel");
    wireState_ = wire;
  }
  return wireState_ + block.begin * sizeOf(problem_.wireType);
}

MapSlots NcclAffine::takeSlots(Block block, int maps, std::size_t alignment) {
  MapSlots slots;
  slots.block = block;
  for (std::size_t part = 0; part < kMapParts; ++part) {
    const std::size_t bytes = (partBytes(block, part) + alignment - 1) / alignment * alignment;
    slots.stride[part] = static_cast<std::ptrdiff_t>(bytes);
    if (bytes != 0) slots.data[part] = arena_.take(bytes * static_cast<std::size_t>(maps));
  }
  return slots;
}

void NcclAffine::hop(Block block, const void* x, seqparDataType_t xType, void* wire) {
  const std::size_t offset = block.begin * sizeOf(problem_.stateType);
  MapHop hop;
  hop.begin = block.begin;
  hop.count = block.end - block.begin;
  hop.a = {factors_ + firstFactor(block), reinterpret_cast<const float*>(own(block, kMapMatrices))};
  hop.x = x != nullptr ? Values{x, xType} : Values{at(problem_.initial, offset), problem_.stateType};
  hop.s = {at(problem_.state, offset), problem_.stateType};
  hop.flags = flags_;
  hop.prefix = at(problem_.prefix, offset);
  hop.total = at(problem_.total, offset);
  hop.stateType = problem_.stateType;
  hop.wire = wire;
  hop.wireType = problem_.wireType;
  checkCuda(launchHop(shape_, hop, stream_), "hopKernel");
}

/// Applies matrix map `map` to x: writes the state after it.
void NcclAffine::step(Block block, const MapSlots& slots, int map, Values x, float* after, void* wire) {
  MapHop hop;
  hop.begin = block.begin;
  hop.count = block.end - block.begin;
  hop.a = {reinterpret_cast<const float*>(slots.at(map, kMapFactors)),
           reinterpret_cast<const float*>(slots.at(map, kMapMatrices))};
  hop.x = x;
  hop.s = {slots.at(map, kMapState), problem_.wireType};
  hop.total = after;
  hop.stateType = seqparFloat32;
  hop.wire = wire;
  hop.wireType = problem_.wireType;
  checkCuda(launchHop(shape_, hop, stream_), "hopKernel");
}

const float* NcclAffine::fold(const MapSlots& slots, int maps) {
  return static_cast<const float*>(compose(slots, maps, true).s.data);
}

MapFold NcclAffine::foldOf(const MapSlots& slots, int maps) const {
  MapFold fold;
  fold.begin = slots.block.begin;
  fold.count = slots.block.end - slots.block.begin;
  fold.maps = maps;
  fold.states = slots.data[kMapState];
  fold.stateStride = slots.stride[kMapState];
  fold.factors = reinterpret_cast<const float*>(slots.data[kMapFactors]);
  fold.factorStride = slots.stride[kMapFactors] / static_cast<std::ptrdiff_t>(sizeof(float));
  fold.wireType = problem_.wireType;
  return fold;
}

/// Applies matrix maps in order to x; returns the state after the last one, in fp32. wireAfter(map): destination of the
/// state after `map` in the wire type, or null.
template <typename WireAfter>
float* NcclAffine::stepThrough(const MapSlots& slots, int maps, Values x, const WireAfter& wireAfter) {
  const std::size_t elements = slots.block.end - slots.block.begin;
  float* now = arena_.take<float>(elements);
  float* next = arena_.take<float>(elements);
  for (int map = 0; map < maps; ++map) {
    step(slots.block, slots, map, x, next, wireAfter(map));
    std::swap(now, next);
    x = {now, seqparFloat32};
  }
  return now;
}

std::byte* NcclAffine::between(const MapSlots& slots, int maps, const void* x) {
  const Block block = slots.block;
  const auto stride = static_cast<std::ptrdiff_t>(stateBytes(block));
  std::byte* const states = takeStates(block, maps + 1);
  if (!shape_.matrix) {
    MapFold fold = foldOf(slots, maps);
    fold.x = {x, problem_.wireType};
    fold.before = states;
    fold.beforeStride = stride;
    checkCuda(launchFold(shape_, fold, stream_), "foldKernel");
    return states;
  }
  if (x != nullptr) {
    checkCuda(cudaMemcpyAsync(states, x, stateBytes(block), cudaMemcpyDeviceToDevice, stream_), "cudaMemcpyAsync");
  }
  stepThrough(slots, maps, {x, problem_.wireType}, [&](int map) { return states + (map + 1) * stride; });
  return states;
}

ComposedMap NcclAffine::compose(const MapSlots& slots, int maps, bool absolute) {
  const Block block = slots.block;
  const std::size_t factors = factorCount(block);
  const std::ptrdiff_t stride = slots.stride[kMapFactors] / static_cast<std::ptrdiff_t>(sizeof(float));
  ComposedMap result;
  result.block = block;
  float* s = nullptr;
  if (!shape_.matrix) {
    MapFold fold = foldOf(slots, maps);
    fold.last = s = arena_.take<float>(block.end - block.begin);
    checkCuda(launchFold(shape_, fold, stream_), "foldKernel");
  } else {
    s = stepThrough(slots, maps, {nullptr, seqparFloat32}, [](int) { return nullptr; });
  }
  result.s = {s, seqparFloat32};
  if (absolute) return result;

  float* const product = arena_.take<float>(factors);
  checkCuda(
      launchProduct(reinterpret_cast<const float*>(slots.data[kMapFactors]), stride, maps, factors, product, stream_),
      "productKernel");
  result.a.factors = product;
  if (shape_.matrix) result.a.matrices = composeMatrices(slots, maps);
  return result;
}

// A product of matrices is the hop of a state that is a matrix. The maps' matrices are used as given. In reverse, the
// transpose of the product is computed, from the other side, and used transposed again.
const float* NcclAffine::composeMatrices(const MapSlots& slots, int maps) {
  const std::size_t heads = factorCount(slots.block);
  const std::size_t count = heads * shape_.dk * shape_.dk;
  MapShape square = shape_;
  square.heads = heads;
  square.dv = shape_.dk;
  square.transposed = false;
  float* const ones = arena_.take<float>(heads);
  checkCuda(launchFactors(nullptr, seqparDecayLinear, nullptr, 1, heads, ones, stream_), "factorsKernel");
  float* product = arena_.take<float>(count);
  float* next = arena_.take<float>(count);
  checkCuda(
      cudaMemcpyAsync(product, slots.at(0, kMapMatrices), count * sizeof(float), cudaMemcpyDeviceToDevice, stream_),
      "cudaMemcpyAsync");
  for (int map = 1; map < maps; ++map) {
    const auto* const later = reinterpret_cast<const float*>(slots.at(map, kMapMatrices));
    MapHop hop;
    hop.count = count;
    hop.a = {ones, shape_.transposed ? product : later};
    hop.x = {shape_.transposed ? later : product, seqparFloat32};
    hop.total = next;
    checkCuda(launchHop(square, hop, stream_), "hopKernel");
    std::swap(product, next);
  }
  return product;
}

void NcclAffine::apply(const ComposedMap& map, Block block, const void* x, void* wire) {
  const std::size_t skipped = firstFactor(block) - firstFactor(map.block);
  MapHop hop;
  hop.begin = block.begin;
  hop.count = block.end - block.begin;
  if (x != nullptr) {
    hop.a.factors = map.a.factors + skipped;
    if (shape_.matrix) hop.a.matrices = map.a.matrices + skipped * shape_.dk * shape_.dk;
  }
  hop.x = {x, problem_.wireType};
  hop.s = {at(map.s.data, (block.begin - map.block.begin) * sizeof(float)), seqparFloat32};
  hop.wire = wire;
  hop.wireType = problem_.wireType;
  checkCuda(launchHop(shape_, hop, stream_), "hopKernel");
}

}  // namespace seqpar
