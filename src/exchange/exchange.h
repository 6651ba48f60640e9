// Execution of routes on host memory: pure data movement. reduction.h adds arithmetic.
#pragma once

#include <cstddef>
#include <span>

#include "exchange/route.h"
#include "transport/mailbox.h"

namespace seqpar {

/// One rank's part of an exchange, inside an operation of `mail`. Every rank named in another rank's route takes part;
/// other ranks need not. Send and receive buffers do not overlap; regions count from the buffers' first bytes.
void exchangeOnHost(Mailbox& mail, const Route& route, std::span<const std::byte* const> sendBuffers,
                    std::span<std::byte* const> receiveBuffers);

}  // namespace seqpar
