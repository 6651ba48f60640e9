#include "mesh/device_steps.h"

#include "base/convert.h"
#include "device/arena.h"
#include "device/cuda.h"
#include "exchange/device_exchange.h"
#include "kernels/mesh/rows.h"

namespace seqpar {
namespace {

/// What goes out of a step, and where the next comes in.
struct Shift {
  std::vector<const std::byte*> sends;
  std::vector<std::byte*> receives;
  std::vector<size_t> sendBytes, receiveBytes;

  void add(const void* send, size_t bytes, void* receive, size_t received) {
    sends.push_back(static_cast<const std::byte*>(send));
    receives.push_back(static_cast<std::byte*>(receive));
    sendBytes.push_back(bytes);
    receiveBytes.push_back(received);
  }

  void run(DeviceGroup& device, const MeshGroup& group, DeviceStream stream) const {
    exchangeOnDevice(device, shiftRoute(group, sendBytes, receiveBytes), sends, receives, stream);
  }
};

void combine(const CombineRows& rows, DeviceStream stream) {
  checkCuda(launchCombineRows(rows, static_cast<cudaStream_t>(stream)), "combineRows");
}

}  // namespace

void reduceOutputsOnDevice(DeviceGroup& group, const OutputStep& step, DeviceStream stream) {
  const bool last = step.index == 0;
  const bool merges = step.index != 1;
  const seqparDataType_t result = last ? step.types.data : step.types.wire;
  // Results that become smaller would overwrite what other threads have yet to read; they lie elsewhere.
  void* out = step.o;
  if (result != step.types.data) out = group.arena().take(step.shape.elements() * sizeOf(result));
  if (merges || out != step.o) {
    combine(
        {out, step.o, merges ? step.carry : nullptr, merges ? step.lse : nullptr, step.carryLse, step.shape.elements(),
         step.shape.tokens, step.shape.heads, step.shape.dim, step.types.data, step.types.wire, result},
        stream);
  }
  if (merges) {
    checkCuda(launchMergeLse(step.lse, step.carryLse, step.shape.rows(), static_cast<cudaStream_t>(stream)),
              "mergeLseRows");
  }
  if (last) return;

  const size_t carryRows = step.carryTokens * step.shape.heads;
  Shift shift;
  shift.add(out, step.shape.elements() * sizeOf(result), step.carry, carryRows * step.shape.dim * sizeOf(result));
  shift.add(step.lse, step.shape.rows() * sizeof(float), step.carryLse, carryRows * sizeof(float));
  shift.run(group, step.group, stream);
}

void reduceSumsOnDevice(DeviceGroup& group, const SumStep& step, DeviceStream stream) {
  const bool last = step.index == 0;
  const bool adds = step.index != 1;
  const seqparDataType_t result = last ? step.types.data : step.types.wire;
  Shift shift;
  for (const auto& part : step.parts) {
    void* out = part.data;
    if (result != step.types.data) out = group.arena().take(part.count * sizeOf(result));
    if (adds || out != part.data) {
      combine({out, part.data, adds ? part.carry : nullptr, nullptr, nullptr, part.count, 1, 1, 4, step.types.data,
               step.types.wire, result},
              stream);
    }
    shift.add(out, part.count * sizeOf(result), part.carry, part.carryCount * sizeOf(result));
  }
  if (!last) shift.run(group, step.group, stream);
}

}  // namespace seqpar
