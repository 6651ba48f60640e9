// Segments of a window of the delta rule on a GPU.
#include "attn/linear/device/delta_segments.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

namespace {

using namespace seqpar::attn;  // NOLINT(google-build-using-namespace)
using delta::Step;
using Counts = std::vector<int>;

constexpr int kSms = 132;

/// A window of `chunks` chunks; `starts` begin sequences.
struct Window {
  Window(int heads, int chunks, const std::vector<int>& starts = {}) : of(static_cast<size_t>(chunks)) {
    for (const int start : starts) of[static_cast<size_t>(start)].begins = 1;
    task.heads = task.keyHeads = heads;
    task.dk = task.dv = 128;
    task.width = 1;
    task.count = chunks;
    task.states = &states;
    task.readsRows = true;
  }
  linear::SegmentPlan plan(Step step = Step::Advance, int sms = kSms, int least = 16) const {
    return linear::planSegments(step, task, of.data(), sms, least);
  }
  float states = 0;
  std::vector<delta::Chunk> of;
  delta::Task task;
};

TEST_CASE("segments of a window of the delta rule have all of its chunks") {
  for (const int heads : {1, 2, 8, 16, 20, 32, 33, 64}) {
    for (const int chunks : {1, 2, 31, 64, 128, 500}) {
      for (const auto& starts : {Counts{}, {0}, {0, chunks / 3}, {chunks / 3, chunks / 2, chunks - 1}}) {
        for (const auto step : {Step::Advance, Step::Retreat}) {
          CAPTURE(heads, chunks, starts, static_cast<int>(step));
          const Window window(heads, chunks, starts);
          const auto [counts, independent] = window.plan(step);
          if (counts.empty()) continue;
          CHECK(std::accumulate(counts.begin(), counts.end(), 0) == chunks);
          CHECK(*std::min_element(counts.begin(), counts.end()) > 0);
          CHECK(counts.size() <= (independent ? size_t{delta::kMostSegments} : size_t{3}));
          if (!independent) continue;
          int first = 0;
          for (size_t i = 0; i < counts.size(); ++i) {
            if (i > 0)
              CHECK(window.of[static_cast<size_t>(step == Step::Retreat ? chunks - first : first)].begins == 1);
            first += counts[i];
          }
        }
      }
    }
  }
}

TEST_CASE("chains of the delta rule have segments if SMs are idle otherwise") {
  CHECK(Window(64, 128).plan().counts.empty());
  CHECK(Window(32, 32).plan().counts.empty());
  CHECK(!Window(32, 128).plan().independent);
  CHECK(Window(32, 128).plan().counts.size() == 3);
  CHECK(Window(16, 128).plan(Step::Retreat, kSms - 32).counts.size() == 3);
  CHECK(Window(32, 128).plan(Step::Retreat, kSms - 64).counts.empty());
  CHECK(Window(32, 128, {64}).plan().counts == Counts{64, 64});
  CHECK(Window(32, 128, {64}).plan().independent);
  CHECK(Window(16, 128, {30, 64, 100}).plan().counts == Counts{30, 34, 36, 28});
  CHECK(Window(16, 128, {30, 64, 100}).plan(Step::Retreat).counts == Counts{28, 36, 34, 30});
  CHECK(!Window(32, 128, {120}).plan().independent);
  CHECK(Window(32, 32, {4}).plan().counts.empty());
  Window states(16, 128);
  states.task.transition = &states.states;
  CHECK(states.plan().counts.empty());
}

}  // namespace
