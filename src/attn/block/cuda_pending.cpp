#include "attn/block/cuda_pending.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/attn/softmax/launch.h"

namespace seqpar::attn {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr int kInOut = -1;  ///< the slot of a part in finish()'s memory
constexpr int kSlots = static_cast<int>(kMostPending);

/// cuDNN's alignment.
bool aligned(const void* data) {
  constexpr std::uintptr_t kAlignment = 16;
  return reinterpret_cast<std::uintptr_t>(data) % kAlignment == 0;
}

/// `out` if kernels may write it instead of scratch memory `memory`, with the tokens and heads of `whole`; else empty.
Tensor writable(const Tensor& out, const Tensor& memory, const Tensor& whole) {
  const bool fits = out.data != nullptr && out.type == memory.type && out.tokens == whole.tokens &&
                    out.heads == whole.heads && out.dim == whole.dim && out.hasRowLayout(memory.heads) &&
                    aligned(out.data);
  return fits ? out : Tensor{};
}

/// cuDNN's format of rows: [batch][heads][tokens] without gaps.
bool packed(const Rows& rows) {
  return rows.headStride == rows.tokens && (rows.batch == 1 || rows.batchStride == rows.heads * rows.tokens);
}

/// A tensor with the tokens and heads of `whole` and the strides of `memory`, at `data`.
Tensor like(const Tensor& whole, const Tensor& memory, void* data) {
  return tensorInRows(data, memory.type, whole.batch, whole.tokens, whole.heads, memory.heads, whole.dim);
}

/// The rows of all parts except one.
template <typename Args>
TokenRange rowsOf(const Args& args, int except) {
  TokenRange rows;
  for (int i = 0; i < args.count; ++i) {
    if (i != except) rows = rows.with({args.parts[i].first, args.parts[i].tokens});
  }
  return rows;
}

/// Restricts `args` to these rows; `args` has no sum in memory, or these are all rows.
template <typename Args>
void narrow(Args& args, const TokenRange& rows) {
  args.tokens = rows.count;
  for (int i = 0; i < args.count; ++i) args.parts[i].first -= rows.first;
}

softmax::Part partOf(const Place& place) {
  return {viewOf(place.out), {}, place.first, place.out.tokens};
}

}  // namespace

void PendingPartial::give(const std::array<Tensor, kMostPending>& outs,
                          const std::array<Rows, kMostPending + 1>& lses) {
  outs_ = outs;
  lses_ = lses;
}

void PendingPartial::forget() {
  target_ = {};
  parts_.clear();
  slots_.clear();
}

void PendingPartial::clear(const Partial& partial, const Tensor& out, const Rows& lse) {
  if (!holds(partial)) settle();
  forget();
  target_ = partial;
  out_ = writable(out, outs_[0], partial.out);
  lse_ = lse.data != nullptr && packed(lse) && aligned(lse.data) ? lse : Rows{};
  empty_ = true;
}

Place PendingPartial::at(const Tensor& memory, const Rows& lse, const Partial& of, int64_t first, int64_t tokens,
                         int slot) const {
  return {like(of.out, outs_[0], memory.data).rows(first, tokens), denseRows(lse.data, lse.batch, lse.heads, tokens),
          first, slot};
}

Place PendingPartial::place(int64_t first, int64_t tokens, bool byTokens) {
  const auto taken = [&](int slot) { return std::find(slots_.begin(), slots_.end(), slot) != slots_.end(); };
  if (out_.data != nullptr && first == 0 && tokens == target_.out.tokens && !taken(kInOut)) {
    const bool there = lse_.data != nullptr && !byTokens;
    return at(out_, there ? lse_ : lses_[kMostPending], target_, first, tokens, kInOut);
  }
  int slot = 0;
  while (slot < kSlots && taken(slot)) ++slot;
  if (slot == kSlots) {
    flush();
    slot = 0;
  }
  return at(outs_[static_cast<size_t>(slot)], lses_[static_cast<size_t>(slot)], target_, first, tokens, slot);
}

Place PendingPartial::placeNow(const Partial& into, int64_t first, int64_t tokens) const {
  return at(outs_[0], lses_[0], into, first, tokens, 0);
}

void PendingPartial::add(const Place& place, const softmax::RowView& lse, bool whole) {
  if (parts_.empty()) whole_ = whole && empty_;
  parts_.push_back({viewOf(place.out), lse, place.first, place.out.tokens});
  slots_.push_back(place.slot);
}

/// Merges the pending parts into memory; more parts may follow.
void PendingPartial::flush() {
  auto all = merge(target_, !empty_);
  all.out = viewOf(target_.out);
  all.lse = viewOf(target_.lse);
  launch(all);
  empty_ = false;
  parts_.clear();
  slots_.clear();
}

void PendingPartial::settle() {
  if (target_.lse.data == nullptr) return;
  if (!parts_.empty()) {
    flush();
  } else if (empty_) {
    exec_.fill(target_.lse, kNothing);
  }
  forget();
}

void PendingPartial::finish(const float* sinks, const Tensor& out, const Rows& lse) {
  const bool inPlace = whole_ && !parts_.empty() && slots_[0] == kInOut && out_.data == out.data && sinks == nullptr;
  const bool done = inPlace && parts_.size() == 1;
  if (inPlace && lse.data != nullptr && lse.data != parts_[0].lse.data) {
    checkCuda(softmax::launchRows(viewOf(lse), parts_[0].lse, 0, lse.batch, lse.tokens, lse.heads, exec_.stream()),
              "copying rows");
    parts_[0].lse = viewOf(lse);
  }
  if (!done) {
    auto all = merge(target_, !empty_);
    const auto rows = inPlace ? rowsOf(all, 0) : TokenRange{0, out.tokens};
    narrow(all, rows);
    all.out = viewOf(out.rows(rows.first, rows.count));
    all.lse = viewOf(lse.rows(rows.first, rows.count));
    all.sinks = sinks;
    launch(all);
  }
  forget();
}

void PendingPartial::mergeNow(const Partial& into, const softmax::Part& part) {
  // Other rows are unchanged.
  const Partial rows{into.out.rows(part.first, part.tokens), into.lse.rows(part.first, part.tokens)};
  softmax::Merge one = merge(rows, true);
  one.count = 1;
  one.parts[0] = part;
  one.parts[0].first = 0;
  one.out = viewOf(rows.out);
  one.lse = viewOf(rows.lse);
  launch(one);
}

void PendingPartial::finishNow(const Partial& partial, const float* sinks, const Tensor& out, const Rows& lse) {
  softmax::Merge one = merge(partial, true);
  one.count = 0;
  one.out = viewOf(out);
  one.lse = viewOf(lse);
  one.sinks = sinks;
  launch(one);
}

softmax::Merge PendingPartial::merge(const Partial& of, bool withSum) const {
  softmax::Merge all;
  all.batch = of.out.batch;
  all.tokens = of.out.tokens;
  all.heads = of.out.heads;
  all.dim = of.out.dim;
  if (withSum) {
    all.sum = viewOf(of.out);
    all.sumLse = viewOf(of.lse);
  }
  std::copy(parts_.begin(), parts_.end(), all.parts);
  all.count = static_cast<int>(parts_.size());
  return all;
}

void PendingPartial::launch(const softmax::Merge& merge) {
  checkCuda(softmax::launchMerge(merge, exec_.stream()), "merging partial attention");
}

bool PendingSums::holds(const Tensor& sum) const {
  return std::any_of(kept_.begin(), kept_.end(), [&](const Kept& kept) { return kept.target.data == sum.data; });
}

PendingSums::Kept& PendingSums::find(const Tensor& sum) {
  return *std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) { return kept.target.data == sum.data; });
}

void PendingSums::forget(const Tensor& sum) {
  std::erase_if(kept_, [&](const Kept& kept) { return kept.target.data == sum.data; });
}

void PendingSums::clear(const Tensor& sum, const Tensor& out) {
  forget(sum);
  kept_.push_back({sum, writable(out, memory_[0], sum), true, {}});
}

/// Whether `kept` may use these rows of a slot.
bool PendingSums::free(const Kept& kept, int slot, int64_t first, int64_t tokens) const {
  if (slot == kInOut && kept.out.data == nullptr) return false;
  for (const auto& other : kept_) {
    const bool own = &other == &kept;
    if (!own && slot == kInOut) continue;
    for (const auto& part : other.parts) {
      const bool overlaps = first < part.first + part.out.tokens && part.first < first + tokens;
      if (part.slot == slot && (!own || overlaps)) return false;
    }
  }
  return true;
}

Place PendingSums::place(const Tensor& sum, int64_t first, int64_t tokens) {
  auto& kept = find(sum);
  if (kept.parts.size() == softmax::kMostParts) flush(kept);
  while (true) {
    for (int slot = kInOut; slot < kSlots; ++slot) {
      if (!free(kept, slot, first, tokens)) continue;
      const Tensor& memory = slot == kInOut ? kept.out : memory_[static_cast<size_t>(slot)];
      return {like(kept.target, memory_[0], memory.data).rows(first, tokens), {}, first, slot};
    }
    // All slots are in use.
    if (!kept.parts.empty()) {
      flush(kept);
      continue;
    }
    for (auto& other : kept_) {
      if (!other.parts.empty()) flush(other);
    }
  }
}

Place PendingSums::placeNow(const Tensor& into, int64_t first, int64_t tokens) const {
  return {like(into, memory_[0], memory_[0].data).rows(first, tokens), {}, first, 0};
}

void PendingSums::add(const Tensor& sum, const Place& place) {
  auto& parts = find(sum).parts;
  for (auto& part : parts) {
    if (part.slot != place.slot || part.first + part.out.tokens != place.first) continue;
    part.out.tokens += place.out.tokens;
    return;
  }
  parts.push_back(place);
}

/// Merges the pending parts into memory; more parts may follow.
void PendingSums::flush(Kept& kept) {
  const Tensor& to = kept.target;
  auto all = sumOf(to);
  if (!kept.empty) all.sum = viewOf(to);
  for (const auto& part : kept.parts) all.parts[all.count++] = partOf(part);
  all.out = viewOf(to);
  launch(all);
  kept.empty = false;
  kept.parts.clear();
  if (kept.out.data == to.data) kept.out = {};  // this memory now contains the sum
}

void PendingSums::settle(const Tensor& sum) {
  auto& kept = find(sum);
  if (kept.empty || !kept.parts.empty()) flush(kept);
  forget(sum);
}

void PendingSums::settleAll() {
  while (!kept_.empty()) settle(kept_.back().target);
}

/// The number of parts of an addend.
size_t PendingSums::partsOf(const Tensor& addend) {
  if (addend.elements() == 0) return 0;
  if (!holds(addend)) return 1;
  const auto& kept = find(addend);
  return kept.parts.size() + (kept.empty ? 0 : 1);
}

/// Appends the addends' parts to `sum` and drops pending sums.
void PendingSums::append(softmax::Sum& sum, std::span<const Addend> addends) {
  for (const auto& addend : addends) {
    const Tensor& tensor = addend.tensor;
    if (tensor.elements() == 0) continue;
    const bool held = holds(tensor);
    if (!held || !find(tensor).empty) sum.parts[sum.count++] = {viewOf(tensor), {}, addend.first, tensor.tokens};
    if (!held) continue;
    for (auto part : find(tensor).parts) {
      part.first += addend.first;
      sum.parts[sum.count++] = partOf(part);
    }
    forget(tensor);
  }
}

void PendingSums::finish(const Tensor& sum, std::span<const Addend> addends, const Tensor& out) {
  size_t others = 0;
  for (const auto& addend : addends) others += partsOf(addend.tensor);
  {
    auto& kept = find(sum);
    const auto& parts = kept.parts;
    const bool done = others == 0 && kept.empty && parts.size() == 1 && parts[0].slot == kInOut &&
                      parts[0].out.tokens == out.tokens && kept.out.data == out.data;
    if (done) return forget(sum);
    if (parts.size() + others > softmax::kMostParts) flush(kept);
  }
  const Kept kept = find(sum);
  auto all = sumOf(sum);
  if (!kept.empty) all.sum = viewOf(sum);
  int inPlace = -1;
  for (const auto& part : kept.parts) {
    const bool everyRow = part.first == 0 && part.out.tokens == out.tokens;
    if (kept.empty && part.slot == kInOut && everyRow && kept.out.data == out.data) inPlace = all.count;
    all.parts[all.count++] = partOf(part);
  }
  append(all, addends);
  const auto rows = inPlace < 0 ? TokenRange{0, out.tokens} : rowsOf(all, inPlace);
  narrow(all, rows);
  all.out = viewOf(out.rows(rows.first, rows.count));
  launch(all);
  forget(sum);
}

void PendingSums::finishNow(const Tensor& sum, std::span<const Addend> addends, const Tensor& out) {
  auto all = sumOf(sum);
  all.sum = viewOf(sum);
  append(all, addends);
  all.out = viewOf(out);
  launch(all);
}

void PendingSums::addTo(const Tensor& total, const Tensor& sum) {
  const Kept kept = find(sum);
  auto all = sumOf(total);
  for (const auto& part : kept.parts) all.parts[all.count++] = partOf(part);
  if (!kept.empty) all.parts[all.count++] = {viewOf(sum), {}, 0, sum.tokens};
  all.sum = all.out = viewOf(total);
  if (all.count > 0) launch(all);
  forget(sum);
}

void PendingSums::addNow(const Tensor& into, const Place& place) {
  const Tensor rows = into.rows(place.first, place.out.tokens);
  auto one = sumOf(rows);
  one.sum = one.out = viewOf(rows);
  one.parts[0] = partOf(place);
  one.parts[0].first = 0;
  one.count = 1;
  launch(one);
}

/// An empty sum with the shape of `of`.
softmax::Sum PendingSums::sumOf(const Tensor& of) {
  softmax::Sum all;
  all.batch = of.batch;
  all.tokens = of.tokens;
  all.heads = of.heads;
  all.dim = of.dim;
  return all;
}

void PendingSums::launch(const softmax::Sum& sum) {
  checkCuda(softmax::launchSum(sum, exec_.stream()), "adding gradients");
}

}  // namespace seqpar::attn
