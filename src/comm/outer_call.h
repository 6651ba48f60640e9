// A call of a library on top of this one. It consists of calls of this library.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/thread_variable.h"
#include "comm/agreement.h"

namespace seqpar {

class Communicator;

/// Shared by the operations that the call enqueues. They run one after the other, in equal order on all ranks.
class OuterCall {
 public:
  /// Until end(), the calling thread's calls on `comm` are parts of `name`, which must stay valid. Replaces an outer
  /// call that was not ended. `digest`: digestOf() the call.
  static void begin(const Communicator* comm, const char* name, uint16_t digest);
  /// Lets error texts of the thread's calls name the outer call. To be called outside of a call.
  static void nameThread();
  static void end() noexcept;
  /// The calling thread's outer call if it is on `comm`; else null.
  static std::shared_ptr<OuterCall> current(const Communicator* comm) { return isOn(comm) ? held() : nullptr; }
  /// current(comm) != nullptr.
  static bool isOn(const Communicator* comm) noexcept { return on_ == comm; }

  /// While it exists, the thread has no outer call.
  class Outside {
   public:
    Outside() noexcept;
    Outside(const Outside&) = delete;
    Outside& operator=(const Outside&) = delete;
    ~Outside();

   private:
    std::shared_ptr<OuterCall> call_;
    bool named_;
  };

  OuterCall(const Communicator* comm, const char* name, uint16_t digest) : comm_(comm), name_(name), digest_(digest) {}

  uint16_t digest() const { return digest_; }

  /// The name of an operation in error texts.
  std::string nameOf(const std::string& operation) const;
  /// The differences between the ranks. The first operation compares the outer call itself: after a difference there,
  /// all parts are refused with its text, on all ranks.
  std::string differences(const Comparison* comparison, Mailbox& mail);

 private:
  static std::shared_ptr<OuterCall> held();
  /// The communicator of the calling thread's outer call; null: none.
  SEQPAR_THREAD_VARIABLE static inline thread_local constinit const Communicator* on_ = nullptr;

  const Communicator* comm_;
  const char* name_;
  uint16_t digest_;
  bool compared_ = false;
  std::string refusal_;
};

/// "" if there is nothing to compare.
inline std::string differences(const Comparison* comparison, Mailbox& mail) {
  return comparison == nullptr ? std::string() : comparison->differences(mail);
}

}  // namespace seqpar
