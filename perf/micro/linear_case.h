// Common code of the linear attention micro benchmarks: shapes, inputs and rows.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/buffer.h"
#include "kernels/attn/linear/args.h"
#include "part.h"

namespace seqpar::perf {

struct LinearShape {
  const char* name;
  attn::Gate gate;
  int gateType;
  int64_t tokens;
  int heads, dimension;  ///< of keys and of values
};

/// The shapes that both binaries measure: bf16, batch 1.
std::vector<LinearShape> linearShapes();

/// One shape on this rank's GPU, and memory for its passes, freed in the destructor.
class LinearCase {
 public:
  LinearCase(const LinearShape& shape, Session& session);

  /// q, k, v and the gates are random: normal values, and log-decays drawn as in FLA's benchmarks.
  const attn::LinearProblem& problem() const { return problem_; }
  const LinearShape& shape() const { return shape_; }
  size_t numbers() const;    ///< of a tensor such as q
  size_t gateBytes() const;  ///< of all gates

  void* take(size_t bytes);  ///< zeros
  float* takeFloats(size_t count) { return static_cast<float*>(take(count * sizeof(float))); }
  /// A random tensor shaped like q; an output tensor.
  attn::Input drawn();
  attn::Output output();
  attn::StateMaps maps(const attn::Segments& segments) {
    return attn::stateMapsIn(take(attn::stateMapsSize(problem_, segments)), problem_, segments);
  }

  /// Prints a row for each of `passes`, compared with a copy of the bytes that the pass must read and write.
  struct Pass {
    const char* name;
    size_t bytes;  ///< of inputs and outputs, each once
    std::function<void()> run;
  };
  void measure(const attn::Segments& segments, const std::vector<Pass>& passes);

  /// Throws unless `error`, a launch's cudaError_t, is success.
  static void must(int error, const char* launch);

 private:
  void* filled(size_t bytes, const std::vector<std::byte>& pattern);

  LinearShape shape_;
  Session& session_;
  attn::LinearProblem problem_;
  std::vector<std::unique_ptr<Buffer>> memory_;
};

/// Runs `body` with every shape.
Program linearProgram(std::string name, std::string summary, void (*body)(LinearCase&, void* stream));

}  // namespace seqpar::perf
