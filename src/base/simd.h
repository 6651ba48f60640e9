// Which vector instructions this processor has. Kernels exist once for each Isa, in units of their own that are
// compiled for it (x_portable.cpp, x_avx2.cpp, x_avx512.cpp), and are picked at run time from a table.
//
// Such a unit must not use inline functions of shared headers, the standard library included: the linker keeps one copy
// of those, and it could be the one that needs the newer processor. Templates over the Lanes type are fine.
#pragma once

#include <span>

namespace seqpar {

enum class Isa { Portable, Avx2, Avx512 };

/// All that this processor runs, the fastest last.
std::span<const Isa> supportedIsas();

/// The fastest that this processor runs.
Isa bestIsa();

/// "portable", "avx2" or "avx512".
const char* isaName(Isa isa);

}  // namespace seqpar
