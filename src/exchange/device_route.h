// The parameters of kernels that send and receive strings; for code that nvcc compiles.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "exchange/device_launch.h"
#include "exchange/route_kernel.cuh"

namespace seqpar {

/// Short lists, the usual ones, get small parameters.
constexpr int kFewStrings = 14;
constexpr int kFewPieces = 16;
constexpr int kMostStrings = 2 * (kMostPeers - 1);
using FewArgs = device::RouteArgs<kFewStrings, kFewPieces>;
using ManyArgs = device::RouteArgs<kMostStrings, kMostInlinePieces>;

/// Whether the short lists have room for all of them.
inline bool areFew(const DeviceStrings& sends, const DeviceStrings& receives) {
  return sends.pieces.size() + receives.pieces.size() <= kFewPieces &&
         sends.others.size() + receives.others.size() <= kFewStrings;
}

/// The strings of one side with their pipes, in the order in which they are served: at any time, different ranks serve
/// different ones.
inline std::vector<device::StringArg> inOrder(const PeerView& view, const std::vector<device::StringArg>& strings,
                                              bool upwards) {
  std::vector<device::StringArg> ordered = strings;
  const auto distance = [&](const device::StringArg& string) {
    return (upwards ? string.peer - view.self + view.size : view.self - string.peer + view.size) % view.size;
  };
  std::sort(ordered.begin(), ordered.end(), [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
  for (auto& string : ordered) {
    string.end = {view.pipes[view.self] + PipeLayout::end(string.peer, 0, view.pipeLanes),
                  view.pipes[string.peer] + PipeLayout::end(view.self, 0, view.pipeLanes),
                  reinterpret_cast<PipeState*>(view.pipeState) + PipeLayout::number(string.peer, 0, view.pipeLanes)};
  }
  return ordered;
}

/// Without the pieces. Kilobytes: not on the stack of a caller that we do not know.
template <typename Args>
std::unique_ptr<Args> makeRouteArgs(const PeerView& view, const DeviceStrings& sends, const DeviceStrings& receives) {
  const auto out = inOrder(view, sends.others, true);
  const auto in = inOrder(view, receives.others, false);
  auto args = std::make_unique<Args>();
  // NOLINTNEXTLINE: kernels read the word anew each time
  args->patience = {const_cast<std::uint32_t*>(view.abort), const_cast<std::uint32_t*>(view.gaveUp), view.timeoutNs};
  std::copy(in.begin(), in.end(), std::copy(out.begin(), out.end(), args->strings));
  args->sends = static_cast<int>(out.size());
  args->receives = static_cast<int>(in.size());
  args->selfSend = sends.self;
  args->selfReceive = receives.self;
  return args;
}

inline int lanesOf(std::span<const device::StringArg> strings) {
  int lanes = 0;
  for (const auto& string : strings) lanes = std::max(lanes, string.lanes);
  return lanes;
}

}  // namespace seqpar
