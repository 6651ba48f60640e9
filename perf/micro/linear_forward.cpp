// micro_linear_forward: the forward kernels of linear attention on one GPU, pass by pass.
#include "kernels/attn/linear/sequence.h"
#include "linear_case.h"

namespace seqpar::perf {
namespace {

void measure(LinearCase& mine, void* stream) {
  const attn::LinearProblem& problem = mine.problem();
  const attn::Segments segments = attn::cutIntoSegments(problem, attn::ctasAtOnce(problem));
  attn::SegmentStates states{problem, segments, {0, problem.heads}, mine.maps(segments)};
  const attn::Maps content = attn::fastestMaps(problem, segments);
  states.content = content;
  attn::SegmentStates rank = states;  // of several ranks: the map of the whole
  const auto heads = static_cast<size_t>(problem.heads), dk = static_cast<size_t>(problem.dk);
  rank.state = mine.takeFloats(heads * dk * static_cast<size_t>(problem.dv));
  rank.logDecay = mine.takeFloats(heads * static_cast<size_t>(attn::transitionWidth(problem)));
  attn::Outputs outputs;
  outputs.problem = problem;
  outputs.segments = segments;
  outputs.heads = states.heads;
  outputs.maps = states.maps;
  outputs.content = content;
  outputs.out = mine.output();
  outputs.workspace = mine.takeFloats(attn::outputsWorkspaceSize(problem) / sizeof(float));
  attn::Outputs both = outputs;
  both.segments = attn::cutForward(problem, attn::ctasAtOnce(problem), attn::supportsLead(problem));
  both.maps = mine.maps(both.segments);
  both.content = attn::fastestMaps(problem, both.segments);
  const auto runStates = [=] {
    LinearCase::must(attn::launchSegmentStates(states, {stream, 0}), "launchSegmentStates");
  };
  const auto runOutputs = [=] {
    auto sequence = attn::LaunchSequence::after(attn::recordOf(states));
    LinearCase::must(attn::launchOutputs(outputs, {stream, 0, &sequence}), "launchOutputs");
  };
  const size_t keys = mine.numbers() * 4 + mine.gateBytes(), all = mine.numbers() * 8 + mine.gateBytes();
  mine.measure(segments, {{"states", keys, runStates},
                          {"of a rank", keys,
                           [=] {
                             LinearCase::must(attn::launchSegmentStates(rank, {stream, 0}), "launchSegmentStates");
                           }},
                          {"outputs", all, runOutputs},
                          {"both", all, [=] {
                             LinearCase::must(attn::launchForward(both, {stream, 0}), "launchForward");
                           }}});
}

}  // namespace
}  // namespace seqpar::perf

int main(int argc, char** argv) {
  using namespace seqpar::perf;
  return runProgram(
      linearProgram("micro_linear_forward",
                    "The forward kernels of linear attention, bf16, batch 1: pass 1 (states), the same with\n"
                    "the map of the rank, pass 3 (outputs), and 1 and 3. A size is that of inputs and\n"
                    "outputs, each once; -G as kernels follow each other in a CUDA graph.",
                    measure),
      argc, argv);
}
