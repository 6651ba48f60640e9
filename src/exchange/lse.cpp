#include "exchange/lse.h"

#include "base/convert.h"
#include "base/memory.h"
#include "exchange/combine.h"
#include "exchange/exchange.h"

namespace seqpar {

Route lseRoute(const LseShards& shards, std::size_t member) {
  Shards lse = shards.out;
  lse.outer = shards.out.outer * shards.heads;
  lse.inner = sizeof(float);
  Route route;
  const std::size_t tokens = lse.tokens[member];
  for (std::size_t other = 0; other < lse.members(); ++other) {
    route.sends.push_back({lse.ranks[other], lse.inWhole(other)});
    StridedRegion region = lse.part(0, 0, tokens, tokens);
    region.offset = other * region.bytes();
    route.receives.push_back({lse.ranks[other], region});
  }
  return route;
}

void reduceLseOnHost(Mailbox& mail, const LseReduction& given) {
  const LseShards& shards = given.shards;
  const std::size_t members = shards.out.members();
  const std::size_t tokens = shards.out.tokens[given.member];
  const std::size_t rows = shards.out.outer * tokens * shards.heads;
  const auto numbers = [](std::size_t count) {
    return allocateFor("the lse of all ranks", count * sizeof(float), [&] { return std::vector<float>(count); });
  };
  auto parts = numbers(members * rows);
  const auto* const lseBytes = reinterpret_cast<const std::byte*>(given.lse);
  auto* const partsBytes = reinterpret_cast<std::byte*>(parts.data());
  exchangeOnHost(mail, lseRoute(shards, given.member), std::span(&lseBytes, 1), std::span(&partsBytes, 1));

  auto factors = numbers(members * rows);
  std::vector<float> each(members);
  std::vector<float> weights(members);
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t token = row % tokens;
    const std::size_t head = row / tokens % shards.heads;
    const std::size_t outer = row / tokens / shards.heads;
    for (std::size_t m = 0; m < members; ++m) each[m] = parts[m * rows + row];
    given.lseShard[row] = mergeLse(each.data(), weights.data(), members);
    const std::size_t outRow = (outer * tokens + token) * shards.heads + head;
    for (std::size_t m = 0; m < members; ++m) factors[m * rows + outRow] = weights[m];
  }

  RowFactors rowFactors;
  rowFactors.elements = shards.heads == 0 ? 0 : shards.out.inner / shards.heads / sizeOf(shards.type);
  for (std::size_t m = 0; m < members; ++m) rowFactors.term.push_back(factors.data() + m * rows);
  reduceOnHost(mail, scatterSum(shards.out, given.member), shards.type, std::span(&given.out, 1),
               std::span(&given.outShard, 1), &rowFactors);
}

}  // namespace seqpar
