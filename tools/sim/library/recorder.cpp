#include "library/recorder.h"

#include <sys/mman.h>

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <unordered_map>

#include "exchange/exchange.h"
#include "library/mailbox.h"

namespace seqpar::sim {
namespace {

Recorder* recording = nullptr;

constexpr size_t kReserved = size_t{1} << 43;
/// Of them, at the end: buffers that other ranks map.
constexpr size_t kMapped = size_t{1} << 41;
constexpr size_t kPage = 4096;
constexpr size_t kFewTransfers = 64;

/// Address space without memory: an access that the simulation forgot to replace ends the program at its cause.
std::byte* reservation() {
  static auto* const base = [] {
    void* const at = mmap(nullptr, kReserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw std::runtime_error("no address space for the tensors of simulated ranks");
    return static_cast<std::byte*>(at);
  }();
  return base;
}

/// Buffers are followed by a page that belongs to none.
size_t pagesFor(size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage + kPage;
}

std::vector<std::string>& allLabels() {
  static std::vector<std::string> labels;
  return labels;
}

uint16_t labelOf(const char* text) {
  static std::unordered_map<const char*, uint16_t> numbers;
  const auto [at, added] = numbers.try_emplace(text, static_cast<uint16_t>(allLabels().size()));
  if (added) allLabels().emplace_back(text);
  return at->second;
}

}  // namespace

Recorder::Recorder(const Machine& machine, int rank, int ranks, Announcements* announcements)
    : machine_(machine), rank_(rank), ranks_(ranks), announcements_(announcements) {
  recording = this;
  streamOf(callerStreamOfSimulation());
}

Recorder::~Recorder() {
  recording = nullptr;
}

Recorder& Recorder::current() {
  if (recording == nullptr) throw std::logic_error("library code runs outside of a simulated rank");
  return *recording;
}

const std::vector<std::string>& Recorder::labels() {
  return allLabels();
}

uint32_t Recorder::streamOf(const void* stream) {
  if (stream == nullptr) stream = callerStreamOfSimulation();
  const auto [at, added] = streams_.try_emplace(stream, static_cast<uint32_t>(program_.streams.size()));
  if (added) program_.streams.emplace_back();
  return at->second;
}

void Recorder::add(const void* stream, OpKind kind, uint32_t index, double us, const char* label) {
  program_.streams[streamOf(stream)].push_back(
      {kind, labelOf(label), index, static_cast<uint32_t>(hostUs_ / kIssueUnitUs), static_cast<float>(us)});
  // The first call is at 0: its host time precedes every measurement too.
  if (kind != OpKind::Record && kind != OpKind::Wait) hostUs_ += machine_.gpu.apiUs;
}

void Recorder::compute(const void* stream, double us, const char* label) {
  add(stream, OpKind::Compute, 0, us + machine_.gpu.launchUs, label);
}

void Recorder::memory(const void* stream, double bytes, const char* label) {
  if (bytes > 0) compute(stream, bytes / machine_.gpu.hbmGbs * 1e-3, label);
}

uint32_t Recorder::record(const void* stream) {
  const uint32_t event = program_.events++;
  add(stream, OpKind::Record, event, 0, "event");
  return event;
}

void Recorder::wait(const void* stream, uint32_t event) {
  add(stream, OpKind::Wait, event, 0, "event");
}

void Recorder::mark(const void* stream) {
  program_.marks.push_back(record(stream));
}

void Recorder::exchange(const void* stream, const std::vector<Transfer>& sends, const std::vector<Transfer>& receives,
                        uint32_t lane, Engine engine, const char* label, bool ofRing) {
  const auto append = [&](const std::vector<Transfer>& transfers, uint32_t& first, uint32_t& count) {
    first = static_cast<uint32_t>(program_.messages.size());
    // One payload a peer; ranks after this one first, so that not all send to the same.
    std::map<int, double> few;
    std::vector<double> many(transfers.size() > kFewTransfers ? static_cast<size_t>(ranks_) : 0);
    for (const auto& transfer : transfers) {
      const int distance = (transfer.peer - rank_ + ranks_) % ranks_;
      (many.empty() ? few[distance] : many[static_cast<size_t>(distance)]) +=
          static_cast<double>(transfer.region.bytes());
    }
    double own = 0;
    const auto add = [&](int distance, double amount) {
      if (distance == 0) own = amount;
      if (distance != 0 && amount > 0) program_.messages.push_back({(rank_ + distance) % ranks_, amount});
    };
    for (const auto& [distance, amount] : few) add(distance, amount);
    for (size_t distance = 0; distance < many.size(); ++distance) add(static_cast<int>(distance), many[distance]);
    count = static_cast<uint32_t>(program_.messages.size()) - first;
    return own;
  };
  ExchangeOp op;
  append(sends, op.firstSend, op.sends);
  const double own = append(receives, op.firstReceive, op.receives);
  op.lane = lane;
  op.engine = engine;
  if (engine == Engine::Kernel) {
    op.ctas = static_cast<float>(machine_.gpu.sms);
    op.startUs = static_cast<float>(ofRing ? machine_.local.callUs : machine_.local.exchangeUs);
  } else if (engine == Engine::Nccl) {
    op.ctas = static_cast<float>(machine_.nccl.ctas);
    op.startUs = static_cast<float>(machine_.nccl.startUs);
  }
  if (engine == Engine::Kernel && own > 0) {  // a part of the kernel
    add(stream, OpKind::Compute, 0, 2 * own / machine_.gpu.hbmGbs * 1e-3, "copy");
    hostUs_ -= machine_.gpu.apiUs;
  } else {
    memory(stream, 2 * own, "copy");
  }
  if (op.sends + op.receives == 0) return;
  program_.exchanges.push_back(op);
  add(stream, OpKind::Exchange, static_cast<uint32_t>(program_.exchanges.size()) - 1, 0, label);
}

void Recorder::setCopiedBytes(double bytes) {
  copyGbs_ = machine_.host.copyGbs.at(machine_.inCaches(bytes));
  readGbs_ = machine_.host.readGbs.at(machine_.inCaches(bytes));
}

void Recorder::exchangeOnHost(const void* stream, const Route& route, const char* label, bool mapped) {
  Route others;
  double own = 0, moved = 0;
  int buffers = 0;
  const auto append = [&](const std::vector<Transfer>& from, std::vector<Transfer>& to) {
    for (const auto& transfer : from) {
      const auto bytes = static_cast<double>(transfer.region.bytes());
      buffers = std::max(buffers, static_cast<int>(transfer.region.buffer) + 1);
      (transfer.peer == rank_ ? own : moved) += bytes;
      if (transfer.peer != rank_) to.push_back(transfer);
    }
  };
  append(route.sends, others.sends);
  append(route.receives, others.receives);
  setCopiedBytes(moved + own);
  const std::byte* const sent = reservation() + (mapped ? kReserved - kMapped : 0);
  const std::vector<const std::byte*> sends(static_cast<size_t>(buffers), sent);
  const std::vector<std::byte*> receives(static_cast<size_t>(buffers), reservation());
  RecordingMailbox mail;
  const double ownGbs = machine_.host.ownGbs.at(machine_.inCaches(moved + own));
  steps(stream, 0, Engine::Kernel, 0, label, [&] {
    step(StepKind::Work, 0, machine_.host.callUs + own / 2 / ownGbs * 1e-3);
    seqpar::exchangeOnHost(mail, others, sends, receives);
  });
}

void Recorder::step(StepKind kind, int peer, double amount) {
  if (kind == StepKind::Work && amount <= 0) return;
  if (kind == StepKind::Work && !program_.steps.empty() && program_.steps.back().kind == StepKind::Work && peer == 0) {
    program_.steps.back().amount += amount;
    return;
  }
  program_.steps.push_back({kind, peer, amount});
}

void Recorder::endSteps(const void* stream, uint32_t first, uint32_t lane, Engine engine, double ctas,
                        const char* label) {
  const auto count = static_cast<uint32_t>(program_.steps.size()) - first;
  program_.stepOps.push_back({first, count, lane, static_cast<float>(ctas), engine});
  add(stream, OpKind::Steps, static_cast<uint32_t>(program_.stepOps.size()) - 1, 0, label);
}

uint32_t Recorder::laneOf(const std::string& group) {
  // Lane 0 is the communicator's order of operations. Groups of different ranks never share a pair of ranks and a use.
  const uint32_t use = groups_[group]++;
  return 1 + static_cast<uint32_t>((std::hash<std::string>()(group) + use * 7919) % 60000);
}

void* Recorder::allocate(size_t bytes) {
  std::byte* const at = reservation() + used_;
  used_ += pagesFor(bytes);
  if (used_ > kReserved - kMapped) throw std::runtime_error("the tensors of a simulated rank exceed 6 TiB");
  return at;
}

void* Recorder::allocateMapped(size_t bytes) {
  std::byte* const at = reservation() + (kReserved - kMapped) + usedMapped_;
  usedMapped_ += pagesFor(bytes);
  if (usedMapped_ > kMapped) throw std::runtime_error("the mapped buffers of a simulated rank exceed 2 TiB");
  return at;
}

void Recorder::sent(int to, std::span<const std::byte> contents) {
  const uint32_t number = sent_[to]++;
  if (contents.empty() || announcements_ == nullptr || announcements_->complete) return;
  announcements_->sent[{rank_, to}][number].assign(contents.begin(), contents.end());
}

void Recorder::received(int from, std::span<std::byte> memory) {
  const uint32_t number = received_[from]++;
  std::fill(memory.begin(), memory.end(), std::byte{0});
  if (announcements_ == nullptr || !announcements_->complete) return;
  const auto messages = announcements_->sent.find({from, rank_});
  if (messages == announcements_->sent.end()) return;
  const auto message = messages->second.find(number);
  if (message == messages->second.end() || message->second.size() != memory.size()) return;
  std::copy(message->second.begin(), message->second.end(), memory.begin());
}

bool Recorder::isTensor(const void* address) {
  const std::byte* const base = reservation();
  const auto* const at = static_cast<const std::byte*>(address);
  return !std::less<>()(at, base) && std::less<>()(at, base + kReserved);
}

bool Recorder::isMapped(const void* address) {
  return isTensor(address) &&
         !std::less<>()(static_cast<const std::byte*>(address), reservation() + (kReserved - kMapped));
}

void* callerStreamOfSimulation() {
  return reservation();
}

}  // namespace seqpar::sim
