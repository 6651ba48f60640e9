// A mesh's moves and merges on GPUs.
#include "base/convert.h"
#include "device/arena.h"
#include "device/cuda.h"
#include "exchange/device_exchanges.h"
#include "kernels/mesh/rows.h"
#include "mesh/backend.h"

namespace seqpar {
namespace {

void carryOut(DeviceGroup& device, const MeshShift& shift, const MeshGroup& group, DeviceStream stream) {
  exchangesOf(device).move(device, shift.route(group), shift.sends, shift.receives, stream);
}

void combine(const CombineRows& rows, DeviceStream stream) {
  checkCuda(launchCombineRows(rows, static_cast<cudaStream_t>(stream)), "combineRows");
}

/// Where the results of `count` elements at `data` are written. Results of a smaller type go to scratch memory: in
/// place they would overwrite elements that other threads have yet to read.
template <typename Step>
void* placeFor(DeviceGroup& device, const Step& step, void* data, size_t count) {
  return step.result() == step.types.data ? data : device.arena().take(count * sizeOf(step.result()));
}

void enqueueOutputs(DeviceGroup& device, const OutputStep& step, DeviceStream stream) {
  void* const out = placeFor(device, step, step.o, step.shape.elements());
  if (step.merges() || out != step.o) {
    combine({out, step.o, step.merges() ? step.carry : nullptr, step.merges() ? step.lse : nullptr, step.carryLse,
             step.shape.elements(), step.shape.tokens, step.shape.heads, step.shape.dim, step.types.data,
             step.types.wire, step.result()},
            stream);
  }
  if (step.merges()) {
    checkCuda(launchMergeLse(step.lse, step.carryLse, step.shape.rows(), static_cast<cudaStream_t>(stream)),
              "mergeLseRows");
  }
  if (!step.last()) carryOut(device, shiftOf(step, out), step.group, stream);
}

void enqueueSums(DeviceGroup& device, const SumStep& step, DeviceStream stream) {
  MeshShift shift;
  for (const auto& part : step.parts) {
    void* const out = placeFor(device, step, part.data, part.count);
    if (step.merges() || out != part.data) {
      combine({out, part.data, step.merges() ? part.carry : nullptr, nullptr, nullptr, part.count, 1, 1, 4,
               step.types.data, step.types.wire, step.result()},
              stream);
    }
    shift.add(out, part.count * sizeOf(step.types.wire), part.carry, part.carryCount * sizeOf(step.types.wire));
  }
  if (!step.last()) carryOut(device, shift, step.group, stream);
}

class DeviceMeshes : public MeshBackend {
 public:
  void reduceOutputs(Communicator& comm, const char* call, OutputStep step, const CallerStream& stream) const override {
    comm.enqueue(call, stream.device, [&](DeviceGroup& device) { enqueueOutputs(device, step, stream.device); });
  }
  void reduceSums(Communicator& comm, const char* call, SumStep step, const CallerStream& stream) const override {
    comm.enqueue(call, stream.device, [&](DeviceGroup& device) { enqueueSums(device, step, stream.device); });
  }
};

}  // namespace

const MeshBackend& deviceMeshes() {
  static const DeviceMeshes backend;
  return backend;
}

}  // namespace seqpar
