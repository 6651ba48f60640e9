// CudaBlock's work per call. cuda_plans.cpp contains the work per plan.
#include "attn/block/cuda.h"

#include <algorithm>
#include <limits>

#include "attn/block/tiles.h"
#include "kernels/attn/softmax/launch.h"

namespace seqpar::attn {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

/// cuDNN's format of rows: [batch][heads][tokens] without gaps.
bool packed(const Rows& rows) {
  return rows.headStride == rows.tokens && (rows.batch == 1 || rows.batchStride == rows.heads * rows.tokens);
}

}  // namespace

CudaBlock::Work* CudaBlock::place(std::span<const Rectangle> rectangles, int64_t rows, int64_t columns) {
  const auto found = std::find_if(works_.begin(), works_.end(), [&](const Work& work) {
    return work.rows == rows && work.columns == columns &&
           std::equal(work.rectangles.begin(), work.rectangles.end(), rectangles.begin(), rectangles.end());
  });
  return found == works_.end() ? nullptr : &*found;
}

const CudaBlock::Work& CudaBlock::find(std::span<const Rectangle> rectangles, int64_t rows, int64_t columns) {
  const Work* work = place(rectangles, rows, columns);
  if (work == nullptr) {
    fail(seqparInternalError, "attention plan: ", rectangles.size(), " rectangles of ", rows, " rows and ", columns,
         " columns were not expected");
  }
  return *work;
}

void CudaBlock::point(const Prepared& p, SdpaPointers& pointers) const {
  pointers.rows = constantAt<int32_t>(p.rows);
  pointers.columns = constantAt<int32_t>(p.columns);
  pointers.qOffset = constantAt<int64_t>(p.qOffset);
  pointers.kOffset = constantAt<int64_t>(p.kOffset);
  pointers.vOffset = constantAt<int64_t>(p.vOffset);
  pointers.outOffset = constantAt<int64_t>(p.outOffset);
  pointers.lseOffset = constantAt<int64_t>(p.lseOffset);
}

SdpaPointers CudaBlock::pointersOf(const Prepared& prepared, const BlockInputs& in) const {
  SdpaPointers pointers;
  pointers.q = in.q.data;
  pointers.k = in.k.data;
  pointers.v = in.v.data;
  point(prepared, pointers);
  return pointers;
}

softmax::BandProblem CudaBlock::bandProblem(const Prepared& prepared, const BlockInputs& in) const {
  const auto& s = shape_;
  softmax::BandProblem problem;
  problem.batch = s.batch;
  problem.heads = s.heads;
  problem.kvHeads = s.kvHeads;
  problem.group = s.group;
  problem.phase = s.phase;
  problem.headDim = s.headDim;
  problem.valueDim = s.valueDim;
  problem.scale = s.scale;
  problem.softcap = s.softcap;
  problem.bands = constantAt<softmax::Band>(prepared.bands);
  problem.count = static_cast<int64_t>(prepared.step.rectangles.size());
  problem.longestRows = prepared.longestRows;
  problem.longestColumns = prepared.longestColumns;
  problem.q = viewOf(in.q);
  problem.k = viewOf(in.k);
  problem.v = viewOf(in.v);
  return problem;
}

/// The tokens of a step.
BlockInputs CudaBlock::tokensOf(const Prepared& prepared, const BlockInputs& in) {
  const auto &queries = prepared.queries, &keys = prepared.keys;
  return {in.q.rows(queries.first, queries.count), in.k.rows(keys.first, keys.count),
          in.v.rows(keys.first, keys.count)};
}

BlockGradientInputs CudaBlock::tokensOf(const Prepared& prepared, const BlockGradientInputs& in) {
  const auto& [first, count] = prepared.queries;
  const auto part = tokensOf(prepared, BlockInputs{in.q, in.k, in.v});
  return {part.q,
          part.k,
          part.v,
          in.dOut.rows(first, count),
          in.lse.rows(first, count),
          in.delta.rows(first, count),
          in.out.rows(first, count)};
}

/// Runs a step. Returns its logarithms, which a ragged step stores by token. `in` contains the step's tokens only.
softmax::RowView CudaBlock::runForward(const Prepared& prepared, const BlockInputs& in, const Place& place) {
  if (!prepared.allRows) exec_.fill(place.lse, kNothing);
  if (prepared.step.kind == BlockStep::Kind::Bands) {
    auto problem = bandProblem(prepared, in);
    problem.out = viewOf(place.out);
    problem.lse = viewOf(place.lse);
    checkCuda(softmax::launchBandForward(problem, exec_.stream()), "attention of bands");
    return viewOf(place.lse);
  }
  auto pointers = pointersOf(prepared, in);
  pointers.out = place.out.data;
  pointers.lse = place.lse.data;
  sdpa_->run(prepared.shape, pointers, workspace_, exec_.stream());
  if (prepared.step.kind == BlockStep::Kind::Ragged) return {place.lse.data, 0, 1, shape_.heads};
  return viewOf(place.lse);
}

void CudaBlock::clear(const Partial& partial, const Tensor& out, const Rows& lse) {
  if (keeps_) {
    partial_.clear(partial, out, lse);
  } else {
    exec_.fill(partial.lse, kNothing);
  }
}

/// A cuDNN plan has fixed strides, and must not be built here: that takes a second, and loading its kernels may wait
/// for the device. A tensor with other strides than the scratch memory is copied.
Tensor CudaBlock::asPlanned(const Tensor& tensor, const Tensor& scratch) {
  const bool there = tensor.hasRowLayout(scratch.heads);
  const auto made = tensorInRows(there ? tensor.data : scratch.data, tensor.type, tensor.batch, tensor.tokens,
                                 tensor.heads, scratch.heads, tensor.dim);
  if (!there) exec_.copy(made, tensor);
  return made;
}

BlockInputs CudaBlock::asPlanned(const BlockInputs& in) {
  if (!limits_.cudnn) return in;
  return {asPlanned(in.q, copies_[0]), asPlanned(in.k, copies_[1]), asPlanned(in.v, copies_[2])};
}

void CudaBlock::forward(const BlockInputs& in, std::span<const Rectangle> rectangles, const Partial& into) {
  if (rectangles.empty() || shape_.batch * shape_.heads == 0) return;
  const Work& work = find(rectangles, in.q.tokens, in.k.tokens);
  const bool kept = partial_.holds(into);
  if (!kept) partial_.settle();
  const auto inputs = asPlanned(in);
  for (const auto& prepared : work.forward) {
    const auto& [row, rows] = prepared.queries;
    const bool byTokens = prepared.step.kind == BlockStep::Kind::Ragged;
    const auto place = kept ? partial_.place(row, rows, byTokens) : partial_.placeNow(into, row, rows);
    const auto lse = runForward(prepared, tokensOf(prepared, inputs), place);
    if (kept) {
      partial_.add(place, lse, prepared.allRows);
    } else {
      partial_.mergeNow(into, {viewOf(place.out), lse, row, rows});
    }
  }
}

void CudaBlock::merge(const Partial& into, const Partial& from) {
  partial_.settle();
  partial_.mergeNow(into, {viewOf(from.out), viewOf(from.lse), 0, from.out.tokens});
}

void CudaBlock::finish(const Partial& partial, const float* sinks, const Tensor& out, const Rows& lse) {
  if (partial_.holds(partial)) {
    partial_.finish(sinks, out, lse);
  } else {
    partial_.finishNow(partial, sinks, out, lse);
  }
}

void CudaBlock::delta(const Tensor& out, const Tensor& dOut, const Rows& delta) {
  checkCuda(softmax::launchDelta(viewOf(out), viewOf(dOut), viewOf(delta), out.batch, out.tokens, out.heads, out.dim,
                                 exec_.stream()),
            "rowsum(dOut * out)");
}

/// Runs the backward pass of a step: dq, dk, dv. `in` contains the step's tokens only.
void CudaBlock::runBackward(const Prepared& prepared, const BlockGradientInputs& in,
                            const std::array<Place, 3>& places) {
  const auto& s = shape_;
  const Tensor &dq = places[0].out, &dk = places[1].out, &dv = places[2].out;
  const int64_t rows = dq.tokens;
  if (!prepared.allRows) exec_.zero(dq);
  if (!prepared.allColumns) {
    exec_.zero(dk);
    exec_.zero(dv);
  }
  if (prepared.step.kind == BlockStep::Kind::Bands) {
    auto problem = bandProblem(prepared, {in.q, in.k, in.v});
    problem.lse = viewOf(in.lse);
    problem.delta = viewOf(in.delta);
    problem.dOut = viewOf(in.dOut);
    problem.dq = viewOf(dq);
    problem.dk = viewOf(dk);
    problem.dv = viewOf(dv);
    checkCuda(softmax::launchBandQueries(problem, exec_.stream()), "gradients of bands' queries");
    checkCuda(softmax::launchBandKeys(problem, exec_.stream()), "gradients of bands' keys");
    return;
  }
  auto pointers = pointersOf(prepared, {in.q, in.k, in.v});
  pointers.out = in.out.data;
  pointers.dOut = in.dOut.data;
  pointers.lse = in.lse.data;
  pointers.dq = dq.data;
  pointers.dk = dk.data;
  pointers.dv = dv.data;
  if (prepared.step.kind == BlockStep::Kind::Ragged) {
    const softmax::RowView byTokens{lseCopy_.data, 0, 1, s.heads};
    checkCuda(softmax::launchRows(byTokens, viewOf(in.lse), 0, s.batch, rows, s.heads, exec_.stream()), "copying rows");
    pointers.lse = lseCopy_.data;
  } else if (!packed(in.lse)) {
    const auto copy = denseRows(lseCopy_.data, s.batch, s.heads, rows);
    exec_.copy(copy, in.lse);
    pointers.lse = copy.data;
  }
  sdpa_->run(prepared.shape, pointers, workspace_, exec_.stream());
}

void CudaBlock::backward(const BlockGradientInputs& in, std::span<const Rectangle> rectangles,
                         const BlockGradients& into) {
  if (rectangles.empty() || shape_.batch * shape_.heads == 0) return;
  const Work& work = find(rectangles, in.q.tokens, in.k.tokens);
  const std::array<Tensor, 3> targets{into.dq.rows(0, in.q.tokens), into.dk.rows(0, in.k.tokens),
                                      into.dv.rows(0, in.k.tokens)};
  std::array<bool, 3> kept{};
  for (size_t i = 0; i < targets.size(); ++i) {
    kept[i] = sums_[i].holds(targets[i]);
    if (!kept[i]) sums_[i].settleAll();
  }
  auto inputs = in;
  if (limits_.cudnn) {
    const auto planned = asPlanned(BlockInputs{in.q, in.k, in.v});
    inputs.q = planned.q;
    inputs.k = planned.k;
    inputs.v = planned.v;
    inputs.out = asPlanned(in.out, copies_[3]);
    inputs.dOut = asPlanned(in.dOut, copies_[4]);
  }
  const auto ofBands = [](const Prepared& prepared) { return prepared.step.kind == BlockStep::Kind::Bands; };
  if (needsOut() && std::any_of(work.backward.begin(), work.backward.end(), ofBands)) {
    inputs.delta = denseRows(delta_.data, shape_.batch, shape_.heads, in.q.tokens);
    delta(in.out, in.dOut, inputs.delta);
  }
  for (const auto& prepared : work.backward) {
    std::array<Place, 3> places;
    for (size_t i = 0; i < places.size(); ++i) {
      const bool queries = i == static_cast<size_t>(GradientOf::Queries);
      const auto& [first, tokens] = queries ? prepared.queries : prepared.keys;
      places[i] = kept[i] ? sums_[i].place(targets[i], first, tokens) : sums_[i].placeNow(targets[i], first, tokens);
    }
    runBackward(prepared, tokensOf(prepared, inputs), places);
    for (size_t i = 0; i < places.size(); ++i) {
      if (kept[i]) {
        sums_[i].add(targets[i], places[i]);
      } else {
        sums_[i].addNow(targets[i], places[i]);
      }
    }
  }
}

void CudaBlock::clear(GradientOf which, const Tensor& sum, const Tensor& out) {
  if (keeps_) {
    sums_[static_cast<size_t>(which)].clear(sum, out);
  } else {
    exec_.zero(sum);
  }
}

void CudaBlock::finish(const Tensor& sum, std::span<const Addend> addends, const Tensor& out) {
  for (auto& pending : sums_) {
    if (pending.holds(sum)) return pending.finish(sum, addends, out);
  }
  sums_.front().finishNow(sum, addends, out);
}

void CudaBlock::addTo(const Tensor& total, const Tensor& sum) {
  for (auto& pending : sums_) {
    if (pending.holds(sum)) return pending.addTo(total, sum);
  }
  exec_.add(total, sum);
}

void CudaBlock::settle(const Tensor& sum) {
  for (auto& pending : sums_) {
    if (pending.holds(sum)) pending.settle(sum);
  }
}

void CudaBlock::sinkGradient(const float* sinks, const Rows& lse, const Rows& delta, float* dSinks) {
  checkCuda(softmax::launchSinkGradient(sinks, viewOf(lse), viewOf(delta), dSinks, lse.batch, lse.tokens, lse.heads,
                                        exec_.stream()),
            "gradient of sinks");
}

std::unique_ptr<Block> makeCudaBlock(Exec& exec, const BlockShape& shape) {
  const bool own = shape.kernel.forward == nullptr;
  auto block = std::make_unique<CudaBlock>(static_cast<CudaExec&>(exec), shape, own);
  if (own) return block;
  return std::make_unique<TiledBlock>(exec, shape, std::move(block));
}

}  // namespace seqpar::attn
