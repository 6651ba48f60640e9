#include "samples.h"

#include <cmath>
#include <cstring>
#include <string_view>

#include "all_scan/problem.h"
#include "common/buffer.h"
#include "common/values.h"
#include "ring/works.h"
#include "seqpar/exchange.h"

namespace seqpar::perf {
namespace {

constexpr size_t kHeadDim = 128;

/// A work without data to restore.
Work workOf(std::function<void()> run) {
  Work work;
  work.prepare = [] {};
  work.run = std::move(run);
  work.wrong = [] { return size_t{0}; };
  return work;
}

std::string label(const char* what, size_t bytes) {
  return std::string(what) + " " + shownBytes(bytes);
}

seqparAttnFamilyInfo_t infoOf(int family) {
  seqparAttnFamilyInfo_t info = SEQPAR_ATTN_FAMILY_INFO_INITIALIZER;
  requireAttn(seqparAttnFamilyQuery(family, &info), "seqparAttnFamilyQuery");
  return info;
}

}  // namespace

Samples::Samples(Session& session, bool quick)
    : session_(session), quick_(quick), collectives_(session.settings), kernels_(session.settings) {
  collectives_.check = kernels_.check = 0;
  collectives_.repeats = 5;
  collectives_.loopSeconds = 0.02;
  kernels_.repeats = 3;
  kernels_.loopSeconds = 0.03;
  kernels_.warmup = 2;
  if (onGpu()) {  // as the pages of figures: after a barrier, in a graph
    collectives_.barrier = true;
    collectives_.graphLaunches = 1;
    std::string reason;
    nccl_ = makeNccl(group(), reason);
    if (!nccl_) session_.report.note("no NCCL: " + reason);
  }
  if (quick) {
    collectives_.repeats = kernels_.repeats = kernels_.warmup = 1;
    collectives_.loopSeconds = kernels_.loopSeconds = 1e-3;
  }
}

double Samples::time(const std::string& what, Work work, bool collective) {
  Session one{session_.group, collective ? collectives_ : kernels_, session_.report, session_.stream};
  Row row;
  row.labels = {what};
  std::vector<Case> cases{{row, std::move(work), {}}};
  const Row measured = one.measure(cases).front();
  session_.report.row(measured);
  return measured.outOfPlace.us;
}

void Samples::spread() {
  constexpr size_t kBytes = size_t{1} << 20;
  const int calls = quick_ ? 20 : 2000;
  Buffer from(kBytes, group().comm()), to(kBytes, group().comm());
  const int next = (group().rank() + 1) % group().size();
  const int previous = (group().rank() + group().size() - 1) % group().size();
  for (int i = 0; i < calls; ++i) {
    require(seqparSendRecv(from.data(), kBytes, next, to.data(), kBytes, previous, group().comm(), nullptr),
            "seqparSendRecv", group().comm());
  }
}

double Samples::shift(size_t bytes) {
  const auto from = std::make_shared<Buffer>(bytes, group().comm()),
             to = std::make_shared<Buffer>(bytes, group().comm());
  const int next = (group().rank() + 1) % group().size();
  const int previous = (group().rank() + group().size() - 1) % group().size();
  return time(label("shift", bytes), workOf([=, comm = group().comm(), stream = session_.stream] {
                require(seqparSendRecv(from->data(), bytes, next, to->data(), bytes, previous, comm, stream),
                        "seqparSendRecv", comm);
              }),
              true);
}

double Samples::scan(int op, int algorithm, size_t bytes) {
  seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
  const Shape shape = shapeFor(bytes / sizeof(float), {});
  params.op = op;
  params.heads = static_cast<int64_t>(shape.heads);
  params.dk = static_cast<int64_t>(shape.dk);
  params.dv = static_cast<int64_t>(shape.dv);
  const auto problem = std::make_shared<Problem>(params, Outputs::Prefix, group());
  const char* const name = seqparScanAlgorithmName(algorithm);
  return time(
      label(op == seqparScanMatrix ? "scan matrix" : "scan diag", bytes) + " " + (name == nullptr ? "auto" : name),
      libraryWork(problem, algorithm, 0, false, session_.stream), true);
}

double Samples::ring(size_t bytes) {
  const auto tensors = std::make_shared<Tensors>(bytes, 1, 1, group());
  const auto ring = std::make_shared<OpenRing>(tensors, 1, true, session_);
  const int steps = group().size() - 1;
  return time(label("ring", bytes), ringWork(ring, steps, 0), !onGpu());
}

double Samples::gather(size_t bytes) {
  const size_t ranks = static_cast<size_t>(group().size()), shard = bytes / ranks / sizeof(float);
  const auto from = std::make_shared<Buffer>(shard * sizeof(float), group().comm());
  const auto to = std::make_shared<Buffer>(shard * ranks * sizeof(float), group().comm());
  seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER;
  shards.tokens = static_cast<int64_t>(shard);
  return time(label("all-gather", bytes), workOf([=, comm = group().comm(), stream = session_.stream] {
                require(seqparAllGather(from->data(), to->data(), &shards, comm, stream), "seqparAllGather", comm);
              }),
              true);
}

double Samples::softmax(int type, int mask, Pass pass, size_t heads, size_t tokens) {
  const size_t elements = tokens * heads * kHeadDim;
  LayerSizes sizes{elements, elements, elements, elements};
  sizes.lse = tokens * heads;
  sizes.type = type;
  seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
  desc.algorithm = seqparAttnLocal;
  desc.tokens = static_cast<int64_t>(tokens) * group().size();
  desc.heads = desc.kvHeads = static_cast<int64_t>(heads);
  desc.headDim = kHeadDim;
  desc.dataType = type;
  desc.mask = mask;
  const auto plan = std::make_shared<LayerPlan>(desc, group());
  return time("softmax " + nameOf(type, typeNames()) + (mask == seqparAttnCausal ? " causal " : " full ") +
                  nameOf(pass, passNames()) + " " + std::to_string(tokens),
              passWork(plan, std::make_shared<Layer>(sizes, group()), pass, session_.stream), false);
}

double Samples::linear(int family, int algorithm, int type, Pass pass, size_t heads, size_t tokens) {
  const auto info = infoOf(family);
  const size_t elements = tokens * heads * kHeadDim;
  LayerSizes sizes{elements, elements, elements, elements};
  for (int i = 0; i < info.gates; ++i) {
    const int shape = info.gateShapes[i];
    const auto gate = static_cast<size_t>(i);
    sizes.betas[gate] = std::string_view(info.gateNames[i]) == "beta";
    sizes.gates[gate] =
        heads * (shape == seqparAttnGatePerHead ? 1 : tokens) * (shape == seqparAttnGatePerChannel ? kHeadDim : 1);
  }
  sizes.saved = heads * kHeadDim * kHeadDim;
  sizes.type = type;
  seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
  desc.family = family;
  desc.algorithm = algorithm;
  desc.tokens = static_cast<int64_t>(tokens) * group().size();
  desc.heads = desc.kvHeads = static_cast<int64_t>(heads);
  desc.headDim = desc.valueDim = kHeadDim;
  desc.dataType = type;
  desc.normalize = info.transition == seqparScanMatrix ? 1 : 0;
  const auto plan = std::make_shared<LayerPlan>(desc, group());
  return time(std::string(info.name) + " " + seqparAttnAlgorithmName(algorithm) + " " + nameOf(pass, passNames()) +
                  " " + std::to_string(tokens),
              passWork(plan, std::make_shared<Layer>(sizes, group()), pass, session_.stream), false);
}

double Samples::copy(size_t bytes) {
  const auto from = std::make_shared<Buffer>(bytes, group().comm()),
             to = std::make_shared<Buffer>(bytes, group().comm());
  Gpu* const gpu = group().gpu();
  return time(label("copy", bytes), workOf([=] {
                if (gpu == nullptr) {
                  std::memcpy(to->data(), from->data(), bytes);
                } else {
                  gpu->copy(to->data(), from->data(), bytes);
                }
              }),
              false);
}

double Samples::copyToNext(size_t bytes) {
  Gpu& gpu = *group().gpu();
  const std::shared_ptr<Window> window = gpu.window(bytes);
  if (!window) return std::nan("");
  const auto from = std::make_shared<Buffer>(bytes, group().comm());
  void* const to = window->at((group().rank() + 1) % group().size());
  return time(label("copy to the next rank", bytes), workOf([=, &gpu] { gpu.copy(to, from->data(), bytes); }), false);
}

double Samples::nccl(NcclOperation operation, size_t bytes) {
  if (!nccl_) return std::nan("");
  const auto ranks = static_cast<size_t>(group().size());
  const auto from = std::make_shared<Buffer>(bytes, group().comm());
  const auto to = std::make_shared<Buffer>(bytes * ranks, group().comm());
  const int rank = group().rank(), next = (rank + 1) % group().size();
  const int previous = (rank + group().size() - 1) % group().size();
  const char* const name = operation == NcclOperation::Shift      ? "NCCL shift"
                           : operation == NcclOperation::PingPong ? "NCCL ping-pong"
                                                                  : "NCCL all-gather";
  Work work = workOf([=, nccl = nccl_] {
    switch (operation) {
      case NcclOperation::AllGather:
        return nccl->allGather(from->data(), to->data(), bytes);
      case NcclOperation::Shift:
        nccl->groupStart();
        nccl->send(from->data(), bytes, next);
        nccl->receive(to->data(), bytes, previous);
        return nccl->groupEnd();
      default:
        if (rank == 0) nccl->send(from->data(), bytes, 1);
        if (rank == 1) nccl->receive(to->data(), bytes, 0);
        if (rank == 1) nccl->send(from->data(), bytes, 0);
        if (rank == 0) nccl->receive(to->data(), bytes, 1);
    }
  });
  if (operation == NcclOperation::PingPong) work.timesPerIteration = 2;
  return time(label(name, bytes), std::move(work), operation != NcclOperation::PingPong);
}

}  // namespace seqpar::perf
