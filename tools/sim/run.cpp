#include "run.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "attn/plan/registry.h"
#include "attn/problem/problem.h"
#include "library/communicator.h"
#include "library/recorder.h"
#include "seqpar/attn.h"
#include "seqpar/exchange.h"
#include "seqpar/layout.h"
#include "seqpar/ring.h"

namespace seqpar::sim {
namespace {

void require(seqparResult_t result, seqparComm_t comm) {
  if (result != seqparSuccess) throw std::runtime_error(seqparGetLastError(comm));
}

void requireAttention(seqparResult_t result) {
  if (result != seqparSuccess) throw std::runtime_error(seqparAttnGetLastError());
}

struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The current rank's communicator and its plan.
class RankOf {
 public:
  RankOf() : comm(makeCommunicator()) {}
  RankOf(const RankOf&) = delete;
  RankOf& operator=(const RankOf&) = delete;
  ~RankOf() {
    if (plan != nullptr) seqparAttnPlanDestroy(plan);
    seqparCommDestroy(comm);
  }
  seqparComm_t comm;
  seqparAttnPlan_t plan = nullptr;

  void create(const Case& given) {
    seqparAttnDesc_t desc = given.desc;
    seqparLayout_t layout = SEQPAR_LAYOUT_INITIALIZER;
    if (given.layout >= 0) {
      layout.kind = given.layout;
      layout.ranks = given.ranks;
      layout.tokens = desc.tokens;
      desc.layout = &layout;
    }
    const auto result = seqparAttnPlanCreate(&plan, &desc, comm);
    if (result == seqparInvalidUsage || result == seqparInvalidArgument) throw Refusal(seqparAttnGetLastError());
    requireAttention(result);
  }
  std::string explain() const {
    size_t bytes = 0;
    requireAttention(seqparAttnPlanExplain(plan, nullptr, &bytes));
    std::string text(bytes, '\0');
    requireAttention(seqparAttnPlanExplain(plan, text.data(), &bytes));
    text.resize(bytes - 1);
    return text;
  }
};

/// The `stream` argument of calls: hosts work in the calling thread.
void* callerStream() {
  return Recorder::current().machine().onHosts() ? nullptr : callerStreamOfSimulation();
}

/// Memory of the caller.
void* allocate(const Case& given, size_t bytes) {
  auto& recorder = Recorder::current();
  return given.mapped ? recorder.allocateMapped(bytes) : recorder.allocate(bytes);
}

/// Addresses for tensors of a rank.
class Tensors {
 public:
  Tensors(const Case& given, int64_t tokens)
      : given_(given), desc_(given.desc), rows_(static_cast<size_t>(desc_.batch * tokens)) {}
  seqparAttnTensor_t of(int64_t heads, int64_t dim) const {
    return {allocate(given_, rows_ * static_cast<size_t>(heads * dim) * 4), 0, 0, 0};
  }
  float* rowsOfHeads() const {
    return static_cast<float*>(allocate(given_, rows_ * static_cast<size_t>(desc_.heads) * 4));
  }
  float* states() const {
    const auto dv = desc_.valueDim == 0 ? desc_.headDim : desc_.valueDim;
    return static_cast<float*>(
        allocate(given_, static_cast<size_t>(desc_.batch * desc_.heads * desc_.headDim * dv) * 4));
  }

 private:
  const Case& given_;
  const seqparAttnDesc_t& desc_;
  size_t rows_;
};

void recordAttention(RankOf& rank, const Case& given, double& workspace) {
  auto& recorder = Recorder::current();
  auto* const stream = callerStream();
  const auto& d = given.desc;
  size_t bytes = 0;
  requireAttention(seqparAttnPlanWorkspaceSize(rank.plan, &bytes));
  workspace = std::max(workspace, static_cast<double>(bytes));
  size_t reserve = 0;
  requireAttention(seqparAttnPlanReserveSize(rank.plan, &reserve));
  requireAttention(seqparAttnPlanPrepare(rank.plan, bytes == 0 ? nullptr : allocate(given, bytes), bytes));
  int64_t tokens = 0;
  requireAttention(seqparAttnPlanLayout(rank.plan, nullptr, &tokens));

  const bool softmax = d.family == seqparAttnSoftmax;
  const int64_t kvHeads = d.kvHeads == 0 ? d.heads : d.kvHeads, dv = d.valueDim == 0 ? d.headDim : d.valueDim;
  const Tensors make(given, tokens);
  seqparAttnForwardArgs_t forward = SEQPAR_ATTN_FORWARD_INITIALIZER;
  forward.q = make.of(softmax ? d.heads : kvHeads, d.headDim);
  forward.k = make.of(kvHeads, d.headDim);
  forward.v = make.of(softmax ? kvHeads : d.heads, dv);
  forward.out = make.of(d.heads, dv);
  forward.reserve = reserve == 0 ? nullptr : allocate(given, reserve);
  if (softmax) {
    forward.lse = make.rowsOfHeads();
  } else {
    for (auto& gate : forward.gates) gate = make.of(d.heads, d.headDim);
    forward.saved = d.training != 0 ? make.states() : nullptr;
  }
  requireAttention(seqparAttnForward(rank.plan, &forward, stream));
  recorder.mark(stream);
  if (d.training == 0) return;

  seqparAttnBackwardArgs_t backward = SEQPAR_ATTN_BACKWARD_INITIALIZER;
  backward.q = forward.q;
  backward.k = forward.k;
  backward.v = forward.v;
  backward.out = forward.out;
  backward.lse = forward.lse;
  backward.saved = forward.saved;
  backward.reserve = forward.reserve;
  for (size_t i = 0; i < SEQPAR_ATTN_MAX_GATES; ++i) backward.gates[i] = forward.gates[i];
  backward.dOut = make.of(d.heads, dv);
  backward.dq = make.of(softmax ? d.heads : kvHeads, d.headDim);
  backward.dk = make.of(kvHeads, d.headDim);
  backward.dv = make.of(softmax ? kvHeads : d.heads, dv);
  if (!softmax) {
    for (auto& gate : backward.dGates) gate = make.of(d.heads, d.headDim);
  }
  requireAttention(seqparAttnBackward(rank.plan, &backward, stream));
  recorder.mark(stream);
}

std::string recordScan(RankOf& rank, const Case& given) {
  auto& recorder = Recorder::current();
  seqparAllScanParams_t params = given.scan;
  const auto elements = given.scanBytes / (params.wireType == seqparFloat32 ? 4 : 2);
  if (params.heads == 0) {  // 64 KiB a head where that divides
    params.heads = std::max<int64_t>(1, elements / (int64_t{128} * 128));
    params.dk = std::min<int64_t>(128, std::max<int64_t>(1, elements / params.heads));
    params.dv = elements / params.heads / params.dk;
  }
  const auto bytes = static_cast<size_t>(params.heads * params.dk * params.dv) * 4;
  const bool decays = params.op != seqparScanSum;
  const auto transitions = bytes + static_cast<size_t>(params.heads * params.dk * params.dk) * 4;
  void *const state = allocate(given, bytes), *const prefix = allocate(given, bytes);
  void* const transition = decays ? allocate(given, transitions) : nullptr;
  for (int call = 0; call < given.calls; ++call) {
    const auto result = seqparAllScan(state, transition, nullptr, prefix, nullptr, &params, rank.comm, callerStream());
    if (result == seqparInvalidUsage || result == seqparInvalidArgument) throw Refusal(seqparGetLastError(rank.comm));
    require(result, rank.comm);
    recorder.mark(callerStream());
  }
  if (recorder.rank() != 0) return {};
  seqparScanEstimate_t estimates[SEQPAR_SCAN_ALGORITHMS + 1];
  require(seqparAllScanPlan(&params, rank.comm, estimates), rank.comm);
  return seqparScanAlgorithmName(estimates[0].algorithm);
}

void recordRing(RankOf& rank, const Case& given) {
  const auto bytes = static_cast<size_t>(given.ringBytes);
  seqparRingParams_t params = SEQPAR_RING_PARAMS_INITIALIZER;
  params.tensors = 1;
  params.bytes = &bytes;
  params.steps = 1;
  for (int call = 0; call < given.calls; ++call) {
    seqparRing_t ring = nullptr;
    require(seqparRingCreate(&ring, &params, rank.comm), rank.comm);
    require(seqparRingPost(ring, callerStream()), rank.comm);
    require(seqparRingWait(ring, callerStream()), rank.comm);
    Recorder::current().mark(callerStream());
    require(seqparRingDestroy(ring), rank.comm);
  }
}

/// In perf's shapes.
void recordExchange(RankOf& rank, const Case& given) {
  auto& recorder = Recorder::current();
  const auto bytes = static_cast<size_t>(given.exchangeBytes);
  const auto ranks = static_cast<size_t>(given.ranks);
  void* const from = allocate(given, bytes * ranks);
  void* const to = allocate(given, bytes * ranks);
  if (given.exchange == "shift") {
    const int next = (recorder.rank() + 1) % given.ranks, previous = (recorder.rank() + given.ranks - 1) % given.ranks;
    require(seqparSendRecv(from, bytes, next, to, bytes, previous, rank.comm, callerStream()), rank.comm);
  } else if (given.exchange == "shift_pair") {  // as a ring of keys and values
    const std::vector<size_t> sizes{(bytes + 1) / 2, bytes / 2};
    const std::vector<const void*> send{from, static_cast<std::byte*>(from) + sizes[0]};
    const std::vector<void*> receive{to, static_cast<std::byte*>(to) + sizes[0]};
    seqparShiftParams_t params = SEQPAR_SHIFT_PARAMS_INITIALIZER;
    params.sendTensors = params.receiveTensors = 2;
    params.sendPeer = (recorder.rank() + 1) % given.ranks;
    params.receivePeer = (recorder.rank() + given.ranks - 1) % given.ranks;
    params.sendBuffers = send.data();
    params.receiveBuffers = receive.data();
    params.sendBytes = params.receiveBytes = sizes.data();
    require(seqparShift(&params, rank.comm, callerStream()), rank.comm);
  } else if (given.exchange == "allgather" || given.exchange == "reducescatter") {
    constexpr size_t kElement = 4;
    seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER;
    shards.tokens = static_cast<int64_t>(std::max<size_t>(1, bytes / ranks / kElement));
    const auto call = given.exchange == "allgather" ? seqparAllGather : seqparReduceScatter;
    require(call(from, to, &shards, rank.comm, callerStream()), rank.comm);
  } else {
    constexpr size_t kElement = 2, kHeads = 32, kHeadDim = 128;
    const size_t heads = (kHeads + ranks - 1) / ranks * ranks;
    seqparHeadShards_t shards = SEQPAR_HEAD_SHARDS_INITIALIZER;
    shards.dataType = seqparBfloat16;
    shards.heads = static_cast<int64_t>(heads);
    shards.headDim = static_cast<int64_t>(std::clamp<size_t>(bytes / (heads * kElement), 1, kHeadDim));
    const size_t token = heads * static_cast<size_t>(shards.headDim) * kElement;
    shards.tokens = static_cast<int64_t>(std::max<size_t>(1, bytes / token));
    const auto call = given.exchange == "to_heads" ? seqparSequenceToHeads : seqparHeadsToSequence;
    require(call(from, to, &shards, rank.comm, callerStream()), rank.comm);
  }
  recorder.mark(callerStream());
}

/// Lines of the messages of a rank's program.
void appendOrder(const Program& program, int rank, std::string& lines) {
  const auto line = [&](const char* kind, int peer, double bytes) {
    lines += std::to_string(rank) + "," + kind + "," + std::to_string(peer) + "," +
             std::to_string(static_cast<int64_t>(std::llround(bytes))) + "\n";
  };
  const auto exchange = [&](const char* kind, uint32_t first, uint32_t count) {
    for (uint32_t i = first; i < first + count; ++i) line(kind, program.messages[i].peer, program.messages[i].bytes);
  };
  for (const auto& stream : program.streams) {
    for (const auto& op : stream) {
      if (op.kind == OpKind::Exchange) {
        const auto& of = program.exchanges[op.index];
        exchange("send", of.firstSend, of.sends);
        exchange("receive", of.firstReceive, of.receives);
      }
      if (op.kind != OpKind::Steps) continue;
      const auto& of = program.stepOps[op.index];
      for (uint32_t i = of.first; i < of.first + of.count; ++i) {
        const auto& step = program.steps[i];
        if (step.kind != StepKind::Work && step.kind != StepKind::Read) {
          line(step.kind == StepKind::Receive ? "receive" : "send", step.peer, step.amount);
        }
      }
    }
  }
}

/// With several calls: the mean of those after the first.
void summarize(const Result& result, int calls, Outcome& out) {
  const auto mean = 1 / static_cast<double>(result.ranks.size()), each = 1.0 / std::max(1, calls - 1);
  const RankResult::Mark none;
  double firstUs = 0;
  for (const auto& rank : result.ranks) {
    const auto& first = rank.marks.front();
    const auto& last = rank.marks.back();
    const auto& before = calls > 1 ? first : none;
    if (first.us > out.forwardUs) {
      out.forwardUs = firstUs = first.us;
      out.forwardExposedUs = std::max(0.0, first.us - first.computed);
    }
    const double exposed = std::max(0.0, last.us - last.computed - (before.us - before.computed)) * each;
    if (last.us > out.stepUs) {
      out.stepUs = last.us;
      out.stepExposedUs = exposed;
    }
    out.waitingUs += exposed * mean;
    out.localBytes += (last.localBytes - before.localBytes) * mean * each;
    out.networkBytes += (last.networkBytes - before.networkBytes) * mean * each;
  }
  if (calls > 1) {
    out.forwardUs = out.stepUs = (out.stepUs - firstUs) * each;
    out.forwardExposedUs = out.stepExposedUs = std::min(out.stepExposedUs, out.stepUs);
    out.waitingUs = std::min(out.waitingUs, out.stepUs);
  }
  out.events = result.events;
}

/// The programs of all ranks.
std::vector<Program> record(const Machine& machine, const Case& given, Announcements* announcements, Outcome& out) {
  std::vector<Program> programs;
  for (int number = 0; number < given.ranks; ++number) {
    Recorder recorder(machine, number, given.ranks, announcements);
    RankOf rank;
    if (given.scanBytes > 0) {
      auto name = recordScan(rank, given);
      if (number == 0) out.algorithm = std::move(name);
    } else if (given.ringBytes > 0) {
      recordRing(rank, given);
      out.algorithm = "ring";
    } else if (given.exchangeBytes > 0) {
      for (int call = 0; call < given.calls; ++call) recordExchange(rank, given);
      out.algorithm = given.exchange;
    } else {
      if (number == 0) out.algorithm = seqparAttnAlgorithmName(given.desc.algorithm);
      rank.create(given);
      recordAttention(rank, given, out.workspaceBytes);
    }
    programs.push_back(recorder.take());
  }
  return programs;
}

}  // namespace

Outcome run(const Machine& machine, const Case& given) {
  Outcome out;
  const attn::SharedScoreTables shared;
  std::vector<Program> programs;
  Announcements announcements;
  try {
    programs = record(machine, given, &announcements, out);
    announcements.complete = true;
    if (!announcements.sent.empty()) programs = record(machine, given, &announcements, out);
  } catch (const Refusal& refusal) {
    out.refusal = refusal.what();
    return out;
  }
  if (given.ordered) {
    for (size_t rank = 0; rank < programs.size(); ++rank)
      appendOrder(programs[rank], static_cast<int>(rank), out.order);
  }
  Player player(machine, std::move(programs), given.traced);
  summarize(player.run(), given.calls, out);
  out.spans = player.spans();
  return out;
}

const std::vector<std::string>& exchangeNames() {
  static const std::vector<std::string> names{"shift",         "shift_pair", "allgather",
                                              "reducescatter", "to_heads",   "to_sequence"};
  return names;
}

std::string chosen(const Machine& machine, Case given, std::string& explain) {
  given.desc.algorithm = seqparAttnAuto;
  Recorder recorder(machine, 0, given.ranks);
  RankOf rank;
  rank.create(given);
  explain = rank.explain();
  return nlohmann::json::parse(explain).at("algorithm").get<std::string>();
}

std::vector<int> algorithmsFor(bool softmax) {
  std::vector<int> ids;
  for (const auto& row : attn::algorithms()) {
    if (row.softmax == softmax) ids.push_back(row.id);
  }
  return ids;
}

}  // namespace seqpar::sim
