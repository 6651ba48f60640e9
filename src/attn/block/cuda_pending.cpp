#include "attn/block/cuda_pending.h"

#include <algorithm>
#include <limits>

#include "kernels/attn/softmax/launch.h"

namespace seqpar::attn {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

}  // namespace

void PendingPartial::clear(const Partial& partial) {
  if (!holds(partial)) settle();
  target_ = partial;
  empty_ = true;
  parts_.clear();
}

size_t PendingPartial::slot() {
  if (parts_.size() == kMostPending) {
    auto all = merge(target_, !empty_);
    all.out = viewOf(target_.out);
    all.lse = viewOf(target_.lse);
    launch(all);
    empty_ = false;
    parts_.clear();
  }
  return parts_.size();
}

void PendingPartial::settle() {
  if (target_.lse.data == nullptr) return;
  if (!parts_.empty()) {
    auto all = merge(target_, !empty_);
    all.out = viewOf(target_.out);
    all.lse = viewOf(target_.lse);
    launch(all);
  } else if (empty_) {
    exec_.fill(target_.lse, kNothing);
  }
  target_ = {};
  parts_.clear();
}

void PendingPartial::finish(const float* sinks, const Tensor& out, const Rows& lse) {
  auto all = merge(target_, !empty_);
  all.out = viewOf(out);
  all.lse = viewOf(lse);
  all.sinks = sinks;
  launch(all);
  target_ = {};
  parts_.clear();
}

void PendingPartial::mergeNow(const Partial& into, const softmax::Part& part) {
  // Other rows stay as they are.
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

void PendingSum::clear(const Tensor& sum) {
  if (!holds(sum)) settle();
  target_ = sum;
  empty_ = true;
  parts_.clear();
}

/// Makes memory of what waits; more may come.
void PendingSum::flush() {
  auto all = sum(target_);
  all.out = viewOf(target_);
  launch(all);
  empty_ = false;
  parts_.clear();
}

size_t PendingSum::slot() {
  if (parts_.size() == kMostPending) flush();
  return parts_.size();
}

void PendingSum::settle() {
  if (target_.data == nullptr) return;
  if (empty_ || !parts_.empty()) flush();
  target_ = {};
  parts_.clear();
}

void PendingSum::append(softmax::Sum& sum, std::span<const Addend> addends) {
  for (const auto& addend : addends) {
    if (addend.tensor.elements() == 0) continue;
    sum.parts[sum.count++] = {viewOf(addend.tensor), {}, addend.first, addend.tensor.tokens};
  }
}

void PendingSum::finish(std::span<const Addend> addends, const Tensor& out) {
  if (parts_.size() + addends.size() > softmax::kMostParts) flush();
  auto all = sum(target_);
  append(all, addends);
  all.out = viewOf(out);
  launch(all);
  target_ = {};
  parts_.clear();
}

void PendingSum::finishNow(const Tensor& sum, std::span<const Addend> addends, const Tensor& out) {
  auto all = sumOf(sum);
  all.sum = viewOf(sum);
  append(all, addends);
  all.out = viewOf(out);
  launch(all);
}

void PendingSum::addTo(const Tensor& total) {
  auto all = sum(target_);
  if (!empty_) {
    all.parts[all.count].out = all.sum;
    all.parts[all.count].first = 0;
    all.parts[all.count].tokens = target_.tokens;
    ++all.count;
  }
  all.sum = all.out = viewOf(total);
  if (all.count > 0) launch(all);
  target_ = {};
  parts_.clear();
}

void PendingSum::addNow(const Tensor& into, const softmax::Part& part) {
  const Tensor rows = into.rows(part.first, part.tokens);
  auto one = sumOf(rows);
  one.sum = one.out = viewOf(rows);
  one.parts[0] = part;
  one.parts[0].first = 0;
  one.count = 1;
  launch(one);
}

/// Without terms.
softmax::Sum PendingSum::sumOf(const Tensor& of) {
  softmax::Sum all;
  all.batch = of.batch;
  all.tokens = of.tokens;
  all.heads = of.heads;
  all.dim = of.dim;
  return all;
}

softmax::Sum PendingSum::sum(const Tensor& of) const {
  auto all = sumOf(of);
  if (!empty_) all.sum = viewOf(of);
  std::copy(parts_.begin(), parts_.end(), all.parts);
  all.count = static_cast<int>(parts_.size());
  return all;
}

void PendingSum::launch(const softmax::Sum& sum) {
  checkCuda(softmax::launchSum(sum, exec_.stream()), "adding gradients");
}

}  // namespace seqpar::attn
