#include "attn/plan/plan.h"

#include <array>
#include <iterator>
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

int64_t fingerprintOf(const Sharding& shards, int64_t before) {
  std::vector<int64_t> numbers;
  for (const int rank : {0, shards.ranks() - 1}) {
    for (const auto& run : shards.runsOf(rank))
      numbers.insert(numbers.end(), {run.local, run.position, run.length, run.stride});
  }
  return fingerprint(numbers, fingerprint(shards.lengths(), before));
}

/// Two of all that ranks give alike are arrays, of which a number is compared.
void compareRanks(const char* call, const Problem& p, const AlgorithmRow& row) {
  const auto& d = p.desc;
  const NamedNumber all[] = {{"desc->family", d.family},
                             {"desc->algorithm", row.id},
                             {"desc->batch", d.batch},
                             {"desc->tokens", d.tokens},
                             {"desc->kvTokens", d.kvTokens},
                             {"desc->heads", d.heads},
                             {"desc->kvHeads", d.kvHeads},
                             {"desc->headDim", d.headDim},
                             {"desc->valueDim", d.valueDim},
                             {"desc->dataType", d.dataType},
                             {"desc->gateType", d.gateType},
                             {"desc->wireType", d.wireType},
                             {"desc->scale, as bits", bitsOf(d.scale)},
                             {"desc->mask", d.mask},
                             {"desc->windowLeft", d.windowLeft},
                             {"desc->windowRight", d.windowRight},
                             {"desc->softcap, as bits", bitsOf(d.softcap)},
                             {"desc->sinks", d.sinks},
                             {"desc->inner", d.inner},
                             {"desc->ulyssesOutside", d.ulyssesOutside},
                             {"desc->training", d.training},
                             {"desc->deterministic", d.deterministic},
                             {"desc->reserve", d.reserve},
                             {"the fingerprint of its layouts", fingerprintOf(p.keys, fingerprintOf(p.queries, 0))},
                             {"the fingerprint of desc->cuSeqlens", fingerprint(p.cuSeqlens)}};
  static_assert(std::size(all) <= SEQPAR_MOST_COMPARED);
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
    memory_ = exec_->allocate(bytes_);
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
