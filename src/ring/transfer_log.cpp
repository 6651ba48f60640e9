#include "ring/transfer_log.h"

#include <utility>

namespace seqpar {
namespace {

/// An event that cannot be queried counts as done: the device has failed and executes no further work.
bool isOver(cudaEvent_t event) {
  const RelaxedCapture relaxed;  // otherwise a capture of any thread causes an error, and the transfer looks done
  const cudaError_t state = cudaEventQuery(event);
  if (state != cudaErrorNotReady) {
    noteCuda(state, "cudaEventQuery");
    return true;
  }
  (void)cudaGetLastError();
  return false;
}

}  // namespace

std::unique_ptr<TransferLog::Transfer> TransferLog::take() {
  const std::lock_guard lock(mutex_);
  retire();
  if (done_.empty()) return std::make_unique<Transfer>();
  auto transfer = std::move(done_.back());
  done_.pop_back();
  transfer->needs.clear();
  transfer->started.reset();
  return transfer;
}

void TransferLog::add(std::unique_ptr<Transfer> transfer) {
  const std::lock_guard lock(mutex_);
  underWay_.push_back(std::move(transfer));
}

bool TransferLog::idle() {
  const std::lock_guard lock(mutex_);
  retire();
  return underWay_.empty();
}

std::vector<TransferLog::Need> TransferLog::overdue(std::chrono::nanoseconds limit) {
  const std::lock_guard lock(mutex_);
  retire();
  if (underWay_.empty() || !isOver(underWay_.front()->before.get())) return {};
  Transfer& oldest = *underWay_.front();
  const auto now = std::chrono::steady_clock::now();
  if (!oldest.started) oldest.started = now;
  return now - *oldest.started > limit ? oldest.needs : std::vector<Need>();
}

void TransferLog::retire() {
  while (!underWay_.empty() && isOver(underWay_.front()->after.get())) {
    done_.push_back(std::move(underWay_.front()));
    underWay_.pop_front();
  }
}

}  // namespace seqpar
