// micro_linear_delta: the kernels of the delta rule for 16-bit tensors on one GPU, step by step, in one window of
// chunks.
#include "kernels/attn/linear/delta/half/memory.h"
#include "linear_case.h"

namespace seqpar::perf {
namespace {

using attn::delta::Step;
using attn::delta::Task;

/// A window of all chunks, with zeros as states.
Task taskOf(LinearCase& mine) {
  const attn::LinearProblem& problem = mine.problem();
  Task task;
  task.tokens = problem.tokens;
  task.heads = task.keyHeads = problem.heads;
  task.dk = problem.dk;
  task.dv = problem.dv;
  task.width = problem.gate == attn::Gate::None ? 0 : (problem.gate == attn::Gate::Token ? 1 : problem.dk);
  task.type = seqparBfloat16;
  task.gateType = task.betaType = seqparFloat32;
  task.scale = problem.scale;
  task.normalize = true;
  task.half = true;
  task.readsRows = attn::delta::half::readsRows(task, 0);
  task.q = problem.q;
  task.k = problem.k;
  task.v = problem.v;
  task.gates = problem.gates;
  task.dOut = mine.drawn();
  task.out = mine.output();
  task.dq = mine.output();
  task.dk_ = mine.output();
  task.dv_ = mine.output();
  const auto perToken = static_cast<size_t>(problem.tokens * problem.heads);
  task.beta = {mine.takeFloats(perToken), 0, problem.heads, 1};
  task.dBeta = {mine.takeFloats(perToken), 0, problem.heads, 1};
  if (task.width != 0) {
    task.dGates = {mine.take(mine.gateBytes()), 0, problem.gates.token, problem.gates.head};
  }
  std::vector<attn::delta::Chunk> chunks(static_cast<size_t>(problem.tokens / attn::delta::kRows));
  for (size_t i = 0; i < chunks.size(); ++i) {
    chunks[i].first = static_cast<int64_t>(i) * attn::delta::kRows;
    chunks[i].rows = attn::delta::kRows;
  }
  const size_t bytes = chunks.size() * sizeof(attn::delta::Chunk);
  void* const onDevice = mine.take(bytes);
  gpuCopy(onDevice, chunks.data(), bytes);
  task.chunks = static_cast<const attn::delta::Chunk*>(onDevice);
  task.count = task.stride = static_cast<int>(chunks.size());
  task.training = true;
  task.records = static_cast<float*>(mine.take(static_cast<size_t>(attn::delta::half::recordBytes(task)) *
                                               chunks.size() * static_cast<size_t>(problem.heads)));
  task.states = mine.takeFloats(static_cast<size_t>(problem.heads) * static_cast<size_t>(problem.dk * problem.dv));
  attn::delta::half::placeRecords(task);
  return task;
}

/// Sets betas to 1/2 and computes the records that the later steps read.
void measure(LinearCase& mine, void* stream) {
  const attn::LinearProblem& problem = mine.problem();
  const bool known = problem.gate == attn::Gate::None || problem.gate == attn::Gate::Token ||
                     (problem.gate == attn::Gate::Channel && problem.gateType == seqparFloat32);
  if (!known || problem.dk > attn::delta::half::kKeys || problem.tokens > 8192) return;
  Task training = taskOf(mine);
  const std::vector<float> halves(static_cast<size_t>(problem.tokens * problem.heads), 0.5F);
  gpuCopy(const_cast<void*>(training.beta.data), halves.data(), halves.size() * sizeof(float));
  Task forward = training;
  forward.training = false;
  attn::delta::half::placeRecords(forward);
  Task outputs = training, keeps = training, map = training;
  outputs.writesOut = true;
  keeps.keepsStates = true;
  map.transition = mine.takeFloats(static_cast<size_t>(problem.heads) * static_cast<size_t>(problem.dk * problem.dk));
  const auto launch = [=](Step step, const Task& task) {
    LinearCase::must(attn::delta::half::launch(step, task, stream), "launch");
  };
  const auto pass = [&](const char* name, Step step, const Task& task, size_t arrays) {
    return LinearCase::Pass{name, mine.numbers() * 2 * arrays, [=] { launch(step, task); }};
  };
  // Kept states replace values in the records, so that these are computed again.
  const LinearCase::Pass kept{"prep. + kept", mine.numbers() * 2 * 13, [=] {
                                launch(Step::Prepare, keeps);
                                launch(Step::Advance, keeps);
                              }};
  mine.measure({1, problem.tokens},
               {pass("prepare", Step::Prepare, forward, 7), pass("prepare, tr.", Step::Prepare, training, 7),
                pass("outputs", Step::Advance, outputs, 6), pass("states", Step::Advance, training, 4),
                pass("map", Step::Advance, map, 8), kept, pass("retreat", Step::Retreat, keeps, 8),
                pass("gradients", Step::Differentiate, training, 11)});
}

}  // namespace
}  // namespace seqpar::perf

int main(int argc, char** argv) {
  using namespace seqpar::perf;
  return runProgram(
      linearProgram("micro_linear_delta",
                    "The kernels of the delta rule, bf16, batch 1, step by step in one window of chunks.\n"
                    "Gates \"none\": DeltaNet, \"token\": Gated DeltaNet, \"channel\": Kimi Delta Attention.",
                    measure),
      argc, argv);
}
