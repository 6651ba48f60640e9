// Using, querying and destroying communicators.
#include <cstring>
#include <vector>

#include "api/boundary.h"
#include "api/describe.h"
#include "api/split.h"
#include "base/checked.h"
#include "base/versioned.h"
#include "comm/agreement.h"

using namespace seqpar;

namespace {

template <typename Read>
seqparResult_t readInt(const char* call, const char* argument, seqparComm_t handle, int* out, Read read) {
  return onComm(call, handle, [&](Communicator& comm) {
    requirePointer(call, argument, out);
    *out = read(comm);
  });
}

/// Closes the communicator and ends it: at once if `aborted`, else in agreement with the other ranks.
seqparResult_t end(const char* call, seqparComm_t handle, bool aborted) {
  return atBoundary(call, [&] {
    if (handle == nullptr) return;
    const auto entry = comms().remove(handle);
    if (!entry) require(comms(), handle, call, "comm", "communicator");
    if (aborted) entry->comm->abort();
    entry->callers.close();
    // A thread's cache of its latest communicator may keep the entry alive; the communicator itself must end.
    const auto comm = std::move(entry->comm);
    comm->close();
  });
}

NamedValue comparedArgument(const char* call, const seqparCompared_t& given, int index) {
  const auto refuse = [&](const char* field, int64_t value, const char* expected) {
    fail(seqparInvalidArgument, call, ": arguments[", index, "].", field, " is ", value, ", expected ", expected);
  };
  requirePointer(call, concat("arguments[", index, "].name").c_str(), given.name);
  if (given.kind == seqparComparedNumber) return {given.name, given.number};
  if (given.kind == seqparComparedReal) return namedReal(given.name, given.real);
  if (given.kind != seqparComparedArray) refuse("kind", given.kind, "0 (number), 1 (real) or 2 (array)");
  if (given.number < 0) refuse("number", given.number, "0 elements or more");
  const auto array = concat("arguments[", index, "].array");
  if (given.number > 0) requirePointer(call, array.c_str(), given.array);
  const size_t bytes = countBytes(call, array.c_str(), {{"number", given.number}, {"bytes", sizeof(int64_t)}});
  requireArray(call, array.c_str(), given.array, bytes, alignof(int64_t));
  return namedArray(given.name, {given.array, static_cast<size_t>(given.number)});
}

std::vector<NamedValue> comparedArguments(const char* own, const char* call, const seqparCompared_t* arguments,
                                          int count) {
  requirePointer(own, "call", call);
  if (std::strlen(call) > Comparison::kLongestCall) {
    fail(seqparInvalidArgument, own, ": call is '", call, "', expected at most ", Comparison::kLongestCall, " bytes");
  }
  if (count < 0 || count > SEQPAR_MOST_COMPARED) {
    fail(seqparInvalidArgument, own, ": count is ", count, ", expected 0 to ", SEQPAR_MOST_COMPARED);
  }
  std::vector<NamedValue> all;
  if (count > 0) requirePointer(own, "arguments", arguments);
  all.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) all.push_back(comparedArgument(own, arguments[i], i));
  return all;
}

}  // namespace

extern "C" {

SEQPAR_API seqparResult_t seqparCommSplit(seqparComm_t handle, int color, int key, seqparComm_t* newcomm,
                                          const seqparConfig_t* config) {
  const char* call = "seqparCommSplit";
  return onComm(call, handle, [&](Communicator& comm) {
    requirePointer(call, "newcomm", newcomm);
    *newcomm = nullptr;
    if (color < SEQPAR_SPLIT_NOCOLOR) {
      fail(seqparInvalidArgument, call, ": color is ", color, ", expected 0 or more, or SEQPAR_SPLIT_NOCOLOR");
    }
    comm.requireUse(call);
    auto made = splitEntry(comm, color, key, resolveConfig(call, config, comm.config()));
    if (made) *newcomm = comms().add(std::move(made));
  });
}

SEQPAR_API seqparResult_t seqparCommBarrier(seqparComm_t handle) {
  return onComm("seqparCommBarrier", handle, [](Communicator& comm) {
    comm.requireUse("seqparCommBarrier");
    std::vector<char> all(static_cast<size_t>(comm.size()));
    comm.control().gatherValues(char{0}, std::span(all));
  });
}

SEQPAR_API seqparResult_t seqparCommCompare(const char* call, const seqparCompared_t* arguments, int count,
                                            seqparComm_t handle) {
  const char* const own = "seqparCommCompare";
  return onComm(call == nullptr ? own : call, handle,
                [&](Communicator& comm) { comm.compareNow(call, comparedArguments(own, call, arguments, count)); });
}

SEQPAR_API seqparResult_t seqparCommCallBegin(const char* call, const seqparCompared_t* arguments, int count,
                                              seqparComm_t handle, void* stream) {
  const char* const own = "seqparCommCallBegin";
  const auto result = onComm(call == nullptr ? own : call, handle, [&](Communicator& comm) {
    const auto all = comparedArguments(own, call, arguments, count);
    const auto on = callerStream(own, stream, comm);
    comm.startCall(call);
    if (comm.device() != nullptr && comm.device()->inCapture(on.device)) comm.calls().chain().end();
    OuterCall::begin(&comm, call, digestOf(call, all));
    comm.compareNext(call, all);
    // As a separate operation: otherwise the comparison would run with the first part, which may differ between ranks.
    if (comm.device() == nullptr && comm.config().checkArguments) comm.run(call, on.host.get(), [](Mailbox&) {});
  });
  if (result == seqparSuccess) {
    OuterCall::nameThread();
  } else {
    OuterCall::end();
  }
  return result;
}

SEQPAR_API seqparResult_t seqparCommCallEnd(void) {
  OuterCall::end();
  return seqparSuccess;
}

SEQPAR_API seqparResult_t seqparCommNextCall(seqparComm_t handle) {
  return onComm("seqparCommNextCall", handle, [](Communicator& comm) { comm.nextCall(); });
}

SEQPAR_API seqparResult_t seqparCommRefuseCall(seqparComm_t handle, const char* why) {
  const char* call = "seqparCommRefuseCall";
  return onComm(call, handle, [&](Communicator& comm) {
    requirePointer(call, "why", why);
    comm.refuse(call, why);
  });
}

SEQPAR_API seqparResult_t seqparCommFail(seqparComm_t handle, const char* why) {
  const char* call = "seqparCommFail";
  return onComm(call, handle, [&](Communicator& comm) {
    requirePointer(call, "why", why);
    comm.lose(why);
  });
}

SEQPAR_API seqparResult_t seqparCommFinalize(seqparComm_t handle) {
  return onComm("seqparCommFinalize", handle, [](Communicator& comm) { comm.finalize(); });
}

SEQPAR_API seqparResult_t seqparCommDestroy(seqparComm_t handle) {
  return end("seqparCommDestroy", handle, false);
}

SEQPAR_API seqparResult_t seqparCommAbort(seqparComm_t handle) {
  return end("seqparCommAbort", handle, true);
}

SEQPAR_API seqparResult_t seqparCommGetAsyncError(seqparComm_t handle, seqparResult_t* asyncError) {
  const char* call = "seqparCommGetAsyncError";
  return onComm(call, handle, [&](Communicator& comm) {
    requirePointer(call, "asyncError", asyncError);
    if (comm.device() != nullptr) comm.device()->notice();
    *asyncError = comm.health().result();
  });
}

SEQPAR_API seqparResult_t seqparCommCount(seqparComm_t handle, int* count) {
  return readInt("seqparCommCount", "count", handle, count, [](Communicator& comm) { return comm.size(); });
}

SEQPAR_API seqparResult_t seqparCommUserRank(seqparComm_t handle, int* rank) {
  return readInt("seqparCommUserRank", "rank", handle, rank, [](Communicator& comm) { return comm.rank(); });
}

SEQPAR_API seqparResult_t seqparCommDevice(seqparComm_t handle, int* device) {
  return readInt("seqparCommDevice", "device", handle, device, [](Communicator& comm) { return comm.config().device; });
}

SEQPAR_API seqparResult_t seqparCommQuery(seqparComm_t handle, seqparCommInfo_t* info) {
  const char* call = "seqparCommQuery";
  return onComm(call, handle, [&](Communicator& comm) { writeVersioned(call, "info", info, describe(comm)); });
}

}  // extern "C"
