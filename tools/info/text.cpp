#include <cmath>
#include <cstdarg>
#include <cstdio>

#include "facts.h"

namespace seqpar::info {
namespace {

/// Text, appended with printf formats.
class Text {
 public:
  __attribute__((format(printf, 2, 3))) void add(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char line[1024];
    std::vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    text_ += line;
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

std::string sizeText(size_t bytes) {
  return bytes >= size_t{1} << 20 ? std::to_string(bytes >> 20) + "M" : std::to_string(bytes >> 10) + "K";
}

/// "0-3 6": consecutive ranks as a range.
std::string listOf(const std::vector<int>& ranks) {
  std::string text;
  for (size_t begin = 0; begin < ranks.size();) {
    size_t end = begin;
    while (end + 1 < ranks.size() && ranks[end + 1] == ranks[end] + 1) ++end;
    text += (text.empty() ? "" : " ") + std::to_string(ranks[begin]);
    if (end > begin) text += "-" + std::to_string(ranks[end]);
    begin = end + 1;
  }
  return text;
}

void addTopology(Text& text, const Facts& facts) {
  text.add("seqpar %s\n", facts.version.c_str());
  text.add("ranks      %d on %d node%s, %s\n", facts.comm.nranks, facts.comm.nodes, facts.comm.nodes == 1 ? "" : "s",
           facts.launch.c_str());
  for (size_t node = 0; node < facts.nodes.size(); ++node) {
    text.add("  node %-4zu %s: %s\n", node, facts.nodes[node].host.c_str(), listOf(facts.nodes[node].ranks).c_str());
  }
  if (facts.comm.device == SEQPAR_HOST_DEVICE) {
    text.add("memory     host\n");
  } else {
    text.add("memory     CUDA device (%d here)\n", facts.comm.device);
  }
  text.add("transport  %s\n", facts.comm.transport);
  text.add("  reason   %s\n", facts.comm.reason);
  text.add("attention  on GPUs, softmax, bf16 and fp16: %s\n", facts.gpuKernels.c_str());
  if (facts.comm.contention > 1) {
    text.add("  note     %.3g ranks share a processor: they take turns, and all times below are of that\n",
             facts.comm.contention);
  }
}

void addLinks(Text& text, const Facts& facts) {
  text.add("\nlinks      %s\n", facts.links[0].remembered == 1 ? ("from " + facts.cache).c_str()
                                : facts.comm.nranks == 1       ? "a single rank transfers nothing"
                                                               : "measured just now");
  if (facts.comm.nranks == 1) return;
  text.add("  %-8s %7s %10s %8s %12s\n", "class", "pairs", "alpha us", "GB/s", "overhead us");
  for (size_t i = 0; i < facts.links.size(); ++i) {
    const auto& link = facts.links[i];
    if (link.pairs == 0) continue;
    text.add("  %-8s %7d %10.3f %8.2f %12.3f\n", nameOfClass(static_cast<int>(i)), link.pairs, link.alphaUs,
             link.bandwidth * 1e-9, link.overheadUs);
  }
}

void addScans(Text& text, const Facts& facts) {
  text.add("\nAll-Scan   DIAG, fp32; %s\n", facts.chosenBy.empty()
                                                ? "the model's fastest algorithm is used"
                                                : ("SEQPAR_ALGO=" + facts.chosenBy + " decides").c_str());
  text.add("  %6s %-12s %6s %10s   %s\n", "state", "choice", "blocks", "model us",
           "others, times as slow by the model");
  for (const auto& scan : facts.scans) {
    const auto& choice = scan.estimates[0];
    std::string others;
    for (size_t i = 1; i < scan.estimates.size(); ++i) {
      const auto& other = scan.estimates[i];
      if (other.algorithm == choice.algorithm) continue;
      char part[64];
      std::snprintf(part, sizeof(part), "%s%s %.2g", others.empty() ? "" : ", ",
                    seqparScanAlgorithmName(other.algorithm), other.modelUs / choice.modelUs);
      others += std::isfinite(other.modelUs) && choice.modelUs > 0 ? part : "";
    }
    text.add("  %6s %-12s %6d %10.2f   %s\n", sizeText(scan.bytes).c_str(), seqparScanAlgorithmName(choice.algorithm),
             choice.blocks, choice.modelUs, others.c_str());
  }
}

void addMoves(Text& text, const Facts& facts) {
  text.add("\nOthers     all ranks; model us\n  %6s", "bytes");
  for (int move = 0; move < SEQPAR_MOVES; ++move) text.add(" %14s", nameOfMove(move));
  text.add("\n");
  for (const auto& times : facts.moves) {
    text.add("  %6s", sizeText(times.bytes).c_str());
    for (const double us : times.us) text.add(" %14.2f", us);
    text.add("\n");
  }
}

void addMeshes(Text& text, const Facts& facts) {
  text.add("\nMesh       %d query heads, %d of keys and values, %d each, bf16; communication alone, model us\n", kHeads,
           kKvHeads, kHeadDim);
  text.add("  %6s %8s %12s %12s   %s\n", "tokens", "best axb", "forward", "backward", "others: forward + backward");
  for (const auto& mesh : facts.meshes) {
    const auto& best = mesh.shapes.front();
    std::string others;
    for (size_t i = 1; i < mesh.shapes.size(); ++i) {
      char part[64];
      std::snprintf(part, sizeof(part), "%s%dx%d %.1f", others.empty() ? "" : ", ", mesh.shapes[i].a, mesh.shapes[i].b,
                    mesh.shapes[i].forwardUs + mesh.shapes[i].backwardUs);
      others += part;
    }
    const std::string shape = std::to_string(best.a) + "x" + std::to_string(best.b);
    text.add("  %6s %8s %12.1f %12.1f   %s\n", sizeText(static_cast<size_t>(mesh.tokens)).c_str(), shape.c_str(),
             best.forwardUs, best.backwardUs, others.c_str());
  }
}

}  // namespace

std::string textOf(const Facts& facts) {
  Text text;
  addTopology(text, facts);
  addLinks(text, facts);
  if (facts.comm.nranks == 1) return text.take();
  addScans(text, facts);
  addMoves(text, facts);
  addMeshes(text, facts);
  return text.take();
}

}  // namespace seqpar::info
