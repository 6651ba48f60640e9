#include "attn/short_conv/kernels.h"

#include <algorithm>

#include "attn/linear/host/vector.h"
#include "base/convert.h"

namespace seqpar::attn::short_conv {
namespace {

/// The state of one block of channels: tiles of tokens in fp32, [token][kChannels].
class Block {
 public:
  Block(const Shape& shape, const Arrays& arrays, size_t block, float* scratch)
      : shape_(shape),
        arrays_(arrays),
        first_(block * kChannels),
        count_(std::min(kChannels, shape.channels - first_)) {
    const auto take = [&](size_t rows) {
      float* const piece = scratch;
      scratch += rows * kChannels;
      return piece;
    };
    x_ = take(kTokens + 2 * shape.halo());
    z_ = take(kTokens + shape.halo());
    dz_ = take(kTokens + shape.halo());
    sigmoid_ = take(1);
    weights_ = take(shape.width);
    bias_ = take(1);
    dWeights_ = take(shape.width);
    dBias_ = take(1);
    loadWeights();
  }

  /// Loads tokens first ... last - 1 and the halo before them into x_.
  void loadInputs(size_t b, size_t first, size_t last) {
    const size_t halo = shape_.halo(), bytes = sizeOf(shape_.type);
    for (size_t row = 0; row < last - first + halo; ++row) {
      const size_t place = first + row;  // the token's index, counted from the halo's first token
      const bool outside = place < halo;
      const auto* const from = static_cast<const std::byte*>(outside ? arrays_.left : arrays_.x);
      const size_t token = outside ? b * halo + place : b * shape_.tokens + place - halo;
      toFloat(from + (token * shape_.channels + first_) * bytes, shape_.type, x_ + row * kChannels, count_);
    }
  }

  /// z of `rows` tokens from `first` on; x_ holds the halo followed by their inputs.
  void convolve(size_t first, size_t rows) {
    for (size_t t = 0; t < rows; ++t) {
      float* const z = z_ + t * kChannels;
      std::copy_n(bias_, count_, z);
      for (size_t j = 0; j <= shape_.before[first + t]; ++j) {
        multiplyAdd(weightOf(j), x_ + (t + shape_.halo() - j) * kChannels, z);
      }
    }
  }

  void storeOutputs(size_t b, size_t first, size_t rows) {
    for (size_t t = 0; t < rows; ++t) {
      float* const z = z_ + t * kChannels;
      if (shape_.silu) linear::silu(z, count_, sigmoid_);
      fromFloat(z, out(arrays_.y, b, first + t), shape_.type, count_);
    }
  }

  /// Gradients of z of `rows` tokens from `first` on, into dz_; after convolve().
  void differentiate(size_t b, size_t first, size_t rows) {
    for (size_t t = 0; t < rows; ++t) {
      const float* const z = z_ + t * kChannels;
      float* const dz = dz_ + t * kChannels;
      toFloat(in(arrays_.dy, b, first + t), shape_.type, dz, count_);
      if (shape_.silu) linear::multiplySiluSlope(z, count_, dz, sigmoid_);
    }
  }

  void storeEdge(size_t b, float* edge) const {
    for (size_t t = 0; t < shape_.edge(); ++t) {
      std::copy_n(dz_ + t * kChannels, count_, edge + (b * shape_.edge() + t) * shape_.channels + first_);
    }
  }

  /// Gradients of z of the tokens after the shard, into dz_ after `rows`.
  void loadRight(size_t b, size_t rows, size_t halos) {
    for (size_t t = 0; t < halos; ++t) {
      std::copy_n(arrays_.right + (b * shape_.halo() + t) * shape_.channels + first_, count_,
                  dz_ + (rows + t) * kChannels);
    }
  }

  void addWeightGradients(size_t first, size_t rows) {
    for (size_t t = 0; t < rows; ++t) {
      const float* const dz = dz_ + t * kChannels;
      linear::add(dz, count_, dBias_);
      for (size_t j = 0; j <= shape_.before[first + t]; ++j) {
        multiplyAdd(dz, x_ + (t + shape_.halo() - j) * kChannels, dWeights_ + (shape_.halo() - j) * kChannels);
      }
    }
  }

  void storeInputGradients(size_t b, size_t first, size_t rows) {
    for (size_t t = 0; t < rows; ++t) {
      float* const dx = z_ + t * kChannels;  // reuses z's memory
      std::fill_n(dx, count_, 0.0f);
      for (size_t j = 0; j <= shape_.behind[first + t]; ++j) multiplyAdd(weightOf(j), dz_ + (t + j) * kChannels, dx);
      fromFloat(dx, out(arrays_.dx, b, first + t), shape_.type, count_);
    }
  }

  void clearWeightGradients() {
    std::fill_n(dWeights_, shape_.width * kChannels, 0.0f);
    std::fill_n(dBias_, kChannels, 0.0f);
  }
  void storeWeightGradients() const {
    for (size_t c = 0; c < count_ && arrays_.dWeight != nullptr; ++c) {
      for (size_t i = 0; i < shape_.width; ++i) {
        arrays_.dWeight[(first_ + c) * shape_.width + i] = dWeights_[i * kChannels + c];
      }
    }
    if (arrays_.dBias != nullptr) std::copy_n(dBias_, count_, arrays_.dBias + first_);
  }

 private:
  /// Weights of the j-th token before the current one.
  const float* weightOf(size_t j) const { return weights_ + (shape_.halo() - j) * kChannels; }

  size_t bytesTo(size_t b, size_t token) const {
    return ((b * shape_.tokens + token) * shape_.channels + first_) * sizeOf(shape_.type);
  }
  const void* in(const void* array, size_t b, size_t token) const {
    return static_cast<const std::byte*>(array) + bytesTo(b, token);
  }
  void* out(void* array, size_t b, size_t token) const { return static_cast<std::byte*>(array) + bytesTo(b, token); }

  void multiplyAdd(const float* a, const float* b, float* sum) const { linear::multiplyAdd(a, b, count_, sum); }

  void loadWeights() {
    const auto* const weight = static_cast<const std::byte*>(arrays_.weight);
    const size_t bytes = sizeOf(shape_.weightType);
    float row[256];
    for (size_t c = 0; c < count_; ++c) {
      toFloat(weight + (first_ + c) * shape_.width * bytes, shape_.weightType, row, shape_.width);
      for (size_t i = 0; i < shape_.width; ++i) weights_[i * kChannels + c] = row[i];
    }
    const auto* const bias = static_cast<const std::byte*>(arrays_.bias);
    toFloat(bias == nullptr ? nullptr : bias + first_ * bytes, shape_.weightType, bias_, count_);
  }

  const Shape& shape_;
  const Arrays& arrays_;
  size_t first_, count_;
  float *x_, *z_, *dz_, *sigmoid_, *weights_, *bias_, *dWeights_, *dBias_;
};

}  // namespace

size_t scratchNumbers(const Shape& shape) {
  return (3 * kTokens + 4 * shape.halo() + 2 * shape.width + 3) * kChannels;
}

void forward(const Shape& shape, const Arrays& arrays, size_t block, size_t first, size_t last, float* scratch) {
  Block work(shape, arrays, block, scratch);
  for (size_t b = 0; b < shape.batch; ++b) {
    for (size_t begin = first; begin < last; begin += kTokens) {
      const size_t end = std::min(begin + kTokens, last);
      work.loadInputs(b, begin, end);
      work.convolve(begin, end - begin);
      work.storeOutputs(b, begin, end - begin);
    }
  }
}

void edgeGradients(const Shape& shape, const Arrays& arrays, size_t block, float* edge, float* scratch) {
  Block work(shape, arrays, block, scratch);
  for (size_t b = 0; b < shape.batch; ++b) {
    work.loadInputs(b, 0, shape.edge());
    work.convolve(0, shape.edge());
    work.differentiate(b, 0, shape.edge());
    work.storeEdge(b, edge);
  }
}

void backward(const Shape& shape, const Arrays& arrays, size_t block, float* scratch) {
  Block work(shape, arrays, block, scratch);
  work.clearWeightGradients();
  for (size_t b = 0; b < shape.batch; ++b) {
    for (size_t begin = 0; begin < shape.tokens; begin += kTokens) {
      const size_t end = std::min(begin + kTokens, shape.tokens), rows = end - begin;
      // Gradients of z extend past the tile by the tokens there that read tokens of the tile.
      const size_t reach = std::min(end + shape.halo(), shape.tokens);
      work.loadInputs(b, begin, reach);
      work.convolve(begin, reach - begin);
      work.differentiate(b, begin, reach - begin);
      work.loadRight(b, reach - begin, end + shape.halo() - reach);
      work.addWeightGradients(begin, rows);
      work.storeInputGradients(b, begin, rows);
    }
  }
  work.storeWeightGradients();
}

}  // namespace seqpar::attn::short_conv
