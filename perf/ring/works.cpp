#include "works.h"

#include <numeric>

#ifdef SEQPAR_PERF_MPI
#include <mpi.h>
#endif

namespace seqpar::perf {
namespace {

/// The set that step `step` sends, and the set that it fills.
int sentSet(int step) {
  return step == 0 ? 0 : 2 - step % 2;
}
int filledSet(int step) {
  return 1 + step % 2;
}

/// A work of `steps` steps without run().
Work workOn(const TensorsPointer& tensors, int steps) {
  Work work;
  work.prepare = [tensors] { tensors->corrupt(); };
  work.wrong = [tensors, steps] {
    return tensors->wrong(tensors->set(filledSet(steps - 1)), tensors->rankAfter(-steps));
  };
  work.timesPerIteration = steps;
  return work;
}

}  // namespace

Work shiftWork(const TensorsPointer& tensors, void* stream) {
  Work work = workOn(tensors, 1);
  work.run = [tensors, stream] {
    std::vector<const void*> send(tensors->set(0), tensors->set(1));
    seqparShiftParams_t params = SEQPAR_SHIFT_PARAMS_INITIALIZER;
    params.sendTensors = params.receiveTensors = tensors->count();
    params.sendPeer = tensors->rankAfter(1);
    params.receivePeer = tensors->rankAfter(-1);
    params.sendBuffers = send.data();
    params.receiveBuffers = tensors->set(1);
    params.sendBytes = params.receiveBytes = tensors->sizes().data();
    require(seqparShift(&params, tensors->group().comm(), stream), "seqparShift", tensors->group().comm());
  };
  return work;
}

OpenRing::OpenRing(TensorsPointer tensors, size_t inner, bool ownMemory, Session& session)
    : tensors_(std::move(tensors)), session_(session), comm_(session.group.comm()) {
  seqparRingParams_t params = SEQPAR_RING_PARAMS_INITIALIZER;
  params.tensors = tensors_->count();
  params.bytes = tensors_->sizes().data();
  params.inner = static_cast<int>(inner);
  params.keepHome = 1;
  if (!ownMemory) {
    params.home = tensors_->set(0);
    params.scratch = tensors_->set(1);
  }
  require(seqparRingCreate(&ring_, &params, comm_), "seqparRingCreate", comm_);
  if (ownMemory) tensors_->copyHome(current().data());
}

void OpenRing::round(Computation& computation) {
  require(seqparRingReset(ring_), "seqparRingReset", comm_);
  for (int step = 0; step + 1 < session_.group.size(); ++step) {
    require(seqparRingPost(ring_, session_.stream), "seqparRingPost", comm_);
    computation.run(session_);
    require(seqparRingWait(ring_, session_.stream), "seqparRingWait", comm_);
  }
}

size_t OpenRing::wrong() const {
  return tensors_->wrong(current().data(), info().source);
}

seqparRingInfo_t OpenRing::info() const {
  seqparRingInfo_t info = SEQPAR_RING_INFO_INITIALIZER;
  require(seqparRingQuery(ring_, &info), "seqparRingQuery", comm_);
  return info;
}

std::vector<void*> OpenRing::current() const {
  std::vector<void*> pointers(static_cast<size_t>(tensors_->count()));
  for (int i = 0; i < tensors_->count(); ++i) {
    require(seqparRingCurrent(ring_, i, &pointers[static_cast<size_t>(i)], nullptr), "seqparRingCurrent", comm_);
  }
  return pointers;
}

Work ringWork(const std::shared_ptr<OpenRing>& ring, int steps, long rounds) {
  const auto computation = std::make_shared<Computation>(rounds);
  Work work;
  work.prepare = [ring] { ring->corrupt(); };
  work.run = [ring, computation] { ring->round(*computation); };
  work.wrong = [ring] { return ring->wrong(); };
  work.timesPerIteration = steps;
  return work;
}

Work computeWork(Session& session, int steps, long rounds) {
  const auto computation = std::make_shared<Computation>(rounds);
  Work work;
  work.prepare = [] {};
  work.run = [&session, computation, steps] {
    for (int step = 0; step < steps; ++step) computation->run(session);
  };
  work.wrong = [] { return size_t{0}; };
  work.timesPerIteration = steps;
  return work;
}

Work ncclWork(const TensorsPointer& tensors, int steps, const std::shared_ptr<Nccl>& nccl) {
  Work work = workOn(tensors, steps);
  work.run = [tensors, steps, nccl] {
    for (int step = 0; step < steps; ++step) {
      nccl->groupStart();
      for (size_t i = 0; i < tensors->sizes().size(); ++i) {
        nccl->send(tensors->set(sentSet(step))[i], tensors->sizes()[i], tensors->rankAfter(1));
        nccl->receive(tensors->set(filledSet(step))[i], tensors->sizes()[i], tensors->rankAfter(-1));
      }
      nccl->groupEnd();
    }
  };
  return work;
}

Work copyWork(const TensorsPointer& tensors, Gpu& gpu) {
  const auto& sizes = tensors->sizes();
  const size_t all = std::accumulate(sizes.begin(), sizes.end(), size_t{0});
  const std::shared_ptr<Window> window = gpu.window(all);
  if (!window) return {};
  const auto parts = [window, sizes](int rank) {
    std::vector<void*> pointers;
    auto* at = static_cast<std::byte*>(window->at(rank));
    for (const size_t size : sizes) {
      pointers.push_back(at);
      at += size;
    }
    return pointers;
  };
  Work work;
  work.prepare = [tensors, window, all] { gpuFill(window->at(tensors->group().rank()), 0xff, all); };
  work.run = [tensors, &gpu, targets = parts(tensors->rankAfter(1))] {
    for (size_t i = 0; i < targets.size(); ++i) gpu.copy(targets[i], tensors->set(0)[i], tensors->sizes()[i]);
  };
  work.wrong = [tensors, targets = parts(tensors->rankAfter(1))] {
    return tensors->wrong(targets.data(), tensors->group().rank());
  };
  return work;
}

#ifdef SEQPAR_PERF_MPI
Work mpiWork(const TensorsPointer& tensors, int steps, long rounds) {
  Work work = workOn(tensors, steps);
  work.run = [tensors, steps, rounds] {
    std::vector<MPI_Request> requests(2 * tensors->sizes().size());
    for (int step = 0; step < steps; ++step) {
      for (size_t i = 0; i < tensors->sizes().size(); ++i) {
        const int bytes = static_cast<int>(tensors->sizes()[i]);
        MPI_Irecv(tensors->set(filledSet(step))[i], bytes, MPI_BYTE, tensors->rankAfter(-1), 0, MPI_COMM_WORLD,
                  &requests[2 * i]);
        MPI_Isend(tensors->set(sentSet(step))[i], bytes, MPI_BYTE, tensors->rankAfter(1), 0, MPI_COMM_WORLD,
                  &requests[2 * i + 1]);
      }
      Computation(rounds).runHere();
      MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
    }
  };
  return work;
}

Work sendrecvWork(const TensorsPointer& tensors) {
  Work work = workOn(tensors, 1);
  work.run = [tensors] {
    for (size_t i = 0; i < tensors->sizes().size(); ++i) {
      const int bytes = static_cast<int>(tensors->sizes()[i]);
      MPI_Sendrecv(tensors->set(0)[i], bytes, MPI_BYTE, tensors->rankAfter(1), 0, tensors->set(1)[i], bytes, MPI_BYTE,
                   tensors->rankAfter(-1), 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
  };
  return work;
}
#endif

}  // namespace seqpar::perf
