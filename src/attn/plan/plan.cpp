#include "attn/plan/plan.h"

#include <array>
#include <vector>

#include "attn/agreement.h"
#include "attn/boundary.h"
#include "attn/exec/exec_scope.h"

namespace seqpar::attn {
namespace {

Tensor viewOf(const seqparAttnTensor_t& given, seqparDataType_t type, int64_t batch, int64_t tokens, int64_t heads,
              int64_t dim) {
  if (given.batchStride == 0 && given.tokenStride == 0 && given.headStride == 0) {
    return denseTensor(given.data, type, batch, tokens, heads, dim);
  }
  return {given.data, type, batch, tokens, heads, dim, given.batchStride, given.tokenStride, given.headStride};
}

/// Linear attention: states, one for each head of the batch; nothing where there are none.
Tensor statesTensor(const Problem& p, float* data) {
  if (p.softmax() || data == nullptr) return {};
  return denseTensor(data, seqparFloat32, p.desc.batch, 1, p.desc.heads, p.desc.headDim * p.desc.valueDim);
}

/// What a sharding is made of; what is not read of a layout does not count.
void addSharding(const std::array<const char*, 5>& names, const Sharding& shards, std::vector<seqparCompared_t>& to) {
  const seqparLayout_t layout = shards.layout();
  to.insert(to.end(),
            {number(names[0], layout.kind), number(names[1], layout.kind == seqparStriped ? layout.stripe : 1),
             number(names[2], layout.slices), array(names[3], shards.packing()), array(names[4], shards.lengths())});
}

void compareRanks(const char* call, const Problem& p, const AlgorithmRow& row) {
  const auto& d = p.desc;
  std::vector<seqparCompared_t> all{number("desc->family", d.family),
                                    number("desc->algorithm", row.id),
                                    number("desc->batch", d.batch),
                                    number("desc->tokens", d.tokens),
                                    number("desc->kvTokens", d.kvTokens),
                                    number("desc->heads", d.heads),
                                    number("desc->kvHeads", d.kvHeads),
                                    number("desc->headDim", d.headDim),
                                    number("desc->valueDim", d.valueDim),
                                    number("desc->dataType", d.dataType),
                                    number("desc->gateType", d.gateType),
                                    number("desc->wireType", d.wireType),
                                    real("desc->scale", d.scale),
                                    number("desc->mask", d.mask),
                                    number("desc->windowLeft", d.windowLeft),
                                    number("desc->windowRight", d.windowRight),
                                    real("desc->softcap", d.softcap),
                                    number("desc->sinks", d.sinks),
                                    number("desc->inner", d.inner),
                                    number("desc->ulyssesOutside", d.ulyssesOutside),
                                    number("desc->training", d.training),
                                    number("desc->deterministic", d.deterministic),
                                    number("desc->reserve", d.reserve),
                                    array("desc->cuSeqlens", p.cuSeqlens)};
  addSharding({"the layout's kind", "the layout's stripe", "the layout's slices", "the layout's cuSeqlens",
               "the tokens of ranks"},
              p.queries, all);
  if (p.crossAttention()) {
    addSharding(
        {"kvLayout's kind", "kvLayout's stripe", "kvLayout's slices", "kvLayout's cuSeqlens", "the keys of ranks"},
        p.keys, all);
  }
  requireAgreement(call, all, p.comm);
}

}  // namespace

Tensor queryTensor(const Problem& p, const seqparAttnTensor_t& given) {
  return viewOf(given, p.type(), p.desc.batch, p.tokens(), p.softmax() ? p.desc.heads : p.desc.kvHeads, p.desc.headDim);
}

Tensor keyTensor(const Problem& p, const seqparAttnTensor_t& given) {
  return viewOf(given, p.type(), p.desc.batch, p.kvTokens(), p.desc.kvHeads, p.desc.headDim);
}

Tensor valueTensor(const Problem& p, const seqparAttnTensor_t& given) {
  return viewOf(given, p.type(), p.desc.batch, p.kvTokens(), p.softmax() ? p.desc.kvHeads : p.desc.heads,
                p.desc.valueDim);
}

Tensor outTensor(const Problem& p, const seqparAttnTensor_t& given) {
  return viewOf(given, p.type(), p.desc.batch, p.tokens(), p.desc.heads, p.desc.valueDim);
}

Rows lseRows(const Problem& p, const float* given) {
  return denseRows(const_cast<float*>(given), p.desc.batch, p.desc.heads, p.tokens());
}

Plan::Plan(const char* call, const seqparAttnDesc_t* desc, seqparComm_t comm)
    : problem_(readProblem(call, desc, comm)), row_(nullptr) {
  row_ = &chooseAlgorithm(call, problem_, candidatesFor(problem_, problem_.desc.algorithm == seqparAttnAuto));
  problem_ = shardedFor(problem_, *row_);
  compareRanks(call, problem_, *row_);
  exec_ = makeExec(comm);
  operator_ = row_->make(problem_, *exec_);
  Arena arena;
  operator_->carve(arena);
  bytes_ = arena.used();
  Arena reserve;
  if (problem_.reserves()) operator_->carveReserve(reserve);
  reserveBytes_ = reserve.used();
}

Plan::~Plan() {
  exec_->drain();
}

void Plan::prepare(void* workspace) {
  if (workspace == nullptr && bytes_ > 0) {
    memory_ = exec_->allocate(bytes_, "the workspace of an attention plan");
    workspace = memory_.get();
  }
  Arena arena(workspace);
  operator_->carve(arena);
  operator_->open();
  // Kernels that are loaded for one GPU may be loaded for all GPUs of the process, behind whatever runs on them.
  if (problem_.onDevice() && problem_.ranks() > 1) {
    require(seqparCommBarrier(problem_.comm), "seqparAttnPlanPrepare", problem_.comm);
  }
  prepared_ = true;
}

/// Points the operator to what this call writes or reads. A backward pass only reads it.
void Plan::openReserve(const void* memory) {
  if (reserveBytes_ == 0) return;
  Arena arena(const_cast<void*>(memory));
  operator_->carveReserve(arena);
}

void Plan::forward(const seqparAttnForwardArgs_t& args, void* stream) {
  const std::array outputs{outTensor(problem_, args.out), statesTensor(problem_, args.saved),
                           statesTensor(problem_, args.final)};
  const ExecScope scope(*exec_, stream, outputs);
  openReserve(args.reserve);
  operator_->forward(args);
}

void Plan::backward(const seqparAttnBackwardArgs_t& args, void* stream) {
  const std::array outputs{queryTensor(problem_, args.dq), keyTensor(problem_, args.dk), valueTensor(problem_, args.dv),
                           statesTensor(problem_, problem_.packed() || problem_.rank() != 0 ? nullptr : args.dInitial)};
  const ExecScope scope(*exec_, stream, outputs);
  openReserve(args.reserve);
  operator_->backward(args);
}

}  // namespace seqpar::attn
