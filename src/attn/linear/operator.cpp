#include "attn/linear/operator.h"

#include <algorithm>

#include "attn/boundary.h"
#include "attn/linear/algorithms.h"

namespace seqpar::attn::linear {
namespace {

constexpr const char* kWho = "linear attention";

}  // namespace

Gates gateTensors(const Problem& problem, const seqparAttnTensor_t* given) {
  const auto& d = problem.desc;
  const auto rows = findFamily(d.family)->rowsWith(d.inputGate != 0);
  Gates gates;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto type = static_cast<seqparDataType_t>(d.gateTypes[i]);
    if (rows[i].shape == seqparAttnGatePerHead) {
      gates[i] = denseTensor(given[i].data, type, 1, 1, d.heads, 1);
    } else {
      gates[i] = tensorOf(given[i], type, d.batch, problem.tokens(), d.heads,
                          rows[i].shape == seqparAttnGatePerChannel ? d.headDim : 1);
    }
  }
  return gates;
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
  std::copy_n(d.gateTypes, SEQPAR_ATTN_MAX_GATES, shard.gateTypes.begin());
  shard.scale = d.scale;
  shard.normalize = d.normalize != 0;
  shard.inputGate = d.inputGate != 0;
  shard.training = problem.training();
  shard.alone = alone;
  shard.reserves = problem.reserves();
  shard.reservesMuch = shard.reserves && d.reserve > 1;
  int64_t begin = 0;
  for (int r = 0; r < problem.rank(); ++r) begin += problem.queries.tokensOf(r);
  shard.pieces = cutIntoPieces(problem.cuSeqlens, begin, begin + problem.tokens());
  return shard;
}

LinearOperator::LinearOperator(const Problem& problem, Exec& exec, Exchange exchange)
    : problem_(problem), exec_(exec), shard_(shardOf(problem, exchange == Exchange::None || problem.ranks() == 1)) {
  shard_.relays = exchange == Exchange::ScanOrRelay && relays(problem);
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

template <typename Args>
Inputs LinearOperator::inputs(const Args& args) const {
  return {queryTensor(problem_, args.q), keyTensor(problem_, args.k), valueTensor(problem_, args.v),
          gateTensors(problem_, args.gates), problem_.packed() ? args.initial : nullptr};
}

void LinearOperator::check(const char* call, const seqparAttnForwardArgs_t& args) const {
  passes_->check(call, inputs(args), out(args));
}

void LinearOperator::check(const char* call, const seqparAttnBackwardArgs_t& args) const {
  passes_->check(call, inputs(args), gradients(args));
}

Gradients LinearOperator::gradients(const seqparAttnBackwardArgs_t& args) const {
  return {outTensor(problem_, args.dOut),     queryTensor(problem_, args.dq),
          keyTensor(problem_, args.dk),       valueTensor(problem_, args.dv),
          gateTensors(problem_, args.dGates), problem_.packed() ? args.dInitial : nullptr};
}

void LinearOperator::forward(const seqparAttnForwardArgs_t& args) {
  const Inputs in = inputs(args);
  if (!shard_.alone) return forwardAround(in, args);
  forwardAlone(in, args);
}

void LinearOperator::backward(const seqparAttnBackwardArgs_t& args) {
  const Inputs in = inputs(args);
  const Gradients to = gradients(args);
  if (!shard_.alone) return backwardAround(in, to, args);
  backwardAlone(in, to, args);
}

MapUse LinearOperator::mapUse(const seqparAttnForwardArgs_t& args) const {
  if (isLast() && args.final == nullptr) return MapUse::Nothing;
  const bool ignores = flags_[seqparForward] != 0 || (isFirst() && firstState(args) == nullptr);
  return ignores ? MapUse::States : MapUse::Whole;
}

MapUse LinearOperator::mapUse(const seqparAttnBackwardArgs_t& args) const {
  if (isFirst() && firstGradient(args) == nullptr) return MapUse::Nothing;
  const bool ignores = flags_[seqparReverse] != 0 || (isLast() && lastGradient(args) == nullptr);
  return ignores ? MapUse::States : MapUse::Whole;
}

void LinearOperator::openOwnScan() {
  if (shard_.alone || problem_.desc.wireType != seqparFloat32) return;
  ownScans_ = passes_->openScan(problem_.comm);
}

OwnScan LinearOperator::ownScan(const seqparAttnForwardArgs_t& args) const {
  requireHealthy();
  return {flags_[seqparForward], mapUse(args), firstState(args), incoming(args), args.final};
}

OwnScan LinearOperator::ownScan(const seqparAttnBackwardArgs_t& args) const {
  requireHealthy();
  return {flags_[seqparReverse], mapUse(args), lastGradient(args), behind_, firstGradient(args)};
}

void LinearOperator::requireHealthy() const {
  seqparResult_t state = seqparSuccess;
  require(seqparCommGetAsyncError(problem_.comm, &state), kWho, problem_.comm);
  require(state, kWho, problem_.comm);
}

void LinearOperator::scan(seqparDirection_t direction, seqparScanAlgorithm_t algorithm, const float* first,
                          float* incoming, float* outgoing, void* stream) {
  const StateMap map = passes_->map();
  seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
  params.op = map.kind;
  params.direction = direction;
  params.heads = static_cast<int64_t>(shard_.allHeads());
  params.dk = problem_.desc.headDim;
  params.dv = problem_.desc.valueDim;
  params.wireType = problem_.desc.wireType;
  params.decayForm = map.form;
  params.flags = &flags_[direction];
  params.algorithm = algorithm;
  params.bounded = map.kind != seqparScanMatrix || shard_.normalize ? 1 : 0;  // decays are at most 1
  require(seqparAllScan(map.states, map.kind == seqparScanSum ? nullptr : map.transition, first, incoming, outgoing,
                        &params, problem_.comm, stream),
          kWho, problem_.comm);
}

void LinearOperator::scanForward(seqparScanAlgorithm_t algorithm, const seqparAttnForwardArgs_t& args, void* stream) {
  scan(seqparForward, algorithm, firstState(args), incoming(args), args.final, stream);
}

void LinearOperator::scanBackward(seqparScanAlgorithm_t algorithm, const seqparAttnBackwardArgs_t& args, void* stream) {
  scan(seqparReverse, algorithm, lastGradient(args), behind_, firstGradient(args), stream);
}

void LinearOperator::recomputeAndScan(seqparScanAlgorithm_t algorithm, const Inputs& in,
                                      const seqparAttnBackwardArgs_t& args) {
  if (isLast()) {
    scanBackward(algorithm, args, exec_.main());
    return passes_->recompute(in, args.saved);
  }
  passes_->recompute(in, args.saved);
  scanBackward(algorithm, args, exec_.main());
}

}  // namespace seqpar::attn::linear
