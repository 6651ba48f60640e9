// Carrying out routes on host memory: pure movement. Combining arithmetic is reduction.h's.
#pragma once

#include <cstddef>
#include <span>

#include "exchange/route.h"
#include "transport/mailbox.h"

namespace seqpar {

/// One rank's part of an exchange, inside an operation of `mail`. Every rank that is named in another's route takes
/// part; ranks that nobody names need not. Send and receive buffers do not overlap; regions count from their begins.
void exchangeOnHost(Mailbox& mail, const Route& route, std::span<const std::byte* const> sendBuffers,
                    std::span<std::byte* const> receiveBuffers);

}  // namespace seqpar
