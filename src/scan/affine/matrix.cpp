#include "scan/affine/matrix.h"

#include <algorithm>
#include <cstddef>

#include "base/convert.h"
#include "scan/affine/forgetting_product.h"

namespace seqpar {
namespace {

constexpr size_t kPanel = 16;

// Divides a half-open range into `parts` ranges (at most one per unit) of nearly equal size.
void cut(size_t begin, size_t end, size_t parts, size_t scale, std::vector<Block>& blocks) {
  const size_t units = end - begin;
  const size_t count = std::min(parts, units);
  for (size_t i = 0; i < count; ++i) {
    blocks.push_back({(begin + units * i / count) * scale, (begin + units * (i + 1) / count) * scale});
  }
}

size_t coefficientsOfHead(size_t dk) {
  return 1 + dk * dk;
}

}  // namespace

Matrix::Matrix(const ScanProblem& problem) : problem_(problem), panels_((problem.dv + kPanel - 1) / kPanel) {}

BlockSize Matrix::finest(const ScanProblem& problem) {
  return {problem.dk * std::min(problem.dv, kPanel), coefficientsOfHead(problem.dk)};
}

std::vector<Block> Matrix::split(size_t parts) const {
  return split(Block{0, problem_.heads * panels_}, parts);
}

std::vector<Block> Matrix::split(Block block, size_t parts) const {
  std::vector<Block> blocks;
  if (block.begin == block.end) return blocks;
  if (block.begin % panels_ != 0 || block.end % panels_ != 0) {
    cut(block.begin, block.end, parts, 1, blocks);
    return blocks;
  }
  const size_t head = block.begin / panels_;
  const size_t headEnd = block.end / panels_;
  const size_t partsOfHead = parts / (headEnd - head);
  if (partsOfHead <= 1) {
    cut(head, headEnd, parts, panels_, blocks);
  } else {
    for (size_t h = head; h < headEnd; ++h) cut(h * panels_, (h + 1) * panels_, partsOfHead, 1, blocks);
  }
  return blocks;
}

Matrix::Region Matrix::region(Block block) const {
  const size_t head = block.begin / panels_;
  const size_t headEnd = (block.end + panels_ - 1) / panels_;
  if (block.begin % panels_ == 0 && block.end % panels_ == 0) return {head, headEnd, 0, problem_.dv};
  const size_t column = (block.begin - head * panels_) * kPanel;
  return {head, headEnd, column, std::min(problem_.dv, (block.end - head * panels_) * kPanel) - column};
}

size_t Matrix::stateElements(Block block) const {
  const Region part = region(block);
  return (part.headEnd - part.head) * headElements(part);
}

size_t Matrix::coefficientElements(Block block) const {
  const Region part = region(block);
  return (part.headEnd - part.head) * coefficientsOfHead(problem_.dk);
}

Matrix::Rows Matrix::own(const void* data, size_t head, const Region& part) const {
  if (data == nullptr) return {nullptr, problem_.stateType, problem_.dv};
  const size_t offset = (head * problem_.dk * problem_.dv + part.column) * sizeOf(problem_.stateType);
  return {static_cast<const std::byte*>(data) + offset, problem_.stateType, problem_.dv};
}

Matrix::OutRows Matrix::own(void* data, size_t head, const Region& part) const {
  if (data == nullptr) return {Target(), problem_.stateType, problem_.dv};
  const size_t offset = (head * problem_.dk * problem_.dv + part.column) * sizeOf(problem_.stateType);
  return {Target(data).after(offset), problem_.stateType, problem_.dv};
}

void Matrix::copy(Rows from, OutRows to, size_t width) const {
  if (!to.target || to.target.data == from.data) return;
  size_t rows = problem_.dk;
  if (from.stride == width && to.stride == width) {
    width *= rows;
    rows = 1;
  }
  for (size_t row = 0; row < rows; ++row) {
    const void* source = from.data == nullptr
                             ? nullptr
                             : static_cast<const std::byte*>(from.data) + row * from.stride * sizeOf(from.type);
    const Target target = to.target.after(row * to.stride * sizeOf(to.type));
    if (source != nullptr && from.type == to.type) {
      copyTo(target, source, width * sizeOf(to.type));
    } else {
      seqpar::convert(source, from.type, target.data, to.type, width);
    }
  }
}

// Returns the rows themselves if they are fp32, otherwise a copy in `scratch`.
const float* Matrix::asFloat(Rows from, size_t width, std::vector<float>& scratch, size_t& stride) const {
  if (from.type == seqparFloat32 && from.data != nullptr) {
    stride = from.stride;
    return static_cast<const float*>(from.data);
  }
  scratch.resize(problem_.dk * width);
  stride = width;
  copy(from, {scratch.data(), seqparFloat32, width}, width);
  return scratch.data();
}

void Matrix::packState(Block block, Target wire) {
  const Region part = region(block);
  const seqparDataType_t type = problem_.wireType;
  for (size_t head = part.head; head < part.headEnd; ++head) {
    const size_t offset = (head - part.head) * headElements(part) * sizeOf(type);
    const OutRows to = {wire.after(offset), type, part.width};
    if (problem_.first) {
      hopHead(head, part, own(problem_.initial, head, part), {}, {}, to);
    } else {
      copy(own(problem_.state, head, part), to, part.width);
    }
  }
}

void Matrix::packCoefficients(Block block, float* coefficients) {
  const Region part = region(block);
  const size_t dk = problem_.dk;
  for (size_t head = part.head; head < part.headEnd; ++head) {
    float* matrix = coefficients + 1;
    if (problem_.first || has(head, SEQPAR_SCAN_RESET_IN | SEQPAR_SCAN_CUT)) {
      std::fill_n(coefficients, 1 + dk * dk, 0.0F);
    } else {
      const float* given = static_cast<const float*>(problem_.transition) + head * dk * dk;
      *coefficients = 1.0F;
      if (problem_.direction == seqparForward) {
        std::copy_n(given, dk * dk, matrix);
      } else {
        for (size_t i = 0; i < dk; ++i) {
          for (size_t j = 0; j < dk; ++j) matrix[i * dk + j] = given[j * dk + i];
        }
      }
    }
    coefficients += 1 + dk * dk;
  }
}

void Matrix::hop(Block block, Values x, Target wire) {
  const Region part = region(block);
  for (size_t head = part.head; head < part.headEnd; ++head) {
    const size_t offset = (head - part.head) * headElements(part);
    Rows from = own(problem_.initial, head, part);
    if (x.data != nullptr) {
      from = {static_cast<const std::byte*>(x.data) + offset * sizeOf(x.type), x.type, part.width};
    }
    OutRows to = {Target(), problem_.wireType, part.width};
    if (wire) to.target = wire.after(offset * sizeOf(to.type));
    hopHead(head, part, from, own(problem_.prefix, head, part), own(problem_.total, head, part), to);
  }
}

// S is read before any output is written, because an output may alias it; A x is then added to that output.
void Matrix::hopHead(size_t head, const Region& part, Rows x, OutRows prefix, OutRows total, OutRows wire) {
  if (has(head, SEQPAR_SCAN_RESET_IN)) x.data = nullptr;
  const Rows s = own(problem_.state, head, part);
  if (x.data == nullptr || has(head, SEQPAR_SCAN_CUT)) {
    copy(s, total, part.width);
    copy(s, wire, part.width);
    copy(x, prefix, part.width);
    return;
  }
  if (!total.target && !wire.target) {
    copy(x, prefix, part.width);
    return;
  }
  // A product is read and written repeatedly while it accumulates, so it accumulates in cached memory.
  const auto holds = [](const OutRows& rows) {
    return rows.target && rows.type == seqparFloat32 && rows.target.store == Store::Cached;
  };
  OutRows after = holds(wire) ? wire : total;
  if (!holds(after)) {
    after_.resize(headElements(part));
    after = {after_.data(), seqparFloat32, part.width};
  }
  copy(s, after, part.width);
  size_t strideX = 0;
  const float* xs = asFloat(x, part.width, x_, strideX);
  const size_t dk = problem_.dk;
  const float* a = static_cast<const float*>(problem_.transition) + head * dk * dk;
  multiplyForgetting(dk, part.width, dk, {a, dk, problem_.direction == seqparReverse}, {xs, strideX}, true,
                     reinterpret_cast<float*>(after.target.data), after.stride);
  const Rows result = {after.target.data, after.type, after.stride};
  copy(result, total, part.width);
  copy(result, wire, part.width);
  copy(x, prefix, part.width);
}

void Matrix::compose(Block block, const float* laterA, Values laterS, float* earlierA, float* earlierS) {
  const Region part = region(block);
  const size_t dk = problem_.dk;
  for (size_t head = part.head; head < part.headEnd; ++head) {
    const size_t offset = (head - part.head) * headElements(part);
    Rows s = {nullptr, laterS.type, part.width};
    if (laterS.data != nullptr) s.data = static_cast<const std::byte*>(laterS.data) + offset * sizeOf(laterS.type);
    const OutRows result = {earlierS + offset, seqparFloat32, part.width};
    const bool keeps = *laterA != 0.0F;
    if (keeps) {
      x_.assign(earlierS + offset, earlierS + offset + headElements(part));
      copy(s, result, part.width);
      multiplyForgetting(dk, part.width, dk, {laterA + 1, dk}, {x_.data(), part.width}, true, earlierS + offset,
                         part.width);
    } else {
      copy(s, result, part.width);
    }
    if (earlierA != nullptr) {
      if (keeps && *earlierA != 0.0F) {
        after_.assign(earlierA + 1, earlierA + 1 + dk * dk);
        multiplyForgetting(dk, dk, dk, {laterA + 1, dk}, {after_.data(), dk}, false, earlierA + 1, dk);
      } else {
        std::fill_n(earlierA, 1 + dk * dk, 0.0F);
      }
      earlierA += 1 + dk * dk;
    }
    laterA += 1 + dk * dk;
  }
}

void Matrix::convert(Block block, Values from, Target to, seqparDataType_t toType) const {
  if (from.type == toType && from.data != nullptr) {
    copyTo(to, from.data, stateElements(block) * sizeOf(toType));
  } else {
    seqpar::convert(from.data, from.type, to.data, toType, stateElements(block));
  }
}

}  // namespace seqpar
