#include "scan/peers/probe.h"

#include <algorithm>
#include <span>

#include "kernels/scan/probe.h"

namespace seqpar {

void DeviceProbe::prepare(const PeerView& view) {
  if (!times_ || channels_ != view.channels) {
    times_ = allocateMapped(static_cast<std::size_t>(view.channels) * sizeof(ProbeTimes), "times of a measurement");
  }
  size_ = view.size;
  channels_ = view.channels;
}

void DeviceProbe::start(const PeerView& view, cudaStream_t stream) {
  startTokens(view, stream);
  startStream(view, stream);
}

void DeviceProbe::startTokens(const PeerView& view, cudaStream_t stream) {
  prepare(view);
  auto* const times = reinterpret_cast<ProbeTimes*>(times_.get());
  std::uninitialized_fill_n(times, channels_, ProbeTimes());
  if (size_ > 1) checkCuda(launchTokenProbe(view, times, stream), "probeKernel");
}

void DeviceProbe::startStream(const PeerView& view, cudaStream_t stream) const {
  if (size_ > 1) {
    checkCuda(launchStreamProbe(view, reinterpret_cast<ProbeTimes*>(times_.get()), stream), "probeKernel");
  }
}

DeviceLink DeviceProbe::result() const {
  if (size_ == 1) return {};
  const std::span times(reinterpret_cast<const ProbeTimes*>(times_.get()), static_cast<std::size_t>(channels_));
  std::uint64_t begin = times.front().streamBegin, end = times.front().streamEnd;
  for (const ProbeTimes& channel : times) {
    if (channel.streamEnd == 0) fail(seqparRemoteError, "a peer did not take part in the measurement of the links");
    begin = std::min(begin, channel.streamBegin);
    end = std::max(end, channel.streamEnd);
  }
  DeviceLink link;
  link.alpha =
      static_cast<double>(times.front().tokens) * 1e-9 / (ProbeTimes::kTimedTokens * static_cast<double>(size_));
  link.bytesPerSecond = static_cast<double>(channels_) * ProbeTimes::kTimedRows * ProbeTimes::kRowPackets *
                        sizeof(LamportPacket) / (static_cast<double>(end - begin) * 1e-9);
  return link;
}

DeviceLink measureDeviceLink(DeviceProbe& probe, const PeerView& view, cudaStream_t stream) {
  constexpr int kRepeats = 8;  // an idle GPU needs a while to reach its usual clocks
  DeviceLink best;
  for (int i = 0; i < kRepeats; ++i) {
    // One after the other: if ranks share a GPU, a kernel that waits in its stream may delay another rank's stream.
    probe.startTokens(view, stream);
    checkCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    probe.startStream(view, stream);
    checkCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    const DeviceLink link = probe.result();
    best.alpha = i == 0 ? link.alpha : std::min(best.alpha, link.alpha);
    best.bytesPerSecond = std::max(best.bytesPerSecond, link.bytesPerSecond);
  }
  return best;
}

}  // namespace seqpar
