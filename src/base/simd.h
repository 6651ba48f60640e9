// The vector instructions of this processor. Kernels exist once for each Isa, in sources compiled for it
// (x_portable.cpp, x_avx2.cpp, x_avx512.cpp), and are picked from a table at run time.
//
// Such sources must not use inline functions of shared headers, including the standard library's: the linker keeps one
// copy of each, and that copy could need the newer processor. Templates over the Lanes type are fine.
#pragma once

#include <span>

namespace seqpar {

enum class Isa { Portable, Avx2, Avx512 };

/// All Isas that this processor supports, the fastest last.
std::span<const Isa> supportedIsas();

/// The fastest Isa that this processor supports.
Isa bestIsa();

/// "portable", "avx2" or "avx512".
const char* isaName(Isa isa);

}  // namespace seqpar
