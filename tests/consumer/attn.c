/* Gated linear attention of two tokens in one process, with exact values. */
#include <math.h>
#include <seqpar/attn.h>
#include <stdio.h>

static int failed(const char* call, seqparResult_t result) {
  if (result != seqparSuccess) fprintf(stderr, "%s: %s\n", call, seqparAttnGetLastError());
  return result != seqparSuccess;
}

int main(void) {
  /* [batch 1][tokens 2][heads 1][headDim 2], and valueDim 1. The decay before the second token is 1: its logarithm 0.
   */
  float q[4] = {1.f, 0.f, 1.f, 2.f}, k[4] = {1.f, 1.f, 2.f, 0.f}, v[2] = {3.f, 5.f}, gate[4] = {0.f};
  float out[2] = {NAN, NAN};
  seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
  seqparAttnForwardArgs_t args = SEQPAR_ATTN_FORWARD_INITIALIZER;
  seqparAttnPlan_t plan = NULL;
  desc.family = seqparAttnGla;
  desc.tokens = 2;
  desc.headDim = 2;
  desc.valueDim = 1;
  desc.scale = 1.f;
  desc.training = 0;
  args.q.data = q;
  args.k.data = k;
  args.v.data = v;
  args.gates[0].data = gate;
  args.out.data = out;
  if (failed("create", seqparAttnPlanCreate(&plan, &desc, NULL)) ||
      failed("prepare", seqparAttnPlanPrepare(plan, NULL, 0)) ||
      failed("forward", seqparAttnForward(plan, &args, NULL)) || failed("destroy", seqparAttnPlanDestroy(plan))) {
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
