// CudaBlock's work per call. cuda_plans.cpp contains the work per plan.
#include "attn/block/cuda.h"

#include <algorithm>
#include <limits>

#include "attn/block/tiles.h"
#include "kernels/attn/softmax/launch.h"

namespace seqpar::attn {

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
  if (!prepared.allRows) exec_.fill(place.lse, -std::numeric_limits<float>::infinity());
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

class CudaBlock::PendingAccumulator final : public Accumulator {
 public:
  PendingAccumulator(CudaBlock& block, const Partial& partial, const Tensor& out, const Rows& lse)
      : block_(block), pending_(block.partial_, partial, out, lse) {}

  void add(const BlockInputs& in, std::span<const Rectangle> rectangles) override {
    block_.accumulateForward(in, rectangles, pending_);
  }
  void finish(const float* sinks, const Tensor& out, const Rows& lse) override { pending_.finish(sinks, out, lse); }

 private:
  CudaBlock& block_;
  PendingPartial pending_;
};

class CudaBlock::PendingGradientAccumulator final : public GradientAccumulator {
 public:
  PendingGradientAccumulator(SumScratch& scratch, const Tensor& sum, const Tensor& out)
      : GradientAccumulator(sum), pending_(scratch, sum, out) {}

  void finish(std::span<const Addend> addends, const Tensor& out) override { pending_.finish(addends, out); }
  void addTo(const Tensor& total) override { pending_.addTo(total); }
  void store() override { pending_.store(); }
  PendingSum& pending() { return pending_; }

 private:
  PendingSum pending_;
};

std::unique_ptr<Accumulator> CudaBlock::accumulate(const Partial& partial, const Tensor& out, const Rows& lse) {
  if (!accumulates_) return Block::accumulate(partial, out, lse);
  return std::make_unique<PendingAccumulator>(*this, partial, out, lse);
}

std::unique_ptr<GradientAccumulator> CudaBlock::accumulate(GradientOf which, const Tensor& sum, const Tensor& out) {
  if (!accumulates_) return Block::accumulate(which, sum, out);
  return std::make_unique<PendingGradientAccumulator>(sums_[static_cast<size_t>(which)], sum, out);
}

/// A cuDNN plan has fixed strides, and must not be built here: that takes a second, and loading its kernels may wait
/// for the device. A tensor with other strides than the scratch memory, or at an address that cuDNN cannot read, is
/// copied.
Tensor CudaBlock::asPlanned(const Tensor& tensor, const Tensor& scratch) {
  const bool inPlace = tensor.hasRowLayout(scratch.heads) && aligned(tensor.data);
  const auto planned = tensorInRows(inPlace ? tensor.data : scratch.data, tensor.type, tensor.batch, tensor.tokens,
                                    tensor.heads, scratch.heads, tensor.dim);
  if (!inPlace) exec_.copy(planned, tensor);
  return planned;
}

BlockInputs CudaBlock::asPlanned(const BlockInputs& in) {
  if (!limits_.cudnn) return in;
  return {asPlanned(in.q, copies_[0]), asPlanned(in.k, copies_[1]), asPlanned(in.v, copies_[2])};
}

/// The inputs of the steps, with the keys in their order.
BlockInputs CudaBlock::forwardInputs(const Work& work, const BlockInputs& in) {
  if (work.ordered == 0) return asPlanned(in);
  const auto ordered = [&](const Tensor& from, const Tensor& scratch) {
    const auto to =
        tensorInRows(scratch.data, from.type, from.batch, work.ordered, from.heads, scratch.heads, from.dim);
    checkCuda(softmax::launchGather(viewOf(to), viewOf(from), constantAt<int32_t>(work.order), to.batch, to.tokens,
                                    to.heads, to.dim, exec_.stream()),
              "ordering keys");
    return to;
  };
  return {asPlanned(in.q, copies_[0]), ordered(in.k, copies_[1]), ordered(in.v, copies_[2])};
}

template <typename At, typename Take>
void CudaBlock::forwardSteps(const BlockInputs& in, std::span<const Rectangle> rectangles, const At& at,
                             const Take& take) {
  if (rectangles.empty() || shape_.batch * shape_.heads == 0) return;
  const Work& work = find(rectangles, in.q.tokens, in.k.tokens);
  const auto planned = forwardInputs(work, in);
  for (const auto& prepared : work.forward) {
    const Place place = at(prepared);
    take(prepared, place, runForward(prepared, tokensOf(prepared, planned), place));
  }
}

void CudaBlock::forward(const BlockInputs& in, std::span<const Rectangle> rectangles, const Partial& into) {
  forwardSteps(
      in, rectangles,
      [&](const Prepared& step) { return partial_.place(into, step.queries.first, step.queries.count); },
      [&](const Prepared& step, const Place& place, const softmax::RowView& lse) {
        partial_.merge(into, {viewOf(place.out), lse, step.queries.first, step.queries.count});
      });
}

void CudaBlock::accumulateForward(const BlockInputs& in, std::span<const Rectangle> rectangles, PendingPartial& into) {
  forwardSteps(
      in, rectangles,
      [&](const Prepared& step) {
        return into.place(step.queries.first, step.queries.count, step.step.kind == BlockStep::Kind::Ragged);
      },
      [&](const Prepared& step, const Place& place, const softmax::RowView& lse) {
        into.add(place, lse, step.allRows);
      });
}

void CudaBlock::merge(const Partial& into, const Partial& from) {
  partial_.release();
  partial_.merge(into, {viewOf(from.out), viewOf(from.lse), 0, from.out.tokens});
}

void CudaBlock::finish(const Partial& partial, const float* sinks, const Tensor& out, const Rows& lse) {
  partial_.finish(partial, sinks, out, lse);
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
  } else if (!in.lse.dense() || !aligned(in.lse.data)) {
    const auto copy = denseRows(lseCopy_.data, s.batch, s.heads, rows);
    exec_.copy(copy, in.lse);
    pointers.lse = copy.data;
  }
  sdpa_->run(prepared.shape, pointers, workspace_, exec_.stream());
}

template <typename At, typename Take>
void CudaBlock::backwardSteps(const BlockGradientInputs& in, std::span<const Rectangle> rectangles, const At& at,
                              const Take& take) {
  if (rectangles.empty() || shape_.batch * shape_.heads == 0) return;
  const Work& work = find(rectangles, in.q.tokens, in.k.tokens);
  auto planned = in;
  if (limits_.cudnn) {
    const auto [q, k, v] = asPlanned(BlockInputs{in.q, in.k, in.v});
    planned.q = q;
    planned.k = k;
    planned.v = v;
    planned.out = asPlanned(in.out, copies_[3]);
    planned.dOut = asPlanned(in.dOut, copies_[4]);
  }
  const auto ofBands = [](const Prepared& prepared) { return prepared.step.kind == BlockStep::Kind::Bands; };
  if (needsOut() && std::any_of(work.backward.begin(), work.backward.end(), ofBands)) {
    planned.delta = denseRows(delta_.data, shape_.batch, shape_.heads, in.q.tokens);
    delta(in.out, in.dOut, planned.delta);
  }
  for (const auto& prepared : work.backward) {
    std::array<Place, 3> places;
    for (size_t i = 0; i < places.size(); ++i) {
      const bool queries = i == static_cast<size_t>(GradientOf::Queries);
      const auto& [first, tokens] = queries ? prepared.queries : prepared.keys;
      places[i] = at(i, first, tokens);
    }
    runBackward(prepared, tokensOf(prepared, planned), places);
    for (size_t i = 0; i < places.size(); ++i) take(i, places[i]);
  }
}

void CudaBlock::backward(const BlockGradientInputs& in, std::span<const Rectangle> rectangles,
                         const BlockGradients& into) {
  const std::array<Tensor, 3> targets{into.dq.rows(0, in.q.tokens), into.dk.rows(0, in.k.tokens),
                                      into.dv.rows(0, in.k.tokens)};
  backwardSteps(
      in, rectangles,
      [&](size_t i, int64_t first, int64_t tokens) { return sums_[i].place(targets[i], first, tokens); },
      [&](size_t i, const Place& place) { sums_[i].add(targets[i], place); });
}

void CudaBlock::backward(const BlockGradientInputs& in, std::span<const Rectangle> rectangles,
                         const GradientAccumulators& into) {
  if (!accumulates_) return Block::backward(in, rectangles, into);
  const auto pendingOf = [](GradientAccumulator& sum) -> PendingSum& {
    return static_cast<PendingGradientAccumulator&>(sum).pending();
  };
  const std::array<PendingSum*, 3> targets{&pendingOf(into.dq), &pendingOf(into.dk), &pendingOf(into.dv)};
  backwardSteps(
      in, rectangles, [&](size_t i, int64_t first, int64_t tokens) { return targets[i]->place(first, tokens); },
      [&](size_t i, const Place& place) { targets[i]->add(place); });
}

void CudaBlock::finishSum(const Tensor& sum, std::span<const Addend> addends, const Tensor& out) {
  sums_.front().finish(sum, addends, out);
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
