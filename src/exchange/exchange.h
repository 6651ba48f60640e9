// Carrying out routes: pure movement. Combining arithmetic is reduction.h's.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "exchange/route.h"

namespace seqpar {

/// One rank's part of an exchange, inside an operation of `mail`. Every rank that is named in another's route takes
/// part; ranks that nobody names need not. Send and receive buffers do not overlap; regions count from their begins.
void exchangeOnHost(Mailbox& mail, const Route& route, std::span<const std::byte* const> sendBuffers,
                    std::span<std::byte* const> receiveBuffers);

/// The same as an operation of its own called `name` (a literal) on `stream`, on the host or on the communicator's
/// device.
void runExchange(Communicator& comm, const char* name, std::shared_ptr<const Route> route,
                 std::vector<const std::byte*> sendBuffers, std::vector<std::byte*> receiveBuffers,
                 const CallerStream& stream);

}  // namespace seqpar
