// Converts the bytes of a text to the inputs of gated linear attention, by fixed tables that are equal on all ranks.
#pragma once

#include <cmath>
#include <cstddef>
#include <random>
#include <span>
#include <vector>

struct Shape {
  size_t heads = 4, dk = 64, dv = 64;
};

/// Queries, keys, values and log-decays of some tokens, in the layout of a plan for gated linear attention.
struct Inputs {
  std::vector<float> q, k, v, logDecay;
};

/// Embeds a byte as a random vector and projects it by random matrices. A token's inputs depend on its byte
/// only, so the projections are computed once for each of the 256 bytes.
class Embedding {
 public:
  explicit Embedding(Shape shape) {
    std::mt19937 random(20240917);
    const auto table = draw(random, kBytes * kModel);
    q_ = project(table, draw(random, kModel * shape.heads * shape.dk));
    k_ = project(table, draw(random, kModel * shape.heads * shape.dk));
    v_ = project(table, draw(random, kModel * shape.heads * shape.dv));
    logDecay_ = project(table, draw(random, kModel * shape.heads * shape.dk));
    outputGradient_ = project(table, draw(random, kModel * shape.heads * shape.dv));
    // GLA's gate: the sixteenth root of a sigmoid, given as its logarithm.
    for (auto& gate : logDecay_) gate = -std::log1p(std::exp(-gate)) / 16.0f;
  }

  Inputs operator()(std::span<const unsigned char> text) const {
    return {look(text, q_), look(text, k_), look(text, v_), look(text, logDecay_)};
  }
  /// A synthetic gradient of the outputs, which also depends on the byte.
  std::vector<float> outputGradients(std::span<const unsigned char> text) const { return look(text, outputGradient_); }

 private:
  static constexpr size_t kBytes = 256, kModel = 64;

  /// Values of variance 1, from the generator directly, because distributions differ between standard libraries.
  static std::vector<float> draw(std::mt19937& random, size_t count) {
    std::vector<float> numbers(count);
    for (auto& number : numbers) number = (static_cast<float>(random() >> 8) * 0x1p-23f - 1.0f) * 1.7320508f;
    return numbers;
  }

  static std::vector<float> project(const std::vector<float>& table, const std::vector<float>& matrix) {
    const size_t width = matrix.size() / kModel;
    std::vector<float> rows(kBytes * width, 0.0f);
    for (size_t byte = 0; byte < kBytes; ++byte) {
      for (size_t i = 0; i < kModel; ++i) {
        const float weight = table[byte * kModel + i] / std::sqrt(static_cast<float>(kModel));
        for (size_t j = 0; j < width; ++j) rows[byte * width + j] += weight * matrix[i * width + j];
      }
    }
    return rows;
  }

  static std::vector<float> look(std::span<const unsigned char> text, const std::vector<float>& rows) {
    const size_t width = rows.size() / kBytes;
    std::vector<float> numbers;
    numbers.reserve(text.size() * width);
    for (const auto byte : text) {
      const auto row = std::span(rows).subspan(byte * width, width);
      numbers.insert(numbers.end(), row.begin(), row.end());
    }
    return numbers;
  }

  std::vector<float> q_, k_, v_, logDecay_, outputGradient_;
};
