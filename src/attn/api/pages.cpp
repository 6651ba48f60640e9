// seqparAttnPageSlices() of seqpar/attn_mask.h.
#include <algorithm>
#include <optional>

#include "attn/boundary.h"
#include "base/arguments.h"
#include "base/error.h"
#include "seqpar/attn_mask.h"
#include "seqpar/attn_plan.h"

namespace seqpar::attn {
namespace {

constexpr const char* kCall = "seqparAttnPageSlices";
constexpr int64_t kMostTokens = int64_t{1} << 48;

struct Requests {
  const int64_t* cuQueries;
  const int64_t* lengths;
  int64_t count, windowLeft;

  int64_t queries(int64_t r) const { return cuQueries[r + 1] - cuQueries[r]; }
};

void require(const Requests& all) {
  if (all.cuQueries[0] != 0) {
    fail(seqparInvalidArgument, kCall, ": cuQueries[0] is ", all.cuQueries[0], ", expected 0");
  }
  for (int64_t r = 0; r < all.count; ++r) {
    const int64_t end = all.cuQueries[r + 1];
    if (end < all.cuQueries[r] || end > kMostTokens) {
      fail(seqparInvalidArgument, kCall, ": cuQueries[", r + 1, "] is ", end, ", expected ", all.cuQueries[r], " to ",
           kMostTokens);
    }
    if (all.lengths[r] < all.queries(r) || all.lengths[r] > kMostTokens) {
      fail(seqparInvalidArgument, kCall, ": lengths[", r, "] is ", all.lengths[r], ", expected ", all.queries(r),
           ", the queries of the request, to ", kMostTokens);
    }
  }
}

void require(const Requests& all, const seqparAttnPage_t& page, int64_t index) {
  const auto within = [&](const char* field, int64_t value, int64_t least, int64_t most, const char* meaning) {
    if (value >= least && value <= most) return;
    fail(seqparInvalidArgument, kCall, ": page[", index, "].", field, " is ", value, ", expected ", least, " to ", most,
         meaning);
  };
  within("request", page.request, -1, all.count - 1, ", a request or -1");
  if (page.request < 0) return;
  const int64_t length = all.lengths[page.request];
  within("column", page.column, 0, kMostTokens, "");
  within("position", page.position, 0, length, ", the request's length");
  within("keys", page.keys, 0, length - page.position, ", the request's keys from the page's position on");
}

/// The slice of a page; none if no query of the request sees it.
std::optional<seqparAttnSlice_t> sliceOf(const Requests& all, const seqparAttnPage_t& page) {
  const int64_t rows = all.queries(page.request);
  // The first query's position, relative to the first key.
  const int64_t own = all.lengths[page.request] - rows - page.position;
  if (rows == 0 || page.keys == 0 || own + rows - 1 < 0) return {};
  seqparAttnSlice_t slice{all.cuQueries[page.request], rows, page.column, page.keys, INT64_MIN, INT64_MAX};
  if (own < page.keys - 1) slice.upper = own;
  if (all.windowLeft == SEQPAR_ATTN_NO_WINDOW) return slice;
  const int64_t first = own - all.windowLeft;
  if (first >= page.keys) return {};
  if (first + rows - 1 > 0) slice.lower = first;
  return slice;
}

bool isFull(const seqparAttnSlice_t& slice) {
  return slice.lower == INT64_MIN && slice.upper == INT64_MAX;
}

/// Whether all queries of a request see all keys of both slices, which are next to each other.
bool extends(const seqparAttnSlice_t& slice, const seqparAttnSlice_t& next) {
  return isFull(slice) && isFull(next) && next.row == slice.row && next.rows == slice.rows &&
         next.column == slice.column + slice.columns;
}

}  // namespace
}  // namespace seqpar::attn

using namespace seqpar;        // NOLINT(google-build-using-namespace)
using namespace seqpar::attn;  // NOLINT(google-build-using-namespace)

seqparResult_t seqparAttnPageSlices(const int64_t* cuQueries, const int64_t* lengths, int64_t requests,
                                    const seqparAttnPage_t* page, int64_t pages, int64_t windowLeft,
                                    seqparAttnSlice_t* slice, int64_t* slices) {
  return guard(kCall, [&] {
    if (requests < 0 || requests > SEQPAR_ATTN_MOST_SLICES) {
      fail(seqparInvalidArgument, kCall, ": requests is ", requests, ", expected 0 to ", SEQPAR_ATTN_MOST_SLICES);
    }
    if (pages < 0 || pages > SEQPAR_ATTN_MOST_SLICES) {
      fail(seqparInvalidArgument, kCall, ": pages is ", pages, ", expected 0 to ", SEQPAR_ATTN_MOST_SLICES);
    }
    if (windowLeft != SEQPAR_ATTN_NO_WINDOW && (windowLeft < 0 || windowLeft > kMostTokens)) {
      fail(seqparInvalidArgument, kCall, ": windowLeft is ", windowLeft, ", expected ", SEQPAR_ATTN_NO_WINDOW,
           " (no window) or 0 to ", kMostTokens);
    }
    requirePointer(kCall, "cuQueries", cuQueries);
    requirePointer(kCall, "slices", slices);
    if (requests > 0) requirePointer(kCall, "lengths", lengths);
    if (pages > 0) {
      requirePointer(kCall, "page", page);
      requirePointer(kCall, "slice", slice);
    }
    const Requests all{cuQueries, lengths, requests, windowLeft};
    require(all);
    for (int64_t i = 0; i < pages; ++i) require(all, page[i], i);
    int64_t found = 0;
    for (int64_t i = 0; i < pages;) {
      seqparAttnPage_t run = page[i++];
      if (run.request < 0) continue;
      const auto continues = [&](const seqparAttnPage_t& next) {
        return next.request == run.request && next.column == run.column + run.keys &&
               next.position == run.position + run.keys;
      };
      for (; i < pages && continues(page[i]); ++i) run.keys += page[i].keys;
      const auto seen = sliceOf(all, run);
      if (!seen) continue;
      if (found > 0 && extends(slice[found - 1], *seen)) {
        slice[found - 1].columns += seen->columns;
      } else {
        slice[found++] = *seen;
      }
    }
    *slices = found;
  });
}
