#include "api/handles.h"

#include "api/describe.h"
#include "base/thread_object.h"

namespace seqpar {

CommEntry::CommEntry(std::shared_ptr<Communicator> made) : comm(std::move(made)), scans(*comm) {
  logCreated(*comm);
}

HandleTable<CommEntry, seqparComm_t>& comms() {
  return handleTable<CommEntry, seqparComm_t>();
}

HandleTable<HostStream, seqparStream_t>& streams() {
  return handleTable<HostStream, seqparStream_t>();
}

HandleTable<HostEvent, seqparEvent_t>& events() {
  return handleTable<HostEvent, seqparEvent_t>();
}

std::shared_ptr<HostStream> requireStream(const char* call, seqparStream_t stream, const char* kind) {
  auto& recent = ofThread<HandleTable<HostStream, seqparStream_t>::Recent>();
  auto found = stream == nullptr ? nullptr : recent.find(streams(), stream);
  if (!found) failHandle(stream, call, "stream", kind);
  return found;
}

std::shared_ptr<HostStream> findStream(const char* call, void* stream) {
  if (stream == nullptr) return nullptr;
  return requireStream(call, static_cast<seqparStream_t>(stream), "host stream (or NULL)");
}

CallerStream callerStream(const char* call, void* stream, const Communicator& comm) {
  if (comm.device() != nullptr) return {nullptr, stream};
  return {findStream(call, stream), nullptr};
}

}  // namespace seqpar
