#include "base/simd.h"

#include <array>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace seqpar {
namespace {

constexpr std::array kIsas = {Isa::Portable, Isa::Avx2, Isa::Avx512};

#if defined(__x86_64__)
// Older compilers' __builtin_cpu_supports() does not accept this feature's name.
bool hasF16c() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

size_t countSupported() {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !hasF16c()) return 1;
  return __builtin_cpu_supports("avx512f") ? 3 : 2;
}
#else
size_t countSupported() {
  return 1;
}
#endif

}  // namespace

std::span<const Isa> supportedIsas() {
  static const size_t count = countSupported();
  return std::span(kIsas).first(count);
}

Isa bestIsa() {
  return supportedIsas().back();
}

const char* isaName(Isa isa) {
  switch (isa) {
    case Isa::Avx2:
      return "avx2";
    case Isa::Avx512:
      return "avx512";
    case Isa::Portable:
      break;
  }
  return "portable";
}

}  // namespace seqpar
