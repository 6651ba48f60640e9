// Targets of gradients, the caller's tensors or terms in the workspace, and the launches that add these terms.
#pragma once

#include <algorithm>

#include "kernels/attn/linear/backward/plan.h"
#include "kernels/attn/linear/backward/sums.cuh"
#include "kernels/attn/linear/launch.cuh"

namespace seqpar::attn::backward {

inline int sms() {
  int device = 0, count = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 1;
  if (cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return 1;
  return count;
}

/// The caller's tensor.
inline Target wholeTarget(const Output& output, int type) {
  const auto fits = [&](int64_t elements) { return elements % (type == seqparFloat32 ? 4 : 8) == 0; };
  const bool wide = reinterpret_cast<uintptr_t>(output.data) % 16 == 0 && fits(output.batch) && fits(output.token) &&
                    fits(output.head);
  return {output.data, output.batch, output.token, output.head, 0, type, wide};
}

/// Terms in the workspace, for each of `heads`, or the caller's tensor.
inline Target targetOf(const Output& output, int type, char* workspace, int64_t offset, const LinearProblem& problem,
                       int heads, int blocks, int width) {
  if (offset < 0) return wholeTarget(output, type);
  Target terms;
  terms.data = workspace + offset;
  terms.block = width;
  terms.head = int64_t{blocks} * width;
  terms.token = heads * terms.head;
  terms.batch = problem.tokens * terms.token;
  return terms;
}

/// The scales of terms in the workspace.
inline void addScales(Target& target, char* workspace, int64_t offset) {
  if (offset < 0) return;
  target.scales = reinterpret_cast<float*>(workspace + offset);
  target.wide = true;
}
/// The same in the second half of the memory of fp32 terms.
inline void addScales(Target& target, char* workspace, int64_t offset, const LinearProblem& problem) {
  if (offset < 0) return;
  const int64_t bytes = problem.batch * target.batch * int64_t{sizeof(uint16_t)};
  static_assert(scalesOf(16) * sizeof(float) <= 16 * sizeof(uint16_t), "a row has at least 16 terms");
  addScales(target, workspace, offset + (bytes + 15) / 16 * 16);
}

/// Adds the terms of several gradients: at the same time, or one after the other with a limit of CTAs. Few CTAs if the
/// kernel may exit at once: that takes longer with more of them.
inline cudaError_t addUp(const Sums& sums, const Launch& launch) {
  constexpr int kMost = 16, kMostIfNeeded = 4;  // CTAs per SM and gradient
  const auto add = [&](const Sums& some) {
    int64_t units = 0;
    for (int i = 0; i < some.count; ++i) {
      const Sum& sum = some.of[i];
      const int64_t each = sum.scales != nullptr ? kTermsTogether : kRowTogether;
      units = std::max(units, sum.batch * sum.tokens * sum.headCount * sum.width / each);
    }
    if (units == 0) return cudaSuccess;
    const int64_t most = launch.ctas > 0 ? launch.ctas : sms() * (some.of[0].onlyIf != nullptr ? kMostIfNeeded : kMost),
                  ctas = std::min<int64_t>((units + kSumThreads - 1) / kSumThreads, most);
    const dim3 grid(static_cast<unsigned>(ctas), static_cast<unsigned>(some.count));
    return launchKernel(addAllTerms, grid, kSumThreads, 0, launch.stream, true, some);
  };
  if (launch.ctas == 0) return add(sums);
  cudaError_t error = cudaSuccess;
  for (int i = 0; i < sums.count && error == cudaSuccess; ++i) error = add({{sums.of[i]}, 1});
  return error;
}

inline cudaError_t addUp(const Sum& sum, const Launch& launch) {
  const int numbers = sum.width % kRowTogether == 0 ? kRowTogether : 1;
  const int64_t count = sum.batch * sum.tokens * sum.headCount * sum.width / numbers;
  if (count == 0) return cudaSuccess;
  const int64_t most = launch.ctas > 0 ? launch.ctas : sms() * 16;
  const int64_t ctas = std::min<int64_t>((count + kSumThreads - 1) / kSumThreads, most);
  void* arguments[] = {const_cast<Sum*>(&sum)};
  const auto kernel = numbers == 1 ? &addTerms<1> : &addTerms<kRowTogether>;
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(ctas)), dim3(kSumThreads),
                          arguments, 0, static_cast<cudaStream_t>(launch.stream));
}

/// Adds all terms that several blocks or heads share.
inline cudaError_t addUpAll(const Gradients& pass, const Task& task, const Workspace& workspace, const Launch& launch) {
  const LinearProblem& problem = pass.problem;
  const auto* base = static_cast<const char*>(pass.workspace);
  const auto sumOf = [&](int64_t offset, const Output& to, int type, int group, int blocks, int width) {
    return Sum{reinterpret_cast<const float*>(base + offset),
               wholeTarget(to, type),
               problem.batch,
               problem.tokens,
               problem.heads,
               group,
               blocks,
               width,
               pass.heads.first / group,
               pass.heads.count / group,
               nullptr,
               task.onlyIf};
  };
  cudaError_t error = cudaSuccess;
  const auto add = [&](int64_t offset, const Output& to, int type, int group, int blocks, int width) {
    if (error == cudaSuccess && offset >= 0 && to.data != nullptr) {
      error = addUp(sumOf(offset, to, type, group, blocks, width), launch);
    }
  };
  Sums sums = {};  // added by one kernel
  /// `together`: heads with one term.
  const auto addShared = [&](const Target& terms, int64_t offset, const Output& to, int group, int blocks, int width,
                             int together) {
    if (terms.scales == nullptr) return add(offset, to, problem.type, group, blocks, width);
    if (error != cudaSuccess || to.data == nullptr) return;
    Sum sum = sumOf(offset, to, problem.type, group, 1, width);
    sum.heads = sum.heads / together * blocks;
    sum.group = sum.group / together * blocks;
    sum.scales = terms.scales;
    sums.of[sums.count++] = sum;
  };
  const int together = problem.gate == Gate::Channel ? 1 : task.together;
  addShared(task.dq, workspace.dq, pass.dq, task.group, task.valueBlocks, problem.dk, together);
  addShared(task.dkOut, workspace.dk, pass.dk, task.group, task.valueBlocks, problem.dk, together);
  if (task.valueSums == nullptr) addShared(task.dvOut, workspace.dv, pass.dv, 1, task.keyBlocks, problem.dv, 1);
  const bool channels = problem.gate == Gate::Channel && problem.dk % kRowTogether == 0 && workspace.gates >= 0;
  if (channels && pass.dGates.data != nullptr) {
    sums.of[sums.count++] = sumOf(workspace.gates, pass.dGates, pass.dGateType, 1, task.valueBlocks, problem.dk);
  }
  if (error == cudaSuccess) error = addUp(sums, launch);
  add(task.dInputGates.block != 0 ? workspace.inputGates : -1, pass.dInputGates, problem.inputGateType, 1,
      task.keyBlocks, 1);
  const int blocks = workspace.stateGradients >= 0 ? task.keyBlocks : blocksOfGates(task);  // of groups, or others
  if (problem.gate == Gate::Channel) {
    add(channels ? -1 : workspace.gates, pass.dGates, pass.dGateType, 1, task.valueBlocks, problem.dk);
  } else if (problem.gate == Gate::Token) {
    add(task.dGates.block != 0 ? workspace.gates : -1, pass.dGates, pass.dGateType, 1, blocks, 1);
  } else if (problem.gate == Gate::Head && pass.dGates.data != nullptr && error == cudaSuccess) {
    const Sum sum = sumOf(workspace.gates, pass.dGates, seqparFloat32, 1, blocks, 1);
    void* arguments[] = {const_cast<Sum*>(&sum)};
    error = cudaLaunchKernel(reinterpret_cast<const void*>(&addTokens), dim3(static_cast<unsigned>(sum.headCount)),
                             dim3(kTokenSumThreads), arguments, 0, static_cast<cudaStream_t>(launch.stream));
  }
  return error;
}

}  // namespace seqpar::attn::backward
