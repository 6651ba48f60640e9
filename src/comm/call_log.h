// The flight record: the last calls of a communicator on this rank, written to a file when the communicator fails.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/owned_counter.h"
#include "base/thread_variable.h"
#include "base/ticks.h"
#include "bootstrap/call_chain.h"
#include "comm/named_value.h"

namespace seqpar {

/// Values of repeated calls, referenced by their records. Immutable, owned by the log.
struct CallValues {
  std::vector<NamedValue> all;  ///< without NamedValue::elements
  uint16_t digest = 0;          ///< digestOf() the call and these values
};

/// One call. Written by the calling thread and the thread that executes it, read by any thread: a reader may see a
/// partial record.
struct CallRecord {
  static constexpr size_t kMostValues = 16;

  std::atomic<uint64_t> number{0};                ///< of the recorded calls on this rank, from 1; 0: never used
  std::atomic<uint64_t> collective{0};            ///< of the calls common to all ranks, from 1; 0: not such a call
  std::atomic<const char*> name{""};              ///< literals
  std::atomic<const char*> algorithm{nullptr};    ///< null: not applicable
  std::atomic<const CallValues*> known{nullptr};  ///< replaces the values below unless null
  std::atomic<uint64_t> bytes{0};                 ///< of all buffers
  std::atomic<int64_t> called{0};                 ///< ticksNow()
  std::atomic<int64_t> returned{0};               ///< ticksNow(); 0: not yet; see CallScope::ended()
  std::atomic<int64_t> started{0}, done{0};       ///< of its operations, on host streams
  std::atomic<uint32_t> operations{0}, ended{0};  ///< on hosts
  std::atomic<bool> failed{false};
  std::atomic<uint16_t> digest{0};  ///< digestOf() the call, if it is common to all ranks; else 0
  std::atomic<uint32_t> count{0};   ///< of values
  std::array<std::atomic<const char*>, kMostValues> names{};
  std::array<std::atomic<int64_t>, kMostValues> values{};
  std::array<std::atomic<NamedValue::Kind>, kMostValues> kinds{};  ///< of values
};

/// The values of a call.
std::vector<NamedValue> valuesOf(const CallRecord& record);

/// A reference to an operation's record, which a later call may have reused.
struct CallReference {
  CallRecord* record = nullptr;
  uint64_t number = 0;
  bool timed = false;   ///< else it starts and ends with the call
  uint16_t digest = 0;  ///< of the record when the operation was issued

  void begin() const noexcept;
  void end() const noexcept;
};

class CallLog {
 public:
  static constexpr size_t kCalls = 1024;

  CallLog();

  /// Sets the record's identity; `id` is equal on all ranks of the communicator. Reads SEQPAR_TRACE_FILE, which may
  /// contain %r (rank), %c (the communicator), %p (process), %h (host) and %%; any other character after % is
  /// InvalidUsage.
  void identify(uint64_t id, int rank, int size);
  /// As 16 hexadecimal digits.
  std::string id() const;

  /// Records that all ranks issue the thread's current call, with these values.
  void collective(const char* call, std::span<const NamedValue> values) noexcept;
  /// Likewise with values from keep().
  void collective(const char* call, const CallValues& values) noexcept;
  /// Stores values; null if the log is full or a record cannot contain them.
  const CallValues* keep(const char* call, std::span<const NamedValue> values) {
    return keep(values, digestOf(call, values));
  }
  /// Stores the values of the thread's current call, after collective(); null as for keep().
  const CallValues* keepCurrent();
  /// Counts the thread's current call in chain(), once it has succeeded.
  void compare() noexcept;
  CallChain& chain() noexcept { return chain_; }
  /// Records the start of an operation of the thread's current call.
  CallReference operation(const char* call, bool onStream) noexcept;

  /// The records as JSON; `reason` is the cause of the report.
  std::string json(const std::string& reason) const;
  /// Writes json() to the file, if one is set. Failures are logged.
  void write(const std::string& reason) noexcept;

 private:
  friend class CallScope;
  const CallValues* keep(std::span<const NamedValue> values, uint16_t digest);
  CallRecord& open(const char* call) noexcept;
  CallRecord& openCollective(const char* call) noexcept;

  std::unique_ptr<std::array<CallRecord, kCalls>> records_;
  OwnedCounter last_;
  std::atomic<uint64_t> lastCollective_{0};
  CallChain chain_;
  uint64_t id_ = 0;
  int rank_ = 0, size_ = 0;
  std::string path_;
  std::mutex writing_, keeping_;
  std::deque<CallValues> kept_;
};

/// RAII scope of a thread's call on a communicator.
class CallScope {
 public:
  CallScope(CallLog& log, const char* call) noexcept : outer_(current_), log_(log), call_(call), began_(ticksNow()) {
    current_ = this;
  }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;
  /// Ends the record, and stores its description.
  ~CallScope();

  /// Marks the call as successful; default: failed.
  void succeed() noexcept { succeeded_ = true; }

  /// For the thread's current call, if any.
  static void addBytes(size_t bytes) noexcept {
    if (current_ != nullptr) current_->bytes_ += bytes;
  }
  static size_t bytes() noexcept { return current_ != nullptr ? current_->bytes_ : 0; }
  static void setAlgorithm(const char* name) noexcept {
    if (current_ != nullptr) current_->algorithm_ = name;
  }
  /// ticksNow() at the start of the call that the thread is in; without a call, the present.
  static int64_t began() noexcept { return current_ != nullptr ? current_->began_ : ticksNow(); }
  /// An operation of the call has ended. A call that moves less than kBrief bytes and did not wait is recorded with
  /// returned = called, as a second read of the clock takes a third of its time.
  static void ended(bool waited) noexcept {
    if (current_ == nullptr) return;
    current_->ended_ = true;
    current_->waited_ = current_->waited_ || waited;
  }
  /// While it exists, the thread counts as outside of a call.
  class Outside {
   public:
    Outside() noexcept : scope_(current_) { current_ = nullptr; }
    Outside(const Outside&) = delete;
    Outside& operator=(const Outside&) = delete;
    ~Outside() { current_ = scope_; }

   private:
    CallScope* scope_;
  };

  /// The description of the thread's latest call if SEQPAR_DEBUG is TRACE; "" if nothing was recorded. Clears it.
  static std::string takeDescription();

 private:
  friend class CallLog;
  bool brief() const noexcept { return ended_ && !waited_ && bytes_ < kBrief; }
  /// Bytes that are moved in about a microsecond.
  static constexpr uint64_t kBrief = 8192;

  SEQPAR_THREAD_VARIABLE static inline thread_local constinit CallScope* current_ = nullptr;

  CallScope* outer_;
  CallLog& log_;
  const char* call_;
  int64_t began_;
  CallRecord* record_ = nullptr;
  uint64_t bytes_ = 0;
  const char* algorithm_ = nullptr;
  bool marked_ = false;
  bool succeeded_ = false;
  bool ended_ = false;
  bool waited_ = false;
  bool compared_ = false;
};

}  // namespace seqpar
