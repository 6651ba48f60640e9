// Redistribution plans and their execution.
#include <array>

#include "api/boundary.h"
#include "api/buffers.h"
#include "base/checked.h"
#include "base/versioned.h"
#include "comm/agreement.h"
#include "exchange/backend.h"
#include "layout/redistribute.h"
#include "seqpar/layout.h"

using namespace seqpar;

namespace {

struct RedistributePlan {
  seqparComm_t handle = nullptr;
  std::weak_ptr<Communicator> comm;
  std::shared_ptr<const Route> route;
  std::vector<size_t> sendBytes, receiveBytes;  ///< of each tensor
  int64_t digest = 0;                           ///< of everything that must be equal on all ranks
};

HandleTable<RedistributePlan, seqparRedistributePlan_t>& plans() {
  // Never destroyed, like the tables of handles.h.
  return handleTable<RedistributePlan, seqparRedistributePlan_t>();
}

std::span<const int64_t> packingOf(const seqparLayout_t& layout) {
  return {layout.cuSeqlens, layout.sequences == 0 ? 0 : static_cast<size_t>(layout.sequences) + 1};
}

/// The bounds and owners of pieces; empty for other kinds.
std::vector<int64_t> piecesOf(const seqparLayout_t& layout) {
  if (layout.kind != seqparPieces) return {};
  std::vector<int64_t> numbers(layout.pieceBounds, layout.pieceBounds + layout.pieces + 1);
  numbers.insert(numbers.end(), layout.pieceOwners, layout.pieceOwners + layout.pieces);
  return numbers;
}

std::vector<RowTensor> readTensors(const char* call, int tensors, const int64_t* outer, const int64_t* rowBytes,
                                   int64_t tokens) {
  if (tensors < 0) fail(seqparInvalidArgument, call, ": tensors is ", tensors, ", expected 0 or more");
  if (tensors > 0) requirePointer(call, "rowBytes", rowBytes);
  std::vector<RowTensor> out;
  for (int t = 0; t < tensors; ++t) {
    const int64_t times = outer == nullptr ? 1 : outer[t];
    const auto outerName = concat("outer[", t, "]"), rowName = concat("rowBytes[", t, "]");
    countBytes(call, concat("tensor ", t).c_str(),
               {{outerName.c_str(), times}, {"tokens", tokens}, {rowName.c_str(), rowBytes[t]}});
    out.push_back({static_cast<size_t>(times), static_cast<size_t>(rowBytes[t])});
  }
  return out;
}

void requireFit(const char* call, const Layout& from, const Layout& to, const Communicator& comm) {
  for (const auto& [name, layout] : {std::pair{"from", &from}, std::pair{"to", &to}}) {
    if (layout->ranks() == comm.size()) continue;
    fail(seqparInvalidArgument, call, ": ", name, "->ranks is ", layout->ranks(), ", expected the ", comm.size(),
         " of comm");
  }
  if (from.tokens() != to.tokens()) {
    fail(seqparInvalidArgument, call, ": to->tokens is ", to.tokens(), ", expected from->tokens = ", from.tokens());
  }
}

/// Compares both layouts and the tensors across ranks. Returns a digest of them.
int64_t compareRanks(const char* call, const seqparLayout_t& from, const seqparLayout_t& to,
                     std::span<const RowTensor> tensors, Communicator& comm) {
  std::vector<int64_t> outer, rowBytes;
  for (const auto& tensor : tensors) {
    outer.push_back(static_cast<int64_t>(tensor.outer));
    rowBytes.push_back(static_cast<int64_t>(tensor.rowBytes));
  }
  const auto stripe = [](const seqparLayout_t& layout) { return layout.kind == seqparStriped ? layout.stripe : 1; };
  const auto fromPieces = piecesOf(from), toPieces = piecesOf(to);
  const std::array<NamedValue, 16> values{{{"from->kind", from.kind},
                                           {"from->tokens", from.tokens},
                                           {"from->stripe", stripe(from)},
                                           {"from->slices", from.slices},
                                           {"from->sequences", from.sequences},
                                           namedArray("from->cuSeqlens", packingOf(from)),
                                           namedArray("from->pieceBounds and pieceOwners", fromPieces),
                                           {"to->kind", to.kind},
                                           {"to->stripe", stripe(to)},
                                           {"to->slices", to.slices},
                                           {"to->sequences", to.sequences},
                                           namedArray("to->cuSeqlens", packingOf(to)),
                                           namedArray("to->pieceBounds and pieceOwners", toPieces),
                                           {"tensors", static_cast<int64_t>(tensors.size())},
                                           namedArray("outer", outer),
                                           namedArray("rowBytes", rowBytes)}};
  comm.compareNow(call, values);
  std::vector<int64_t> all;
  all.reserve(values.size());
  for (const auto& value : values) all.push_back(value.value);
  return fingerprint(all);
}

void checkBuffers(const char* call, const RedistributePlan& plan, const void* const* send, void* const* receive,
                  const Communicator& comm) {
  const size_t tensors = plan.sendBytes.size();
  std::vector<std::string> names;
  for (size_t t = 0; t < tensors; ++t) {
    names.push_back(concat("send[", t, "]"));
    names.push_back(concat("receive[", t, "]"));
  }
  std::vector<Buffer> buffers;
  for (size_t t = 0; t < tensors; ++t) {
    buffers.push_back({names[2 * t].c_str(), send[t], plan.sendBytes[t]});
    buffers.push_back({names[2 * t + 1].c_str(), receive[t], plan.receiveBytes[t]});
  }
  for (const auto& buffer : buffers) {
    if (buffer.bytes > 0) requirePointer(call, buffer.name, buffer.data);
    requireMemory(call, buffer, comm);
  }
  for (size_t written = 1; written < buffers.size(); written += 2) {
    for (size_t other = 0; other < buffers.size(); ++other) {
      if (other != written) requireDisjoint(call, buffers[other], buffers[written], false);
    }
  }
}

}  // namespace

extern "C" {

SEQPAR_API seqparResult_t seqparRedistributePlanCreate(seqparRedistributePlan_t* plan, const seqparLayout_t* from,
                                                       const seqparLayout_t* to, int tensors, const int64_t* outer,
                                                       const int64_t* rowBytes, seqparComm_t handle) {
  const char* call = "seqparRedistributePlanCreate";
  return onEntry(call, handle, [&](CommEntry& entry) {
    Communicator& comm = *entry.comm;
    requirePointer(call, "plan", plan);
    *plan = nullptr;
    const seqparLayout_t defaults = SEQPAR_LAYOUT_INITIALIZER;
    const auto givenFrom = readVersioned(call, "from", from, defaults);
    const auto givenTo = readVersioned(call, "to", to, defaults);
    const Layout had(call, "from", givenFrom);
    const Layout target(call, "to", givenTo);
    requireFit(call, had, target, comm);
    const auto sizes = readTensors(call, tensors, outer, rowBytes, had.tokens());

    auto made = std::make_shared<RedistributePlan>();
    made->digest = compareRanks(call, givenFrom, givenTo, sizes, comm);
    made->handle = handle;
    made->comm = entry.comm;
    made->route = std::make_shared<const Route>(redistributeRoute(had, target, sizes, comm.rank()));
    for (const auto& tensor : sizes) {
      made->sendBytes.push_back(tensor.outer * tensor.rowBytes * static_cast<size_t>(had.localLength(comm.rank())));
      made->receiveBytes.push_back(tensor.outer * tensor.rowBytes *
                                   static_cast<size_t>(target.localLength(comm.rank())));
    }
    *plan = plans().add(std::move(made));
  });
}

SEQPAR_API seqparResult_t seqparRedistributePlanDestroy(seqparRedistributePlan_t plan) {
  const char* call = "seqparRedistributePlanDestroy";
  return atBoundary(call, [&] {
    if (plan != nullptr && !plans().remove(plan)) require(plans(), plan, call, "plan", "plan");
  });
}

SEQPAR_API seqparResult_t seqparRedistribute(seqparRedistributePlan_t handle, const void* const* send,
                                             void* const* receive, void* stream) {
  const char* call = "seqparRedistribute";
  std::shared_ptr<RedistributePlan> plan;
  const auto found = atBoundary(call, [&] { plan = require(plans(), handle, call, "plan", "plan"); });
  if (found != seqparSuccess) return found;
  return onComm(call, plan->handle, [&](Communicator& comm) {
    if (plan->comm.lock().get() != &comm) {
      fail(seqparInvalidArgument, call, ": plan's communicator was freed; expected a plan of an open communicator");
    }
    if (!plan->sendBytes.empty()) {
      requirePointer(call, "send", send);
      requirePointer(call, "receive", receive);
    }
    checkBuffers(call, *plan, send, receive, comm);
    const NamedValue same{"the fingerprint of plan", plan->digest};
    comm.compareNext(call, {&same, 1});
    std::vector<const std::byte*> from;
    std::vector<std::byte*> into;
    for (size_t t = 0; t < plan->sendBytes.size(); ++t) {
      from.push_back(static_cast<const std::byte*>(send[t]));
      into.push_back(static_cast<std::byte*>(receive[t]));
    }
    exchangesOf(comm).exchange(comm, call, {plan->route, std::move(from), std::move(into), {}},
                               callerStream(call, stream, comm));
  });
}

}  // extern "C"
