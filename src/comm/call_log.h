// The flight record: the last calls of a communicator on this rank, written to a file when the communicator fails.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "base/error.h"
#include "comm/named_value.h"

namespace seqpar {

/// One call. Written by the thread that makes it and the one that carries it out, read by any: a reader may see a call
/// half recorded.
struct CallRecord {
  static constexpr size_t kMostValues = 16;

  std::atomic<uint64_t> number{0};                ///< of the recorded calls on this rank, from 1; 0: never used
  std::atomic<uint64_t> collective{0};            ///< of the calls that all ranks make alike, from 1; 0: none of those
  std::atomic<const char*> name{""};              ///< literals
  std::atomic<const char*> algorithm{nullptr};    ///< null: there is no choice
  std::atomic<uint64_t> bytes{0};                 ///< of all buffers
  std::atomic<int64_t> called{0}, returned{0};    ///< ticksNow(); 0: not yet
  std::atomic<int64_t> begun{0}, done{0};         ///< of its operations, on streams of hosts
  std::atomic<uint32_t> operations{0}, ended{0};  ///< on hosts
  std::atomic<bool> failed{false};
  std::atomic<uint32_t> count{0};  ///< of values
  std::array<std::atomic<const char*>, kMostValues> names{};
  std::array<std::atomic<int64_t>, kMostValues> values{};
  std::array<std::atomic<NamedValue::Kind>, kMostValues> kinds{};  ///< of values
};

/// An operation's place in the record, which other calls may have taken since.
struct CallReference {
  CallRecord* record = nullptr;
  uint64_t number = 0;
  bool timed = false;  ///< else it begins with the call and ends with it

  void begin() const noexcept;
  void end() const noexcept;
};

class CallLog {
 public:
  static constexpr size_t kCalls = 1024;

  CallLog();

  /// Says whose record this is; `id` is the same on all ranks of the communicator. Reads SEQPAR_TRACE_FILE, which may
  /// have %r (rank), %c (the communicator), %p (process), %h (host) and %%; anything else after % is InvalidUsage.
  void identify(uint64_t id, int rank, int size);
  /// As 16 hexadecimal digits.
  std::string id() const;

  /// The call that the thread is in is one that all ranks make, with these values.
  void collective(const char* call, std::span<const NamedValue> values) noexcept;
  /// The call that the thread is in begins an operation.
  CallReference operation(const char* call, bool onStream) noexcept;

  /// What has been recorded, as JSON; `reason` says why.
  std::string json(const std::string& reason) const;
  /// Writes json() to the file, if there is one. Complains in the log.
  void write(const std::string& reason) noexcept;

 private:
  friend class CallScope;
  CallRecord& open(const char* call) noexcept;

  std::unique_ptr<std::array<CallRecord, kCalls>> records_;
  std::atomic<uint64_t> last_{0}, lastCollective_{0};
  uint64_t id_ = 0;
  int rank_ = 0, size_ = 0;
  std::string path_;
  std::mutex writing_;
};

/// A thread's stay inside a call on a communicator.
class CallScope {
 public:
  CallScope(CallLog& log, const char* call) noexcept;
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;
  /// Ends the record; in words, what it was.
  ~CallScope();

  /// Of the call that the thread is in, if any.
  static void addBytes(size_t bytes) noexcept;
  static void setAlgorithm(const char* name) noexcept;
  /// In words, what the thread's latest call was about, if SEQPAR_DEBUG is TRACE; "" if nothing was recorded. Forgets
  /// it.
  static std::string takeDescription();

 private:
  friend class CallLog;

  CallScope* outer_;
  CallLog& log_;
  const char* call_;
  CallRecord* record_ = nullptr;
  uint64_t bytes_ = 0;
  const char* algorithm_ = nullptr;
  int exceptions_;
  bool marked_ = false;
};

}  // namespace seqpar
