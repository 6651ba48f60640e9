#include "exchange/lse_merge.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "base/convert.h"
#include "base/error.h"
#include "base/memory.h"
#include "exchange/combine.h"
#include "exchange/exchange.h"
#include "exchange/heads.h"

namespace seqpar {
namespace {

/// Up to this many bytes for each receiver, one exchange of everything is faster than two with half of the bytes.
constexpr std::size_t kOneShotBytes = std::size_t{32} << 10;

/// The rows in use, read and compared between all ranks.
std::size_t agreedRows(Mailbox& mail, const LseMerge& given) {
  if (given.rowCount == nullptr) return given.rows;
  const auto ranks = static_cast<std::size_t>(mail.size());
  std::vector<std::int64_t> counts(ranks);
  const std::int64_t mine = *given.rowCount;
  const auto* const from = reinterpret_cast<const std::byte*>(&mine);
  auto* const into = reinterpret_cast<std::byte*>(counts.data());
  std::vector<int> members(ranks);
  std::iota(members.begin(), members.end(), 0);
  const Shards shards{1, std::vector<std::size_t>(ranks, 1), sizeof(mine), members};
  exchangeOnHost(mail, gatherRoute(shards, static_cast<std::size_t>(mail.rank())), std::span(&from, 1),
                 std::span(&into, 1));
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (counts[rank] != counts[0]) {
      fail(seqparInvalidUsage, "*params->rowCount is ", counts[rank], " on rank ", rank, " and ", counts[0],
           " on rank 0; expected the same value on all ranks");
    }
  }
  if (mine < 0 || static_cast<std::size_t>(mine) > given.rows) {
    fail(seqparInvalidArgument, "*params->rowCount is ", mine, ", expected 0 to params->rows = ", given.rows);
  }
  return static_cast<std::size_t>(mine);
}

/// Other ranks' partial results for the rows of one: out [ranks][rows][elements], lse [ranks][rows]. The place of this
/// rank is unused: its results are read where they are.
struct Parts {
  std::size_t rows = 0;
  std::unique_ptr<std::byte[]> out;
  std::unique_ptr<float[]> lse;
};

/// Appends the transfers of a second route, which uses buffer 1.
void append(std::vector<Transfer>& transfers, const std::vector<Transfer>& more) {
  for (Transfer transfer : more) {
    transfer.region.buffer = 1;
    transfers.push_back(transfer);
  }
}

/// Receives the other ranks' partial results for this rank's rows: all, or those of its heads.
Parts exchangeParts(Mailbox& mail, const LseMerge& given, const Shards& heads, std::size_t rows) {
  const auto ranks = static_cast<std::size_t>(mail.size());
  const auto routeOf = [&](std::size_t bytes) {
    Shards whole = heads;
    whole.inner = bytes;
    Route route;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (static_cast<int>(rank) == mail.rank()) continue;
      const auto all = StridedRegion{.run = given.rows * given.heads * bytes};
      const auto part = StridedRegion{.offset = rank * rows * bytes, .run = rows * bytes};
      route.sends.push_back({static_cast<int>(rank), given.byHeads ? whole.inWhole(rank) : all});
      route.receives.push_back({static_cast<int>(rank), part});
    }
    return route;
  };
  const std::size_t count = ranks * rows;
  Parts parts = allocateFor("the partial results of all ranks", count * (given.rowBytes + sizeof(float)), [&] {
    return Parts{rows, std::make_unique_for_overwrite<std::byte[]>(count * given.rowBytes),
                 std::make_unique_for_overwrite<float[]>(count)};
  });
  Route route = routeOf(given.rowBytes);
  const Route logarithms = routeOf(sizeof(float));
  append(route.sends, logarithms.sends);
  append(route.receives, logarithms.receives);
  const std::byte* const from[] = {given.out, reinterpret_cast<const std::byte*>(given.lse)};
  std::byte* const into[] = {parts.out.get(), reinterpret_cast<std::byte*>(parts.lse.get())};
  exchangeOnHost(mail, route, from, into);
  return parts;
}

/// The partial results of one row, by rank.
struct Row {
  std::vector<const std::byte*> out;
  std::vector<float> lse, weights;
};

/// One row into outMerged, in rank order. The sums are those of reduceLseOnHost(), in the same order.
void mergeRow(const LseMerge& given, const Row& row, std::byte* merged) {
  const std::size_t each = sizeOf(given.type);
  const std::size_t elements = given.rowBytes / each;
  float sum[kCombined];
  for (std::size_t first = 0; first < elements; first += kCombined) {
    const std::size_t count = std::min(kCombined, elements - first);
    std::fill_n(sum, count, 0.0f);
    for (std::size_t rank = 0; rank < row.out.size(); ++rank) {
      addTerm(sum, row.out[rank] + first * each, given.type, count, row.weights[rank]);
    }
    fromFloat(sum, merged + first * each, given.type, count);
  }
}

/// In place too: a row is read before it is written.
void mergeParts(const LseMerge& given, const Parts& parts, const LseReduction& scattered) {
  const Shards& heads = scattered.shards.out;
  const std::size_t ranks = heads.members(), self = scattered.member;
  const std::size_t own = heads.tokens[self], firstHead = heads.first(self);
  Row row{std::vector<const std::byte*>(ranks), std::vector<float>(ranks), std::vector<float>(ranks)};
  for (std::size_t i = 0; i < parts.rows; ++i) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      row.out[rank] = parts.out.get() + (rank * parts.rows + i) * given.rowBytes;
      row.lse[rank] = parts.lse[rank * parts.rows + i];
    }
    const std::size_t mine = given.byHeads ? i / own * given.heads + firstHead + i % own : i;
    row.out[self] = given.out + mine * given.rowBytes;
    row.lse[self] = given.lse[mine];
    given.lseMerged[i] = mergeLse(row.lse.data(), row.weights.data(), ranks);
    mergeRow(given, row, given.outMerged + i * given.rowBytes);
  }
}

}  // namespace

LseReduction scatterOf(const LseMerge& given, int ranks, int rank) {
  const auto members = static_cast<std::size_t>(ranks);
  const auto self = static_cast<std::size_t>(rank);
  LseReduction made;
  Shards& shards = made.shards.out;
  const std::size_t dealt = given.byHeads ? given.heads : given.rows * given.heads;
  for (std::size_t member = 0; member < members; ++member) {
    shards.tokens.push_back(dealt / members + (member < dealt % members ? 1 : 0));
    shards.ranks.push_back(static_cast<int>(member));
  }
  shards.outer = given.byHeads ? given.rows : 1;
  shards.inner = given.rowBytes;
  made.shards.heads = 1;
  made.shards.type = given.type;
  made.member = self;
  made.out = given.out;
  made.lse = given.lse;
  const std::size_t first = given.byHeads ? 0 : shards.first(self);
  if (shards.outer * shards.tokens[self] > 0) {
    made.outShard = given.outMerged + first * given.rowBytes;
    made.lseShard = given.lseMerged + first;
  }
  return made;
}

Route gatherAfter(const LseReduction& scattered, std::size_t bytes) {
  Shards shards = scattered.shards.out;
  shards.inner = bytes;
  Route route = gatherRoute(shards, scattered.member);
  const auto toSelf = [&](const Transfer& transfer) { return transfer.peer == shards.ranks[scattered.member]; };
  std::erase_if(route.sends, toSelf);
  std::erase_if(route.receives, toSelf);
  return route;
}

void mergeLseOnHost(Mailbox& mail, const LseMerge& all) {
  LseMerge given = all;
  given.rows = agreedRows(mail, all);
  if (given.rows == 0) return;
  const LseReduction scattered = scatterOf(given, mail.size(), mail.rank());
  const auto ranks = static_cast<std::size_t>(mail.size());
  const std::size_t sent = given.rows * (given.byHeads ? (given.heads + ranks - 1) / ranks : given.heads);
  if (sent * (given.rowBytes + sizeof(float)) <= kOneShotBytes) {
    const auto own = given.byHeads ? scattered.shards.out.tokens[scattered.member] : given.heads;
    mergeParts(given, exchangeParts(mail, given, scattered.shards.out, given.rows * own), scattered);
    return;
  }
  reduceLseOnHost(mail, scattered);
  if (given.byHeads) return;
  Route route = gatherAfter(scattered, given.rowBytes);
  const Route logarithms = gatherAfter(scattered, sizeof(float));
  append(route.sends, logarithms.sends);
  append(route.receives, logarithms.receives);
  auto* const lse = reinterpret_cast<std::byte*>(given.lseMerged);
  // A send starts at this rank's part of the result.
  const std::byte* const from[] = {scattered.outShard, reinterpret_cast<const std::byte*>(scattered.lseShard)};
  std::byte* const into[] = {given.outMerged, lse};
  exchangeOnHost(mail, route, from, into);
}

}  // namespace seqpar
