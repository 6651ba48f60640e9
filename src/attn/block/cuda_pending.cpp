#include "attn/block/cuda_pending.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/attn/softmax/launch.h"

namespace seqpar::attn {
namespace {

constexpr int kInOut = -1;  ///< the slot of a part in finish()'s memory
constexpr int kSlots = static_cast<int>(kMostPending);

/// `out` if kernels may write it instead of scratch memory `memory`, with the tokens and heads of `whole`; else empty.
Tensor writable(const Tensor& out, const Tensor& memory, const Tensor& whole) {
  const bool fits = out.data != nullptr && out.type == memory.type && out.tokens == whole.tokens &&
                    out.heads == whole.heads && out.dim == whole.dim && out.hasRowLayout(memory.heads) &&
                    aligned(out.data);
  return fits ? out : Tensor{};
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

/// An empty merge with the shape of `of`.
softmax::Merge mergeOf(const Partial& of, bool withSum) {
  softmax::Merge all;
  all.batch = of.out.batch;
  all.tokens = of.out.tokens;
  all.heads = of.out.heads;
  all.dim = of.out.dim;
  if (withSum) {
    all.sum = viewOf(of.out);
    all.sumLse = viewOf(of.lse);
  }
  return all;
}

/// An empty sum with the shape of `of`.
softmax::Sum sumOf(const Tensor& of) {
  softmax::Sum all;
  all.batch = of.batch;
  all.tokens = of.tokens;
  all.heads = of.heads;
  all.dim = of.dim;
  return all;
}

void append(softmax::Sum& sum, const softmax::Part& part) {
  if (sum.count == softmax::kMostParts) fail(seqparInternalError, "attention plan: a sum of too many parts");
  sum.parts[sum.count++] = part;
}

/// The parts of addends with elements: of a shard's ranges, and so any number.
std::vector<softmax::Part> partsOf(std::span<const Addend> addends) {
  std::vector<softmax::Part> parts;
  for (const auto& addend : addends) {
    if (addend.tensor.elements() == 0) continue;
    parts.push_back({viewOf(addend.tensor), {}, addend.first, addend.tensor.tokens});
  }
  return parts;
}

}  // namespace

void PartialScratch::give(const std::array<Tensor, kMostPending>& outs,
                          const std::array<Rows, kMostPending + 1>& lses) {
  outs_ = outs;
  lses_ = lses;
}

Place PartialScratch::place(const Partial& into, int64_t first, int64_t tokens) {
  release();
  return {like(into.out, outs_[0], outs_[0].data).rows(first, tokens),
          denseRows(lses_[0].data, lses_[0].batch, lses_[0].heads, tokens), first, 0};
}

void PartialScratch::merge(const Partial& into, const softmax::Part& part) {
  // Other rows are unchanged.
  const Partial rows{into.out.rows(part.first, part.tokens), into.lse.rows(part.first, part.tokens)};
  softmax::Merge one = mergeOf(rows, true);
  one.count = 1;
  one.parts[0] = part;
  one.parts[0].first = 0;
  one.out = viewOf(rows.out);
  one.lse = viewOf(rows.lse);
  launch(one);
}

void PartialScratch::finish(const Partial& partial, const float* sinks, const Tensor& out, const Rows& lse) {
  softmax::Merge one = mergeOf(partial, true);
  one.out = viewOf(out);
  one.lse = viewOf(lse);
  one.sinks = sinks;
  launch(one);
}

void PartialScratch::release() {
  if (user_ != nullptr) user_->store();
  user_ = nullptr;
}

void PartialScratch::launch(const softmax::Merge& merge) {
  checkCuda(softmax::launchMerge(merge, exec_.stream()), "merging partial attention");
}

PendingPartial::PendingPartial(PartialScratch& scratch, const Partial& partial, const Tensor& out, const Rows& lse)
    : scratch_(scratch),
      target_(partial),
      out_(writable(out, scratch.outs_[0], partial.out)),
      lse_(lse.data != nullptr && lse.dense() && aligned(lse.data) ? lse : Rows{}) {
  scratch.release();
  scratch.user_ = this;
}

PendingPartial::~PendingPartial() {
  drop();
}

/// Discards the parts.
void PendingPartial::drop() {
  parts_.clear();
  slots_.clear();
  if (scratch_.user_ == this) scratch_.user_ = nullptr;
}

Place PendingPartial::at(const Tensor& memory, const Rows& lse, int64_t first, int64_t tokens, int slot) const {
  return {like(target_.out, scratch_.outs_[0], memory.data).rows(first, tokens),
          denseRows(lse.data, lse.batch, lse.heads, tokens), first, slot};
}

Place PendingPartial::place(int64_t first, int64_t tokens, bool byTokens) {
  if (scratch_.user_ != this) {
    scratch_.release();
    scratch_.user_ = this;
  }
  const auto used = [&](int slot) { return std::find(slots_.begin(), slots_.end(), slot) != slots_.end(); };
  if (out_.data != nullptr && first == 0 && tokens == target_.out.tokens && !used(kInOut)) {
    const bool inLse = lse_.data != nullptr && !byTokens;
    return at(out_, inLse ? lse_ : scratch_.lses_[kMostPending], first, tokens, kInOut);
  }
  int slot = 0;
  while (slot < kSlots && used(slot)) ++slot;
  if (slot == kSlots) {
    flush();
    slot = 0;
  }
  return at(scratch_.outs_[static_cast<size_t>(slot)], scratch_.lses_[static_cast<size_t>(slot)], first, tokens, slot);
}

void PendingPartial::add(const Place& place, const softmax::RowView& lse, bool whole) {
  if (parts_.empty()) whole_ = whole && empty_;
  parts_.push_back({viewOf(place.out), lse, place.first, place.out.tokens});
  slots_.push_back(place.slot);
}

/// Merges the pending parts into memory; more parts may follow.
void PendingPartial::flush() {
  auto all = merge();
  all.out = viewOf(target_.out);
  all.lse = viewOf(target_.lse);
  scratch_.launch(all);
  empty_ = false;
  parts_.clear();
  slots_.clear();
}

void PendingPartial::store() {
  if (!parts_.empty()) {
    flush();
  } else if (empty_) {
    attn::clear(scratch_.exec_, target_);
    empty_ = false;
  }
}

void PendingPartial::finish(const float* sinks, const Tensor& out, const Rows& lse) {
  const bool inPlace = whole_ && !parts_.empty() && slots_[0] == kInOut && out_.data == out.data && sinks == nullptr;
  const bool done = inPlace && parts_.size() == 1;
  if (inPlace && lse.data != nullptr && lse.data != parts_[0].lse.data) {
    checkCuda(
        softmax::launchRows(viewOf(lse), parts_[0].lse, 0, lse.batch, lse.tokens, lse.heads, scratch_.exec_.stream()),
        "copying rows");
    parts_[0].lse = viewOf(lse);
  }
  if (!done) {
    auto all = merge();
    const auto rows = inPlace ? rowsOf(all, 0) : TokenRange{0, out.tokens};
    narrow(all, rows);
    all.out = viewOf(out.rows(rows.first, rows.count));
    all.lse = viewOf(lse.rows(rows.first, rows.count));
    all.sinks = sinks;
    scratch_.launch(all);
  }
  drop();
}

/// The merge of all parts with the target's memory, if it is initialized.
softmax::Merge PendingPartial::merge() const {
  softmax::Merge all = mergeOf(target_, !empty_);
  std::copy(parts_.begin(), parts_.end(), all.parts);
  all.count = static_cast<int>(parts_.size());
  return all;
}

Place SumScratch::place(const Tensor& into, int64_t first, int64_t tokens) {
  for (auto* const sum : pending_) sum->store();
  return {like(into, memory_[0], memory_[0].data).rows(first, tokens), {}, first, 0};
}

void SumScratch::add(const Tensor& into, const Place& place) {
  const Tensor rows = into.rows(place.first, place.out.tokens);
  auto one = sumOf(rows);
  one.sum = one.out = viewOf(rows);
  one.parts[0] = partOf(place);
  one.parts[0].first = 0;
  one.count = 1;
  launch(one);
}

void SumScratch::finish(const Tensor& sum, std::span<const Addend> addends, const Tensor& out) {
  auto all = sumOf(sum);
  all.sum = viewOf(sum);
  for (const auto& part : store(sum, partsOf(addends), false)) append(all, part);
  all.out = viewOf(out);
  launch(all);
}

std::vector<softmax::Part> SumScratch::store(const Tensor& sum, std::vector<softmax::Part> parts, bool empty) {
  while (parts.size() > softmax::kMostParts) {
    auto some = sumOf(sum);
    if (!empty) some.sum = viewOf(sum);
    for (auto part = parts.end() - softmax::kMostParts; part != parts.end(); ++part) append(some, *part);
    some.out = viewOf(sum);
    launch(some);
    parts.resize(parts.size() - softmax::kMostParts);
    empty = false;
  }
  return parts;
}

bool SumScratch::free(const PendingSum& sum, int slot, int64_t first, int64_t tokens) const {
  if (slot == kInOut && sum.out_.data == nullptr) return false;
  for (const auto* const other : pending_) {
    const bool own = other == &sum;
    if (!own && slot == kInOut) continue;
    for (const auto& part : other->parts_) {
      const bool overlaps = first < part.first + part.out.tokens && part.first < first + tokens;
      if (part.slot == slot && (!own || overlaps)) return false;
    }
  }
  return true;
}

void SumScratch::launch(const softmax::Sum& sum) {
  checkCuda(softmax::launchSum(sum, exec_.stream()), "adding gradients");
}

PendingSum::PendingSum(SumScratch& scratch, const Tensor& sum, const Tensor& out)
    : scratch_(scratch), target_(sum), out_(writable(out, scratch.memory_[0], sum)) {
  scratch.pending_.push_back(this);
}

PendingSum::~PendingSum() {
  std::erase(scratch_.pending_, this);
}

Place PendingSum::place(int64_t first, int64_t tokens) {
  if (parts_.size() == softmax::kMostParts) flush();
  while (true) {
    for (int slot = kInOut; slot < kSlots; ++slot) {
      if (!scratch_.free(*this, slot, first, tokens)) continue;
      const Tensor& memory = slot == kInOut ? out_ : scratch_.memory_[static_cast<size_t>(slot)];
      return {like(target_, scratch_.memory_[0], memory.data).rows(first, tokens), {}, first, slot};
    }
    // All slots are in use.
    if (!parts_.empty()) {
      flush();
      continue;
    }
    for (auto* const other : scratch_.pending_) {
      if (!other->parts_.empty()) other->flush();
    }
  }
}

void PendingSum::add(const Place& place) {
  for (auto& part : parts_) {
    if (part.slot != place.slot || part.first + part.out.tokens != place.first) continue;
    part.out.tokens += place.out.tokens;
    return;
  }
  parts_.push_back(place);
}

/// Adds the pending parts to memory; more parts may follow.
void PendingSum::flush() {
  auto all = sumOf(target_);
  if (!empty_) all.sum = viewOf(target_);
  for (const auto& part : parts_) append(all, partOf(part));
  all.out = viewOf(target_);
  scratch_.launch(all);
  empty_ = false;
  parts_.clear();
  if (out_.data == target_.data) out_ = {};  // this memory now contains the sum
}

void PendingSum::store() {
  if (empty_ || !parts_.empty()) flush();
}

void PendingSum::finish(std::span<const Addend> addends, const Tensor& out) {
  auto others = partsOf(addends);
  const bool done = others.empty() && empty_ && parts_.size() == 1 && parts_[0].slot == kInOut &&
                    parts_[0].out.tokens == out.tokens && out_.data == out.data;
  if (done) return parts_.clear();
  if (parts_.size() + others.size() > softmax::kMostParts) {
    if (!parts_.empty()) flush();
    if (others.size() > softmax::kMostParts) {
      others = scratch_.store(target_, std::move(others), empty_);
      empty_ = false;
      if (out_.data == target_.data) out_ = {};
    }
  }
  auto all = sumOf(target_);
  if (!empty_) all.sum = viewOf(target_);
  int inPlace = -1;
  for (const auto& part : parts_) {
    const bool everyRow = part.first == 0 && part.out.tokens == out.tokens;
    if (empty_ && part.slot == kInOut && everyRow && out_.data == out.data) inPlace = all.count;
    append(all, partOf(part));
  }
  for (const auto& part : others) append(all, part);
  const auto rows = inPlace < 0 ? TokenRange{0, out.tokens} : rowsOf(all, inPlace);
  narrow(all, rows);
  all.out = viewOf(out.rows(rows.first, rows.count));
  scratch_.launch(all);
  parts_.clear();
}

void PendingSum::addTo(const Tensor& total) {
  if (!empty_ && parts_.size() == softmax::kMostParts) flush();
  auto all = sumOf(total);
  for (const auto& part : parts_) append(all, partOf(part));
  if (!empty_) append(all, {viewOf(target_), {}, 0, target_.tokens});
  all.sum = all.out = viewOf(total);
  if (all.count > 0) scratch_.launch(all);
  parts_.clear();
}

}  // namespace seqpar::attn
