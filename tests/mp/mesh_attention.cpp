#include "mesh_attention.h"

#include <cmath>
#include <limits>
#include <random>

namespace seqpar::test {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

std::size_t at(int token, int heads, int head, int length) {
  return (static_cast<std::size_t>(token) * static_cast<std::size_t>(heads) + static_cast<std::size_t>(head)) *
         static_cast<std::size_t>(length);
}

template <typename Sum>
Sum dot(const float* a, const float* b, int length) {
  Sum sum = 0;
  for (int i = 0; i < length; ++i) sum += static_cast<Sum>(a[i]) * static_cast<Sum>(b[i]);
  return sum;
}

/// One query's attention to the keys of one block: adds exp(score) to `weight` and exp(score) v to `sum`.
void attendRow(const MeshAttention& m, const float* q, int queryRank, int query, int head, const float* k,
               const float* v, int keyRank, double& weight, std::vector<double>& sum) {
  const int kvHead = m.kvHeadOf(head);
  for (int key = 0; key < m.tokensOf(keyRank); ++key) {
    if (!m.sees(queryRank, query, keyRank, key)) continue;
    const double e = std::exp(dot<double>(q, k + at(key, m.kvHeads, kvHead, m.dk), m.dk));
    const float* const value = v + at(key, m.kvHeads, kvHead, m.dv);
    weight += e;
    for (int i = 0; i < m.dv; ++i) sum[static_cast<std::size_t>(i)] += e * static_cast<double>(value[i]);
  }
}

}  // namespace

int rowLength(const MeshAttention& m, Tensor tensor) {
  switch (tensor) {
    case Tensor::Q:
      return m.heads * m.dk;
    case Tensor::K:
      return m.kvHeads * m.dk;
    case Tensor::V:
      return m.kvHeads * m.dv;
    default:
      return m.heads * m.dv;
  }
}

Vector<float> blockOf(const MeshAttention& m, Tensor tensor, int rank) {
  std::mt19937_64 random(m.seed * 31 + static_cast<std::uint64_t>(rank) * 4 + static_cast<std::uint64_t>(tensor));
  Vector<float> block(static_cast<std::size_t>(m.tokensOf(rank) * rowLength(m, tensor)));
  for (float& value : block) {
    value = m.integers ? static_cast<float>(random() % 3) - 1 : static_cast<float>(random() % 2001) / 1000 - 1;
    if (!m.integers && tensor == Tensor::Q) value /= static_cast<float>(m.dk);
  }
  return block;
}

Outputs noOutputs(const MeshAttention& m, int rank) {
  const auto rows = static_cast<std::size_t>(m.tokensOf(rank) * m.heads);
  return {Vector<float>(rows * static_cast<std::size_t>(m.dv), std::numeric_limits<float>::quiet_NaN()),
          Vector<float>(rows, kNothing)};
}

void attend(const MeshAttention& m, const float* q, int queryRank, const float* k, const float* v, int keyRank,
            Outputs& outputs) {
  const int tokens = m.tokensOf(queryRank);
  for (int query = 0; query < tokens; ++query) {
    for (int head = 0; head < m.heads; ++head) {
      double weight = 0;
      std::vector<double> sum(static_cast<std::size_t>(m.dv), 0);
      attendRow(m, q + at(query, m.heads, head, m.dk), queryRank, query, head, k, v, keyRank, weight, sum);
      if (weight == 0) continue;
      float& lse = outputs.lse[static_cast<std::size_t>(head * tokens + query)];
      const double before = lse == kNothing ? 0 : std::exp(static_cast<double>(lse));
      float* const row = outputs.o.data() + at(query, m.heads, head, m.dv);
      for (int i = 0; i < m.dv; ++i) {
        const double old = before == 0 ? 0 : before * static_cast<double>(row[i]);
        row[i] = static_cast<float>((old + sum[static_cast<std::size_t>(i)]) / (before + weight));
      }
      lse = static_cast<float>(std::log(before + weight));
    }
  }
}

Outputs referenceOutputs(const MeshAttention& m, int rank) {
  Outputs outputs = noOutputs(m, rank);
  const auto q = blockOf(m, Tensor::Q, rank);
  const int tokens = m.tokensOf(rank);
  std::vector<Vector<float>> k, v;
  for (int r = 0; r < m.ranks(); ++r) {
    k.push_back(blockOf(m, Tensor::K, r));
    v.push_back(blockOf(m, Tensor::V, r));
  }
  for (int query = 0; query < tokens; ++query) {
    for (int head = 0; head < m.heads; ++head) {
      double weight = 0;
      std::vector<double> sum(static_cast<std::size_t>(m.dv), 0);
      for (int r = 0; r < m.ranks(); ++r) {
        const auto block = static_cast<std::size_t>(r);
        attendRow(m, q.data() + at(query, m.heads, head, m.dk), rank, query, head, k[block].data(), v[block].data(), r,
                  weight, sum);
      }
      outputs.lse[static_cast<std::size_t>(head * tokens + query)] = static_cast<float>(std::log(weight));
      for (int i = 0; i < m.dv; ++i) {
        outputs.o[at(query, m.heads, head, m.dv) + static_cast<std::size_t>(i)] =
            static_cast<float>(sum[static_cast<std::size_t>(i)] / weight);
      }
    }
  }
  return outputs;
}

void addGradients(const MeshAttention& m, const float* q, const float* dO, int queryRank, const float* k,
                  const float* v, int keyRank, float* dq, float* dk, float* dv) {
  for (int query = 0; query < m.tokensOf(queryRank); ++query) {
    for (int head = 0; head < m.heads; ++head) {
      const auto ofQ = at(query, m.heads, head, m.dk);
      const auto ofO = at(query, m.heads, head, m.dv);
      for (int key = 0; key < m.tokensOf(keyRank); ++key) {
        if (!m.sees(queryRank, query, keyRank, key)) continue;
        const auto ofK = at(key, m.kvHeads, m.kvHeadOf(head), m.dk);
        const auto ofV = at(key, m.kvHeads, m.kvHeadOf(head), m.dv);
        const float score = dot<float>(q + ofQ, k + ofK, m.dk);
        const float dScore = dot<float>(dO + ofO, v + ofV, m.dv);
        for (int i = 0; i < m.dk; ++i) {
          dq[ofQ + static_cast<std::size_t>(i)] += dScore * k[ofK + static_cast<std::size_t>(i)];
          dk[ofK + static_cast<std::size_t>(i)] += dScore * q[ofQ + static_cast<std::size_t>(i)];
        }
        for (int i = 0; i < m.dv; ++i) {
          dv[ofV + static_cast<std::size_t>(i)] += score * dO[ofO + static_cast<std::size_t>(i)];
        }
      }
    }
  }
}

Gradients referenceGradients(const MeshAttention& m, int rank) {
  const auto q = blockOf(m, Tensor::Q, rank), dO = blockOf(m, Tensor::Do, rank);
  const auto k = blockOf(m, Tensor::K, rank), v = blockOf(m, Tensor::V, rank);
  Gradients result{Vector<float>(q.size(), 0), Vector<float>(k.size(), 0), Vector<float>(v.size(), 0)};
  for (int r = 0; r < m.ranks(); ++r) {
    const auto otherQ = blockOf(m, Tensor::Q, r), otherDo = blockOf(m, Tensor::Do, r);
    const auto otherK = blockOf(m, Tensor::K, r), otherV = blockOf(m, Tensor::V, r);
    Vector<float> dqOfOther(otherQ.size(), 0), dkOfOther(otherK.size(), 0), dvOfOther(otherV.size(), 0);
    addGradients(m, q.data(), dO.data(), rank, otherK.data(), otherV.data(), r, result.dq.data(), dkOfOther.data(),
                 dvOfOther.data());
    addGradients(m, otherQ.data(), otherDo.data(), r, k.data(), v.data(), rank, dqOfOther.data(), result.dk.data(),
                 result.dv.data());
  }
  return result;
}

}  // namespace seqpar::test
