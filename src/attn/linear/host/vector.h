// Loops over dense fp32 arrays: the linear attention passes, except for matrix products.
//
// Decays are applied as running products of factors exp(g) <= 1. A partial product underflows to 0 only if the whole
// product does, it never overflows, and a factor of exactly 0 forgets: the other operand counts as 0, including NaN and
// infinity. No quotient of products is formed: exp(-sum) overflows at a mean logarithm of -1.39 over 64 tokens.
#pragma once

#include <cstddef>

#include "base/sgemm.h"

namespace seqpar::attn::linear {

/// factors[i] = exp(logarithms[i]); -inf gives 0. In-place is allowed.
void exponentiate(const float* logarithms, size_t count, float* factors);
/// The same for rows of logarithms at a stride; `factors` is dense.
void exponentiateRows(const float* logarithms, size_t stride, size_t rows, size_t columns, float* factors);
/// to = factor from.
void scaleTo(float factor, const float* from, size_t count, float* to);

/// Whether no x[i] is NaN or infinite.
bool allFinite(const float* x, size_t count);

/// x[i] *= factor.
void scale(float factor, size_t count, float* x);

/// x[i] += y[i].
void add(const float* y, size_t count, float* x);

/// sum[i] += a[i] b[i].
void multiplyAdd(const float* a, const float* b, size_t count, float* sum);

/// to[t] = from[t] times the decays of rows 0 to t; product[width] = the decay over all rows. decays[rows][width],
/// width being `columns` or 1; from and to are [rows][columns] and may be equal.
void decayFromStart(const float* decays, size_t rows, size_t width, size_t columns, const float* from, float* to,
                    float* product);

/// to[t] = from[t] times the decays of the rows after t; product as in decayFromStart().
void decayToEnd(const float* decays, size_t rows, size_t width, size_t columns, const float* from, float* to,
                float* product);

/// x[t][i] = x[t][i] * factor[i], and 0 if the factor is 0, for t < rows.
void forgetRows(const float* factor, size_t rows, size_t columns, float* x);

/// x[i] = x[i] * factor, and 0 if the factor is 0.
void forgetRow(float factor, size_t columns, float* x);

/// x[t][i] *= factor[i], for t < rows.
void multiplyEach(const float* factor, size_t rows, size_t columns, float* x);

/// to = diag(factor) from, rows of factor 0 being 0. factor[width], width being `rows` or 1; to may be from.
void decayState(const float* factor, size_t width, size_t rows, size_t columns, const float* from, float* to);

/// to = base + diag(factor) from, rows of factor 0 being base's. to may be base.
void addDecayedState(const float* factor, size_t width, size_t rows, size_t columns, const float* base,
                     const float* from, float* to);

/// multiply() (base/sgemm.h), except that a term with a factor of 0 is 0 if the other factor is NaN or infinite.
void multiplyForgetting(size_t rows, size_t columns, size_t inner, Factor a, Factor b, bool accumulate, float* c,
                        size_t strideC);

/// Scores of up to kLeaf rows among themselves: scores[i * stride + j] = sum over d of q_i k_j decays(j + 1 ... i) for
/// j <= i. `scratch` holds dk elements.
void leafScores(const float* q, const float* k, const float* decays, size_t rows, size_t dk, float* scores,
                size_t stride, float* scratch);

/// scores[i * stride + j] = q_i k_j for small blocks of rows.
void blockScores(const float* q, size_t queries, const float* k, size_t keys, size_t dk, float* scores, size_t stride);

/// The adjoint of leafScores(), added to dq and dk after multiplying these with the decays from the leaf's start and to
/// its end. `scratch` holds dk elements.
void leafGradients(const float* q, const float* k, const float* decays, const float* dScores, size_t stride,
                   size_t rows, size_t dk, float* dq, float* dk_, float* scratch);

/// Row t of m[rows][stride] becomes the products of decays j + 1 ... t for j <= t, and 0 for j > t.
void decayMatrix(const float* decays, size_t rows, float* m, size_t stride);

/// x = x * y elementwise, and 0 where y is 0, over rows of `columns` at a stride.
void forgetEach(const float* y, size_t rows, size_t columns, size_t stride, float* x);

/// sums[i] = factor_i * sum over columns of x[i] y[i], 0 where the factor is 0; factor[width] as for decayState().
void decayedRowSums(const float* factor, size_t width, const float* x, const float* y, size_t rows, size_t columns,
                    float* sums);

/// sums[i] += sum over t of x[t][i] y[t][i]; a pair with x = 0 counts as 0.
void addColumnSums(const float* x, const float* y, size_t rows, size_t columns, float* sums);

/// The gradient of logarithms: from the last row to the first, run[i] = 0 where decays[t][i] is 0, else
/// run[i] += q[t][i] dq[t][i] - k[t][i] dk[t][i]; gradient[t] = run.
void gateGradients(const float* decays, const float* q, const float* dq, const float* k, const float* dk, size_t rows,
                   size_t columns, float* run, float* gradient);

/// z[i] = z[i] / (1 + exp(-z[i])). `scratch` holds `count` elements.
void silu(float* z, size_t count, float* scratch);

/// dz[i] *= the derivative of silu() at z[i].
void multiplySiluSlope(const float* z, size_t count, float* dz, float* scratch);

/// Sum of x[i] y[i].
float dot(const float* x, const float* y, size_t count);

}  // namespace seqpar::attn::linear
