#include "scan/fold.h"

#include <cstring>

namespace seqpar {

Fold::Fold(Affine& affine, Block block)
    : affine_(&affine), block_(block), state_(affine.stateElements(block) * sizeof(float)) {}

void Fold::start(const float* coefficients, Values state) {
  absolute_ = coefficients == nullptr;
  if (!absolute_) {
    const size_t bytes = affine_->coefficientElements(block_) * sizeof(float);
    if (!coefficients_) coefficients_.emplace(bytes);
    std::memcpy(coefficients_->data(), coefficients, bytes);
  }
  affine_->convert(block_, state, state_.data(), seqparFloat32);
}

void Fold::then(const float* coefficients, Values state) {
  float* const mine = absolute_ ? nullptr : reinterpret_cast<float*>(coefficients_->data());
  affine_->compose(block_, coefficients, state, mine, reinterpret_cast<float*>(state_.data()));
}

void Fold::write(const MapLayout& layout, Target message) const {
  if (!absolute_) {
    std::memcpy(layout.coefficients(message.data), coefficients_->data(),
                affine_->coefficientElements(block_) * sizeof(float));
  }
  affine_->convert(block_, state(), layout.state(message), layout.wireType());
}

}  // namespace seqpar
