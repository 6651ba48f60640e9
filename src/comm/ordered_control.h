// A control plane that runs its collective calls one after the other on a separate thread, some without waiting.
#pragma once

#include <memory>
#include <string>

#include "base/health.h"
#include "bootstrap/control.h"
#include "comm/agreement.h"
#include "comm/stream.h"

namespace seqpar {

/// All ranks must issue equal calls in equal order; after compareLater(), a rank may already wait for the ranks in
/// another communicator.
class OrderedControl final : public Control {
 public:
  OrderedControl(std::unique_ptr<Control> control, Health& health) : control_(std::move(control)), health_(health) {}

  int rank() const override { return control_->rank(); }
  int size() const override { return control_->size(); }
  std::optional<Token> secret() const override { return control_->secret(); }
  void gather(std::span<const std::byte> mine, std::span<std::byte> all) override;
  void announce(const std::string& why) noexcept override { control_->announce(why); }
  void leave() override;
  void report(const CallChain& chain) noexcept override { control_->report(chain); }
  void countCall() noexcept override { control_->countCall(); }
  void nextCall() noexcept override { control_->nextCall(); }
  void communicate() noexcept override { control_->communicate(); }
  void refuseCall(const std::string& why) override { control_->refuseCall(why); }
  std::string behind() override { return control_->behind(); }

  /// Compares without waiting. A difference fails Health with InvalidUsage.
  void compareLater(const Comparison& comparison);

 private:
  std::unique_ptr<Control> control_;
  Health& health_;
  HostStream calls_;  ///< destroyed first: its work uses the members above
};

}  // namespace seqpar
