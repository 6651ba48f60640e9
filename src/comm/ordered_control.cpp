#include "comm/ordered_control.h"

#include "base/current_call.h"

namespace seqpar {

void OrderedControl::gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  calls_.enqueue([=, this, call = CurrentCall::name()] {
    const CurrentCall current(call);
    control_->gather(mine, all);
  });
  calls_.synchronize();
}

void OrderedControl::leave() {
  calls_.enqueue([this, call = CurrentCall::name()] {
    const CurrentCall current(call);
    control_->leave();
  });
  calls_.synchronize();
}

void OrderedControl::compareLater(const Comparison& comparison) {
  calls_.enqueue([this, comparison] {
    const CurrentCall current(comparison.call());
    try {
      const std::string text = comparison.differences(*control_);
      if (!text.empty()) health_.fail(seqparInvalidUsage, text);
    } catch (const Error& error) {
      health_.fail(error.result(), error.what());
    }
  });
}

}  // namespace seqpar
