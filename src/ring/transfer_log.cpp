#include "ring/transfer_log.h"

#include <utility>

namespace seqpar {
namespace {

/// An event that cannot be asked counts as over: the device has failed, and nothing runs there any more.
bool isOver(cudaEvent_t event) {
  const RelaxedCapture relaxed;  // else a capture of any thread would make it an error, and the transfer look over
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
  transfer->begun.reset();
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
  if (!oldest.begun) oldest.begun = now;
  return now - *oldest.begun > limit ? oldest.needs : std::vector<Need>();
}

void TransferLog::retire() {
  while (!underWay_.empty() && isOver(underWay_.front()->after.get())) {
    done_.push_back(std::move(underWay_.front()));
    underWay_.pop_front();
  }
}

}  // namespace seqpar
