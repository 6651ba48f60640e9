// A mesh's moves and merges on host memory.
#include <utility>

#include "base/convert.h"
#include "exchange/exchange.h"
#include "mesh/backend.h"

namespace seqpar {
namespace {

void carryOut(Mailbox& mail, const MeshShift& shift, const MeshGroup& group) {
  exchangeOnHost(mail, shift.route(group), shift.sends, shift.receives);
}

void reduceOutputs(Mailbox& mail, const OutputStep& step) {
  mergeOutputs(step.o, step.lse, step.merges() ? step.carry : nullptr, step.merges() ? step.carryLse : nullptr,
               step.shape, step.types, step.result());
  if (step.last()) return;
  carryOut(mail, shiftOf(step, step.o), step.group);
}

void reduceSums(Mailbox& mail, const SumStep& step) {
  MeshShift shift;
  for (const auto& part : step.parts) {
    addSums(part.data, step.merges() ? part.carry : nullptr, part.count, step.types, step.result());
    shift.add(part.data, part.count * sizeOf(step.types.wire), part.carry, part.carryCount * sizeOf(step.types.wire));
  }
  if (!step.last()) carryOut(mail, shift, step.group);
}

class HostMeshes : public MeshBackend {
 public:
  void reduceOutputs(Communicator& comm, const char* call, OutputStep step, const CallerStream& stream) const override {
    comm.run(call, stream.host.get(), [step = std::move(step)](Mailbox& mail) { seqpar::reduceOutputs(mail, step); });
  }
  void reduceSums(Communicator& comm, const char* call, SumStep step, const CallerStream& stream) const override {
    comm.run(call, stream.host.get(), [step = std::move(step)](Mailbox& mail) { seqpar::reduceSums(mail, step); });
  }
};

}  // namespace

const MeshBackend& hostMeshes() {
  static const HostMeshes backend;
  return backend;
}

}  // namespace seqpar
