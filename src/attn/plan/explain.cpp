// The text of seqparAttnPlanExplain().
#include <algorithm>
#include <iomanip>
#include <sstream>

#include "attn/plan/plan.h"
#include "attn/problem/needed.h"

namespace seqpar::attn {
namespace {

std::string quoted(const std::string& text) {
  std::ostringstream out;
  out << '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out << '\\' << c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out << "\\u" << std::hex << std::setw(4) << std::setfill('0') << static_cast<int>(c) << std::dec;
    } else {
      out << c;
    }
  }
  out << '"';
  return out.str();
}

const char* familyName(int id) {
  seqparAttnFamilyInfo_t info = SEQPAR_ATTN_FAMILY_INFO_INITIALIZER;
  return id == seqparAttnSoftmax || seqparAttnFamilyQuery(id, &info) != seqparSuccess ? "softmax" : info.name;
}

const char* layoutName(const Sharding& sharding) {
  constexpr const char* kNames[] = {"contiguous", "zigzag", "striped", "pieces"};
  return kNames[sharding.kind()];
}

void writeTimes(std::ostream& out, const Estimate& e) {
  out << "\"forwardUs\": " << e.forwardUs << ", \"backwardUs\": " << e.backwardUs << ", \"bytesSent\": " << e.bytes;
}

/// The mask's work and its balance.
void writeScores(std::ostream& out, const Problem& problem) {
  int64_t most = 0, own = 0;
  double all = 0;
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    int64_t scores = 0;
    for (int keys = 0; keys < problem.ranks(); ++keys) scores += problem.scores(rank, keys);
    most = std::max(most, scores);
    all += static_cast<double>(scores);
    if (rank == problem.rank()) own = scores;
  }
  out << ", \"slices\": " << problem.sliceNumbers.size() / 6 << ", \"scores\": " << own
      << ", \"imbalance\": " << (all > 0 ? static_cast<double>(most) / all * problem.ranks() : 1)
      << ", \"runs\": " << problem.queries.runsOf(problem.rank()).size()
      << ", \"keysNeeded\": " << keysOfOthersNeeded(problem, problem.rank());
}

}  // namespace

std::string Plan::explain() const {
  const auto& d = problem_.desc;
  std::ostringstream out;
  out << std::setprecision(6);
  out << "{\"algorithm\": " << quoted(row_->name) << ", \"paper\": " << quoted(row_->paper)
      << ", \"chosen\": " << quoted(d.algorithm == seqparAttnAuto ? "by the cost model" : "by the caller")
      << ", \"family\": " << quoted(familyName(d.family)) << ", \"ranks\": " << problem_.ranks()
      << ", \"rank\": " << problem_.rank() << ", \"batch\": " << d.batch
      << ", \"tokens\": " << problem_.queries.tokens() << ", \"localTokens\": " << problem_.tokens()
      << ", \"heads\": " << d.heads << ", \"kvHeads\": " << d.kvHeads << ", \"headDim\": " << d.headDim
      << ", \"valueDim\": " << d.valueDim << ", \"layout\": " << quoted(layoutName(problem_.queries))
      << ", \"block\": " << quoted(operator_->blockName()) << ", \"workspaceBytes\": " << bytes_
      << ", \"reserveBytes\": " << reserveBytes_;
  if (problem_.softmax()) writeScores(out, problem_);
  for (const auto& [name, value] : operator_->counts()) out << ", " << quoted(name) << ": " << value;
  out << ", \"candidates\": [";
  bool first = true;
  for (const auto& candidate : candidatesFor(problem_, true)) {
    out << (first ? "" : ", ") << "{\"algorithm\": " << quoted(candidate.row->name) << ", ";
    first = false;
    if (candidate.refusal.empty()) {
      writeTimes(out, candidate.estimate);
    } else {
      out << "\"cannot\": " << quoted(candidate.refusal);
    }
    out << "}";
  }
  out << "]}";
  return out.str();
}

}  // namespace seqpar::attn
