#include "comm/call_log.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/log.h"
#include "base/nvtx.h"
#include "base/ticks.h"

namespace seqpar {
namespace {

static_assert(CallLog::kCalls * sizeof(CallRecord) == size_t{360} << 10, "docs/DEBUGGING.md says how much that is");

constexpr auto kRelaxed = std::memory_order_relaxed;

CallScope*& current() noexcept {
  static thread_local CallScope* scope = nullptr;
  return scope;
}

std::string& description() noexcept {
  static thread_local std::string text;
  return text;
}

std::string describe(const CallRecord& record) {
  std::string text = concat("call ", record.number.load(kRelaxed));
  if (const auto collective = record.collective.load(kRelaxed)) text += concat(", collective ", collective);
  text += concat(", ", record.bytes.load(kRelaxed), " bytes");
  if (const char* algorithm = record.algorithm.load(kRelaxed)) text += concat(", ", algorithm);
  for (size_t i = 0; i < record.count.load(kRelaxed); ++i) {
    text += concat(", ", record.names[i].load(kRelaxed), " ",
                   inWords(record.kinds[i].load(kRelaxed), record.values[i].load(kRelaxed)));
  }
  const int64_t took = nanosecondsAt(record.returned.load(kRelaxed)) - nanosecondsAt(record.called.load(kRelaxed));
  return concat(text, ", ", took / 1000, " us");
}

}  // namespace

void CallReference::begin() const noexcept {
  if (record == nullptr || record->number.load(kRelaxed) != number) return;
  if (record->begun.load(kRelaxed) == 0)
    record->begun.store(timed ? ticksNow() : record->called.load(kRelaxed), kRelaxed);
}

void CallReference::end() const noexcept {
  if (record == nullptr || record->number.load(kRelaxed) != number) return;
  if (timed) record->done.store(ticksNow(), kRelaxed);
  record->ended.store(record->ended.load(kRelaxed) + 1, kRelaxed);  // one stream's operations, one after the other
}

CallLog::CallLog() : records_(std::make_unique<std::array<CallRecord, kCalls>>()) {}

CallRecord& CallLog::open(const char* call) noexcept {
  CallScope* const scope = current();
  const bool mine = scope != nullptr && &scope->log_ == this;
  if (mine && scope->record_ != nullptr) return *scope->record_;
  const uint64_t number = last_.fetch_add(1, kRelaxed) + 1;
  CallRecord& record = (*records_)[(number - 1) % kCalls];
  record.number.store(0, kRelaxed);  // nobody is to take what follows for the call before
  record.name.store(mine ? scope->call_ : call, kRelaxed);
  record.collective.store(0, kRelaxed);
  record.algorithm.store(nullptr, kRelaxed);
  record.bytes.store(mine ? scope->bytes_ : 0, kRelaxed);
  record.called.store(ticksNow(), kRelaxed);
  record.returned.store(0, kRelaxed);
  record.begun.store(0, kRelaxed);
  record.done.store(0, kRelaxed);
  record.operations.store(0, kRelaxed);
  record.ended.store(0, kRelaxed);
  record.failed.store(false, kRelaxed);
  record.count.store(0, kRelaxed);
  record.number.store(number, std::memory_order_release);
  if (mine) scope->record_ = &record;
  return record;
}

void CallLog::collective(const char* call, std::span<const NamedValue> values) noexcept {
  CallRecord& record = open(call);
  record.collective.store(lastCollective_.fetch_add(1, kRelaxed) + 1, kRelaxed);
  const size_t count = std::min(values.size(), CallRecord::kMostValues);
  for (size_t i = 0; i < count; ++i) {
    record.names[i].store(values[i].name, kRelaxed);
    record.values[i].store(values[i].value, kRelaxed);
    record.kinds[i].store(values[i].kind, kRelaxed);
  }
  record.count.store(static_cast<uint32_t>(count), kRelaxed);
}

CallReference CallLog::operation(const char* call, bool onStream) noexcept {
  CallRecord& record = open(call);
  CallScope* const scope = current();
  if (scope != nullptr && scope->record_ == &record) {
    record.bytes.store(scope->bytes_, kRelaxed);
    record.algorithm.store(scope->algorithm_, kRelaxed);
    if (!scope->marked_) {
      scope->marked_ = true;
      nvtx::push(scope->algorithm_ != nullptr ? scope->algorithm_ : "operation", scope->bytes_);
    }
  }
  record.operations.store(record.operations.load(kRelaxed) + 1, kRelaxed);  // no other thread counts here
  return {&record, record.number.load(kRelaxed), onStream};
}

CallScope::CallScope(CallLog& log, const char* call) noexcept
    : outer_(current()), log_(log), call_(call), exceptions_(std::uncaught_exceptions()) {
  current() = this;
}

CallScope::~CallScope() {
  current() = outer_;
  if (marked_) nvtx::pop();
  if (record_ == nullptr) return;
  record_->returned.store(ticksNow(), kRelaxed);
  if (std::uncaught_exceptions() > exceptions_) record_->failed.store(true, kRelaxed);
  if (!logs(LogLevel::Trace)) return;
  try {
    description() = concat("rank ", log_.rank_, " of ", log_.size_, ", ", describe(*record_));
  } catch (const std::exception&) {
    description().clear();  // a line that cannot be made is not worth a failure
  }
}

void CallScope::addBytes(size_t bytes) noexcept {
  if (current() != nullptr) current()->bytes_ += bytes;
}

void CallScope::setAlgorithm(const char* name) noexcept {
  if (current() != nullptr) current()->algorithm_ = name;
}

std::string CallScope::takeDescription() {
  return std::exchange(description(), {});
}

}  // namespace seqpar
