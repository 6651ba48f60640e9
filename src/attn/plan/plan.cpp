#include "attn/plan/plan.h"

#include <array>
#include <vector>

#include "attn/agreement.h"
#include "attn/boundary.h"

namespace seqpar::attn {
namespace {

/// The values that define a sharding. The stripe counts for striped layouts only.
void addSharding(const std::array<const char*, 6>& names, const Sharding& shards, std::vector<seqparCompared_t>& to) {
  const seqparLayout_t layout = shards.layout();
  to.insert(to.end(),
            {number(names[0], layout.kind), number(names[1], layout.kind == seqparStriped ? layout.stripe : 1),
             number(names[2], layout.slices), array(names[3], shards.packing()), array(names[4], shards.pieces()),
             array(names[5], shards.lengths())});
}

std::vector<seqparCompared_t> description(const Problem& p, const AlgorithmRow& row) {
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
                                    number("desc->gateTypes[0]", d.gateTypes[0]),
                                    number("desc->gateTypes[1]", d.gateTypes[1]),
                                    number("desc->gateTypes[2]", d.gateTypes[2]),
                                    number("desc->gateTypes[3]", d.gateTypes[3]),
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
                                    number("desc->normalize", d.normalize),
                                    number("desc->inputGate", d.inputGate),
                                    array("desc->cuSeqlens", p.cuSeqlens),
                                    array("the numbers of desc->slice", p.sliceNumbers)};
  addSharding({"the layout's kind", "the layout's stripe", "the layout's slices", "the layout's cuSeqlens",
               "the layout's pieceBounds and pieceOwners", "the tokens of ranks"},
              p.queries, all);
  if (p.crossAttention()) {
    addSharding({"kvLayout's kind", "kvLayout's stripe", "kvLayout's slices", "kvLayout's cuSeqlens",
                 "kvLayout's pieceBounds and pieceOwners", "the keys of ranks"},
                p.keys, all);
  }
  return all;
}

/// What a pass of a plan is compared by: the sizes that say most, and a digest of the whole description.
std::vector<seqparCompared_t> passArguments(const Problem& p, const AlgorithmRow& row) {
  const auto& d = p.desc;
  return {number("the plan's family", d.family),
          number("the plan's algorithm", row.id),
          number("the plan's batch", d.batch),
          number("the plan's tokens", d.tokens),
          number("the plan's kvTokens", d.kvTokens),
          number("the plan's heads", d.heads),
          number("the plan's headDim", d.headDim),
          number("a digest of the plan's description", digestOf(description(p, row)))};
}

}  // namespace

Plan::Plan(const char* call, const seqparAttnDesc_t* desc, seqparComm_t comm)
    : problem_(readProblem(call, desc, comm)), row_(nullptr) {
  const SharedScoreTables tables;  // of the candidates and of the chosen algorithm
  row_ = &chooseAlgorithm(call, problem_, candidatesFor(problem_, problem_.desc.algorithm == seqparAttnAuto));
  problem_ = shardedFor(problem_, *row_);
  requireAgreement(call, description(problem_, *row_), comm);
  passArguments_ = passArguments(problem_, *row_);
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
  // Loading a kernel for one GPU may load it on all GPUs of the process, after the work that runs on them.
  if (problem_.onDevice() && problem_.ranks() > 1) {
    require(seqparCommBarrier(problem_.comm), "seqparAttnPlanPrepare", problem_.comm);
  }
  prepared_ = true;
}

/// Sets the operator's reserve to the memory that this call writes or reads. A backward pass only reads it.
void Plan::openReserve(const void* memory) {
  if (reserveBytes_ == 0) return;
  Arena arena(const_cast<void*>(memory));
  operator_->carveReserve(arena);
}

}  // namespace seqpar::attn
