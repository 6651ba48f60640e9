// Ranks with only refused calls, under a limit of address space that a call which was not refused would hit. On hosts,
// unless a program defines ranksOnDevices() and backend().
#pragma once

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/address_limit.h"
#include "common/backend.h"
#include "common/ranks.h"
#include "common/sanitized.h"
#include "seqpar/mesh.h"

namespace seqpar::test {

/// Runs a body on GPU ranks and returns the errors; empty: use host ranks.
inline std::function<std::string(int ranks, const std::function<void(seqparComm_t, int)>&)>& ranksOnDevices() {
  static std::function<std::string(int, const std::function<void(seqparComm_t, int)>&)> run;
  return run;
}

/// Limits the address space to slightly more than is in use, and shortens the wait for absent ranks, for a scope. Not
/// with sanitizers and CUDA, which need all address space.
class Limits {
 public:
  Limits() {
    setenv("SEQPAR_TIMEOUT", "20", 1);
#ifndef SEQPAR_SANITIZED
    if (ranksOnDevices()) return;
    space_.emplace(size_t{1} << 30);
#endif
  }
  Limits(const Limits&) = delete;
  Limits& operator=(const Limits&) = delete;
  ~Limits() {
    unsetenv("SEQPAR_TIMEOUT");
  }

 private:
  std::optional<AddressLimit> space_;
};

/// Small buffers between guards, as all ranks have.
struct Memory {
  float* at(size_t i) { return numbers.data() + 16 + 16 * i; }
  bool intact() const {
    return std::all_of(numbers.begin(), numbers.end(), [](float number) { return number == 42.0F; });
  }

  Vector<float> numbers = Vector<float>(160, 42.0F);
};

/// Throws unless the call was refused by its name.
inline void refused(const std::string& what, const char* call, seqparResult_t result) {
  const std::string text = seqparGetLastError(nullptr);
  expect(result == seqparInvalidArgument, what, ": result ", result, ": ", text);
  expect(text.rfind(call, 0) == 0, what, ": no ", call, " in: ", text);
}

/// Checks that the communicator still works: refused calls have sent nothing.
inline void expectAlive(seqparComm_t comm, int rank, int ranks) {
  const Vector<float> mine(1, static_cast<float>(rank));
  Vector<float> remote(1, -1.0F);
  const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
  auto* const stream = backend()->noStream();
  expectSuccess(seqparSendRecv(mine.data(), sizeof(float), next, remote.data(), sizeof(float), before, comm, stream),
                "seqparSendRecv", comm);
  backend()->synchronize(stream);
  expect(remote[0] == static_cast<float>(before), "received ", remote[0]);
}

/// body(comm, rank, memory) on this many ranks, where all calls must be refused.
inline void onRanks(int ranks, const std::function<void(seqparComm_t, int, Memory&)>& body) {
  const Limits limits;
  const auto all = [&](seqparComm_t comm, int rank) {
    Memory memory;
    body(comm, rank, memory);
    expect(memory.intact(), "memory was written");
    expectAlive(comm, rank, ranks);
  };
  const auto errors = ranksOnDevices() ? ranksOnDevices()(ranks, all) : onCommunicator(ranks, all);
  INFO(errors);
  CHECK(errors.empty());
}

struct RowShape {
  int64_t tokens, carryTokens, heads, dim;
};

/// seqparMeshReduceO() of {o, lse, carry, carryLse}.
inline seqparResult_t reduceO(int index, const std::array<void*, 4>& buffers, const RowShape& shape, int type,
                              seqparMesh_t mesh) {
  seqparMeshReduceOParams_t params = SEQPAR_MESH_REDUCE_O_PARAMS_INITIALIZER;
  params.o = buffers[0];
  params.lse = static_cast<float*>(buffers[1]);
  params.carry = buffers[2];
  params.carryLse = static_cast<float*>(buffers[3]);
  params.tokens = shape.tokens;
  params.carryTokens = shape.carryTokens;
  params.heads = shape.heads;
  params.dim = shape.dim;
  params.dataType = params.wireType = type;
  return seqparMeshReduceO(index, &params, mesh, nullptr);
}

/// seqparMeshReduceScatterO() of {o, lse, result, resultLse}.
inline seqparResult_t reduceScatterO(const std::array<void*, 4>& buffers, const std::vector<int64_t>& tokens,
                                     int64_t heads, int64_t dim, int type, seqparMesh_t mesh) {
  seqparMeshReduceScatterOParams_t params = SEQPAR_MESH_REDUCE_SCATTER_O_PARAMS_INITIALIZER;
  params.o = buffers[0];
  params.lse = static_cast<const float*>(buffers[1]);
  params.result = buffers[2];
  params.resultLse = static_cast<float*>(buffers[3]);
  params.tokens = tokens.data();
  params.heads = heads;
  params.dim = dim;
  params.dataType = type;
  return seqparMeshReduceScatterO(&params, mesh, nullptr);
}

}  // namespace seqpar::test
