#include "attn/block/bf16_kernels.h"

#include <array>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace seqpar::attn {

#if defined(__x86_64__)
namespace {

bool hasAvx512Bf16() {
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
    return false;
  }
  constexpr unsigned kBf16 = 1u << 5;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & kBf16) != 0;
}

/// Also asks the kernel for permission to use the tile registers, once per process.
bool hasAmx() {
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

struct Supported {
  std::array<Bf16Kernels, 2> kernels{};
  size_t count = 0;
  Supported() {
    if (!hasAvx512Bf16()) return;
    kernels[count++] = kBf16Avx512;
    if (!hasAmx()) return;
    kernels[count] = kBf16Avx512;
    kernels[count].name = "AMX";
    kernels[count].multiply = multiplyBf16Amx;
    kernels[count].forward = forwardBf16Amx;
    kernels[count++].backward = backwardBf16Amx;
  }
};

}  // namespace

std::span<const Bf16Kernels> supportedBf16Kernels() {
  static const Supported supported;
  return std::span(supported.kernels).first(supported.count);
}
#else
std::span<const Bf16Kernels> supportedBf16Kernels() {
  return {};
}
#endif

const Bf16Kernels* bestBf16Kernels() {
  const auto all = supportedBf16Kernels();
  return all.empty() ? nullptr : &all.back();
}

}  // namespace seqpar::attn
