/* Causal softmax attention and its gradients over a sequence that is cut into contiguous shards, one a rank. */
#include <pthread.h>
#include <seqpar/attn.h>
#include <stdio.h>

enum { RANKS = 4, LOCAL = 16, HEADS = 2, DIM = 8, SIZE = LOCAL * HEADS * DIM }; /* LOCAL tokens per rank */

static void* rank_main(void* comm) {
  float q[SIZE] = {0}, k[SIZE] = {0}, v[SIZE], out[SIZE], lse[HEADS * LOCAL]; /* [batch][tokens][heads][dim] */
  float d_out[SIZE], dq[SIZE], dk[SIZE], dv[SIZE];
  seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER; /* softmax, fp32, algorithm chosen by the cost model */
  seqparAttnForwardArgs_t forward = SEQPAR_ATTN_FORWARD_INITIALIZER;
  seqparAttnBackwardArgs_t backward = SEQPAR_ATTN_BACKWARD_INITIALIZER;
  seqparLayout_t layout = SEQPAR_LAYOUT_INITIALIZER; /* contiguous */
  seqparAttnPlan_t plan = NULL;
  int rank = -1;
  seqparCommUserRank(comm, &rank);
  for (int i = 0; i < SIZE; ++i) {
    v[i] = (float)(rank * LOCAL + i / (HEADS * DIM)); /* the token's index */
    d_out[i] = 1;
  }
  layout.ranks = RANKS;
  layout.tokens = RANKS * LOCAL;
  desc.layout = &layout;
  desc.batch = 1;
  desc.heads = HEADS;
  desc.headDim = DIM;
  desc.mask = seqparAttnCausal;
  forward.q.data = backward.q.data = q;
  forward.k.data = backward.k.data = k;
  forward.v.data = backward.v.data = v;
  forward.out.data = backward.out.data = out;
  forward.lse = lse;
  backward.lse = lse;
  backward.dOut.data = d_out;
  backward.dq.data = dq;
  backward.dk.data = dk;
  backward.dv.data = dv;
  if (seqparAttnPlanCreate(&plan, &desc, comm) != seqparSuccess || /* once */
      seqparAttnPlanPrepare(plan, NULL, 0) != seqparSuccess ||     /* NULL: the plan allocates its workspace */
      seqparAttnForward(plan, &forward, NULL) != seqparSuccess ||  /* then repeatedly, */
      seqparAttnBackward(plan, &backward, NULL) != seqparSuccess)  /* in the same order on all ranks */
    fprintf(stderr, "rank %d: %s\n", rank, seqparAttnGetLastError());
  else /* zero queries weigh all visible tokens equally */
    printf("rank %d: the mean of the tokens up to my last one is %g; the gradient of my first value %g\n", rank,
           out[SIZE - 1], dv[0]);
  seqparAttnPlanDestroy(plan);
  seqparCommDestroy(comm);
  return NULL;
}

int main(void) {
  seqparComm_t comms[RANKS];
  pthread_t threads[RANKS];
  if (seqparCommInitAll(comms, RANKS, NULL) != seqparSuccess)
    return fprintf(stderr, "%s\n", seqparGetLastError(NULL)), 1;
  for (int r = 0; r < RANKS; ++r) pthread_create(&threads[r], NULL, rank_main, comms[r]);
  for (int r = 0; r < RANKS; ++r) pthread_join(threads[r], NULL);
  return 0;
}
