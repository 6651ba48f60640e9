// Host streams and events.
#include <string>
#include <utility>

#include "api/boundary.h"
#include "comm/outer_call.h"

using namespace seqpar;

namespace {

template <typename Body>
seqparResult_t onStream(const char* call, seqparStream_t handle, Body&& body) {
  return atBoundary(call, [&] { body(*requireStream(call, handle, "host stream")); });
}

template <typename Body>
seqparResult_t onEvent(const char* call, seqparEvent_t handle, Body&& body) {
  return atBoundary(call, [&] { body(*require(events(), handle, call, "event", "host event")); });
}

template <typename Object, typename Handle>
seqparResult_t create(const char* call, const char* argument, HandleTable<Object, Handle>& table, Handle* out) {
  return atBoundary(call, [&] {
    requirePointer(call, argument, out);
    *out = nullptr;
    *out = table.add(std::make_shared<Object>());
  });
}

/// While it exists, the thread counts as outside of all calls and without an error: a program's function may run on a
/// thread that waits in a call.
class OutsideOfCalls {
 public:
  OutsideOfCalls() noexcept : error_(std::exchange(threadError(), {})) {}
  OutsideOfCalls(const OutsideOfCalls&) = delete;
  OutsideOfCalls& operator=(const OutsideOfCalls&) = delete;
  ~OutsideOfCalls() { threadError() = std::move(error_); }

 private:
  std::string error_;
  CallScope::Outside scope_;
  OuterCall::Outside outer_;
  Communicator::HeldComparison comparison_;
};

}  // namespace

extern "C" {

SEQPAR_API seqparResult_t seqparStreamCreate(seqparStream_t* stream) {
  return create("seqparStreamCreate", "stream", streams(), stream);
}

SEQPAR_API seqparResult_t seqparStreamDestroy(seqparStream_t stream) {
  const char* call = "seqparStreamDestroy";
  if (stream == nullptr) return seqparSuccess;
  return onStream(call, stream, [&](HostStream& found) {
    if (found.runsHere()) fail(seqparInvalidUsage, call, ": called by work of this stream, expected another caller");
    found.wait();  // before the removal: work may call on its stream
    if (!streams().remove(stream)) failHandle(stream, call, "stream", "host stream");
    found.close();
  });
}

SEQPAR_API seqparResult_t seqparStreamSynchronize(seqparStream_t stream) {
  return onStream("seqparStreamSynchronize", stream, [](HostStream& found) { found.synchronize(); });
}

SEQPAR_API seqparResult_t seqparStreamQuery(seqparStream_t stream) {
  return onStream("seqparStreamQuery", stream, [](HostStream& found) {
    if (!found.idle()) fail(seqparInProgress, "");
  });
}

SEQPAR_API seqparResult_t seqparStreamLaunch(seqparStream_t stream, void (*function)(void*), void* argument) {
  const char* call = "seqparStreamLaunch";
  return onStream(call, stream, [&](HostStream& found) {
    if (function == nullptr) fail(seqparInvalidArgument, call, ": function is NULL");
    found.enqueue([function, argument] {
      const OutsideOfCalls outside;
      function(argument);
    });
  });
}

SEQPAR_API seqparResult_t seqparStreamFail(seqparStream_t stream, seqparResult_t result, const char* text) {
  const char* call = "seqparStreamFail";
  return onStream(call, stream, [&](HostStream& found) {
    if (result < seqparUnhandledCudaError || result > seqparRemoteError) {
      fail(seqparInvalidArgument, call, ": result is ", static_cast<int>(result), ", expected an error, ",
           static_cast<int>(seqparUnhandledCudaError), " to ", static_cast<int>(seqparRemoteError));
    }
    requirePointer(call, "text", text);
    found.fail(result, text);
  });
}

SEQPAR_API seqparResult_t seqparEventCreate(seqparEvent_t* event) {
  return create("seqparEventCreate", "event", events(), event);
}

SEQPAR_API seqparResult_t seqparEventDestroy(seqparEvent_t event) {
  const char* call = "seqparEventDestroy";
  return atBoundary(call, [&] {
    if (event != nullptr && !events().remove(event)) require(events(), event, call, "event", "host event");
  });
}

SEQPAR_API seqparResult_t seqparEventRecord(seqparEvent_t event, seqparStream_t stream) {
  const char* call = "seqparEventRecord";
  return onEvent(call, event,
                 [&](HostEvent& found) { found.record(*require(streams(), stream, call, "stream", "host stream")); });
}

SEQPAR_API seqparResult_t seqparStreamWaitEvent(seqparStream_t stream, seqparEvent_t event) {
  const char* call = "seqparStreamWaitEvent";
  return onStream(call, stream,
                  [&](HostStream& found) { require(events(), event, call, "event", "host event")->makeWait(found); });
}

SEQPAR_API seqparResult_t seqparEventSynchronize(seqparEvent_t event) {
  return onEvent("seqparEventSynchronize", event, [](HostEvent& found) { found.synchronize(); });
}

SEQPAR_API seqparResult_t seqparEventQuery(seqparEvent_t event) {
  return onEvent("seqparEventQuery", event, [](HostEvent& found) {
    if (!found.passed()) fail(seqparInProgress, "");
    found.check();
  });
}

SEQPAR_API seqparResult_t seqparEventElapsedTime(float* milliseconds, seqparEvent_t start, seqparEvent_t end) {
  const char* call = "seqparEventElapsedTime";
  return onEvent(call, start, [&](HostEvent& from) {
    requirePointer(call, "milliseconds", milliseconds);
    *milliseconds = static_cast<float>(from.millisecondsTo(*require(events(), end, call, "end", "host event")));
  });
}

}  // extern "C"
