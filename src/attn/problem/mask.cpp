#include "attn/problem/mask.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/checked.h"
#include "base/error.h"

namespace seqpar::attn {
namespace {

constexpr int64_t kLowest = std::numeric_limits<int64_t>::min(), kHighest = std::numeric_limits<int64_t>::max();

void requireRange(const char* call, int64_t index, const char* field, int64_t value, int64_t most,
                  const std::string& meaning) {
  if (value >= 0 && value <= most) return;
  fail(seqparInvalidArgument, call, ": desc->slice[", index, "].", field, " is ", value, ", expected 0 to ", most, ", ",
       meaning);
}

/// The slice with bounds that cannot overflow.
Rectangle bandOf(const seqparAttnSlice_t& s) {
  Rectangle r{s.row, s.rows, s.column, s.columns};
  if (s.lower > -s.rows) r.lower = std::min(s.lower, s.columns);
  if (s.upper < s.columns) r.upper = std::max(s.upper, -s.rows);
  return r;
}

/// Restricts the slice to keys at most `least` and `most` positions before and behind the query.
bool restrict(Rectangle& r, int64_t least, int64_t most) {
  const int64_t shift = r.row - r.column;
  if (least != kLowest) r.lower = std::max(r.lower, least + shift);
  if (most != kHighest) r.upper = std::min(r.upper, most + shift);
  return r.lower <= r.upper && trim(r);
}

/// Whether the slice has a visible score.
bool normalized(Rectangle& r) {
  return r.rows > 0 && r.columns > 0 && r.lower <= r.upper && trim(r);
}

void requireDisjoint(const char* call, const std::vector<Rectangle>& slices, const std::vector<int64_t>& indices) {
  SharedScore shared;
  const auto found = disjointness(slices, shared);
  if (found == Disjointness::Shared) {
    fail(seqparInvalidArgument, call, ": desc->slice[", indices[shared.first], "] and desc->slice[",
         indices[shared.second], "] both contain query ", shared.row, " and key ", shared.column,
         ", expected disjoint slices");
  }
  if (found == Disjointness::TooManyPairs) {
    fail(seqparInvalidArgument, call, ": more than 64 pairs per slice of desc->slice have common rows and columns, ",
         "expected slices with fewer bands over the same rows and columns");
  }
}

int64_t keysOf(const seqparAttnDesc_t& desc) {
  return desc.kvTokens == 0 ? desc.tokens : desc.kvTokens;
}

/// The slices, restricted to the scores that the mask and the window allow.
std::shared_ptr<const SliceMask> masked(const seqparAttnDesc_t& desc, std::vector<Rectangle> slices) {
  constexpr int64_t kFar = int64_t{1} << 50;  // beyond all positions; sums cannot overflow
  const bool causal = desc.mask == seqparAttnCausal;
  const int64_t shift = keysOf(desc) - desc.tokens;
  int64_t least = kLowest, most = causal ? shift : kHighest;
  if (desc.windowLeft != SEQPAR_ATTN_NO_WINDOW) least = shift - std::min(desc.windowLeft, kFar);
  if (!causal && desc.windowRight != SEQPAR_ATTN_NO_WINDOW) most = shift + std::min(desc.windowRight, kFar);
  std::erase_if(slices, [&](Rectangle& r) { return !restrict(r, least, most); });
  return std::make_shared<const SliceMask>(std::move(slices));
}

}  // namespace

std::vector<int64_t> numbersOf(const seqparAttnDesc_t& desc) {
  std::vector<int64_t> numbers;
  numbers.reserve(static_cast<size_t>(desc.slices) * 6);
  for (int64_t i = 0; i < desc.slices; ++i) {
    const auto& s = desc.slice[i];
    numbers.insert(numbers.end(), {s.row, s.rows, s.column, s.columns, s.lower, s.upper});
  }
  return numbers;
}

std::shared_ptr<const SliceMask> readSlices(const char* call, const seqparAttnDesc_t& desc) {
  if (desc.slices < 0 || desc.slices > SEQPAR_ATTN_MOST_SLICES) {
    fail(seqparInvalidArgument, call, ": desc->slices is ", desc.slices, ", expected 0 to ", SEQPAR_ATTN_MOST_SLICES);
  }
  if (desc.slices == 0) return nullptr;
  if (desc.family != seqparAttnSoftmax) {
    fail(seqparInvalidUsage, call, ": desc->slices is ", desc.slices, ", expected 0: linear attention has no mask");
  }
  if (desc.sequences != 0) {
    fail(seqparInvalidArgument, call, ": desc->sequences is ", desc.sequences,
         ", expected 0 with slices: documents are slices");
  }
  if (desc.slice == nullptr) {
    fail(seqparInvalidArgument, call, ": desc->slice is NULL, expected [", desc.slices, "] slices");
  }
  requireArray(call, "desc->slice", desc.slice, static_cast<size_t>(desc.slices) * sizeof(seqparAttnSlice_t),
               alignof(seqparAttnSlice_t));
  const int64_t tokens = desc.tokens, keys = keysOf(desc);
  std::vector<Rectangle> slices;
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < desc.slices; ++i) {
    const auto& s = desc.slice[i];
    requireRange(call, i, "row", s.row, tokens, "the tokens");
    requireRange(call, i, "rows", s.rows, tokens - s.row, concat("the tokens from row ", s.row, " on"));
    requireRange(call, i, "column", s.column, keys, "the keys");
    requireRange(call, i, "columns", s.columns, keys - s.column, concat("the keys from column ", s.column, " on"));
    auto band = bandOf(s);
    if (!normalized(band)) continue;
    slices.push_back(band);
    indices.push_back(i);
  }
  requireDisjoint(call, slices, indices);

  return masked(desc, std::move(slices));
}

std::shared_ptr<const SliceMask> maskOf(const seqparAttnDesc_t& desc, std::span<const int64_t> cuSeqlens,
                                        std::shared_ptr<const SliceMask> slices) {
  if (slices) return slices;
  std::vector<Rectangle> boxes;
  const auto add = [&](int64_t row, int64_t rows, int64_t columns) {
    if (rows > 0 && columns > 0) boxes.push_back({row, rows, row, columns});
  };
  if (cuSeqlens.empty()) add(0, desc.tokens, keysOf(desc));
  for (size_t s = 0; s + 1 < cuSeqlens.size(); ++s) {
    add(cuSeqlens[s], cuSeqlens[s + 1] - cuSeqlens[s], cuSeqlens[s + 1] - cuSeqlens[s]);
  }
  return masked(desc, std::move(boxes));
}

}  // namespace seqpar::attn
