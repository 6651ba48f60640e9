// Gated linear attention inside one chunk of one head: what is not a plain matrix product. All arrays are fp32 and
// dense, [rows][dk] unless said otherwise.
//
// Decays act as running products of factors exp(logDecay) <= 1, each made once. A product of such factors can only
// underflow to 0 where the whole does, it never overflows, and a factor of exactly 0 is
// special only where it meets a state that may be NaN or infinite. No quotient
// of products is formed: exp(-sum) overflows at a mean logarithm of -1.39 over a chunk.
#pragma once

#include <cstddef>

namespace seqpar::attn {

constexpr size_t kChunk = 64;     ///< tokens that are handled by matrix products
constexpr size_t kSubBlock = 16;  ///< tokens whose mutual scores are computed one by one

/// Adds the logarithms of `rows` tokens to sums[dk].
void addLogDecays(const float* logDecay, size_t rows, size_t dk, double* sums);

/// factors[i] = exp(logarithms[i]); -inf gives 0. May be the same array.
void exponentiate(const float* logarithms, size_t count, float* factors);

/// k_t *= the decays of all tokens after t. product[dk] = the decay over all rows.
void decayKeysToEnd(const float* decay, size_t rows, size_t dk, float* k, float* product);

/// q_t *= the decays of the first token to t, t included. product[dk] = the decay over all rows.
void decayQueriesFromStart(const float* decay, size_t rows, size_t dk, float* q, float* product);

/// scores[i * kChunk + j] = sum over d of q_i[d] k_j[d] (decays of j + 1 ... i), and 0 for j > i; rows <= kChunk. Then
/// k and product are as decayKeysToEnd() leaves them. `scratch` has (kSubBlock + 1) * dk numbers.
void scoresOfChunk(const float* q, const float* decay, size_t rows, size_t dk, float* k, float* product, float* scores,
                   float* scratch);

bool allFinite(const float* numbers, size_t count);

/// out[rows][dv] += q_t row[dv] until the product of the decays is 0, which forgets the row whatever it holds. One
/// column of [rows][dk] arrays: `decay`, and `q` as decayQueriesFromStart() leaves it.
void addRow(const float* decay, const float* q, const float* row, size_t rows, size_t dk, size_t dv, float* out);

/// state[dk][dv] = diag(factor) from[dk][dv]; may be the same array. Rows whose factor is 0 become 0.
void scaleState(const float* factor, const float* from, size_t dk, size_t dv, float* state);

/// state[dk][dv] += diag(factor) incoming[dk][dv]. Rows whose factor is 0 stay as they are.
void addDecayedState(const float* factor, const float* incoming, size_t dk, size_t dv, float* state);

}  // namespace seqpar::attn
