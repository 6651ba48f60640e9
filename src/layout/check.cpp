// Argument checks of layouts.
#include <string>

#include "base/checked.h"
#include "base/versioned.h"
#include "layout/layout.h"

namespace seqpar {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 48;
constexpr int64_t kLongestStripe = (int64_t{1} << 31) - 1;

void requireRange(const char* call, const std::string& name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return;
  fail(seqparInvalidArgument, call, ": ", name, " is ", value, ", expected ", least, " to ", most);
}

/// As requireBounds(), for `count` intervals and bounds of these names.
void requireIntervals(const char* call, const char* prefix, const char* countName, const char* boundsName,
                      const int64_t* bounds, int64_t count, int64_t tokens) {
  requireRange(call, concat(prefix, countName), count, 1, INT64_MAX - 1);
  const auto name = concat(prefix, boundsName);
  if (bounds == nullptr) fail(seqparInvalidArgument, call, ": ", name, " is NULL");
  requireArray(
      call, name.c_str(), bounds,
      countBytes(call, name.c_str(), {{concat(countName, " + 1").c_str(), count + 1}, {"bytes", sizeof(*bounds)}}),
      alignof(int64_t));
  for (int64_t s = 0; s <= count; ++s) {
    const int64_t least = s == 0 ? 0 : s == count ? tokens : bounds[s - 1];
    const int64_t most = s == 0 ? 0 : tokens;
    if (bounds[s] >= least && bounds[s] <= most) continue;
    fail(seqparInvalidArgument, call, ": ", name, "[", s, "] is ", bounds[s], ", expected ", least, " to ", most);
  }
}

void requirePieces(const char* call, const std::string& prefix, const seqparLayout_t& layout) {
  requireRange(call, prefix + "sequences", layout.sequences, 0, 0);
  requireIntervals(call, prefix.c_str(), "pieces", "pieceBounds", layout.pieceBounds, layout.pieces, layout.tokens);
  const auto name = prefix + "pieceOwners";
  if (layout.pieceOwners == nullptr) fail(seqparInvalidArgument, call, ": ", name, " is NULL");
  requireArray(call, name.c_str(), layout.pieceOwners,
               countBytes(call, name.c_str(), {{"pieces", layout.pieces}, {"bytes", sizeof(int)}}), alignof(int));
  const int parts = layout.ranks / layout.slices;
  for (int64_t i = 0; i < layout.pieces; ++i) {
    const int owner = layout.pieceOwners[i];
    if (owner < 0 || owner >= parts) requireRange(call, concat(name, "[", i, "]"), owner, 0, parts - 1);
  }
}

seqparLayout_t checked(const char* call, const char* argument, const seqparLayout_t& layout) {
  // Plans of many ranks check layouts often: no text without an error.
  const auto range = [&](const char* name, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most) requireRange(call, concat(argument, "->", name), value, least, most);
  };
  range("kind", layout.kind, seqparContiguous, seqparPieces);
  range("ranks", layout.ranks, 1, INT32_MAX);
  range("tokens", layout.tokens, 0, kMostTokens);
  if (layout.kind == seqparStriped) range("stripe", layout.stripe, 1, kLongestStripe);
  range("slices", layout.slices, 1, layout.ranks);
  if (layout.kind != seqparPieces && layout.ranks % layout.slices == 0 && layout.sequences == 0 &&
      layout.cuSeqlens == nullptr) {
    return layout;
  }
  const auto prefix = concat(argument, "->");
  if (layout.ranks % layout.slices != 0) {
    fail(seqparInvalidArgument, call, ": ", prefix, "slices is ", layout.slices,
         ", expected a divisor of ranks = ", layout.ranks);
  }
  if ((layout.sequences == 0) != (layout.cuSeqlens == nullptr)) {
    fail(seqparInvalidArgument, call, ": ", prefix, "cuSeqlens is ", static_cast<const void*>(layout.cuSeqlens),
         " and ", prefix, "sequences is ", layout.sequences, "; expected NULL and 0, or sequences + 1 numbers");
  }
  if (layout.kind == seqparPieces) {
    requirePieces(call, prefix, layout);
  } else if (layout.sequences != 0) {
    requireBounds(call, prefix.c_str(), layout.cuSeqlens, layout.sequences, layout.tokens);
  }
  return layout;
}

}  // namespace

void requireBounds(const char* call, const char* prefix, const int64_t* cuSeqlens, int64_t sequences, int64_t tokens) {
  requireIntervals(call, prefix, "sequences", "cuSeqlens", cuSeqlens, sequences, tokens);
}

Layout::Layout(const char* call, const char* argument, const seqparLayout_t& given)
    : kind_(checked(call, argument, given).kind),
      parts_(given.ranks / given.slices),
      slices_(given.slices),
      tokens_(given.tokens),
      stripe_(given.kind == seqparStriped ? given.stripe : 1) {
  if (given.sequences > 0) bounds_ = {given.cuSeqlens, static_cast<size_t>(given.sequences) + 1};
  if (kind_ != seqparPieces) return;
  bounds_ = {given.pieceBounds, static_cast<size_t>(given.pieces) + 1};
  owners_ = {given.pieceOwners, static_cast<size_t>(given.pieces)};
}

}  // namespace seqpar
