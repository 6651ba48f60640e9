#include "api/handles.h"

namespace seqpar {

// Never destroyed: a program may leave handles behind, and their threads must not outlive the tables they are looked up
// in.
HandleTable<CommEntry, seqparComm_t>& comms() {
  static auto* const table = std::make_unique<HandleTable<CommEntry, seqparComm_t>>().release();
  return *table;
}

HandleTable<HostStream, seqparStream_t>& streams() {
  static auto* const table = std::make_unique<HandleTable<HostStream, seqparStream_t>>().release();
  return *table;
}

HandleTable<HostEvent, seqparEvent_t>& events() {
  static auto* const table = std::make_unique<HandleTable<HostEvent, seqparEvent_t>>().release();
  return *table;
}

std::shared_ptr<HostStream> findStream(const char* call, void* stream) {
  if (stream == nullptr) return nullptr;
  return require(streams(), static_cast<seqparStream_t>(stream), call, "stream", "host stream (or NULL)");
}

CallerStream callerStream(const char* call, void* stream, const Communicator& comm) {
  if (comm.device() != nullptr) return {nullptr, stream};
  return {findStream(call, stream), nullptr};
}

}  // namespace seqpar
