// ALLGATHER_KV: Llama 3 (arXiv 2407.21783), section 3.3.2, context parallelism: all-gather of keys and values, some
// heads at a time, overlapped with the computation of the previous heads; the backward pass gathers them again, unless
// the caller's `reserve` keeps them, and reduce-scatters their gradients. key_gather.h: only the keys that the mask
// shows are gathered.
#include <algorithm>
#include <array>

#include "attn/softmax/base.h"
#include "attn/softmax/cost.h"
#include "attn/softmax/key_gather.h"
#include "attn/softmax/local.h"

namespace seqpar::attn {
namespace {

constexpr int64_t kMostSlices = 4;  ///< of the heads: a tradeoff between overlap and the number of calls

seqparDataType_t gatheredSumType(const Problem& problem, const GatheredKeys& keys) {
  return keys.once ? typeOfSingleShare(problem) : problem.wireType();
}

int64_t slicesOfHeads(const Problem& problem) {
  int64_t slices = std::min(kMostSlices, problem.desc.kvHeads);
  while (problem.desc.kvHeads % slices != 0) --slices;
  return slices;
}

int64_t headsOfSlice(const Problem& problem) {
  return problem.desc.kvHeads / slicesOfHeads(problem);
}

class AllGatherKvOperator final : public SoftmaxOperator {
 public:
  AllGatherKvOperator(const Problem& problem, Exec& exec)
      : SoftmaxOperator(problem, exec, 0, headsOfSlice(problem) * problem.group(), 0, headsOfSlice(problem),
                        problem.desc.heads),
        rows_(blockOfAllHeads(problem, exec)),
        kvHeads_(headsOfSlice(problem)),
        slices_(problem.desc.kvHeads / kvHeads_),
        keys_(problem),
        rectangles_(rectanglesOf(problem.queries.runsOf(problem.rank()), keys_.keys().runsOf(problem.rank()),
                                 problem.visibility())),
        sumType_(gatheredSumType(problem, keys_.keys())),
        reserved_(problem.reserves() ? static_cast<size_t>(slices_) : 0) {
    block_->expect(rectangles_, problem.tokens(), keys_.tokens(),
                   {.accumulated = true, .once = true, .sinks = problem.desc.sinks != 0});
  }

  std::vector<Count> counts() const override {
    auto all = SoftmaxOperator::counts();
    all.push_back({"keysGathered", keys_.tokens()});
    return all;
  }

  void carve(Arena& arena) override {
    const auto& d = problem_.desc;
    const int64_t own = problem_.kvTokens(), all = keys_.tokens();
    const bool apart = !keys_.inPlace();
    block_->carve(arena);
    rows_->carve(arena);
    Arena& sums = accumulatorArena(arena);
    const auto takeSum = [&] {
      if (problem_.training()) {
        dq_ = sums.tensor(seqparFloat32, d.batch, problem_.tokens(), d.heads, d.headDim);
      }
    };
    sums.alternatives([&] { partial_ = takePartial(sums, problem_.tokens()); }, takeSum);
    for (auto& buffer : buffers_) {
      if (reserved_.empty()) buffer.whole = takePair(arena, problem_.type(), all);
      if (apart) buffer.shard = takePair(arena, problem_.type(), own);
      if (!problem_.training()) continue;
      buffer.sum = takePair(sumType_ == seqparFloat32 ? arena : sums, seqparFloat32, all);
      buffer.sent = sumType_ == seqparFloat32 ? buffer.sum : takePair(arena, sumType_, all);
      buffer.sumShard = apart ? takePair(arena, sumType_, own) : ownPart(buffer.sent);
    }
    if (!problem_.training()) return;
    delta_ = arena.rows(d.batch, d.heads, problem_.tokens());
  }

  void carveReserve(Arena& arena) override {
    for (auto& whole : reserved_) whole = takePair(arena, problem_.type(), keys_.tokens());
  }

  void open() override {
    block_->prepare();
    rows_->prepare();
    for (const int64_t dim : {problem_.desc.headDim, problem_.desc.valueDim}) {
      keys_.open(problem_.type(), kvHeads_ * dim);
      if (problem_.training()) keys_.open(sumType_, kvHeads_ * dim);
    }
  }

  void forward(const seqparAttnForwardArgs_t& args) override {
    const auto own = blockInputs(problem_, args);
    const Tensor out = outTensor(problem_, args.out);
    const Rows lse = lseRows(problem_, args.lse);
    const float* const sink = sinks(args.sinks);
    gather(own, 0);
    exec_.join();
    for (int64_t s = 0; s < slices_; ++s) {
      if (s + 1 < slices_) gather(own, s + 1);
      const Partial partial{queryHeads(partial_.out, s), queryHeads(partial_.lse, s)};
      const Tensor sliceOut = queryHeads(out, s);
      const Rows sliceLse = lse.data == nullptr ? Rows{} : queryHeads(lse, s);
      const auto attention = block_->accumulate(partial, sliceOut, sliceLse);
      attention->add(inputsOf(own.q, s), rectangles_);
      attention->finish(sink == nullptr ? nullptr : sink + s * kvHeads_ * problem_.group(), sliceOut, sliceLse);
      exec_.join();
    }
  }

  void backward(const seqparAttnBackwardArgs_t& args) override {
    const auto own = blockInputs(problem_, args);
    const Tensor out = outTensor(problem_, args.out), dOut = outTensor(problem_, args.dOut);
    const Rows lse = lseRows(problem_, args.lse);
    const Tensor dq = queryTensor(problem_, args.dq);
    const bool again = reserved_.empty();  // the forward pass's gathered tensors are not kept
    makeDelta(*rows_, args, delta_);
    if (again) {
      gather(own, 0);
      exec_.join();
    }
    for (int64_t s = 0; s < slices_; ++s) {
      if (again && s + 1 < slices_) gather(own, s + 1);
      const auto& buffer = bufferOf(s);
      const auto sumQ = block_->accumulate(GradientOf::Queries, queryHeads(dq_, s), queryHeads(dq, s));
      const auto sumK = block_->accumulate(GradientOf::Keys, buffer.sum.k, buffer.sent.k);
      const auto sumV = block_->accumulate(GradientOf::Values, buffer.sum.v, buffer.sent.v);
      const auto in = inputsOf(own.q, s);
      block_->backward(
          {in.q, in.k, in.v, queryHeads(dOut, s), queryHeads(lse, s), queryHeads(delta_, s), queryHeads(out, s)},
          rectangles_, GradientAccumulators{*sumQ, *sumK, *sumV});
      sumQ->finish(queryHeads(dq, s));
      finishKeys(*sumK, buffer.sent.k);
      finishKeys(*sumV, buffer.sent.v);
      if (again || s > 0) exec_.join();  // wait for the next slice and the previous slice's sums
      if (s > 0) store(args, s - 1);
      const Pair sums = sumsOf(args, s);
      if (keys_.leavesSome()) {
        exec_.zero(sums.k);
        exec_.zero(sums.v);
      }
      exec_.fork();
      const auto next = s + 1 < slices_ ? KeyGather::Next::Computation : KeyGather::Next::Nothing;
      keys_.scatter(buffer.sent.k, sums.k, next, exec_.side());
      keys_.scatter(buffer.sent.v, sums.v, next, exec_.side());
    }
    exec_.join();
    store(args, slices_ - 1);
  }

 private:
  struct Pair {
    Tensor k, v;
  };
  /// Buffers of one slice; two alternate.
  struct Buffer {
    Pair shard;                ///< this rank's shard, if it is not inside the whole
    Pair whole;                ///< the gathered keys, without `reserve`
    Pair sum, sent, sumShard;  ///< gradients: fp32; in the sent type; this rank's sum
  };

  static void finishKeys(GradientAccumulator& sum, const Tensor& sent) {
    if (sent.data == sum.memory().data) {
      sum.store();
    } else {
      sum.finish(sent);
    }
  }

  Pair takePair(Arena& arena, seqparDataType_t type, int64_t tokens) const {
    const auto& d = problem_.desc;
    return {arena.tensor(type, d.batch, tokens, kvHeads_, d.headDim),
            arena.tensor(type, d.batch, tokens, kvHeads_, d.valueDim)};
  }
  /// This rank's part of the tokens of one sequence.
  Pair ownPart(const Pair& whole) const {
    const int64_t own = problem_.kvTokens();
    return {whole.k.rows(keys_.firstOwn(), own), whole.v.rows(keys_.firstOwn(), own)};
  }
  const Pair& wholeOf(int64_t slice) const {
    return reserved_.empty() ? bufferOf(slice).whole : reserved_[static_cast<size_t>(slice)];
  }

  Pair headsOf(const Pair& all, int64_t slice) const {
    return {all.k.headsFrom(slice * kvHeads_, kvHeads_), all.v.headsFrom(slice * kvHeads_, kvHeads_)};
  }

  const Buffer& bufferOf(int64_t slice) const { return buffers_[static_cast<size_t>(slice % 2)]; }
  template <typename View>
  View queryHeads(const View& view, int64_t slice) const {
    const int64_t heads = kvHeads_ * problem_.group();
    return view.headsFrom(slice * heads, heads);
  }
  BlockInputs inputsOf(const Tensor& q, int64_t slice) const {
    return {queryHeads(q, slice), wholeOf(slice).k, wholeOf(slice).v};
  }

  /// Starts to gather a slice, overlapped with later work.
  void gather(const BlockInputs& own, int64_t slice) {
    const Pair& all = wholeOf(slice);
    const Pair given = headsOf({own.k, own.v}, slice);
    const bool direct = !keys_.inPlace() && given.k.dense() && given.v.dense();
    const Pair mine = direct ? given : keys_.inPlace() ? ownPart(all) : bufferOf(slice).shard;
    if (!direct) copy(mine, given);
    exec_.fork();
    const auto next = slice > 0 ? KeyGather::Next::Computation : KeyGather::Next::Nothing;
    keys_.gather(mine.k, all.k, next, exec_.side());
    keys_.gather(mine.v, all.v, next, exec_.side());
  }

  void copy(const Pair& to, const Pair& from) {
    exec_.copy(to.k, from.k);
    exec_.copy(to.v, from.v);
  }

  /// The caller's gradients of a slice.
  Pair gradientsOf(const seqparAttnBackwardArgs_t& args, int64_t slice) const {
    return headsOf({keyTensor(problem_, args.dk), valueTensor(problem_, args.dv)}, slice);
  }
  /// Memory for this rank's sums of a slice: the caller's, if their type and strides are the same.
  Pair sumsOf(const seqparAttnBackwardArgs_t& args, int64_t slice) const {
    const Pair given = gradientsOf(args, slice);
    const bool direct = !keys_.inPlace() && given.k.type == sumType_ && given.k.dense() && given.v.dense();
    return direct ? given : bufferOf(slice).sumShard;
  }
  void store(const seqparAttnBackwardArgs_t& args, int64_t slice) {
    const Pair given = gradientsOf(args, slice), sums = sumsOf(args, slice);
    if (sums.k.data != given.k.data) copy(given, sums);
  }

  std::unique_ptr<Block> rows_;  ///< all heads, for per-row work
  int64_t kvHeads_, slices_;
  KeyGather keys_;
  std::vector<Rectangle> rectangles_;
  seqparDataType_t sumType_;  ///< type of sent key gradients
  std::array<Buffer, 2> buffers_;
  std::vector<Pair> reserved_;  ///< per slice, gathered once for forward and backward; empty: no reserve
  Partial partial_;
  Rows delta_;
  Tensor dq_;
};

}  // namespace

namespace {

Estimate estimateAllGatherKv(const Problem& problem) {
  const CostModel model(problem);
  const auto& keys = *gatheredKeys(problem);
  const auto sumType = gatheredSumType(problem, keys);
  const auto most = static_cast<double>(keys.mostReceived);
  const double kv = model.kvBytes(most), sums = model.kvBytes(most, sumType);
  const auto slices = static_cast<double>(slicesOfHeads(problem));
  const double again = problem.reserves() ? 0 : 1;  // number of gathers in the backward pass
  const double gather = model.groupUs(kv / slices, problem.ranks(), 1),
               scatter = model.reduceUs(sums / slices, problem.ranks(), 1);
  auto shape = model.gatheredShape();
  shape = CostModel::Shape{0, 0}.with(model.ofHeads(shape, 1 / slices), slices);
  const double forward = model.blockUs(model.mostScores(), false, shape),
               backward = model.blockUs(model.mostScores(), true, shape);
  return {gather + model.overlapUs(forward, (slices - 1) * gather, (slices - 1) / slices * kv),
          again * gather +
              model.overlapUs(backward, (slices - 1) * (again * gather + scatter),
                              (slices - 1) / slices * (again * kv + sums)) +
              scatter,
          (1 + again) * model.kvBytes(keys.meanReceived) + model.kvBytes(keys.meanReceived, sumType)};
}

const RegisteredAlgorithm kAllGatherKv({.id = seqparAttnAllGatherKv,
                                        .name = "allgather_kv",
                                        .paper = "Llama 3, arXiv 2407.21783, section 3.3.2",
                                        .ownLayout = balancedLayout,
                                        .estimate = estimateAllGatherKv,
                                        .make = makeOrLocal<AllGatherKvOperator>});

}  // namespace
}  // namespace seqpar::attn
