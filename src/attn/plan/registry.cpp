#include "attn/plan/registry.h"

#include <array>

#include "attn/softmax/algorithms.h"
#include "attn/softmax/base.h"
#include "attn/softmax/cost.h"

namespace seqpar::attn {
namespace {

const std::array kAlgorithms{
    AlgorithmRow{seqparAttnLocal, "local", "no exchange", true, refusesNothing, contiguousLayout, estimateLocal,
                 makeLocal},
    AlgorithmRow{seqparAttnRing, "ring", "Ring Attention, arXiv 2310.01889, section 3", true, refusesNothing,
                 contiguousLayout, estimateRing, makeRing},
};

}  // namespace

std::span<const AlgorithmRow> algorithms() {
  return kAlgorithms;
}

const AlgorithmRow* findAlgorithm(int id, bool softmax) {
  for (const auto& row : kAlgorithms) {
    if (row.id == id && row.softmax == softmax) return &row;
  }
  return nullptr;
}

std::string algorithmsThatCan(const Problem& problem) {
  std::string names;
  for (const auto& row : kAlgorithms) {
    if (row.softmax == problem.softmax() && row.refuses(problem).empty()) {
      names += (names.empty() ? "" : ", ") + std::string(row.name);
    }
  }
  return names.empty() ? "none" : names;
}

}  // namespace seqpar::attn

const char* seqparAttnAlgorithmName(int algorithm) {
  if (algorithm == seqparAttnAuto) return "auto";
  for (const auto& row : seqpar::attn::algorithms()) {
    if (row.id == algorithm) return row.name;
  }
  return nullptr;
}
