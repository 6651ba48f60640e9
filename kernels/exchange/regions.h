// Iteration over payloads of bytes in strided regions.
#pragma once

#include "kernels/byte_fifo.h"
#include "kernels/exchange/payload.h"

namespace seqpar::device {

/// The part of a payload that a channel transfers.
struct Part {
  std::uint64_t begin, end;
};

SEQPAR_DEVICE std::uint64_t lesser(std::uint64_t a, std::uint64_t b) {
  return a < b ? a : b;
}
SEQPAR_DEVICE std::uint64_t greater(std::uint64_t a, std::uint64_t b) {
  return a > b ? a : b;
}

SEQPAR_DEVICE Part partOf(const PeerPayload& payload, int channel) {
  const std::uint64_t begin = lesser(payload.bytes, payload.each * static_cast<std::uint64_t>(channel));
  return {begin, lesser(payload.bytes, begin + payload.each)};
}

/// The address of a vec of a region that is not huge.
SEQPAR_DEVICE std::byte* addressInRuns(const RegionArg& region, std::uint32_t vec) {
  const std::uint32_t row = region.run.quotient(vec);
  const std::uint32_t plane = region.count2.quotient(row);
  const std::uint32_t i0 = region.count1.quotient(plane);
  return region.base + i0 * region.stride[0] + (plane - i0 * region.count1.by) * region.stride[1] +
         (row - plane * region.count2.by) * region.stride[2] +
         (static_cast<std::uint64_t>(vec - row * region.run.by) << region.shift);
}

/// The address of a byte of any region, counted from the start of the region.
SEQPAR_DEVICE std::byte* addressOf(const RegionArg& region, std::uint64_t position) {
  if (region.run.by == 0) return region.base + position;
  const std::uint64_t vec = position >> region.shift;
  const std::uint64_t rest = position - (vec << region.shift);
  if (!region.huge) return addressInRuns(region, static_cast<std::uint32_t>(vec)) + rest;
  const std::uint64_t row = vec / region.run.by;
  const std::uint64_t plane = row / region.count2.by;
  return region.base + plane / region.count1.by * region.stride[0] + plane % region.count1.by * region.stride[1] +
         row % region.count2.by * region.stride[2] + (vec % region.run.by << region.shift) + rest;
}

/// Addresses of a range's bytes by offset: in one run; in runs, for offsets that are multiples of 16; in any region.
struct InOneRun {
  std::byte* base;
  SEQPAR_DEVICE std::byte* operator()(std::uint64_t offset) const { return base + offset; }
};
struct InRuns {
  const RegionArg& region;
  std::uint64_t begin;
  SEQPAR_DEVICE std::byte* operator()(std::uint64_t offset) const {
    return addressInRuns(region, static_cast<std::uint32_t>((begin + offset) >> 4));
  }
};
struct InRegion {
  const RegionArg* region;
  std::uint64_t begin;
  SEQPAR_DEVICE std::byte* operator()(std::uint64_t offset) const { return addressOf(*region, begin + offset); }
};

/// Copies vecs: thread `rank` of `threads` copies every threads-th vec, with kInFlight loads in flight.
template <typename Value, int kInFlight, typename Index, typename From, typename Into>
SEQPAR_DEVICE void copyVec16s(Index vecs, int rank, int threads, const From& from, const Into& into) {
  const auto step = static_cast<Index>(threads);
  SEQPAR_ROLLED
  for (auto first = static_cast<Index>(rank); first < vecs; first += kInFlight * step) {
    Value held[kInFlight];
    SEQPAR_UNROLL
    for (Index i = 0; i < kInFlight; ++i) {
      const std::uint64_t vec = first + i * step;
      if (vec < vecs) held[i] = *reinterpret_cast<const Value*>(from(vec * sizeof(Value)));
    }
    SEQPAR_UNROLL
    for (Index i = 0; i < kInFlight; ++i) {
      const std::uint64_t vec = first + i * step;
      if (vec < vecs) *reinterpret_cast<Value*>(into(vec * sizeof(Value))) = held[i];
    }
  }
}

/// Copies `bytes` between two addressings of one range; both return multiples of `width` for offsets that are multiples
/// of it.
template <typename From, typename Into>
SEQPAR_DEVICE_NOINLINE void copySlowly(std::uint32_t width, std::uint64_t bytes, int rank, int threads, From from,
                                       Into into) {
  const auto vecs = [&](auto vec) {
    using Value = decltype(vec);
    copyVec16s<Value, 4>(bytes / sizeof(Value), rank, threads, from, into);
    for (auto at = bytes / sizeof(Value) * sizeof(Value) + static_cast<std::uint64_t>(rank); at < bytes;
         at += static_cast<std::uint64_t>(threads)) {
      *into(at) = *from(at);
    }
  };
  switch (width) {
    case 16:
      return vecs(Vec16{});
    case 8:
      return vecs(std::uint64_t{});
    case 4:
      return vecs(std::uint32_t{});
    case 2:
      return vecs(std::uint16_t{});
    default:
      return vecs(std::uint8_t{});
  }
}

/// Whether all vecs of the region have 16 bytes.
SEQPAR_DEVICE bool isEasy(const RegionArg& region) {
  return region.width == 16 && !region.huge;
}

/// The first region of the payload that ends after `position`.
SEQPAR_DEVICE int regionAt(const RegionArg* regions, const PeerPayload& payload, std::uint64_t position) {
  int low = payload.first;
  int high = payload.first + payload.count - 1;
  SEQPAR_ROLLED
  while (low < high) {
    const int middle = (low + high) / 2;
    if (regions[middle].begin + regions[middle].bytes <= position) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/// Copies a range of a payload, less than 2^32 bytes, from its regions to `linear` (kGather) or back. The range's
/// offset is a multiple of 16, and `linear` is aligned to 16 bytes.
template <bool kGather>
SEQPAR_DEVICE void copyPayload(const RegionArg* regions, const PeerPayload& payload, Part range, std::byte* linear,
                               int rank, int threads) {
  constexpr int kInFlight = 8;
  SEQPAR_ROLLED
  for (int i = payload.count == 1 ? payload.first : regionAt(regions, payload, range.begin);
       i < payload.first + payload.count; ++i) {
    const RegionArg& region = regions[i];
    if (region.begin >= range.end) return;
    const std::uint64_t begin = greater(region.begin, range.begin);
    const std::uint64_t bytes = lesser(region.begin + region.bytes, range.end) - begin;
    const std::uint64_t inside = begin - region.begin;
    const InOneRun packet{linear + (begin - range.begin)};
    const auto copy = [&](const auto& inRegion) {
      const auto vecs = static_cast<std::uint32_t>(bytes / 16);
      if constexpr (kGather) {
        copyVec16s<Vec16, kInFlight>(vecs, rank, threads, inRegion, packet);
      } else {
        copyVec16s<Vec16, kInFlight>(vecs, rank, threads, packet, inRegion);
      }
    };
    if (!isEasy(region) || bytes % 16 != 0) {
      const InRegion any{&region, inside};
      if constexpr (kGather) {
        copySlowly(region.width, bytes, rank, threads, any, packet);
      } else {
        copySlowly(region.width, bytes, rank, threads, packet, any);
      }
    } else if (region.run.by == 0) {
      copy(InOneRun{region.base + inside});
    } else {
      copy(InRuns{region, inside});
    }
  }
}

/// Calls access(address, width, offset) for up to 16 bytes of a payload starting at `position`, a multiple of 16.
template <typename Access>
SEQPAR_DEVICE void accessVec16(const RegionArg* regions, const PeerPayload& payload, std::uint64_t position,
                               std::uint32_t bytes, const Access& access) {
  SEQPAR_ROLLED
  for (std::uint32_t done = 0; done < bytes;) {
    const std::uint64_t at = position + done;
    const RegionArg& region = regions[regionAt(regions, payload, at)];
    const std::uint64_t left = lesser(bytes - done, region.begin + region.bytes - at);
    std::uint32_t width = region.width;
    while (width > left) width /= 2;
    access(addressOf(region, at - region.begin), width, done);
    done += width;
  }
}

/// Vecs that are not whole in one region, or not aligned.
struct NarrowVec16s {
  SEQPAR_DEVICE_NOINLINE static Vec16 gather(const RegionArg* regions, const PeerPayload& payload,
                                             std::uint64_t position, std::uint32_t bytes) {
    if (payload.vecs == Vec16Kind::Words) {
      const auto* const words = reinterpret_cast<const std::uint32_t*>(regions[payload.first].base + position);
      return {words[0], bytes > 4 ? words[1] : 0, bytes > 8 ? words[2] : 0, bytes > 12 ? words[3] : 0};
    }
    std::uint64_t low = 0, high = 0;
    accessVec16(regions, payload, position, bytes,
                [&](const std::byte* from, std::uint32_t width, std::uint32_t offset) {
                  std::uint64_t value = 0;
                  switch (width) {
                    case 16:
                      low = reinterpret_cast<const std::uint64_t*>(from)[0];
                      high = reinterpret_cast<const std::uint64_t*>(from)[1];
                      return;
                    case 8:
                      value = *reinterpret_cast<const std::uint64_t*>(from);
                      break;
                    case 4:
                      value = *reinterpret_cast<const std::uint32_t*>(from);
                      break;
                    case 2:
                      value = *reinterpret_cast<const std::uint16_t*>(from);
                      break;
                    default:
                      value = *reinterpret_cast<const std::uint8_t*>(from);
                  }
                  if (offset < 8) {
                    low |= value << (8 * offset);
                  } else {
                    high |= value << (8 * (offset - 8));
                  }
                });
    return {static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32), static_cast<std::uint32_t>(high),
            static_cast<std::uint32_t>(high >> 32)};
  }

  SEQPAR_DEVICE_NOINLINE static void scatter(const RegionArg* regions, const PeerPayload& payload,
                                             std::uint64_t position, std::uint32_t bytes, Vec16 vec) {
    if (payload.vecs == Vec16Kind::Words) {
      auto* const words = reinterpret_cast<std::uint32_t*>(regions[payload.first].base + position);
      words[0] = vec.x;
      if (bytes > 4) words[1] = vec.y;
      if (bytes > 8) words[2] = vec.z;
      if (bytes > 12) words[3] = vec.w;
      return;
    }
    const std::uint64_t low = vec.x | static_cast<std::uint64_t>(vec.y) << 32;
    const std::uint64_t high = vec.z | static_cast<std::uint64_t>(vec.w) << 32;
    accessVec16(regions, payload, position, bytes, [&](std::byte* into, std::uint32_t width, std::uint32_t offset) {
      const std::uint64_t value = offset < 8 ? low >> (8 * offset) : high >> (8 * (offset - 8));
      switch (width) {
        case 16:
          reinterpret_cast<std::uint64_t*>(into)[0] = low;
          reinterpret_cast<std::uint64_t*>(into)[1] = high;
          return;
        case 8:
          *reinterpret_cast<std::uint64_t*>(into) = value;
          return;
        case 4:
          *reinterpret_cast<std::uint32_t*>(into) = static_cast<std::uint32_t>(value);
          return;
        case 2:
          *reinterpret_cast<std::uint16_t*>(into) = static_cast<std::uint16_t>(value);
          return;
        default:
          *reinterpret_cast<std::uint8_t*>(into) = static_cast<std::uint8_t>(value);
      }
    });
  }
};

/// The address of the whole vec at `position`, in a payload of Vec16Kind::Whole.
SEQPAR_DEVICE std::byte* unitAt(const RegionArg* regions, const PeerPayload& payload, std::uint64_t position) {
  const RegionArg& region = regions[payload.count == 1 ? payload.first : regionAt(regions, payload, position)];
  const std::uint64_t inside = position - region.begin;
  return region.run.by == 0 ? region.base + inside : addressInRuns(region, static_cast<std::uint32_t>(inside >> 4));
}

/// Up to 16 bytes of a payload starting at `position`.
SEQPAR_DEVICE Vec16 gatherVec16(const RegionArg* regions, const PeerPayload& payload, std::uint64_t position) {
  if (payload.vecs == Vec16Kind::Whole) return *reinterpret_cast<const Vec16*>(unitAt(regions, payload, position));
  return NarrowVec16s::gather(regions, payload, position,
                              static_cast<std::uint32_t>(lesser(16, payload.bytes - position)));
}
SEQPAR_DEVICE void scatterVec16(const RegionArg* regions, const PeerPayload& payload, std::uint64_t position,
                                Vec16 vec) {
  if (payload.vecs == Vec16Kind::Whole) {
    *reinterpret_cast<Vec16*>(unitAt(regions, payload, position)) = vec;
  } else {
    NarrowVec16s::scatter(regions, payload, position, static_cast<std::uint32_t>(lesser(16, payload.bytes - position)),
                          vec);
  }
}

struct OwnPayload {
  /// A rank's transfer to itself: every overlap of a sent region with a received one.
  SEQPAR_DEVICE_NOINLINE static void copy(const RegionArg* regions, const PeerPayload& send, const PeerPayload& receive,
                                          int rank, int threads) {
    int out = send.first;
    int in = receive.first;
    SEQPAR_ROLLED
    while (out < send.first + send.count && in < receive.first + receive.count) {
      // Copies in registers: the compiler must assume that the stores alias the region list.
      const RegionArg from = regions[out];
      const RegionArg into = regions[in];
      const std::uint64_t begin = greater(from.begin, into.begin);
      const std::uint64_t end = lesser(from.begin + from.bytes, into.begin + into.bytes);
      const std::uint64_t bytes = begin < end ? end - begin : 0;
      const std::uint64_t fromAt = begin - from.begin;
      const std::uint64_t intoAt = begin - into.begin;
      const bool easy = isEasy(from) && isEasy(into) && bytes % 16 == 0;
      if (easy && into.run.by == 0) {
        const auto copy = [&](const auto& source) {
          copyVec16s<Vec16, 8>(bytes / 16, rank, threads, source, InOneRun{into.base + intoAt});
        };
        if (from.run.by == 0) {
          copy(InOneRun{from.base + fromAt});
        } else {
          copy(InRuns{from, fromAt});
        }
      } else if (easy && from.run.by == 0) {
        copyVec16s<Vec16, 8>(bytes / 16, rank, threads, InOneRun{from.base + fromAt}, InRuns{into, intoAt});
      } else {
        copySlowly(from.width < into.width ? from.width : into.width, bytes, rank, threads,
                   InRegion{regions + out, fromAt}, InRegion{regions + in, intoAt});
      }
      if (from.begin + from.bytes == end) ++out;
      if (into.begin + into.bytes == end) ++in;
    }
  }
};

}  // namespace seqpar::device
