#include "comm/call_log.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/nvtx.h"
#include "base/thread_object.h"
#include "base/ticks.h"

namespace seqpar {
namespace {

static_assert(CallLog::kCalls * sizeof(CallRecord) == size_t{368} << 10, "docs/DEBUGGING.md states this size");

constexpr auto kRelaxed = std::memory_order_relaxed;

/// The maximum number of stored values.
constexpr size_t kMostKept = 1024;

std::string& description() noexcept {
  struct Latest {
    std::string text;
  };
  return ofThread<Latest>().text;
}

std::string describe(const CallRecord& record) {
  std::string text = concat("call ", record.number.load(kRelaxed));
  if (const auto collective = record.collective.load(kRelaxed)) text += concat(", collective ", collective);
  text += concat(", ", record.bytes.load(kRelaxed), " bytes");
  if (const char* algorithm = record.algorithm.load(kRelaxed)) text += concat(", ", algorithm);
  for (const NamedValue& value : valuesOf(record))
    text += concat(", ", value.name, " ", inWords(value.kind, value.value));
  const int64_t took = nanosecondsAt(record.returned.load(kRelaxed)) - nanosecondsAt(record.called.load(kRelaxed));
  return concat(text, ", ", took / 1000, " us");
}

}  // namespace

void CallReference::begin() const noexcept {
  if (record == nullptr || record->number.load(kRelaxed) != number) return;
  if (record->started.load(kRelaxed) == 0)
    record->started.store(timed ? ticksNow() : record->called.load(kRelaxed), kRelaxed);
}

void CallReference::end() const noexcept {
  if (record == nullptr || record->number.load(kRelaxed) != number) return;
  if (timed) record->done.store(ticksNow(), kRelaxed);
  record->ended.store(record->ended.load(kRelaxed) + 1, kRelaxed);  // no race: one stream's operations run in order
}

CallLog::CallLog() : records_(std::make_unique<std::array<CallRecord, kCalls>>()) {}

CallRecord& CallLog::open(const char* call) noexcept {
  CallScope* const scope = CallScope::current_;
  const bool mine = scope != nullptr && &scope->log_ == this;
  if (mine && scope->record_ != nullptr) return *scope->record_;
  const uint64_t number = last_.next() + 1;
  CallRecord& record = (*records_)[(number - 1) % kCalls];
  record.number.store(0, kRelaxed);  // readers must not mix the new values with the previous call's
  record.name.store(mine ? scope->call_ : call, kRelaxed);
  record.collective.store(0, kRelaxed);
  record.algorithm.store(nullptr, kRelaxed);
  record.bytes.store(mine ? scope->bytes_ : 0, kRelaxed);
  record.called.store(mine ? scope->began_ : ticksNow(), kRelaxed);
  record.returned.store(0, kRelaxed);
  record.started.store(0, kRelaxed);
  record.done.store(0, kRelaxed);
  record.operations.store(0, kRelaxed);
  record.ended.store(0, kRelaxed);
  record.failed.store(false, kRelaxed);
  record.digest.store(0, kRelaxed);
  record.known.store(nullptr, kRelaxed);
  record.count.store(0, kRelaxed);
  record.number.store(number, std::memory_order_release);
  if (mine) scope->record_ = &record;
  return record;
}

CallRecord& CallLog::openCollective(const char* call) noexcept {
  CallRecord& record = open(call);
  // No race: calls common to all ranks have one order, which concurrent calls have not.
  const uint64_t number = lastCollective_.load(kRelaxed) + 1;
  lastCollective_.store(number, kRelaxed);
  record.collective.store(number, kRelaxed);
  return record;
}

void CallLog::collective(const char* call, const CallValues& values) noexcept {
  CallRecord& record = openCollective(call);
  record.known.store(&values, kRelaxed);
  record.digest.store(values.digest, kRelaxed);
}

const CallValues* CallLog::keep(std::span<const NamedValue> values, uint16_t digest) {
  const std::lock_guard lock(keeping_);
  if (kept_.size() >= kMostKept || values.size() > CallRecord::kMostValues) return nullptr;
  CallValues& kept = kept_.emplace_back();
  for (const NamedValue& value : values) kept.all.push_back({value.name, value.value, value.kind});
  kept.digest = digest;
  return &kept;
}

const CallValues* CallLog::keepCurrent() {
  const CallScope* const scope = CallScope::current_;
  if (scope == nullptr || &scope->log_ != this || scope->record_ == nullptr) return nullptr;
  return keep(valuesOf(*scope->record_), scope->record_->digest.load(kRelaxed));
}

void CallLog::collective(const char* call, std::span<const NamedValue> values) noexcept {
  CallRecord& record = openCollective(call);
  const size_t count = std::min(values.size(), CallRecord::kMostValues);
  for (size_t i = 0; i < count; ++i) {
    record.names[i].store(values[i].name, kRelaxed);
    record.values[i].store(values[i].value, kRelaxed);
    record.kinds[i].store(values[i].kind, kRelaxed);
  }
  record.count.store(static_cast<uint32_t>(count), kRelaxed);
  record.digest.store(digestOf(record.name.load(kRelaxed), values), kRelaxed);
}

void CallLog::compare() noexcept {
  CallScope* const scope = CallScope::current_;
  if (scope != nullptr && &scope->log_ == this) scope->compared_ = true;
}

CallReference CallLog::operation(const char* call, bool onStream) noexcept {
  CallRecord& record = open(call);
  CallScope* const scope = CallScope::current_;
  if (scope != nullptr && scope->record_ == &record) {
    record.bytes.store(scope->bytes_, kRelaxed);
    record.algorithm.store(scope->algorithm_, kRelaxed);
    if (!scope->marked_) {
      scope->marked_ = true;
      nvtx::push(scope->algorithm_ != nullptr ? scope->algorithm_ : "operation", scope->bytes_);
    }
  }
  record.operations.store(record.operations.load(kRelaxed) + 1, kRelaxed);  // no other thread counts here
  return {&record, record.number.load(kRelaxed), onStream, record.digest.load(kRelaxed)};
}

CallScope::~CallScope() {
  current_ = outer_;
  if (marked_) nvtx::pop();
  if (record_ == nullptr) return;
  record_->returned.store(brief() && !logs(LogLevel::Trace) ? began_ : ticksNow(), kRelaxed);
  if (!succeeded_) record_->failed.store(true, kRelaxed);
  if (succeeded_ && compared_) log_.chain_.add(record_->digest.load(kRelaxed));
  if (!logs(LogLevel::Trace)) return;
  try {
    description() = concat("rank ", log_.rank_, " of ", log_.size_, ", ", describe(*record_));
  } catch (const std::exception&) {
    description().clear();  // a line that cannot be written is not an error
  }
}

std::vector<NamedValue> valuesOf(const CallRecord& record) {
  if (const CallValues* const known = record.known.load(kRelaxed)) return known->all;
  std::vector<NamedValue> values;
  const size_t count = std::min<size_t>(record.count.load(kRelaxed), CallRecord::kMostValues);
  for (size_t i = 0; i < count; ++i) {
    values.push_back({record.names[i].load(kRelaxed), record.values[i].load(kRelaxed), record.kinds[i].load(kRelaxed)});
  }
  return values;
}

std::string CallScope::takeDescription() {
  return std::exchange(description(), {});
}

}  // namespace seqpar
