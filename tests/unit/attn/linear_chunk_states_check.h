// The states of chunks in device memory (chunk_states.h), and the recurrence in fp64 to compare them with.
#pragma once

#include <map>

#include "kernels/attn/linear/backward/chunk_states.h"
#include "linear_backward_check.h"

namespace seqpar::attn::backward::test {

/// A state in ChunkStates: of a group of chunks.
struct StateNumber {
  int sequence, head;
  int64_t number;  ///< ChunkStates::numberOf() and the following ones
};
/// That state in `images`, as [dk][dv]. `wide`: of heads of a pair with more than 64 columns.
template <class T>
std::vector<double> stateIn(const uint16_t* images, const Task& task, const ChunkStates& chunks, bool wide,
                            const StateNumber& of) {
  std::vector<double> state;
  for (int i = 0; i < task.dk; ++i) {
    for (int j = 0; j < task.dv; ++j) {
      const int channel = i % kBlock;
      int64_t at = chunks.panelAt(task, of.sequence, of.head, i / kBlock, wide ? 0 : j / 64, of.number);
      if (wide) {
        const int unit = (channel % 64 / 8) ^ (j % 8);
        at += channel / 64 * 64 * kWideColumns + j * 64 + unit * 8 + channel % 8;
      } else {
        at += channel * 64 + ((j % 64 / 8) ^ (channel % 8)) * 8 + j % 8;
      }
      state.push_back(ptx::lowOf<T>(images[at]));
    }
  }
  return state;
}

/// The segments of a case.
inline std::vector<Span> spansOf(const BackwardCase& c) {
  if (!c.spans.empty()) return c.spans;
  std::vector<Span> spans;
  for (int i = 0; i < c.segments.count; ++i) {
    const int64_t begin = i * c.segments.tokens;
    spans.push_back({begin, std::min(begin + c.segments.tokens, c.shape.tokens), 0, 0, 1, 1});
  }
  return spans;
}

/// The state of each group of chunks by the recurrence, in the order of segments and groups, then the last one.
inline std::vector<std::vector<double>> recurrence(const BackwardCase& c, int sequence, int head, int every,
                                                   bool reverse) {
  const BackwardShape& s = c.shape;
  const int qkHead = head / (s.heads / s.qkHeads);
  std::vector<double> state(static_cast<size_t>(s.dk) * s.dv, 0);
  const std::vector<double>& first = reverse ? c.dFinalValues : c.inputs.initial;
  const auto offset = (int64_t{sequence} * s.heads + head) * s.dk * s.dv;
  if (!first.empty()) std::copy_n(first.begin() + offset, state.size(), state.begin());
  const auto starts = [&](int64_t t) { return !c.inputs.begins.empty() && c.inputs.begins[static_cast<size_t>(t)]; };
  const auto step = [&](int64_t t) {
    const int64_t token = sequence * s.tokens + t, row = (token * s.heads + head);
    const auto& keys = reverse ? c.inputs.q : c.inputs.k;
    const auto& values = reverse ? c.dOutValues : c.inputs.v;
    for (int i = 0; i < s.dk; ++i) {
      const double decay = std::exp(c.inputs.logDecay[static_cast<size_t>(row * s.dk + i)]);
      const double key = keys[static_cast<size_t>((token * s.qkHeads + qkHead) * s.dk + i)];
      for (int j = 0; j < s.dv; ++j) {
        double& x = state[static_cast<size_t>(i) * s.dv + j];
        const double added = key * values[static_cast<size_t>(row * s.dv + j)];
        x = reverse ? decay * (x + c.reference.scale * added) : decay * x + added;
      }
    }
  };
  std::map<int64_t, std::vector<double>> atToken;
  const std::vector<Span> spans = spansOf(c);
  const int64_t group = int64_t{kChunk} * every;
  const auto keeps = [&](int64_t t) {
    return std::any_of(spans.begin(), spans.end(), [&](const Span& span) {
      if (t < span.begin || t >= span.end) return false;
      const int64_t in = t - span.begin;
      return reverse ? t == span.end - 1 || in % group == group - 1 : in % group == 0;
    });
  };
  for (int64_t i = 0; i < s.tokens; ++i) {
    const int64_t t = reverse ? s.tokens - 1 - i : i;
    if (!reverse && starts(t)) std::fill(state.begin(), state.end(), 0);
    if (keeps(t)) atToken[t] = state;
    step(t);
    if (reverse && starts(t)) std::fill(state.begin(), state.end(), 0);
  }
  std::vector<std::vector<double>> states;
  for (const Span& span : spans) {
    for (int64_t t = span.begin; t < span.end; t += group) {
      states.push_back(atToken.at(reverse ? std::min(t + group, span.end) - 1 : t));
    }
  }
  states.push_back(state);
  return states;
}

}  // namespace seqpar::attn::backward::test
