// support_table FILE [--write]: the tables between the markers in docs/attention.md, made of the registry's answers.
// Without --write it fails where the file says something else.
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <sstream>

#include "attn/exec/exec.h"
#include "attn/plan/plan.h"

namespace {

using namespace seqpar::attn;  // NOLINT(google-build-using-namespace)

constexpr const char* kBegin = "<!-- made by support_table: begin -->\n";
constexpr const char* kEnd = "<!-- made by support_table: end -->\n";

/// As readProblem() would make it on a communicator of so many ranks, which this program does not have: a causal call,
/// which all algorithms can do, unless `change` says otherwise.
Problem problemOn(int ranks, const std::function<void(seqparAttnDesc_t&)>& change, bool softmax) {
  seqparAttnDesc_t d = SEQPAR_ATTN_DESC_INITIALIZER;
  d.family = softmax ? seqparAttnSoftmax : seqparAttnGla;
  d.tokens = 64;
  d.heads = 8;
  d.headDim = 16;
  if (softmax) d.mask = seqparAttnCausal;
  change(d);
  Problem problem = readProblem("support_table", &d, nullptr);
  problem.info.nranks = ranks;
  return problem;
}

struct Feature {
  const char* name;
  std::function<void(seqparAttnDesc_t&)> change;
  int layout = -1;  ///< given by the caller
  bool uneven = false;
  int ranks = 4;
  bool softmaxOnly = false;  ///< linear attention would not notice
};

const std::vector<Feature>& features() {
  static const int64_t kBounds[] = {0, 1, 3, 40, 64};
  static const std::vector<Feature> all{
      {"causal", [](seqparAttnDesc_t&) {}, -1, false, 4, true},
      {"full", [](seqparAttnDesc_t& d) { d.mask = seqparAttnFull; }, -1, false, 4, true},
      {"window", [](seqparAttnDesc_t& d) { d.windowLeft = 5; }},
      {"packed", [](seqparAttnDesc_t& d) { d.sequences = 4, d.cuSeqlens = kBounds; }},
      {"GQA", [](seqparAttnDesc_t& d) { d.kvHeads = 2; }},
      {"MQA", [](seqparAttnDesc_t& d) { d.kvHeads = 1; }},
      {"cross", [](seqparAttnDesc_t& d) { d.kvTokens = 100; }},
      {"sinks", [](seqparAttnDesc_t& d) { d.sinks = 1; }},
      {"softcap", [](seqparAttnDesc_t& d) { d.softcap = 30; }},
      {"bf16, fp16", [](seqparAttnDesc_t& d) { d.dataType = seqparBfloat16; }},
      {"partial results sent in bf16", [](seqparAttnDesc_t& d) { d.wireType = seqparBfloat16; }},
      {"uneven shards", [](seqparAttnDesc_t&) {}, -1, true},
      {"given contiguous", [](seqparAttnDesc_t&) {}, seqparContiguous},
      {"given zigzag", [](seqparAttnDesc_t&) {}, seqparZigzag},
      {"given striped", [](seqparAttnDesc_t&) {}, seqparStriped},
      {"odd ranks", [](seqparAttnDesc_t&) {}, -1, false, 3},
      {"more ranks than heads", [](seqparAttnDesc_t& d) { d.heads = 2; }, -1, false, 6},
  };
  return all;
}

std::string refusal(const AlgorithmRow& row, const Feature& feature) {
  Problem problem;
  try {
    problem = problemOn(feature.ranks, feature.change, row.softmax);
    if (feature.layout >= 0) {
      seqparLayout_t layout = SEQPAR_LAYOUT_INITIALIZER;
      layout.kind = feature.layout;
      layout.ranks = feature.ranks;
      layout.tokens = problem.desc.tokens;
      problem.layoutGiven = true;
      problem.queries = Sharding("support_table", layout);
      if (!row.softmax && feature.layout != seqparContiguous) return "linear attention: contiguous only";
    }
    if (feature.uneven) {
      problem.tokensOfRanks = {30, 0, 33, 1};
      problem.layoutGiven = true;
      problem.queries = Sharding(problem.tokensOfRanks);
    }
  } catch (const std::exception& error) {
    return error.what();
  }
  return row.refuses(problem);
}

const char* layoutName(seqparLayoutKind_t kind) {
  return kind == seqparContiguous ? "contiguous" : kind == seqparZigzag ? "zigzag" : "striped";
}

void writeTitles(std::ostream& out, bool softmax) {
  out << "| algorithm | after |";
  if (softmax)
    out << " layout of its own, full / causal | sent by a rank, MiB | workspace of a rank, MiB | with `reserve`: sent, "
           "reserved |";
  out << (softmax ? "\n|---|---|---|---|---|---|\n" : "\n|---|---|\n");
}

/// Layout, bytes and memory for one usual problem: 8 ranks, 64K tokens, 32 heads (8 of keys), 128, bf16, training.
void writeProperties(std::ostream& out, const AlgorithmRow& row) {
  out << "| " << row.name << " | " << row.paper << " |";
  if (!row.softmax) {
    out << "\n";
    return;
  }
  const auto usual = [](int mask, int reserve = 0) {
    const auto change = [mask, reserve](seqparAttnDesc_t& d) {
      d.tokens = 65536;
      d.heads = 32;
      d.kvHeads = 8;
      d.headDim = 128;
      d.dataType = seqparBfloat16;
      d.mask = mask;
      d.reserve = reserve;
    };
    return problemOn(8, change, true);
  };
  const auto causal = shardedFor(usual(seqparAttnCausal), row);
  const auto exec = makeExec(nullptr, 1);
  const auto reserving = shardedFor(usual(seqparAttnCausal, 1), row);
  Arena arena, reserve;
  row.make(causal, *exec)->carve(arena);
  row.make(reserving, *exec)->carveReserve(reserve);
  constexpr double kMiB = 1 << 20;
  const auto inMiB = [](double bytes) { return std::to_string(static_cast<int64_t>(std::nearbyint(bytes / kMiB))); };
  out << " " << layoutName(row.ownLayout(usual(seqparAttnFull))) << " / "
      << layoutName(row.ownLayout(usual(seqparAttnCausal))) << " | " << inMiB(row.estimate(causal, 1e12).bytes) << " | "
      << inMiB(static_cast<double>(arena.used())) << " | ";
  if (reserve.used() == 0) {
    out << "- |\n";
  } else {
    out << inMiB(row.estimate(reserving, 1e12).bytes) << ", " << inMiB(static_cast<double>(reserve.used())) << " |\n";
  }
}

std::string tables() {
  std::ostringstream out;
  std::vector<std::string> notes;
  for (const bool softmax : {true, false}) {
    bool any = false;
    for (const auto& row : algorithms()) any = any || row.softmax == softmax;
    if (!any) continue;
    out << (softmax ? "### Softmax\n\n" : "\n### Linear\n\n");
    writeTitles(out, softmax);
    for (const auto& row : algorithms()) {
      if (row.softmax == softmax) writeProperties(out, row);
    }
    out << "\n| |";
    for (const auto& row : algorithms()) {
      if (row.softmax == softmax) out << " " << row.name << " |";
    }
    out << "\n|---|";
    for (const auto& row : algorithms()) {
      if (row.softmax == softmax) out << "---|";
    }
    out << "\n";
    for (const auto& feature : features()) {
      std::ostringstream line;
      if (!softmax && feature.softmaxOnly) continue;
      bool meant = false;  // for this family
      std::vector<std::string> more = notes;
      line << "| " << feature.name << " |";
      for (const auto& row : algorithms()) {
        if (row.softmax != softmax) continue;
        const auto why = refusal(row, feature);
        meant = meant || why.empty();
        if (why.empty()) {
          line << " yes |";
        } else {
          size_t number = 0;
          while (number < more.size() && more[number] != why) ++number;
          if (number == more.size()) more.push_back(why);
          line << " no (" << number + 1 << ") |";
        }
      }
      if (!meant) continue;
      out << line.str() << "\n";
      notes = more;
    }
  }
  out << "\n";
  for (size_t n = 0; n < notes.size(); ++n) out << "(" << n + 1 << ") " << notes[n] << "  \n";
  return out.str();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: support_table FILE [--write]\n");
    return 2;
  }
  std::ifstream in(argv[1]);
  std::stringstream whole;
  whole << in.rdbuf();
  const std::string text = whole.str();
  const auto begin = text.find(kBegin), end = text.find(kEnd);
  if (begin == std::string::npos || end == std::string::npos) {
    std::fprintf(stderr, "%s has no markers\n", argv[1]);
    return 2;
  }
  const std::string made = text.substr(0, begin) + kBegin + "\n" + tables() + "\n" + text.substr(end);
  if (argc > 2) {
    std::ofstream(argv[1]) << made;
    return 0;
  }
  if (made == text) return 0;
  std::fprintf(stderr, "%s differs from the registry; support_table %s --write makes it anew:\n%s", argv[1], argv[1],
               tables().c_str());
  return 1;
}
