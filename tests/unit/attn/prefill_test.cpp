// Chunked prefill: batches of requests whose keys are in pages of any order on any ranks.
#include <numeric>

#include "attn/plan/registry.h"
#include "prefill_case.h"
#include "softmax_ranks.h"
#include "unit/seed.h"

namespace {

using namespace seqpar::attn::test;  // NOLINT(google-build-using-namespace)

TEST_CASE("the slices of pages contain the keys that each request sees", "[prefill]") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    const auto c = drawPrefill(random, 4, 30);
    const auto slices = c.slices();
    CHECK(slices.size() <= c.pages.size());
    CAPTURE(round, c.windowLeft, c.cuQueries, c.lengths);
    for (int64_t i = 0; i < c.queries(); ++i) {
      for (int64_t j = 0; j < c.keys(); ++j) {
        const auto count =
            std::count_if(slices.begin(), slices.end(), [&](const auto& s) { return contains(s, i, j); });
        if (count != (c.sees(i, j) ? 1 : 0))
          FAIL("query " << i << " and key " << j << " are in " << count << " slices");
      }
    }
  }
}

TEST_CASE("pages that continue each other share a slice", "[prefill]") {
  const std::vector<int64_t> cuQueries{0, 2}, lengths{12};
  const std::vector<seqparAttnPage_t> pages{{0, 0, 0, 4}, {4, 0, 4, 4}, {20, -1, 0, 0}, {8, 0, 8, 4}};
  std::vector<seqparAttnSlice_t> slices(pages.size());
  int64_t count = 0;
  REQUIRE(seqparAttnPageSlices(cuQueries.data(), lengths.data(), 1, pages.data(), 4, SEQPAR_ATTN_NO_WINDOW,
                               slices.data(), &count) == seqparSuccess);
  REQUIRE(count == 2);
  CHECK((slices[0].column == 0 && slices[0].columns == 8 && slices[0].upper == INT64_MAX));
  CHECK((slices[1].column == 8 && slices[1].columns == 4 && slices[1].upper == 2));
}

TEST_CASE("neighbors that all queries see share a slice in any order", "[prefill]") {
  const std::vector<int64_t> cuQueries{0, 2, 3}, lengths{14, 4};
  const std::vector<seqparAttnPage_t> pages{{0, 0, 8, 4}, {4, 0, 0, 4}, {8, 1, 0, 4}, {12, 0, 4, 4}, {16, 0, 12, 2}};
  std::vector<seqparAttnSlice_t> slices(pages.size());
  int64_t count = 0;
  REQUIRE(seqparAttnPageSlices(cuQueries.data(), lengths.data(), 2, pages.data(), 5, SEQPAR_ATTN_NO_WINDOW,
                               slices.data(), &count) == seqparSuccess);
  REQUIRE(count == 4);
  CHECK((slices[0].column == 0 && slices[0].columns == 8 && slices[0].rows == 2));
  CHECK((slices[1].column == 8 && slices[1].row == 2));
  CHECK((slices[2].column == 12 && slices[2].columns == 4));
  CHECK((slices[3].column == 16 && slices[3].upper == 0));
}

TEST_CASE("bad pages are refused by name", "[prefill]") {
  std::vector<int64_t> cuQueries{0, 2}, lengths{6};
  std::vector<seqparAttnPage_t> pages{{0, 0, 0, 4}};
  std::vector<seqparAttnSlice_t> slices(1);
  int64_t count = -1, window = SEQPAR_ATTN_NO_WINDOW;
  const auto refused = [&](const char* text) {
    CHECK(seqparAttnPageSlices(cuQueries.data(), lengths.data(), 1, pages.data(), 1, window, slices.data(), &count) ==
          seqparInvalidArgument);
    CHECK_THAT(seqparAttnGetLastError(), Catch::Contains(text));
    CHECK(count == -1);
  };
  const auto with = [&](auto& value, int64_t bad, const char* text) {
    const auto good = value;
    value = bad;
    refused(text);
    value = good;
  };
  with(cuQueries[0], 1, "seqparAttnPageSlices: cuQueries[0] is 1, expected 0");
  with(cuQueries[1], -1, "cuQueries[1] is -1, expected 0 to");
  with(lengths[0], 1, "lengths[0] is 1, expected 2, the queries of the request");
  with(pages[0].request, 1, "page[0].request is 1, expected -1 to 0, a request or -1");
  with(pages[0].column, -1, "page[0].column is -1");
  with(pages[0].position, 7, "page[0].position is 7, expected 0 to 6, the request's length");
  with(pages[0].keys, 7, "page[0].keys is 7, expected 0 to 6");
  with(window, -2, "windowLeft is -2, expected -1 (no window)");
  CHECK(seqparAttnPageSlices(nullptr, lengths.data(), 1, pages.data(), 1, window, slices.data(), &count) ==
        seqparInvalidArgument);
  CHECK_THAT(seqparAttnGetLastError(), Catch::Contains("cuQueries is NULL"));
}

/// Every algorithm that supports slices and cross-attention.
TEST_CASE("chunked prefill over pages on any ranks equals fp64", "[prefill]") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (const int ranks : {2, 3, 4}) {
    const RankThreads group(ranks);
    int ran = 0;
    for (const auto& row : seqpar::attn::algorithms()) {
      if (!row.softmax || row.id == seqparAttnLocal) continue;
      const auto prefill = drawPrefill(random, 3, 40);
      const SoftmaxSpec spec = specOf(prefill, random, ranks, row.id);
      if (!refusalOf(row, spec, group[0]).empty()) continue;
      CAPTURE(ranks, row.name, spec.text());
      CHECK(runCase(SoftmaxCase(spec, random()), &group) == "");
      ++ran;
    }
    CHECK(ran >= 3);
    const SoftmaxSpec spec = specOf(drawPrefill(random, 3, 40), random, ranks, seqparAttnAuto);
    CAPTURE(ranks, spec.text());
    CHECK(runCase(SoftmaxCase(spec, random()), &group) == "");
  }
}

/// The name of the algorithm of a plan for one request.
std::string chosen(const RankThreads& group, int64_t queries, int64_t keys, int64_t heads, int64_t kvHeads) {
  const auto said = group.each([&](int rank) -> std::string {
    auto desc = seqparAttnDesc_t SEQPAR_ATTN_DESC_INITIALIZER;
    const seqparAttnSlice_t slice = SEQPAR_ATTN_SLICE_CAUSAL(0, queries, 0, keys);
    const int64_t queryBounds[] = {0, queries / 2, queries}, keyBounds[] = {0, keys / 2, keys};
    const int owners[] = {0, 1};
    seqparLayout_t layout = SEQPAR_LAYOUT_INITIALIZER;
    layout.kind = seqparPieces;
    layout.ranks = 2;
    layout.pieces = 2;
    layout.pieceOwners = owners;
    auto kvLayout = layout;
    layout.tokens = queries;
    layout.pieceBounds = queryBounds;
    kvLayout.tokens = keys;
    kvLayout.pieceBounds = keyBounds;
    desc.layout = &layout;
    desc.kvLayout = &kvLayout;
    desc.kvTokens = keys;
    desc.heads = heads;
    desc.kvHeads = kvHeads;
    desc.headDim = 128;
    desc.dataType = seqparBfloat16;
    desc.training = 0;
    desc.slices = 1;
    desc.slice = &slice;
    seqparAttnPlan_t plan = nullptr;
    if (seqparAttnPlanCreate(&plan, &desc, group[rank]) != seqparSuccess) return seqparAttnGetLastError();
    size_t bytes = 0;
    seqparAttnPlanExplain(plan, nullptr, &bytes);
    std::string text(bytes, ' ');
    seqparAttnPlanExplain(plan, text.data(), &bytes);
    seqparAttnPlanDestroy(plan);
    const auto at = text.find("\"algorithm\"");
    return at == std::string::npos ? text : text.substr(at, text.find(',', at) - at);
  });
  return said[0];
}

/// arXiv 2411.01783, section 3.4: new tokens over all tokens, against kv heads over heads.
TEST_CASE("auto sends queries where they are few next to the cache, and keys where they are many", "[prefill]") {
  const RankThreads group(2);
  const auto sendsQueries = [&](int64_t queries, int64_t keys, int64_t heads, int64_t kvHeads) {
    const auto name = chosen(group, queries, keys, heads, kvHeads);
    CAPTURE(name);
    const bool byQueries = name.find("ring_pass_q") != std::string::npos || name.find("mesh") != std::string::npos ||
                           name.find("attention2d") != std::string::npos;
    const bool byKeys = name.find("ring\"") != std::string::npos || name.find("allgather_kv") != std::string::npos ||
                        name.find("ulysses") != std::string::npos || name.find("burst") != std::string::npos;
    CHECK(byQueries != byKeys);
    return byQueries;
  };
  CHECK(sendsQueries(64, 16384, 32, 8));
  CHECK(sendsQueries(64, 16384, 16, 16));
  CHECK_FALSE(sendsQueries(2048, 2112, 32, 4));
  CHECK_FALSE(sendsQueries(1024, 1024, 64, 2));
}

}  // namespace
