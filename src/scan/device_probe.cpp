#include "scan/device_probe.h"

#include <new>

#include "probe.h"

namespace seqpar {

DeviceProbe::DeviceProbe() : times_(allocateMapped(sizeof(ProbeTimes))) {}

void DeviceProbe::start(const PeerView& view, cudaStream_t stream) {
  size_ = view.size;
  lanes_ = view.lanes;
  auto* const times = new (times_.get()) ProbeTimes;
  if (size_ > 1) launchProbe(view, times, stream);
}

DeviceLink DeviceProbe::result() const {
  if (size_ == 1) return {};
  const auto& times = *reinterpret_cast<const ProbeTimes*>(times_.get());
  if (times.streamNs == 0) fail(seqparRemoteError, "a peer did not take part in the measurement of the links");
  DeviceLink link;
  link.alpha = static_cast<double>(times.tokenNs) * 1e-9 / (ProbeTimes::kTimedTokens * static_cast<double>(size_));
  link.bytesPerSecond = static_cast<double>(lanes_) * ProbeTimes::kTimedRows * ProbeTimes::kRowLines * sizeof(Line) /
                        (static_cast<double>(times.streamNs) * 1e-9);
  return link;
}

DeviceLink measureDeviceLink(const PeerView& view, cudaStream_t stream) {
  DeviceProbe probe;
  probe.start(view, stream);
  checkCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return probe.result();
}

}  // namespace seqpar
