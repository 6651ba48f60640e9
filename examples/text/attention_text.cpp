// Causal softmax attention over a text that is sharded across ranks, forward and backward, with every
// algorithm: errors against the definition in fp64, times, and the bytes that a rank sends.
//
//   attention_text [FILE] [--ranks N] [--tokens N] [--repeat N]
//
// Exit status: 0 all results within the bound, 1 some not, 2 bad arguments or file, 3 a call failed.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "launch.h"
#include "options.h"
#include "program.h"
#include "seqpar/attn.h"
#include "softmax_operator.h"
#include "softmax_reference.h"

namespace {

constexpr const char* kUsage =
    "usage: attention_text [FILE] [--ranks N] [--tokens N] [--repeat N]\n"
    "  FILE       any file; its bytes are the tokens (default /usr/share/common-licenses/GPL-3)\n"
    "  --ranks    number of ranks if neither mpirun nor RANK/WORLD_SIZE sets it (default 4)\n"
    "  --tokens   number of bytes to use (default 1500); the check takes quadratic time\n"
    "  --repeat   number of runs; the fastest run is reported (default 5)\n";

/// The whole definition on every rank; ranks compute different queries.
SoftmaxReference referenceOf(const Ranks& ranks, const Inputs& whole, const std::vector<float>& dOut,
                             const Shape& shape, size_t tokens) {
  SoftmaxReference sum(whole.q.size());
  // Later queries see more keys: cut the triangle into equal areas.
  const auto boundary = [&](size_t rank) {
    return static_cast<size_t>(static_cast<double>(tokens) *
                               std::sqrt(static_cast<double>(rank) / static_cast<double>(ranks.count())));
  };
  addQueries(whole, dOut, shape, boundary(ranks.rank()), boundary(ranks.rank() + 1), sum);
  for (auto* exact : {&sum.out, &sum.dq, &sum.dk, &sum.dv}) {
    for (auto* numbers : {&exact->value, &exact->magnitude, &exact->bound}) {
      const auto all = ranks.gather(*numbers);
      for (size_t i = numbers->size(); i < all.size(); ++i) (*numbers)[i % numbers->size()] += all[i];
      ranks.broadcast(std::span(*numbers));
    }
  }
  return sum;
}

/// The line of one algorithm.
struct Line {
  Errors out, gradients;
  double forwardMs = 0, backwardMs = 0;

  void add(const Line& other) {
    out.add(other.out);
    gradients.add(other.gradients);
    forwardMs = std::max(forwardMs, other.forwardMs);
    backwardMs = std::max(backwardMs, other.backwardMs);
  }
};

Line runAlgorithm(const Ranks& ranks, SoftmaxOperator& attention, const Embedding& embed, const Text& text,
                  const Shape& shape, const SoftmaxReference& exact, size_t repeat) {
  const auto& positions = attention.positions();
  Text mine;
  for (const int64_t position : positions) mine.push_back(text[static_cast<size_t>(position)]);
  const auto inputs = embed(mine);
  const auto dOut = embed.outputGradients(mine);
  SoftmaxResults results;
  Line line;
  for (size_t i = 0; i < repeat; ++i) {
    ranks.barrier();
    const auto [forward, backward] = attention.run(inputs, dOut, results);
    if (i == 0 || forward < line.forwardMs) line.forwardMs = forward;
    if (i == 0 || backward < line.backwardMs) line.backwardMs = backward;
  }
  const size_t width = shape.heads * shape.dk;
  line.out.compare(results.out, exact.out, positions, width);
  line.gradients.compare(results.dq, exact.dq, positions, width);
  line.gradients.compare(results.dk, exact.dk, positions, width);
  line.gradients.compare(results.dv, exact.dv, positions, width);
  return line;
}

int runRank(const Options& options, seqparComm_t comm) {
  const Ranks ranks(comm);
  const auto text = shareFile(ranks, "attention_text", options);
  if (!text) return 2;
  const Shape shape;
  const Embedding embed(shape);
  const auto whole = embed(*text);
  const auto exact = referenceOf(ranks, whole, embed.outputGradients(*text), shape, text->size());
  const bool prints = ranks.rank() == 0;
  if (prints) {
    std::printf("file            %s\n", options.file.c_str());
    std::printf("tokens          %zu (one a byte), %zu heads of %zu, causal, fp32\n", text->size(), shape.heads,
                shape.dk);
    std::printf("ranks           %zu (%s)\n\n", ranks.count(), launchedBy());
    std::printf("  %-19s %-11s %11s %9s %12s %9s %9s %9s %9s\n", "algorithm", "layout", "out: error", "of bound",
                "grad: error", "of bound", "fwd ms", "bwd ms", "sent KiB");
  }
  bool good = true;
  for (int algorithm = seqparAttnLocal; algorithm <= seqparAttnMegatronSp; ++algorithm) {
    const bool exchanges = algorithm != seqparAttnLocal;
    if (exchanges == (ranks.count() == 1))
      continue;  // one rank: only algorithms without exchange; several ranks: only the others
    const char* const name = seqparAttnAlgorithmName(algorithm);
    if (name == nullptr) continue;
    SoftmaxOperator attention(shape, static_cast<int64_t>(text->size()), algorithm, comm);
    if (!attention.refusal().empty()) {
      if (prints) std::printf("  %-19s %s\n", name, attention.refusal().c_str());
      continue;
    }
    Line all;
    for (const auto& line :
         ranks.gather(std::vector<Line>{runAlgorithm(ranks, attention, embed, *text, shape, exact, options.repeat)})) {
      all.add(line);
    }
    if (!prints) continue;
    good = good && all.out.ofBound <= 1 && all.gradients.ofBound <= 1;
    std::printf("  %-19s %-11s %11.2e %9.4f %12.2e %9.4f %9.2f %9.2f %9.0f\n", name, attention.layoutName(),
                all.out.relative, all.out.ofBound, all.gradients.relative, all.gradients.ofBound, all.forwardMs,
                all.backwardMs, attention.bytesSent(name) / 1024);
    std::fflush(stdout);
  }
  int status = good ? 0 : 1;
  if (prints) {
    std::printf(
        "\nerror           relative to the sum of the magnitudes of an element's terms, against the definition in "
        "fp64\n");
    std::printf("bound           error bound of fp32 rounding\n");
    std::printf("sent            per rank, forward and backward, by the model\n");
    std::printf("result          %s\n", good ? "OK" : "WRONG");
  }
  ranks.broadcast(std::span(&status, 1));
  return status;
}

}  // namespace

int main(int count, char** words) {
  return runProgram(
      "attention_text", kUsage, [&] { return parseOptions(count, words, false, 1500); }, runRank);
}
