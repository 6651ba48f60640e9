// wgmma.mma_async (wgmma.h) with a negated A in registers: instructions that would negate A or D are not necessary.
#pragma once

#include "kernels/arch/warpgroup.h"

namespace seqpar::warpgroup {

#ifdef __CUDACC__

#define SEQPAR_TILE(c) "+f"((c)[0]), "+f"((c)[1]), "+f"((c)[2]), "+f"((c)[3])
#define SEQPAR_TILES4(c) SEQPAR_TILE((c)[0]), SEQPAR_TILE((c)[1]), SEQPAR_TILE((c)[2]), SEQPAR_TILE((c)[3])
#define SEQPAR_TILES8(c) \
  SEQPAR_TILES4(c), SEQPAR_TILE((c)[4]), SEQPAR_TILE((c)[5]), SEQPAR_TILE((c)[6]), SEQPAR_TILE((c)[7])
#define SEQPAR_TILES16(c)                                                                                 \
  SEQPAR_TILES8(c), SEQPAR_TILE((c)[8]), SEQPAR_TILE((c)[9]), SEQPAR_TILE((c)[10]), SEQPAR_TILE((c)[11]), \
      SEQPAR_TILE((c)[12]), SEQPAR_TILE((c)[13]), SEQPAR_TILE((c)[14]), SEQPAR_TILE((c)[15])
#define SEQPAR_NAMES8                                                                                   \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26," \
  "%27,%28,%29,%30,%31}"
#define SEQPAR_NAMES16                                                                                   \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"  \
  "%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51," \
  "%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"
#define SEQPAR_SUBTRACT(n, type, tiles, operands, add)                                                               \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" add ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type \
               "." type " " SEQPAR_NAMES##tiles ", " operands ";\n}"                                                 \
               : SEQPAR_TILES##tiles(c)                                                                              \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "r"(add_ ? 1 : 0), "n"(kTransposeB))

#define SEQPAR_NEGATED_A(n, tiles, operands, addAt)                                                \
  template <bool kBf16, int kTransposeB>                                                           \
  SEQPAR_DEVICE void wgmmaMinus(float(&c)[tiles][4], const uint32_t(&a)[4], Matrix b, bool add_) { \
    if constexpr (kBf16) {                                                                         \
      SEQPAR_SUBTRACT(n, "bf16", tiles, operands, addAt);                                          \
    } else {                                                                                       \
      SEQPAR_SUBTRACT(n, "f16", tiles, operands, addAt);                                           \
    }                                                                                              \
  }
SEQPAR_NEGATED_A(64, 8, "{%32, %33, %34, %35}, %36, p, -1, 1, %38", "37")
SEQPAR_NEGATED_A(128, 16, "{%64, %65, %66, %67}, %68, p, -1, 1, %70", "69")

#undef SEQPAR_TILE
#undef SEQPAR_TILES4
#undef SEQPAR_TILES8
#undef SEQPAR_TILES16
#undef SEQPAR_NAMES8
#undef SEQPAR_NAMES16
#undef SEQPAR_SUBTRACT
#undef SEQPAR_NEGATED_A

#else

template <bool kBf16, int kTransposeB, int kTiles>
void wgmmaMinus(float (&c)[kTiles][4], const uint32_t (&a)[4], Matrix b, bool add) {
  constexpr uint32_t kSigns = 0x80008000U;
  const uint32_t negated[4] = {a[0] ^ kSigns, a[1] ^ kSigns, a[2] ^ kSigns, a[3] ^ kSigns};
  wgmma<kBf16, kTransposeB>(c, negated, b, add);
}

#endif

/// c = c - a b, or -a b without `add`: step `step` of 16 terms, as multiplyStep().
template <class T, Terms kB, int N>
SEQPAR_DEVICE void subtractStep(float (&c)[N][4], const uint32_t (&a)[4], const Operand& b, int rowsB, int step,
                                bool add) {
  wgmmaMinus<ptx::kIsBf16<T>, kB == Terms::Rows ? 1 : 0>(c, a, matrixOf(b) + stepOf<kB>(rowsB, step), add);
}

}  // namespace seqpar::warpgroup
