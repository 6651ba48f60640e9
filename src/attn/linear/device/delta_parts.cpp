#include "attn/linear/device/delta_parts.h"

#include <algorithm>
#include <cmath>

#include "kernels/attn/linear/delta/half/memory_sm90.h"

namespace seqpar::attn::linear {
using delta::Task;
namespace {

/// Equal parts.
std::vector<int> equalParts(int count, int least, int most) {
  if (count < 2 * least) return {count};
  const int chunks = std::max((count + most - 1) / most, least);
  std::vector<int> parts;
  for (int first = 0; first < count; first += chunks) parts.push_back(std::min(chunks, count - first));
  return parts;
}

/// The share of the first of two parts for decays of channels: the second one is prepared, on the SMs that chains
/// leave, in 0.78 of the time that the first one's chains take alone. They take longer then: 1.6 to 2 us per chunk.
double firstOfChannels(double records, int64_t chains) {
  constexpr double kSms = 132, kPrepare = 10.5, kChunk = 1.21;  // us on one H200: a record on an SM, a chain's chunk
  const double next = records * kPrepare / (kSms - static_cast<double>(chains)) / kChunk;
  return std::max(0.5, next / (next + 0.78));
}

}  // namespace

// Measured on one H200, 8192 tokens, heads of 128: chains that read rows take 209 us in one part and 212 in four with
// 16 heads, and 257 in one or two with 32. With others, two unequal parts save 4 to 11 % with decays of channels (8 to
// 32 heads), and 1.5 % with 64 chains otherwise, but cost 4 % with 64 chunks. Four equal parts of 64 chains took 390 us
// instead of 363.
std::vector<int> partsOf(const Task& task, int least) {
  if (task.readsRows) return {task.count};
  constexpr int64_t kFewChains = 16, kSomeChains = 48, kManyChains = 64;
  using delta::half::kColumns;
  const int64_t heads = task.batch * task.heads;
  const int64_t chains =
      heads * (delta::half::slicesOf(task, kColumns) + delta::half::transitionSlicesOf(task, kColumns));
  const bool ofChannels = task.width > 1;
  if (!ofChannels && chains <= kSomeChains) return equalParts(task.count, least, 4);
  const bool isLong = task.writesOut && task.count >= 8 * least;
  if (!isLong || chains < kFewChains || chains > kManyChains) return {task.count};
  const double share = ofChannels ? firstOfChannels(static_cast<double>(heads), chains) : 13.0 / 16;
  const int first = static_cast<int>(std::lround(share * task.count));
  return {first, task.count - first};
}

// Measured on one H200, bf16, heads of 128, 8192 tokens: 234 us instead of 280 with 16 heads, but 448 instead of 433
// with 32, for which other SMs cannot prepare all records while the chains run.
bool planOverlap(Task& task, int least) {
  constexpr double kPrepare = 9.4, kChunk = 1.5;  // us on one H200: a record on an SM, a chain's chunk with overlap
  if (task.sms == 0 || !task.writesOut || task.count < least) return false;
  const int64_t chains = delta::half::ctasOfSm90(delta::Step::Advance, task);
  const double others = static_cast<double>(task.sms - chains);
  if (static_cast<double>(task.batch) * task.heads * kPrepare > others * kChunk * 1.05) return false;
  task.leftSms = static_cast<int>(chains);
  return true;
}

}  // namespace seqpar::attn::linear
