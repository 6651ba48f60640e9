/* Gated linear attention of two tokens in one process, in numbers that are exact. */
#include <math.h>
#include <seqpar/attn.h>
#include <stdio.h>

int main(void) {
  /* [batch 1][tokens 2][heads 1][dk 2], and dv 1. The decay before the second token is 1, that is logDecay 0. */
  const float q[4] = {1.f, 0.f, 1.f, 2.f}, k[4] = {1.f, 1.f, 2.f, 0.f}, v[2] = {3.f, 5.f}, logDecay[4] = {0.f};
  float out[2] = {NAN, NAN};
  seqparGlaParams_t params = SEQPAR_GLA_PARAMS_INITIALIZER;
  params.tokens = 2;
  params.dk = 2;
  params.dv = 1;
  params.scale = 1.f;
  if (seqparGlaForward(q, k, v, logDecay, NULL, out, NULL, NULL, &params, NULL, NULL) != seqparSuccess) {
    fprintf(stderr, "seqparGlaForward: %s\n", seqparAttnGetLastError());
    return 1;
  }
  /* S_1 = (3, 3), S_2 = (13, 3): o_1 = 3, o_2 = 13 + 2 * 3. */
  if (out[0] != 3.f || out[1] != 19.f) {
    fprintf(stderr, "got %g and %g, expected 3 and 19\n", out[0], out[1]);
    return 1;
  }
  printf("attn consumer: ok\n");
  return 0;
}
