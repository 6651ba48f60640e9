#include "comm/outer_call.h"

#include <optional>
#include <utility>

#include "base/current_call.h"
#include "base/error.h"
#include "base/thread_object.h"

namespace seqpar {
namespace {

struct Inside {
  std::shared_ptr<OuterCall> call;
  std::optional<CurrentCall> name;
};

Inside& inside() {
  return ofThread<Inside>();
}

}  // namespace

void OuterCall::begin(const Communicator* comm, const char* name, uint16_t digest) {
  end();
  inside().call = std::make_shared<OuterCall>(comm, name, digest);
  on_ = comm;
}

void OuterCall::nameThread() {
  if (inside().call) inside().name.emplace(inside().call->name_);
}

void OuterCall::end() noexcept {
  on_ = nullptr;
  inside().name.reset();
  inside().call.reset();
}

std::shared_ptr<OuterCall> OuterCall::held() {
  return inside().call;
}

OuterCall::Outside::Outside() noexcept : call_(std::move(inside().call)), named_(inside().name.has_value()) {
  end();
}

OuterCall::Outside::~Outside() {
  end();
  inside().call = std::move(call_);
  if (inside().call) on_ = inside().call->comm_;
  if (named_) nameThread();
}

std::string OuterCall::nameOf(const std::string& operation) const {
  return operation == name_ ? operation : concat(name_, " (", operation, ")");
}

std::string OuterCall::differences(const Comparison* comparison, Mailbox& mail) {
  if (!refusal_.empty() || comparison == nullptr) return refusal_;
  std::string found = seqpar::differences(comparison, mail);
  if (!compared_) refusal_ = found;
  compared_ = true;
  return found;
}

}  // namespace seqpar
