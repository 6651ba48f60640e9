#include "scan/affine/elementwise.h"

#include <algorithm>
#include <cmath>

#include "base/convert.h"
#include "base/error.h"
#include "base/memory.h"

namespace seqpar {
namespace {

constexpr size_t kUnit = 16;    // elements; block bounds are multiples of it
constexpr size_t kTile = 1024;  // elements that share one expansion of coefficients

size_t spanOf(const ScanProblem& problem) {
  return problem.op == seqparScanDiag ? problem.dv : problem.dk * problem.dv;
}

/// Number of spans that overlap a block.
size_t coefficientsOf(Block block, size_t span) {
  return block.begin == block.end ? 0 : (block.end - 1) / span - block.begin / span + 1;
}

float decay(float value, seqparDecayForm_t form) {
  switch (form) {
    case seqparDecayLog:
      return std::exp(value);
    case seqparDecayLog2:
      return std::exp2(value);
    case seqparDecayLinear:
      break;
  }
  return value;
}

bool forgets(const ScanProblem& problem, size_t head) {
  return (problem.headFlags[head] & (SEQPAR_SCAN_RESET_IN | SEQPAR_SCAN_CUT)) != 0;
}

size_t coefficientsOfHead(const ScanProblem& problem) {
  return problem.op == seqparScanDiag ? problem.dk : 1;
}

void fillCoefficients(const ScanProblem& problem, std::span<float> all) {
  const size_t perHead = coefficientsOfHead(problem);
  if (problem.op != seqparScanSum) {
    const float* given = static_cast<const float*>(problem.transition);
    if (problem.decayForm == seqparDecayLinear) {
      std::copy_n(given, all.size(), all.begin());
    } else {
      std::transform(given, given + all.size(), all.begin(),
                     [&](float value) { return decay(value, problem.decayForm); });
    }
  }
  for (size_t head = 0; head < problem.heads; ++head) {
    if (forgets(problem, head)) std::fill_n(all.data() + head * perHead, perHead, 0.0F);
  }
}

/// True if the caller's array contains the coefficients.
bool areGiven(const ScanProblem& problem) {
  if (problem.op == seqparScanSum || problem.decayForm != seqparDecayLinear) return false;
  for (size_t head = 0; head < problem.heads; ++head) {
    if (forgets(problem, head)) return false;
  }
  return true;
}

const void* at(Values values, size_t element) {
  if (values.data == nullptr) return nullptr;
  return static_cast<const std::byte*>(values.data) + element * sizeOf(values.type);
}

void* at(void* data, seqparDataType_t type, size_t element) {
  return data == nullptr ? nullptr : static_cast<std::byte*>(data) + element * sizeOf(type);
}

}  // namespace

const HopKernels& hopKernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::Avx512) return kHopAvx512;
  if (isa == Isa::Avx2) return kHopAvx2;
#endif
  static_cast<void>(isa);
  return kHopPortable;
}

Elementwise::Elementwise(const ScanProblem& problem)
    : problem_(problem), kernels_(hopKernels(bestIsa())), span_(spanOf(problem)), given_(areGiven(problem)) {
  if (!given_) {
    const size_t count = problem.heads * coefficientsOfHead(problem);
    made_ =
        allocateFor("the factors of All-Scan", count * sizeof(float), [&] { return std::vector<float>(count, 1.0F); });
    fillCoefficients(problem, made_);
  }
  if (span_ % kUnit != 0) spread_.resize(std::min(kTile, problem.elements()));
  for (size_t head = 0; head < problem.heads; ++head) anyResets_ = anyResets_ || resets(head);
}

void Elementwise::refresh() {
  if (!given_ && problem_.op != seqparScanSum) fillCoefficients(problem_, made_);
}

BlockSize Elementwise::finest(const ScanProblem& problem) {
  const size_t span = spanOf(problem), elements = problem.elements();
  size_t most = 0;
  const auto look = [&](size_t unit) {
    const size_t begin = std::min(unit * kUnit, elements);
    most = std::max(most, coefficientsOf({begin, std::min(begin + kUnit, elements)}, span));
  };
  // Spans shorter than a block: within as many blocks as a span has elements, every offset into a span occurs.
  for (size_t unit = 0; unit < kUnit; ++unit) look(unit);
  // Longer ones: no block overlaps more than two, and if one does, so does the block with the first span's end.
  look(span / kUnit);
  return {std::min(kUnit, elements), most};
}

bool Elementwise::resets(size_t head) const {
  return (problem_.headFlags[head] & SEQPAR_SCAN_RESET_IN) != 0;
}

std::vector<Block> Elementwise::split(size_t parts) const {
  return split(Block{0, problem_.elements()}, parts);
}

std::vector<Block> Elementwise::split(Block block, size_t parts) const {
  const size_t units = (block.end - block.begin + kUnit - 1) / kUnit;
  const size_t count = std::min(parts, units);
  std::vector<Block> blocks(count);
  size_t begin = block.begin;
  for (size_t i = 0; i < count; ++i) {
    const size_t end = std::min(block.end, begin + kUnit * (units / count + (i < units % count ? 1 : 0)));
    blocks[i] = {begin, end};
    begin = end;
  }
  return blocks;
}

size_t Elementwise::stateElements(Block block) const {
  return block.end - block.begin;
}

size_t Elementwise::coefficientElements(Block block) const {
  return coefficientsOf(block, span_);
}

Values Elementwise::firstX(Block block) const {
  return {at({problem_.initial, problem_.stateType}, block.begin), problem_.stateType};
}

void Elementwise::packState(Block block, Target wire) {
  Operands operands;
  if (problem_.first) operands.x = firstX(block);
  operands.s = {at({problem_.state, problem_.stateType}, block.begin), problem_.stateType};
  operands.wire = wire;
  operands.wireType = problem_.wireType;
  runOwn(block, operands);
}

void Elementwise::packCoefficients(Block block, float* coefficients) {
  const size_t count = coefficientElements(block);
  if (problem_.first) {
    std::fill_n(coefficients, count, 0.0F);
  } else {
    std::copy_n(ownCoefficients() + block.begin / span_, count, coefficients);
  }
}

void Elementwise::hop(Block block, Values x, Target wire) {
  Operands operands;
  operands.x = x.data == nullptr ? firstX(block) : x;
  operands.s = {at({problem_.state, problem_.stateType}, block.begin), problem_.stateType};
  operands.prefix = at(problem_.prefix, problem_.stateType, block.begin);
  operands.total = at(problem_.total, problem_.stateType, block.begin);
  operands.wire = wire;
  operands.wireType = problem_.wireType;
  if (operands.total == nullptr && !wire) operands.s.data = nullptr;
  runOwn(block, operands);
}

void Elementwise::compose(Block block, const float* laterA, Values laterS, float* earlierA, float* earlierS) {
  Operands operands;
  operands.x = {earlierS, seqparFloat32};
  operands.s = laterS;
  operands.wire = earlierS;
  operands.wireType = seqparFloat32;
  run(block, laterA, operands);
  if (earlierA == nullptr) return;
  const size_t count = coefficientElements(block);
  for (size_t i = 0; i < count; ++i) {
    earlierA[i] = laterA[i] == 0.0F || earlierA[i] == 0.0F ? 0.0F : laterA[i] * earlierA[i];
  }
}

void Elementwise::convert(Block block, Values from, Target to, seqparDataType_t toType) const {
  if (from.type == toType && from.data != nullptr) {
    copyTo(to, from.data, stateElements(block) * sizeOf(toType));
  } else {
    seqpar::convert(from.data, from.type, to.data, toType, stateElements(block));
  }
}

// Uses this rank's coefficients; x is zero in heads that start a sequence.
void Elementwise::runOwn(Block block, const Operands& operands) {
  if (!anyResets_) {
    const size_t first = block.begin == 0 ? 0 : block.begin / span_;
    return run(block, ownCoefficients() + first, operands);
  }
  const size_t headElements = problem_.dk * problem_.dv;
  for (size_t begin = block.begin; begin < block.end;) {
    size_t head = begin / headElements;
    const bool zeros = resets(head);
    while (head * headElements < block.end && resets(head) == zeros) ++head;
    const size_t end = std::min(block.end, head * headElements);
    const size_t skip = begin - block.begin;
    Operands part = operands;
    part.x.data = zeros ? nullptr : at(operands.x, skip);
    part.s.data = at(operands.s, skip);
    part.prefix = at(operands.prefix, operands.s.type, skip);
    part.total = at(operands.total, operands.s.type, skip);
    if (part.wire) part.wire = operands.wire.after(skip * sizeOf(operands.wireType));
    run({begin, end}, ownCoefficients() + begin / span_, part);
    begin = end;
  }
}

void Elementwise::run(Block block, const float* coefficients, const Operands& operands) {
  const HopKernel kernel = kernels_.kernel[operands.x.type][operands.s.type][operands.wireType];
  HopRun run;
  run.x = operands.x.data;
  run.s = operands.s.data;
  run.prefix = operands.prefix;
  run.total = operands.total;
  run.wire = operands.wire.data;
  run.streamed = operands.wire.store == Store::Streamed;
  run.count = block.end - block.begin;
  if (spread_.empty()) {
    run.coefficients = coefficients;
    run.span = span_;
    run.skip = block.begin == 0 ? 0 : block.begin % span_;
    kernel(run);
    return;
  }
  run.coefficients = spread_.data();
  size_t inSpan = block.begin % span_;
  for (size_t done = 0; done < block.end - block.begin;) {
    run.count = std::min(spread_.size(), block.end - block.begin - done);
    for (size_t i = 0; i < run.count;) {
      const size_t length = std::min(run.count - i, span_ - inSpan);
      std::fill_n(spread_.data() + i, length, *coefficients);
      i += length;
      inSpan += length;
      if (inSpan == span_) {
        inSpan = 0;
        ++coefficients;
      }
    }
    run.x = at(operands.x, done);
    run.s = at(operands.s, done);
    run.prefix = at(operands.prefix, operands.s.type, done);
    run.total = at(operands.total, operands.s.type, done);
    run.wire = at(operands.wire.data, operands.wireType, done);
    kernel(run);
    done += run.count;
  }
}

}  // namespace seqpar
