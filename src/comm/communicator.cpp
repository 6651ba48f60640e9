#include "comm/communicator.h"

#include <random>
#include <utility>
#include <vector>

#include "base/memory.h"

namespace seqpar {
namespace {

/// The settings that must agree, since the ranks would wait for each other in different ways.
struct SharedSettings {
  int version = SEQPAR_VERSION_CODE;
  int timeoutMs = 0;
  int transport = 0;
  int checkArguments = 0;
  int onDevice = 0;
  int ctas = 0;
  uint64_t id = 0;  ///< rank 0's is the communicator's
};

uint64_t randomId() {
  std::random_device source;
  return (static_cast<uint64_t>(source()) << 32) | source();
}

/// Returns the communicator's id.
uint64_t checkSettings(Allgather& control, const CommConfig& config) {
  SharedSettings mine;
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
  return all[0].id;
}

/// What the calling thread is to compare, and in which communicator.
struct Pending {
  const Communicator* comm = nullptr;
  std::shared_ptr<const Comparison> comparison;
};

Pending& pending() {
  static thread_local Pending mine;
  return mine;
}

}  // namespace

Communicator::Communicator(Allgather& oob, CommConfig config) : config_(std::move(config)) {
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
    calls_.write(text);
  });
  try {
    calls_.identify(checkSettings(*control_, config_), rank(), size());
    topology_ = discoverTopology(*control_, config_.hostId);
    connect();
  } catch (const std::exception& error) {
    health_.fail(seqparRemoteError, concat("rank ", rank(), " failed while the communicator was made: ", error.what()));
    health_.onFailure(nullptr);
    throw;
  }
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
}

Communicator::~Communicator() {
  health_.onFailure(nullptr);  // nothing below may call into what is already gone
}

void Communicator::requireUse(const char* name) const {
  health_.check();
  if (finalized_.load()) fail(seqparInvalidUsage, name, ": comm was finalized; expected a communicator in use");
}

uint64_t Communicator::issue(const char* name) {
  requireUse(name);
  return issuedTickets_.fetch_add(1);
}

void Communicator::compareNext(const char* call, std::span<const NamedValue> values) {
  calls_.collective(call, values);
  if (!config_.checkArguments) return;
  requireUse(call);
  if (ordered_ != nullptr) return ordered_->compareLater(Comparison(call, values));
  pending() = {this, std::make_shared<const Comparison>(call, values)};
}

void Communicator::compareNow(const char* call, std::span<const NamedValue> values) {
  calls_.collective(call, values);
  if (config_.checkArguments) checkAgreement(*control_, call, values);
}

std::shared_ptr<const Comparison> Communicator::takeComparison() {
  if (!config_.checkArguments || pending().comm != this) return nullptr;
  return std::exchange(pending(), {}).comparison;
}

void Communicator::compareAtLast() {
  if (const auto comparison = takeComparison()) {
    const uint64_t ticket = issue("SEQPAR_CHECK");
    comparisons_->enqueue([this, ticket, comparison] {
      try {
        execute(
            ticket, "SEQPAR_CHECK", [](Mailbox&) {}, comparison.get());
      } catch (const Error& error) {
        health_.fail(error.result(), error.what());
      }
    });
  }
}

void Communicator::dropComparison() noexcept {
  if (pending().comm != nullptr) pending() = {};
}

void Communicator::execute(uint64_t ticket, const char* name, const std::function<void(Mailbox&)>& work,
                           const Comparison* comparison, CallReference record) {
  for (auto served = servedTickets_.load(); served != ticket; served = servedTickets_.load()) {
    servedTickets_.wait(served);
  }
  const auto finish = [&] {
    servedTickets_.store(ticket + 1);
    servedTickets_.notify_all();
  };
  std::string refusal;
  try {
    health_.check();
    record.begin();
    mailbox_->begin(name, ticket);
    if (comparison != nullptr) refusal = comparison->differences(*mailbox_);
    if (refusal.empty()) work(*mailbox_);
    mailbox_->end();
    record.end();
  } catch (const Error& error) {
    health_.fail(error.result(), error.what());
    finish();
    throw;
  } catch (const std::bad_alloc&) {
    health_.fail(seqparSystemError, concat(name, ": ", kNoMemory));
    finish();
    throw;
  } catch (const std::exception& error) {
    health_.fail(seqparInternalError, concat(name, ": ", error.what()));
    finish();
    throw;
  }
  finish();
  if (!refusal.empty()) throw Error(seqparInvalidUsage, refusal);
}

void Communicator::enqueueOnDevice(const char* name, DeviceStream stream, const std::function<void()>& launch) {
  calls_.operation(name, true);
  try {
    device_->enqueue(name, stream, launch);
    control_->countCall();
  } catch (const Error& error) {
    health_.fail(error.result(), error.what());
    throw;
  }
}

void Communicator::drain() {
  if (device_) device_->drain();
  const auto issued = issuedTickets_.load();
  for (auto served = servedTickets_.load(); served < issued; served = servedTickets_.load()) {
    servedTickets_.wait(served);
  }
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

void Communicator::abort() {
  health_.fail(seqparRemoteError, concat("seqparCommAbort was called on rank ", rank()));
}

}  // namespace seqpar
