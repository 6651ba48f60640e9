// The calls of seqpar/lse.h: argument checks, then src/exchange.
#include "seqpar/lse.h"

#include "api/boundary.h"
#include "api/buffers.h"
#include "base/checked.h"
#include "base/convert.h"
#include "base/versioned.h"
#include "exchange/backend.h"
#include "exchange/heads.h"

using namespace seqpar;

namespace {

struct MergeCall {
  const char* name = nullptr;
  const void* out = nullptr;
  const float* lse = nullptr;
  Buffer outMerged, lseMerged;  ///< with names; sizes are filled in by checkMerge()
  bool byHeads = false;
};

void requireOutput(const char* call, const Buffer& output, const Buffer& input, bool inPlace) {
  if (inPlace && output.data == input.data) return;
  requireDisjoint(call, input, output, false);
}

LseMerge checkMerge(MergeCall& given, const seqparLseParams_t* params, Communicator& comm) {
  const char* call = given.name;
  const auto shape = readVersioned(call, "params", params, seqparLseParams_t SEQPAR_LSE_PARAMS_INITIALIZER);
  if (shape.dataType < seqparFloat32 || shape.dataType > seqparBfloat16) {
    fail(seqparInvalidArgument, call, ": params->dataType is ", shape.dataType, ", expected a seqparDataType_t");
  }
  if (shape.heads < 1 || shape.headDim < 1) {
    fail(seqparInvalidArgument, call, ": params->heads is ", shape.heads, " and params->headDim is ", shape.headDim,
         ", expected at least 1");
  }
  const auto type = static_cast<seqparDataType_t>(shape.dataType);
  const size_t each = sizeOf(type);
  const auto bytes = [&](const char* name, Extent heads, Extent dim, size_t element) {
    return countBytes(call, name, {{"params->rows", shape.rows}, heads, dim, {"bytes", element}});
  };
  const Extent all{"params->heads", shape.heads};
  const Extent dim{"params->headDim", shape.headDim};
  const Buffer out{"out", given.out, bytes("out", all, dim, each), each};
  const Buffer lse{"lse", given.lse, bytes("lse", all, {"lse", 1}, sizeof(float)), alignof(float)};
  size_t heads = static_cast<size_t>(shape.heads);
  if (given.byHeads) {
    heads = headsOf(heads, heads, static_cast<size_t>(comm.size()), static_cast<size_t>(comm.rank())).count;
  }
  given.outMerged.bytes = bytes(given.outMerged.name, {"heads", heads}, dim, each);
  given.outMerged.alignment = each;
  given.lseMerged.bytes = bytes(given.lseMerged.name, {"heads", heads}, {"lse", 1}, sizeof(float));
  given.lseMerged.alignment = alignof(float);
  const Buffer count{"params->rowCount", shape.rowCount, shape.rowCount == nullptr ? 0 : sizeof(int32_t),
                     alignof(int32_t)};
  for (const Buffer& buffer : {out, lse, given.outMerged, given.lseMerged, count}) {
    if (buffer.bytes > 0) requirePointer(call, buffer.name, buffer.data);
    requireMemory(call, buffer, comm);
  }
  requireOutput(call, given.outMerged, out, !given.byHeads);
  requireOutput(call, given.lseMerged, lse, !given.byHeads);
  requireDisjoint(call, lse, given.outMerged, false);
  requireDisjoint(call, out, given.lseMerged, false);
  requireDisjoint(call, given.outMerged, given.lseMerged, false);
  const NamedValue values[] = {{"params->dataType", shape.dataType},
                               {"params->rows", shape.rows},
                               {"params->heads", shape.heads},
                               {"params->headDim", shape.headDim},
                               {"params->rowCount given", shape.rowCount == nullptr ? 0 : 1}};
  comm.compareNext(call, values);
  LseMerge merge;
  merge.rows = static_cast<size_t>(shape.rows);
  merge.heads = static_cast<size_t>(shape.heads);
  merge.rowBytes = static_cast<size_t>(shape.headDim) * each;
  merge.type = type;
  merge.rowCount = shape.rowCount;
  merge.byHeads = given.byHeads;
  merge.out = static_cast<const std::byte*>(given.out);
  merge.lse = given.lse;
  return merge;
}

seqparResult_t mergeAll(MergeCall given, void* outMerged, float* lseMerged, const seqparLseParams_t* params,
                        seqparComm_t handle, void* stream) {
  return onComm(given.name, handle, [&](Communicator& comm) {
    LseMerge merge = checkMerge(given, params, comm);
    merge.outMerged = static_cast<std::byte*>(outMerged);
    merge.lseMerged = lseMerged;
    const auto on = callerStream(given.name, stream, comm);
    if (merge.rows == 0) return;
    exchangesOf(comm).mergeLse(comm, given.name, merge, on);
  });
}

}  // namespace

extern "C" {

SEQPAR_API seqparResult_t seqparAllReduceLse(const void* out, const float* lse, void* outAll, float* lseAll,
                                             const seqparLseParams_t* params, seqparComm_t comm, void* stream) {
  return mergeAll({"seqparAllReduceLse", out, lse, {"outAll", outAll, 0}, {"lseAll", lseAll, 0}, false}, outAll, lseAll,
                  params, comm, stream);
}

SEQPAR_API seqparResult_t seqparReduceScatterLseByHeads(const void* out, const float* lse, void* outShard,
                                                        float* lseShard, const seqparLseParams_t* params,
                                                        seqparComm_t comm, void* stream) {
  return mergeAll(
      {"seqparReduceScatterLseByHeads", out, lse, {"outShard", outShard, 0}, {"lseShard", lseShard, 0}, true}, outShard,
      lseShard, params, comm, stream);
}

}  // extern "C"
