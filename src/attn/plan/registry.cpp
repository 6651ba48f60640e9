#include "attn/plan/registry.h"

#include <algorithm>
#include <tuple>
#include <vector>

namespace seqpar::attn {
namespace {

std::vector<AlgorithmRow> sortedRows() {
  std::vector<AlgorithmRow> rows;
  for (const auto* one = RegisteredAlgorithm::first(); one != nullptr; one = one->next()) rows.push_back(one->row());
  const auto key = [](const AlgorithmRow& row) { return std::tuple(!row.softmax, row.id); };
  std::sort(rows.begin(), rows.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  return rows;
}

}  // namespace

std::span<const AlgorithmRow> algorithms() {
  static const auto rows = sortedRows();
  return rows;
}

const AlgorithmRow* findAlgorithm(int id, bool softmax) {
  for (const auto& row : algorithms()) {
    if (row.id == id && row.softmax == softmax) return &row;
  }
  return nullptr;
}

std::string algorithmsThatCan(const Problem& problem) {
  std::string names;
  for (const auto& row : algorithms()) {
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
