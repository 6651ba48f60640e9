// Loops of the delta rule over dense fp32 rows.
#pragma once

#include <cstddef>

namespace seqpar::attn::linear {

/// Divides each row by sqrt(its sum of squares + 1e-6); inverse[t] = the reciprocal of that root.
void normalizeRows(size_t rows, size_t columns, float* x, float* inverse);

/// The adjoint of normalizeRows() times `factor`: y are the normalized rows, dx in: their gradients, out: those of the
/// rows before. y is given times `scaleOfY`.
void normalizedGradients(size_t rows, size_t columns, const float* y, float scaleOfY, const float* inverse,
                         float factor, float* dx);

/// y[rows][columns] = v - y in the first dv columns, -y in the others; v is [rows][dv].
void subtractFrom(const float* v, size_t rows, size_t dv, size_t columns, float* y);

/// to[t][i] = factor[t] from[t][i].
void scaleRows(const float* factor, size_t rows, size_t columns, const float* from, float* to);
/// to[t][i] = -factor[t] from[t][i].
void negateScaledRows(const float* factor, size_t rows, size_t columns, const float* from, float* to);

/// lower[i][j] = -factor[i] m[i][j] for j < i, else 0; rows at a stride. `lower` may be m.
void negateScaledLower(const float* factor, size_t rows, size_t stride, const float* m, float* lower);

/// sums[t] = sum over i of x[t][i] y[t][i].
void rowDots(const float* x, const float* y, size_t rows, size_t columns, size_t stride, float* sums);

/// Solves (I - N) D = X in place, N being strictly lower triangular at a stride of kChunk: forward substitution in
/// blocks. If an element of N is 0, its row of D counts as 0 there, including NaN and infinity.
void solveLower(const float* n, size_t rows, size_t columns, float* x);
/// The same with the transpose of N.
void solveLowerTransposed(const float* n, size_t rows, size_t columns, float* x);

}  // namespace seqpar::attn::linear
