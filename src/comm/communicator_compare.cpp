// A communicator's comparison of a call's arguments with the other ranks'.
#include <memory>
#include <utility>

#include "base/thread_object.h"
#include "comm/communicator.h"

namespace seqpar {
namespace {

/// The calling thread's pending comparison.
std::shared_ptr<const Comparison>& pending() {
  struct Pending {
    std::shared_ptr<const Comparison> comparison;
  };
  return ofThread<Pending>().comparison;
}

}  // namespace

template <typename Values>
void Communicator::record(const char* call, const Values& values) noexcept {
  calls_.collective(call, values);
  if (device_) calls_.compare();
}

void Communicator::compareNext(const char* call, std::span<const NamedValue> values) {
  record(call, values);
  if (config_.checkArguments) compareNext(call, Comparison(call, values));
}

void Communicator::compareNext(const char* call, std::span<const NamedValue> values, std::vector<int> members,
                               std::span<const NamedValue> ofMembers) {
  record(call, values);
  if (!config_.checkArguments) return;
  Comparison comparison(call, values);
  comparison.addOfGroup(std::move(members), ofMembers);
  compareNext(call, std::move(comparison));
}

void Communicator::compareNextOfGroup(const char* call, std::vector<int> members, std::span<const NamedValue> values) {
  // The control plane of a device communicator can only gather from all ranks.
  if (config_.checkArguments && ordered_ == nullptr) compareNext(call, Comparison(call, std::move(members), values));
}

void Communicator::compareNext(const char* call, Comparison comparison) {
  requireUse(call);
  if (ordered_ != nullptr) return ordered_->compareLater(comparison);
  pending() = std::make_shared<const Comparison>(std::move(comparison));
  pendingOf_ = this;
}

void Communicator::compareNext(const char* call, const CallValues& values) {
  if (config_.checkArguments) return compareNext(call, std::span(values.all));
  record(call, values);
}

void Communicator::compareNow(const char* call, std::span<const NamedValue> values) {
  calls_.collective(call, values);
  if (config_.checkArguments) checkAgreement(*control_, call, values);
}

std::shared_ptr<const Comparison> Communicator::takeComparison() {
  if (pendingOf_ != this) return nullptr;
  pendingOf_ = nullptr;
  return std::move(pending());
}

void Communicator::comparePending() {
  if (const auto comparison = takeComparison()) {
    const uint64_t ticket = issue("SEQPAR_CHECK");
    enqueue(*comparisons_, ticket, "SEQPAR_CHECK", [this, ticket, comparison] {
      try {
        execute(
            ticket, "SEQPAR_CHECK", [](Mailbox&) {}, comparison.get());
      } catch (const Error& error) {
        health_.fail(error.result(), error.what());
      }
    });
  }
}

void Communicator::discardPending() noexcept {
  pendingOf_ = nullptr;
  pending() = nullptr;
}

Communicator::HeldComparison::HeldComparison() noexcept
    : comm_(std::exchange(pendingOf_, nullptr)), comparison_(std::move(pending())) {}

Communicator::HeldComparison::~HeldComparison() {
  pendingOf_ = comm_;
  pending() = std::move(comparison_);
}

}  // namespace seqpar
