#include "engine/player.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace seqpar::sim {
namespace {

/// Messages up to this size are sent before the receiver has started; larger ones wait for it.
constexpr double kEagerBytes = 65536;
/// An exchange with more peers is one flow out of a rank and one into it, on each kind of link.
constexpr uint32_t kMostFlows = 16;
/// Share of the SMs that computation keeps in any case.
constexpr double kLeastSms = 0.05;

}  // namespace

Player::Player(const Machine& machine, std::vector<Program> programs, int traced)
    : machine_(machine), programs_(std::move(programs)), traced_(traced), network_(queue_, kFlow) {
  const auto ranks = static_cast<uint32_t>(programs_.size());
  gpus_.resize(ranks);
  pairs_.resize(ranks);
  result_.ranks.resize(ranks);
  const int adapters = machine.adapters(), sharing = machine.ranksOfAdapter();
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const auto id = static_cast<int>(rank);
    firstStream_.push_back(static_cast<uint32_t>(streams_.size()));
    streams_.resize(streams_.size() + programs_[rank].streams.size());
    rankOfStream_.resize(streams_.size(), rank);
    eventTimes_.emplace_back(programs_[rank].events, -1);
    result_.ranks[rank].marks.resize(programs_[rank].marks.size());
    const double local = machine.local.portGbs * machine.factor(id, "local");
    const double net = machine.net.gbs * machine.factor(id, "net");
    localOut_.push_back(network_.addLink(local));
    localIn_.push_back(network_.addLink(local));
    const bool own = id % machine.gpus % sharing == 0;
    netOut_.push_back(own ? network_.addLink(net) : netOut_.back());
    netIn_.push_back(own ? network_.addLink(net) : netIn_.back());
  }
  for (uint32_t rank = 0; rank < ranks && !machine.failedAdapters.empty(); ++rank) {
    const auto carrier = static_cast<size_t>(machine.adapterOf(static_cast<int>(rank)));
    if (carrier >= ranks) continue;  // an idle GPU's
    netOut_[rank] = netOut_[carrier];
    netIn_[rank] = netIn_[carrier];
  }
  if (machine.net.oversubscription <= 1) return;
  const int ofLeaf = machine.gpus * static_cast<int>(machine.net.leafNodes);
  const double uplink = machine.net.gbs * adapters * machine.net.leafNodes / machine.net.oversubscription;
  for (int first = 0; first < static_cast<int>(ranks); first += ofLeaf) {
    leafUp_.push_back(network_.addLink(uplink));
    leafDown_.push_back(network_.addLink(uplink));
  }
}

Result Player::run() {
  for (uint32_t id = 0; id < streams_.size(); ++id) ready_.push_back(id);
  while (true) {
    while (!ready_.empty()) {
      const uint32_t id = ready_.back();
      ready_.pop_back();
      const uint32_t rank = rankOfStream_[id];
      advance(rank, id - firstStream_[rank]);
    }
    if (queue_.empty()) break;
    handle(queue_.next());
  }
  for (uint32_t id = 0; id < streams_.size(); ++id) {
    const uint32_t rank = rankOfStream_[id];
    if (streams_[id].next < programs_[rank].streams[id - firstStream_[rank]].size()) explainDeadlock();
  }
  result_.events = queue_.count();
  return result_;
}

void Player::explainDeadlock() const {
  std::string text = "the simulated ranks wait for each other:";
  int named = 0;
  for (uint32_t id = 0; id < streams_.size() && named < 4; ++id) {
    const uint32_t rank = rankOfStream_[id], stream = id - firstStream_[rank];
    const auto& ops = programs_[rank].streams[stream];
    if (streams_[id].next == ops.size()) continue;
    text += " rank " + std::to_string(rank) + " stream " + std::to_string(stream) + " at operation " +
            std::to_string(streams_[id].next) + " of " + std::to_string(ops.size()) + " (kind " +
            std::to_string(static_cast<int>(ops[streams_[id].next].kind)) + ");";
    ++named;
  }
  throw std::runtime_error(text);
}

void Player::handle(const Event& event) {
  switch (event.kind) {
    case kWake:
      streams_[event.object].busy = false;
      return ready_.push_back(event.object);
    case kBegin: {
      const uint32_t rank = rankOfStream_[event.object], number = event.object - firstStream_[rank];
      const Op& op = programs_[rank].streams[number][streams_[event.object].next];
      return startExchange(rank, number, programs_[rank].exchanges[op.index]);
    }
    case kJob:
      return jobsDone(event.object, event.version);
    case kStep:
      return runSteps(event.object);
    case kOpen:
      return open(event.object);
    case kFlow: {
      uint32_t parcel = 0;
      if (network_.finish(event, parcel)) leave(parcel);
      return;
    }
    case kLeave:
      return leave(event.object);
    case kArrive:
      return arrive(event.object);
    default:
      return bulkSent(event.object);
  }
}

void Player::advance(uint32_t rank, uint32_t number) {
  const uint32_t id = streamId(rank, number);
  const auto& program = programs_[rank];
  const auto& ops = program.streams[number];
  while (!streams_[id].busy && streams_[id].next < ops.size()) {
    const Op& op = ops[streams_[id].next];
    const Time issue = fromUs(op.issue * kIssueUnitUs);
    if (issue > queue_.now()) {
      streams_[id].busy = true;
      return queue_.add(issue, kWake, id);
    }
    if (op.kind == OpKind::Record) {
      eventTimes_[rank][op.index] = queue_.now();
      const auto waiting = waiters_.find((static_cast<uint64_t>(rank) << 32) | op.index);
      if (waiting != waiters_.end()) {
        for (const uint32_t other : waiting->second) {
          streams_[other].busy = false;
          ready_.push_back(other);
        }
        waiters_.erase(waiting);
      }
      for (size_t m = 0; m < program.marks.size(); ++m) {
        const auto& own = result_.ranks[rank];
        if (program.marks[m] == op.index) {
          result_.ranks[rank].marks[m] = {toUs(queue_.now()), own.computed, own.localBytes, own.networkBytes};
        }
      }
      ++streams_[id].next;
      continue;
    }
    streams_[id].busy = true;
    if (op.kind == OpKind::Wait) {
      if (eventTimes_[rank][op.index] < 0) {
        return waiters_[(static_cast<uint64_t>(rank) << 32) | op.index].push_back(id);
      }
      streams_[id].busy = false;
      ++streams_[id].next;
      continue;
    }
    streams_[id].begin = queue_.now();
    if (op.kind == OpKind::Compute) {
      const double demand = machine_.onHosts() ? machine_.threads() : 1;
      return startJob({rank, number, static_cast<double>(op.us) * kPsPerUs, demand, kNone});
    }
    if (op.kind == OpKind::Exchange) {
      return queue_.add(queue_.now() + fromUs(static_cast<double>(program.exchanges[op.index].startUs)), kBegin, id);
    }
    const StepsOp& steps = program.stepOps[op.index];
    const uint32_t active = newActive(
        {rank, number, 1, steps.first, steps.first + steps.count, steps.lane, 0, 0, steps.ctas, steps.engine, true});
    useCtas(rank, static_cast<double>(steps.ctas));
    return runSteps(active);
  }
}

void Player::finishOp(uint32_t rank, uint32_t number) {
  const uint32_t id = streamId(rank, number);
  Stream& stream = streams_[id];
  const Op& op = programs_[rank].streams[number][stream.next];
  RankResult& own = result_.ranks[rank];
  own.end = toUs(queue_.now());
  if (op.kind == OpKind::Compute && number == 0) own.computed += static_cast<double>(op.us);
  if (static_cast<int>(rank) < traced_) {
    spans_.push_back({static_cast<int>(rank), static_cast<int>(number), op.label, toUs(stream.begin), own.end});
  }
  stream.busy = false;
  ++stream.next;
  ready_.push_back(id);
}

// --- Kernels that compute: they share the SMs that communication leaves. ---

uint32_t Player::gpuOf(uint32_t rank) const {
  return machine_.onHosts() ? rank / static_cast<uint32_t>(machine_.gpus) : rank;
}

double Player::rateOf(const Gpu& gpu, const Job& job) const {
  const double rank = machine_.factor(static_cast<int>(job.rank), "rate");
  if (machine_.onHosts()) {  // processors that all jobs of a node share
    double demand = 0;
    for (const Job& each : gpu.jobs) demand += each.demand;
    return rank * job.demand * std::min(1.0, machine_.host.processors / demand);
  }
  const double sms = machine_.gpu.sms;
  return rank * std::max(kLeastSms, (sms - gpu.ctas) / sms) / static_cast<double>(gpu.jobs.size());
}

void Player::progress(Gpu& gpu) {
  const auto elapsed = static_cast<double>(queue_.now() - gpu.since);
  gpu.since = queue_.now();
  if (elapsed == 0) return;
  for (Job& job : gpu.jobs) job.left -= rateOf(gpu, job) * elapsed;
}

void Player::schedule(uint32_t id) {
  Gpu& gpu = gpus_[id];
  ++gpu.version;
  if (gpu.jobs.empty()) return;
  double least = std::numeric_limits<double>::infinity();
  for (const Job& job : gpu.jobs) least = std::min(least, std::max(0.0, job.left) / rateOf(gpu, job));
  queue_.add(queue_.now() + static_cast<Time>(std::ceil(least)), kJob, id, gpu.version);
}

void Player::startJob(const Job& job) {
  const uint32_t id = gpuOf(job.rank);
  progress(gpus_[id]);
  gpus_[id].jobs.push_back(job);
  schedule(id);
}

void Player::useCtas(uint32_t rank, double ctas) {
  if (ctas == 0) return;
  Gpu& gpu = gpus_[gpuOf(rank)];
  progress(gpu);
  gpu.ctas = std::max(0.0, gpu.ctas + ctas);
  schedule(gpuOf(rank));
}

void Player::jobsDone(uint32_t id, uint32_t version) {
  Gpu& gpu = gpus_[id];
  if (version != gpu.version) return;
  progress(gpu);
  std::vector<Job> done;
  std::erase_if(gpu.jobs, [&](const Job& job) {
    if (job.left > 1) return false;
    done.push_back(job);
    return true;
  });
  schedule(id);
  for (const Job& job : done) {
    if (job.active == kNone) {
      finishOp(job.rank, job.stream);
    } else {
      runSteps(job.active);
    }
  }
}

// --- Operations with messages ---

uint32_t Player::newActive(const Active& active) {
  if (freeActives_.empty()) {
    actives_.push_back(active);
    return static_cast<uint32_t>(actives_.size()) - 1;
  }
  const uint32_t id = freeActives_.back();
  freeActives_.pop_back();
  actives_[id] = active;
  return id;
}

void Player::endActive(uint32_t id) {
  const Active own = actives_[id];
  freeActives_.push_back(id);
  useCtas(own.rank, -static_cast<double>(own.ctas));
  finishOp(own.rank, own.stream);
}

void Player::part(uint32_t id) {
  if (actives_[id].steps) return runSteps(id);
  if (--actives_[id].pending == 0) endActive(id);
}

void Player::startExchange(uint32_t rank, uint32_t number, const ExchangeOp& op) {
  useCtas(rank, static_cast<double>(op.ctas));
  const uint32_t id = newActive({rank, number, 1, 0, 0, op.lane, op.firstSend, op.sends, op.ctas, op.engine, false});
  const Program& program = programs_[rank];
  const bool bulk = op.sends > kMostFlows || op.receives > kMostFlows;
  actives_[id].pending += op.receives + (bulk ? 0 : op.sends);
  if (bulk) {
    startBulk(id, program, op);
  } else {
    for (uint32_t i = 0; i < op.sends; ++i) {
      const Message& message = program.messages[op.firstSend + i];
      post(id, static_cast<int>(rank), message.peer, op.lane, message.bytes, true, message.bytes <= kEagerBytes);
    }
  }
  for (uint32_t i = 0; i < op.receives; ++i) {
    const Message& message = program.messages[op.firstReceive + i];
    post(id, message.peer, static_cast<int>(rank), op.lane, message.bytes, false, false);
  }
  part(id);
}

/// The flows of an exchange with many peers. Its bytes are delivered when the sender's flow ends.
void Player::startBulk(uint32_t id, const Program& program, const ExchangeOp& op) {
  const auto rank = static_cast<int>(actives_[id].rank);
  double out[2] = {0, 0}, in[2] = {0, 0};  // [local]
  int some[2] = {rank, rank}, from[2] = {rank, rank};
  for (uint32_t i = 0; i < op.sends; ++i) {
    const Message& message = program.messages[op.firstSend + i];
    out[sameNode(rank, message.peer) ? 1 : 0] += message.bytes;
    some[sameNode(rank, message.peer) ? 1 : 0] = message.peer;
  }
  for (uint32_t i = 0; i < op.receives; ++i) {
    const Message& message = program.messages[op.firstReceive + i];
    in[sameNode(rank, message.peer) ? 1 : 0] += message.bytes;
    from[sameNode(rank, message.peer) ? 1 : 0] = message.peer;
  }
  for (int local = 0; local < 2; ++local) {
    const auto flow = [&](int a, int b, double bytes, uint32_t direction) {
      if (bytes == 0) return;
      const uint32_t parcel = newParcel();
      parcels_[parcel] = {id,
                          kNone,
                          kNone,
                          a,
                          b,
                          bytes,
                          true,
                          true,
                          false,
                          false,
                          actives_[id].engine,
                          direction + static_cast<uint32_t>(local)};
      ++actives_[id].pending;
      queue_.add(queue_.now() + fromUs(pathOf(parcels_[parcel]).delay), kOpen, parcel);
    };
    flow(rank, some[local], out[local], 0);
    flow(from[local], rank, in[local], 2);
  }
}

void Player::runSteps(uint32_t id) {
  const Program& program = programs_[actives_[id].rank];
  while (actives_[id].step < actives_[id].last) {
    Active& own = actives_[id];
    const auto rank = static_cast<int>(own.rank);
    const Step& step = program.steps[own.step++];
    if (step.kind == StepKind::Work && machine_.onHosts()) {
      return startJob({own.rank, own.stream, step.amount * kPsPerUs, 1, id});
    }
    if (step.kind == StepKind::Work) {
      return queue_.add(queue_.now() + fromUs(step.amount / machine_.factor(rank, "rate")), kStep, id);
    }
    if (step.kind == StepKind::Read) {
      result_.ranks[static_cast<size_t>(step.peer)].localBytes += step.amount;
      continue;
    }
    if (step.kind == StepKind::Post) {
      post(kNone, rank, step.peer, own.lane, step.amount, true, true);
      continue;
    }
    if (step.kind != StepKind::Receive) {
      return post(id, rank, step.peer, own.lane, step.amount, true, true, step.kind == StepKind::Share);
    }
    return post(id, step.peer, rank, own.lane, step.amount, false, false);
  }
  endActive(id);
}

}  // namespace seqpar::sim
