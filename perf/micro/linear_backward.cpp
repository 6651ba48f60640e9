// micro_linear_backward: the backward kernels of linear attention on one GPU, pass by pass, for segments of several
// lengths.
#include "kernels/attn/linear/pairs.h"
#include "kernels/attn/linear/sequence.h"
#include "linear_case.h"

namespace seqpar::perf {
namespace {

void measureSegments(LinearCase& mine, int64_t tokens, void* stream) {
  const attn::LinearProblem& problem = mine.problem();
  const attn::Segments segments{static_cast<int>((problem.tokens + tokens - 1) / tokens), tokens};
  attn::SegmentStates forward{problem, segments, {0, problem.heads}, mine.maps(segments)};
  forward.content = attn::fastestMaps(problem, segments);
  LinearCase::must(attn::launchSegmentStates(forward, {stream, 0}), "launchSegmentStates");
  attn::SegmentStateGradients states;
  states.problem = problem;
  states.segments = segments;
  states.heads = forward.heads;
  states.dOut = mine.drawn();
  states.maps = mine.maps(segments);
  states.content = forward.content;
  attn::Gradients gradients;
  gradients.problem = problem;
  gradients.segments = segments;
  gradients.heads = forward.heads;
  gradients.dOut = states.dOut;
  gradients.before = forward.maps;
  gradients.after = states.maps;
  gradients.content = forward.content;
  gradients.dq = mine.output();
  gradients.dk = mine.output();
  gradients.dv = mine.output();
  if (problem.gate != attn::Gate::None) gradients.dGates.data = mine.take(mine.gateBytes());
  gradients.dGates = {gradients.dGates.data, problem.gates.batch, problem.gates.token, problem.gates.head};
  gradients.dGateType = problem.gateType;
  gradients.workspace = mine.take(attn::gradientsWorkspaceSize(problem, segments, attn::gradientsJoinHeads(problem)));
  mine.measure(
      segments,
      {{"states", mine.numbers() * 4 + mine.gateBytes(),
        [=] {
          LinearCase::must(attn::launchSegmentStateGradients(states, {stream, 0}), "launchSegmentStateGradients");
        }},
       {"gradients", mine.numbers() * 14 + 2 * mine.gateBytes(), [=] {
          auto sequence = attn::LaunchSequence::after(attn::recordOf(forward));
          LinearCase::must(attn::launchGradients(gradients, {stream, 0, &sequence}), "launchGradients");
        }}});
}

void measure(LinearCase& mine, void* stream) {
  if (mine.shape().dimension > 128) return;  // no kernels
  for (const int64_t tokens : {512, 1024, 2048}) measureSegments(mine, tokens, stream);
}

}  // namespace
}  // namespace seqpar::perf

int main(int argc, char** argv) {
  using namespace seqpar::perf;
  return runProgram(
      linearProgram("micro_linear_backward",
                    "The backward kernels of linear attention, bf16, batch 1: pass 1 (states) and pass 3\n"
                    "(gradients), as ranks that exchange nothing have them. A size is that of inputs and\n"
                    "outputs, each once; -G as kernels follow each other in a CUDA graph.",
                    measure),
      argc, argv);
}
