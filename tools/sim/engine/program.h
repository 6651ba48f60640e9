// One rank's recorded work: streams of operations, in the order in which the library enqueued them. Pure data.
#pragma once

#include <cstdint>
#include <vector>

namespace seqpar::sim {

enum class OpKind : uint8_t { Compute, Record, Wait, Exchange, Steps };

/// The hardware that moves an operation's bytes between GPUs of a node. Between nodes all use the network.
/// NcclHop: NCCL with one peer at a time, which has some of its channels. Gather: the ring of NCCL's all-gather.
enum class Engine : uint8_t { Kernel, Copy, Nccl, NcclHop, Gather };

/// An operation of a stream; it starts after the previous one, and not before the host has enqueued it.
struct Op {
  OpKind kind = OpKind::Compute;
  uint16_t label = 0;  ///< index of Program::labels
  uint32_t index = 0;  ///< event, exchange, or steps
  uint32_t issue = 0;  ///< host time of the call, in units of kIssueUnit
  float us = 0;        ///< Compute: time on all SMs
};
inline constexpr double kIssueUnitUs = 0.01;

struct Message {
  int32_t peer = 0;
  double bytes = 0;
};

/// Messages that are sent and received concurrently; it ends when all of them have been sent and received. A message
/// starts when both ends have started their exchange.
struct ExchangeOp {
  uint32_t firstSend = 0, sends = 0, firstReceive = 0, receives = 0;  ///< of Program::messages
  uint32_t lane = 0;  ///< messages of different lanes of a pair of ranks do not wait for each other
  float ctas = 0, startUs = 0;
  Engine engine = Engine::Kernel;
};

/// Share: one of the messages that carry the same bytes to several ranks. It uses the sender's links only: the
/// receivers' links are assumed to be as loaded as the sender's.
/// Post: a message that leaves while the next steps run.
/// Read: bytes of the peer that its reader counts, without time.
enum class StepKind : uint8_t { Send, Share, Post, Receive, Read, Work };

/// A step of an algorithm that runs inside one operation: the algorithm's own order of messages and work.
struct Step {
  StepKind kind = StepKind::Work;
  int32_t peer = 0;
  double amount = 0;  ///< bytes, or us of Work
};

struct StepsOp {
  uint32_t first = 0, count = 0;  ///< of Program::steps
  uint32_t lane = 0;
  float ctas = 0;
  Engine engine = Engine::Kernel;
};

struct Program {
  std::vector<std::vector<Op>> streams;  ///< 0: the caller's
  std::vector<Message> messages;
  std::vector<ExchangeOp> exchanges;
  std::vector<Step> steps;
  std::vector<StepsOp> stepOps;
  uint32_t events = 0;
  std::vector<uint32_t> marks;  ///< events with times that the player reports
};

}  // namespace seqpar::sim
