#include "comm/communicator.h"

#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "base/asymmetric_fence.h"
#include "base/memory.h"
#include "bootstrap/lineage.h"

namespace seqpar {
namespace {

/// Settings that must be equal: otherwise the ranks would wait for each other in different ways.
struct SharedSettings {
  int version = SEQPAR_VERSION_CODE;
  int timeoutMs = 0;
  int transport = 0;
  int checkArguments = 0;
  int onDevice = 0;
  int ctas = 0;
  uint64_t id = 0;  ///< rank 0's value becomes the communicator's
  LineageCard card;
};

/// A factor between the digests of a call and of its part.
constexpr uint64_t kPart = 31;

uint64_t randomId() {
  std::random_device source;
  return (static_cast<uint64_t>(source()) << 32) | source();
}

/// Returns all ranks' settings.
std::vector<SharedSettings> checkSettings(Allgather& control, const CommConfig& config, const LineageCard& card) {
  SharedSettings mine;
  mine.card = card;
  mine.id = randomId();
  mine.timeoutMs = static_cast<int>(config.timeout.count());
  mine.transport = config.transport;
  mine.checkArguments = config.checkArguments ? 1 : 0;
  mine.onDevice = config.device == SEQPAR_HOST_DEVICE ? 0 : 1;
  mine.ctas = config.ctas;
  std::vector<SharedSettings> all(static_cast<size_t>(control.size()));
  control.gatherValues(mine, std::span(all));
  const auto compare = [&](const char* what, int SharedSettings::*member) {
    for (size_t rank = 1; rank < all.size(); ++rank) {
      if (all[rank].*member != all[0].*member) {
        fail(seqparInvalidUsage, "the ranks disagree about ", what, ": rank 0 has ", all[0].*member, ", rank ", rank,
             " has ", all[rank].*member);
      }
    }
  };
  compare("the version of seqpar", &SharedSettings::version);
  compare("timeoutMs (SEQPAR_TIMEOUT)", &SharedSettings::timeoutMs);
  compare("transport (SEQPAR_TRANSPORT)", &SharedSettings::transport);
  compare("checkArguments (SEQPAR_CHECK)", &SharedSettings::checkArguments);
  compare("device: whether it is a GPU", &SharedSettings::onDevice);
  compare("ctas (SEQPAR_CTAS)", &SharedSettings::ctas);
  return all;
}

}  // namespace

Communicator::Communicator(Allgather& oob, CommConfig config, Descent descent)
    : config_(std::move(config)), descent_(std::move(descent)) {
  lastError_.reserve(kReservedText);
  control_ = Control::connect(oob, ControlOptions{config_.timeout, config_.interfaceName}, health_);
  if (config_.checkArguments) {
    if (config_.device == SEQPAR_HOST_DEVICE) {
      comparisons_ = std::make_unique<HostStream>();
    } else {
      auto ordered = std::make_unique<OrderedControl>(std::move(control_), health_);
      ordered_ = ordered.get();
      control_ = std::move(ordered);
    }
  }
  health_.onFailure([this](seqparResult_t, const std::string& text) {
    control_->announce(text);
    failChild(text);
    const std::lock_guard lock(originMutex_);
    if (descent_.lineage) descent_.lineage->serve();
    calls_.write(text);
  });
  try {
    adoptLineage();
    topology_ = discoverTopology(*control_, config_.hostId);
    if (topology_.coresPerRank < 2) StreamQueue::setCrowded();
    connect();
  } catch (const std::exception& error) {
    health_.fail(seqparRemoteError,
                 FixedText{"rank ", std::to_string(rank()), " failed to create the communicator: ", error.what()});
    health_.onFailure(nullptr);
    throw;
  }
  if (descent_.lineage && descent_.epoch == 0) enterLineage();
}

std::shared_ptr<Health> Communicator::healthOfChild() {
  auto child = std::make_shared<Health>();
  {
    const std::lock_guard lock(childMutex_);
    child_ = child;
  }
  if (!health_.ok()) failChild(health_.text());
  return child;
}

void Communicator::failChild(std::string_view text) noexcept {
  const std::lock_guard lock(childMutex_);
  if (const auto child = child_.lock()) child->fail(health_.result(), text);
}

void Communicator::enterLineage() {
  descent_.lineage->enter(descent_.epoch, [this](const std::string& why) { health_.fail(seqparRemoteError, why); });
}

/// Compares the settings and, in a first communicator, gathers the addresses for a vote after its failure.
void Communicator::adoptLineage() {
  std::shared_ptr<Lineage> first;
  if (!descent_.lineage && size() > 1) {
    first = std::make_shared<Lineage>(rank(), size(), ControlOptions{config_.timeout, config_.interfaceName});
  }
  const auto settings = checkSettings(*control_, config_, first ? first->card() : LineageCard{});
  const std::lock_guard lock(originMutex_);
  calls_.identify(settings[0].id, rank(), size());
  if (!first) return;
  std::vector<LineageCard> cards;
  cards.reserve(settings.size());
  for (const auto& one : settings) cards.push_back(one.card);
  first->connect(cards, control_->secret().value());
  descent_.lineage = std::move(first);
  descent_.members.resize(settings.size());
  std::iota(descent_.members.begin(), descent_.members.end(), 0);
}

void Communicator::connect() {
  if (config_.device == SEQPAR_HOST_DEVICE) {
    mailbox_ = makeMailbox(
        *control_, MailboxOptions{config_.timeout, config_.transport, topology_.hostIds, topology_.contention <= 1},
        health_, transport_);
    links_ = planLinks(*mailbox_, *control_, topology_, transport_.transport);
    return;
  }
  DeviceOptions options;
  options.device = config_.device;
  options.timeout = config_.timeout;
  options.transport = config_.transport;
  options.ctas = config_.ctas;
  options.nodes = topology_.nodes;
  options.borrowedNccl = config_.borrowedNccl;
  options.behind = [this] { return control_->behind(); };
  device_ = makeDeviceGroup(*control_, options, health_);
  transport_ = {device_->transport(), device_->reason()};
  control_->report(calls_.chain());
}

Communicator::~Communicator() {
  if (descent_.lineage) descent_.lineage->leave(descent_.epoch);
  health_.onFailure(nullptr);  // members below must not call members that are already destroyed
}

void Communicator::requireUse(const char* name) const {
  health_.check();
  if (finalized_.load()) fail(seqparInvalidUsage, name, ": comm was finalized; expected a communicator in use");
}

uint64_t Communicator::issue(const char* name) {
  control_->communicate();
  requireUse(name);
  return issuedTickets_.next();
}

void Communicator::finishTurn(uint64_t ticket) noexcept {
  if ((servedTickets_.exchange(ticket + 1) & kAwaited) != 0) servedTickets_.notify_all();
}

// The store may overwrite kAwaited; waitingForTurns_ has told before (see awaitTurn()).
void Communicator::finishTurnInCall(uint64_t ticket) noexcept {
  servedTickets_.store(ticket + 1, std::memory_order_release);
  lightFence();
  if (waitingForTurns_.load(std::memory_order_relaxed) != 0) servedTickets_.notify_all();
}

void Communicator::failTurn(uint64_t ticket, const char* name) {
  const auto lost = [&](seqparResult_t result, std::string_view text) {
    health_.fail(result, text);
    mailbox_->abandon();
    keepError(text);
    finishTurn(ticket);
  };
  try {
    throw;
  } catch (const Error& error) {
    lost(error.result(), error.what());
    throw;
  } catch (const std::bad_alloc&) {
    lost(seqparSystemError, FixedText{name, ": ", kNoMemory});
    throw;
  } catch (const std::exception& error) {
    lost(seqparInternalError, FixedText{name, ": ", error.what()});
    throw;
  }
}

void Communicator::failEnqueue(uint64_t ticket, const char* name) {
  if (issuedTickets_.undo(ticket)) throw;
  awaitTurn(ticket);  // another thread has issued a later one
  failTurn(ticket, name);
}

void Communicator::execute(uint64_t ticket, const char* name, const std::function<void(Mailbox&)>& work,
                           const CallReference& record) {
  if (servedTickets_.load() != ticket) awaitTurn(ticket);
  try {
    health_.check();
    record.begin();
    mailbox_->begin(name, ticket);
    if (record.digest != 0) mailbox_->mark(record.digest);
    work(*mailbox_);
    mailbox_->end();
    record.end();
    if (!record.timed) CallScope::ended(mailbox_->waited());
  } catch (const std::exception&) {
    failTurn(ticket, name);
  }
  if (!record.timed) return finishTurnInCall(ticket);
  finishTurn(ticket);  // the communicator may be destroyed from here on
}

void Communicator::execute(uint64_t ticket, const char* name, const std::function<void(Mailbox&)>& work,
                           const Comparison* comparison, CallReference record, OuterCall* call) {
  std::string refusal;
  const auto digest = std::exchange(record.digest, 0);  // the comparison of calls that differ has no mark
  const uint64_t mark = call == nullptr ? digest : kPart * call->digest() + digest;
  const auto compareAndWork = [&](Mailbox& mail) {
    refusal = call == nullptr ? differences(comparison, mail) : call->differences(comparison, mail);
    if (!refusal.empty()) return keepError(refusal);
    if (mark != 0) mail.mark(mark);
    work(mail);
  };
  std::string part;
  try {
    if (call != nullptr) part = call->nameOf(name);
  } catch (const std::bad_alloc&) {
    part.clear();  // error texts lack the outer call's name
  }
  execute(ticket, part.empty() ? name : part.c_str(), std::cref(compareAndWork), record);
  if (!refusal.empty()) throw Error(seqparInvalidUsage, refusal);
}

void Communicator::keepError(std::string_view text) noexcept {
  const std::lock_guard lock(errorMutex_);
  assignText(lastError_, text);
}

std::string Communicator::lastError() const {
  const std::lock_guard lock(errorMutex_);
  return lastError_;
}

void Communicator::enqueueOnDevice(const char* name, DeviceStream stream, const std::function<void()>& launch) {
  device_->checkCapture(name, stream);
  const OneCaller::Scope alone(config_.checkArguments ? &caller_ : nullptr, name, health_);
  control_->communicate();
  requireUse(name);
  calls_.operation(name, true);
  try {
    if (device_->enqueue(name, stream, launch)) calls_.chain().end();
    control_->countCall();
  } catch (const Error& error) {
    health_.fail(error.result(), error.what());
    throw;
  }
}

void Communicator::drain() {
  if (device_) device_->drain();
  awaitTurn(issuedTickets_.load());
}

void Communicator::awaitTurn(uint64_t ticket) {
  if ((servedTickets_.load() & ~kAwaited) >= ticket) return;
  StreamQueue::hurryAll();
  waitingForTurns_.fetch_add(1);
  heavyFence();
  for (auto served = servedTickets_.load(); (served & ~kAwaited) < ticket; served = servedTickets_.load()) {
    if ((served & kAwaited) != 0 || servedTickets_.compare_exchange_strong(served, served | kAwaited)) {
      servedTickets_.wait(served | kAwaited);
    }
  }
  waitingForTurns_.fetch_sub(1);
}

void Communicator::finalize() {
  drain();
  if (finalized_.load()) return;
  health_.check();
  std::vector<int> ranks(static_cast<size_t>(size()));
  control_->gatherValues(rank(), std::span(ranks));
  finalized_.store(true);
}

void Communicator::close() {
  drain();
  if (!health_.ok()) return;
  finalize();
  if (device_) device_->release();
  control_->leave();
}

void Communicator::startCall(const char* name) {
  if (device_) control_->communicate();
  requireUse(name);
}

void Communicator::refuse(const char* call, const std::string& why) {
  requireUse(call);
  control_->refuseCall(why);
}

void Communicator::lose(std::string_view why) {
  health_.fail(seqparRemoteError, FixedText{"rank ", std::to_string(rank()), " ended the communicator: ", why});
}

void Communicator::revoke() {
  health_.fail(seqparRemoteError, concat("rank ", rank(), " revoked the communicator"));
}

void Communicator::giveUp() {
  drain();
}

void Communicator::abort() {
  health_.fail(seqparRemoteError, concat("seqparCommAbort was called on rank ", rank()));
}

}  // namespace seqpar
