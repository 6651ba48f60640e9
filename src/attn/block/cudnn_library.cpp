// The functions of cuDNN and NVRTC that cuDNN's frontend calls, forwarded to a library that is opened at run time, so
// that this library loads without cuDNN. They are hidden: calls of other libraries do not reach them.
#include "attn/block/cudnn_library.h"

#include <cudnn.h>
#include <nvrtc.h>

#include "base/error.h"
#include "base/shared_library.h"

namespace seqpar::attn {
namespace {

struct Library {
  SharedLibrary file{"libcudnn.so.9"};
  std::string problem;

  Library() {
    if (!file.opened()) {
      problem = concat("libcudnn.so.9 cannot be opened (", file.reason(), ")");
      return;
    }
    const auto version = file.find<decltype(&cudnnGetVersion)>("cudnnGetVersion");
    constexpr size_t kOldest = 91500;  // before it, odd lengths give wrong gradients
    if (version == nullptr) {
      problem = "a libcudnn.so.9 without a version";
    } else if (version() < kOldest) {
      problem = concat("libcudnn.so.9 is version ", version(), ", expected at least ", kOldest);
    }
  }
};

const Library& library() {
  static const Library opened;
  return opened;
}

template <typename Function>
Function find(const char* name) {
  return library().file.find<Function>(name);
}

}  // namespace

const std::string& cudnnProblem() {
  return library().problem;
}

}  // namespace seqpar::attn

using seqpar::attn::find;

extern "C" {

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor) {
  static const auto call = find<decltype(&cudnnBackendCreateDescriptor)>("cudnnBackendCreateDescriptor");
  return call == nullptr ? CUDNN_STATUS_NOT_INITIALIZED : call(type, descriptor);
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  static const auto call = find<decltype(&cudnnBackendDestroyDescriptor)>("cudnnBackendDestroyDescriptor");
  return call == nullptr ? CUDNN_STATUS_NOT_INITIALIZED : call(descriptor);
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  static const auto call = find<decltype(&cudnnBackendFinalize)>("cudnnBackendFinalize");
  return call == nullptr ? CUDNN_STATUS_NOT_INITIALIZED : call(descriptor);
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void* elements) {
  static const auto call = find<decltype(&cudnnBackendSetAttribute)>("cudnnBackendSetAttribute");
  return call == nullptr ? CUDNN_STATUS_NOT_INITIALIZED : call(descriptor, name, type, count, elements);
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t room, int64_t* count, void* elements) {
  static const auto call = find<decltype(&cudnnBackendGetAttribute)>("cudnnBackendGetAttribute");
  return call == nullptr ? CUDNN_STATUS_NOT_INITIALIZED : call(descriptor, name, type, room, count, elements);
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
  static const auto call = find<decltype(&cudnnBackendExecute)>("cudnnBackendExecute");
  return call == nullptr ? CUDNN_STATUS_NOT_INITIALIZED : call(handle, plan, pack);
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  static const auto call = find<decltype(&cudnnCreate)>("cudnnCreate");
  return call == nullptr ? CUDNN_STATUS_NOT_INITIALIZED : call(handle);
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  static const auto call = find<decltype(&cudnnDestroy)>("cudnnDestroy");
  return call == nullptr ? CUDNN_STATUS_NOT_INITIALIZED : call(handle);
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  static const auto call = find<decltype(&cudnnSetStream)>("cudnnSetStream");
  return call == nullptr ? CUDNN_STATUS_NOT_INITIALIZED : call(handle, stream);
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  static const auto call = find<decltype(&cudnnGetStream)>("cudnnGetStream");
  return call == nullptr ? CUDNN_STATUS_NOT_INITIALIZED : call(handle, stream);
}

size_t cudnnGetVersion() {
  static const auto call = find<decltype(&cudnnGetVersion)>("cudnnGetVersion");
  return call == nullptr ? 0 : call();
}

const char* cudnnGetErrorString(cudnnStatus_t status) {
  static const auto call = find<decltype(&cudnnGetErrorString)>("cudnnGetErrorString");
  return call == nullptr ? "no libcudnn.so.9" : call(status);
}

void cudnnGetLastErrorString(char* message, size_t room) {
  static const auto call = find<decltype(&cudnnGetLastErrorString)>("cudnnGetLastErrorString");
  if (call != nullptr) {
    call(message, room);
  } else if (room > 0) {
    *message = '\0';
  }
}

// The frontend compiles kernels only for operations other than attention.
nvrtcResult nvrtcCreateProgram(nvrtcProgram*, const char*, const char*, int, const char* const*, const char* const*) {
  return NVRTC_ERROR_INTERNAL_ERROR;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram*) {
  return NVRTC_ERROR_INTERNAL_ERROR;
}
nvrtcResult nvrtcCompileProgram(nvrtcProgram, int, const char* const*) {
  return NVRTC_ERROR_INTERNAL_ERROR;
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, size_t*) {
  return NVRTC_ERROR_INTERNAL_ERROR;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char*) {
  return NVRTC_ERROR_INTERNAL_ERROR;
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, size_t*) {
  return NVRTC_ERROR_INTERNAL_ERROR;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char*) {
  return NVRTC_ERROR_INTERNAL_ERROR;
}
const char* nvrtcGetErrorString(nvrtcResult) {
  return "NVRTC is not used";
}

}  // extern "C"
