// The index maps of layouts.
#include "seqpar/layout.h"

#include <algorithm>

#include "api/boundary.h"
#include "base/checked.h"
#include "base/versioned.h"
#include "layout/layout.h"
#include "layout/run.h"

using namespace seqpar;

namespace {

Layout readLayout(const char* call, const seqparLayout_t* layout) {
  return {call, "layout", readVersioned(call, "layout", layout, seqparLayout_t SEQPAR_LAYOUT_INITIALIZER)};
}

void requireBelow(const char* call, const char* argument, int64_t value, int64_t bound) {
  if (value < 0 || value >= bound) {
    fail(seqparInvalidArgument, call, ": ", argument, " is ", value, ", expected 0 or more and less than ", bound);
  }
}

/// Rejects an array of `count` elements that memory cannot hold.
template <typename Number>
void requireNumbers(const char* call, const char* argument, const Number* numbers, Extent count) {
  requireArray(call, argument, numbers, countBytes(call, argument, {count, {"bytes", sizeof(Number)}}),
               alignof(Number));
}

}  // namespace

extern "C" {

SEQPAR_API seqparResult_t seqparLayoutLocalLength(const seqparLayout_t* layout, int rank, int64_t* length) {
  const char* call = "seqparLayoutLocalLength";
  return atBoundary(call, [&] {
    const Layout all = readLayout(call, layout);
    requireBelow(call, "rank", rank, all.ranks());
    requirePointer(call, "length", length);
    *length = all.localLength(rank);
  });
}

SEQPAR_API seqparResult_t seqparLayoutToGlobal(const seqparLayout_t* layout, int rank, int64_t local, int64_t* global) {
  const char* call = "seqparLayoutToGlobal";
  return atBoundary(call, [&] {
    const Layout all = readLayout(call, layout);
    requireBelow(call, "rank", rank, all.ranks());
    requireBelow(call, "local", local, all.localLength(rank));
    requirePointer(call, "global", global);
    *global = all.toGlobal(rank, local);
  });
}

SEQPAR_API seqparResult_t seqparLayoutToLocal(const seqparLayout_t* layout, int64_t global, int* rank, int64_t* local) {
  const char* call = "seqparLayoutToLocal";
  return atBoundary(call, [&] {
    const Layout all = readLayout(call, layout);
    requireBelow(call, "global", global, all.tokens());
    requirePointer(call, "rank", rank);
    requirePointer(call, "local", local);
    const auto place = all.toLocal(global);
    *rank = place.rank;
    *local = place.local;
  });
}

SEQPAR_API seqparResult_t seqparLayoutGlobals(const seqparLayout_t* layout, int rank, int64_t* globals) {
  const char* call = "seqparLayoutGlobals";
  return atBoundary(call, [&] {
    const Layout all = readLayout(call, layout);
    requireBelow(call, "rank", rank, all.ranks());
    const auto runs = all.runs(rank);
    if (!runs.empty()) requirePointer(call, "globals", globals);
    requireNumbers(call, "globals", globals, {"local length", all.localLength(rank)});
    for (const auto& run : runs) {
      for (int64_t block = 0; block < run.count; ++block) {
        for (int64_t i = 0; i < run.length; ++i) *globals++ = run.global + block * run.stride + i;
      }
    }
  });
}

SEQPAR_API seqparResult_t seqparLayoutRuns(const seqparLayout_t* layout, int rank, seqparLayoutRun_t* runs,
                                           int64_t capacity, int64_t* count) {
  const char* call = "seqparLayoutRuns";
  return atBoundary(call, [&] {
    const Layout all = readLayout(call, layout);
    requireBelow(call, "rank", rank, all.ranks());
    if (capacity < 0) fail(seqparInvalidArgument, call, ": capacity is ", capacity, ", expected 0 or more");
    if (capacity > 0) requirePointer(call, "runs", runs);
    requireNumbers(call, "runs", runs, {"capacity", capacity});
    requirePointer(call, "count", count);
    const auto found = all.runs(rank);
    std::copy_n(found.begin(), std::min(found.size(), static_cast<size_t>(capacity)), runs);
    *count = static_cast<int64_t>(found.size());
  });
}

SEQPAR_API seqparResult_t seqparLayoutLocalCuSeqlens(const seqparLayout_t* layout, int rank, const int64_t* cuSeqlens,
                                                     int64_t sequences, int64_t* localCuSeqlens) {
  const char* call = "seqparLayoutLocalCuSeqlens";
  return atBoundary(call, [&] {
    const Layout all = readLayout(call, layout);
    requireBelow(call, "rank", rank, all.ranks());
    requirePointer(call, "cuSeqlens", cuSeqlens);
    requirePointer(call, "localCuSeqlens", localCuSeqlens);
    requireBounds(call, "", cuSeqlens, sequences, all.tokens());
    requireNumbers(call, "localCuSeqlens", localCuSeqlens, {"sequences + 1", sequences + 1});
    const auto runs = all.runs(rank);
    for (int64_t s = 0; s <= sequences; ++s) localCuSeqlens[s] = countBefore(runs, cuSeqlens[s]);
  });
}

}  // extern "C"
