#include "attn/linear/operator.h"

#include <optional>

#include "attn/boundary.h"

namespace seqpar::attn::linear {
namespace {

constexpr const char* kWho = "linear attention";

}  // namespace

Beside::~Beside() {
  if (joined_) return;
  try {
    exec_.join();
  } catch (const std::exception&) {
    // What is on its way already is what the caller will hear of.
  }
}

Shard shardOf(const Problem& problem, bool alone) {
  const auto& d = problem.desc;
  const auto size = [](int64_t value) { return static_cast<size_t>(value); };
  Shard shard;
  shard.family = findFamily(d.family);
  shard.batch = size(d.batch);
  shard.tokens = size(problem.tokens());
  shard.heads = size(d.heads);
  shard.keyHeads = size(d.kvHeads);
  shard.dk = size(d.headDim);
  shard.dv = size(d.valueDim);
  shard.sequences = problem.packed() ? problem.cuSeqlens.size() - 1 : 0;
  shard.type = problem.type();
  shard.gateType = static_cast<seqparDataType_t>(d.gateType);
  shard.scale = d.scale;
  shard.training = problem.training();
  shard.alone = alone;
  shard.ctas = d.ctas;
  int64_t begin = 0;
  for (int r = 0; r < problem.rank(); ++r) begin += problem.queries.tokensOf(r);
  shard.pieces = cutIntoPieces(problem.cuSeqlens, shard.batch, begin, begin + problem.tokens());
  return shard;
}

LinearOperator::LinearOperator(const Problem& problem, Exec& exec, bool local)
    : problem_(problem), exec_(exec), shard_(shardOf(problem, local || problem.ranks() == 1)) {
  passes_ = makePasses(shard_, exec);
  for (const auto direction : {seqparForward, seqparReverse}) flags_[direction] = shard_.flags(direction);
}

void LinearOperator::carve(Arena& arena) {
  passes_->carve(arena);
  if (shard_.alone) return;
  const auto take = [&] { return static_cast<float*>(arena.take(shard_.states() * sizeof(float))); };
  if (shard_.training) {
    behind_ = take();
  } else {
    incoming_ = take();
  }
}

Inputs LinearOperator::inputs(const seqparAttnTensor_t& q, const seqparAttnTensor_t& k, const seqparAttnTensor_t& v,
                              const seqparAttnTensor_t& gate, const float* initial) const {
  const auto& d = problem_.desc;
  return {queryTensor(problem_, q), keyTensor(problem_, k), valueTensor(problem_, v),
          gateTensor(*shard_.family, gate, shard_.gateType, d.batch, problem_.tokens(), d.heads, d.headDim),
          problem_.packed() ? initial : nullptr};
}

void LinearOperator::forward(const seqparAttnForwardArgs_t& args) {
  const Inputs in = inputs(args.q, args.k, args.v, args.gate, args.initial);
  if (!shard_.alone) return forwardAround(in, args);
  const float* const before = problem_.packed() || problem_.rank() != 0 ? nullptr : args.initial;
  if (args.saved != nullptr) passes_->copyStates(args.saved, before);
  passes_->forwardAlone(in, out(args), before, args.final);
}

void LinearOperator::backward(const seqparAttnBackwardArgs_t& args) {
  const auto& d = problem_.desc;
  const Inputs in = inputs(args.q, args.k, args.v, args.gate, args.initial);
  const Gradients gradients{
      outTensor(problem_, args.dOut),
      queryTensor(problem_, args.dq),
      keyTensor(problem_, args.dk),
      valueTensor(problem_, args.dv),
      gateTensor(*shard_.family, args.dGate, shard_.gateType, d.batch, problem_.tokens(), d.heads, d.headDim),
      problem_.packed() ? args.dInitial : nullptr};
  if (!shard_.alone) return backwardAround(in, gradients, args);
  const float* const after = problem_.rank() == problem_.ranks() - 1 ? args.dFinal : nullptr;
  float* const dBefore = problem_.packed() || problem_.rank() != 0 ? nullptr : args.dInitial;
  passes_->backwardAlone(in, gradients, args.saved, after, dBefore);
}

void LinearOperator::forwardBeside(seqparScanAlgorithm_t algorithm, const Inputs& in,
                                   const seqparAttnForwardArgs_t& args) {
  const size_t parts = passes_->parts();
  std::optional<Beside> beside;
  const auto join = [&] {
    beside->join();
    beside.reset();
  };
  for (size_t part = 0; part < parts; ++part) {
    passes_->states(in, part);
    if (part > 0) join();
    beside.emplace(exec_);
    scanForward(algorithm, args, part, exec_.side());
    if (part > 0) passes_->outputs(in, out(args), incoming(args), part - 1);
  }
  passes_->besideScan(in);
  join();
  passes_->outputs(in, out(args), incoming(args), parts - 1);
}

void LinearOperator::backwardBeside(seqparScanAlgorithm_t algorithm, const Inputs& in, const Gradients& gradients,
                                    const seqparAttnBackwardArgs_t& args) {
  passes_->stateGradients(in, gradients);
  Beside beside(exec_);
  scanBackward(algorithm, args, exec_.side());
  passes_->recompute(in, args.saved);
  beside.join();
  passes_->gradients(in, gradients, args.saved, behind());
}

void LinearOperator::scan(seqparDirection_t direction, seqparScanAlgorithm_t algorithm, const float* first,
                          float* incoming, float* outgoing, size_t part, size_t parts, void* stream) {
  const size_t heads = shard_.allHeads() / parts, from = part * heads;
  const auto states = [&](auto* all) { return all == nullptr ? nullptr : all + from * shard_.stateSize(); };
  const bool sum = shard_.family->scan == seqparScanSum;
  seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
  params.op = shard_.family->scan;
  params.direction = direction;
  params.heads = static_cast<int64_t>(heads);
  params.dk = problem_.desc.headDim;
  params.dv = problem_.desc.valueDim;
  params.wireType = problem_.desc.wireType;
  params.decayForm = sum ? seqparDecayLinear : passes_->decayForm();
  params.flags = &flags_[direction];
  params.algorithm = algorithm;
  require(seqparAllScan(states(passes_->state()), sum ? nullptr : passes_->decay() + from * shard_.width(),
                        states(first), states(incoming), states(outgoing), &params, problem_.comm, stream),
          kWho, problem_.comm);
}

void LinearOperator::scanForward(seqparScanAlgorithm_t algorithm, const seqparAttnForwardArgs_t& args, size_t part,
                                 void* stream) {
  const float* const first = problem_.rank() == 0 && !problem_.packed() ? args.initial : nullptr;
  scan(seqparForward, algorithm, first, incoming(args), args.final, part, passes_->parts(), stream);
}

void LinearOperator::scanBackward(seqparScanAlgorithm_t algorithm, const seqparAttnBackwardArgs_t& args, void* stream) {
  const float* const first = problem_.rank() == problem_.ranks() - 1 ? args.dFinal : nullptr;
  float* const last = problem_.rank() == 0 && !problem_.packed() ? args.dInitial : nullptr;
  scan(seqparReverse, algorithm, first, behind_, last, 0, 1, stream);
}

}  // namespace seqpar::attn::linear
