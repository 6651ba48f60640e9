// Writes the first inputs of fuzz_wire: what well-behaved and nearly well-behaved ranks send.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "bootstrap/vote_wire.h"
#include "bootstrap/wire.h"
#include "wire_script.h"

using namespace seqpar;

namespace {

class Seed {
 public:
  explicit Seed(fuzz::Input input) { byte(static_cast<uint8_t>(input)); }

  Seed& byte(uint8_t value) {
    bytes_.push_back(static_cast<char>(value));
    return *this;
  }
  Seed& bytes(std::span<const std::byte> some) {
    for (const std::byte one : some) byte(std::to_integer<uint8_t>(one));
    return *this;
  }
  Seed& step(fuzz::Step what, uint8_t connection, std::initializer_list<uint8_t> arguments = {}) {
    byte(static_cast<uint8_t>(connection * fuzz::kSteps + static_cast<uint8_t>(what)));
    for (const uint8_t argument : arguments) byte(argument);
    return *this;
  }
  /// Ranks 0..nranks-1 on connections of the same number.
  Seed& join(uint8_t nranks) {
    for (uint8_t rank = 0; rank < nranks; ++rank) {
      step(fuzz::Step::Open, rank).step(fuzz::Step::Hello, rank, {rank, nranks, 100, 0});
    }
    return *this;
  }
  Seed& frame(uint8_t connection, wire::Kind kind, uint8_t sequence, uint8_t length) {
    step(fuzz::Step::Frame, connection, {static_cast<uint8_t>(kind), sequence, length});
    for (uint8_t i = 0; i < length; ++i) byte('x');
    return *this;
  }

  bool write(const std::filesystem::path& path) const {
    std::ofstream out(path, std::ios::binary);
    out.write(bytes_.data(), static_cast<std::streamsize>(bytes_.size()));
    return out.good();
  }

 private:
  std::vector<char> bytes_;
};

std::vector<Seed> makeSeeds() {
  std::vector<Seed> seeds;
  wire::Hello hello;
  hello.nranks = 3;
  hello.host = "host";
  seeds.push_back(Seed(fuzz::Input::Parsers).bytes(wire::encode(hello)));
  wire::Answer answer;
  answer.text = "no";
  seeds.push_back(Seed(fuzz::Input::Parsers).bytes(wire::encode(answer)));
  wire::Challenge challenge;
  challenge.nonce[0] = std::byte{1};
  seeds.push_back(Seed(fuzz::Input::Parsers).bytes(wire::encode(challenge)));
  seeds.push_back(Seed(fuzz::Input::Parsers).bytes(wire::encodeProof(Digest{})));
  for (uint8_t flaw = 0; flaw < fuzz::kFlaws; ++flaw) {
    seeds.push_back(Seed(fuzz::Input::Script)
                        .step(fuzz::Step::Open, 0)
                        .step(fuzz::Step::Hello, 0, {0, 2, 100, 0})
                        .step(fuzz::Step::Open, 1)
                        .step(fuzz::Step::Hello, 1, {1, 2, 100, flaw})
                        .step(fuzz::Step::Drain, 0));
  }
  for (const auto kind : {VoteMessage::Kind::Join, VoteMessage::Kind::Promise, VoteMessage::Kind::Decided}) {
    VoteMessage message;
    message.kind = kind;
    message.departed.assign(3, false);
    if (kind == VoteMessage::Kind::Decided) message.choice = Membership{{true, true, false}, {}};
    const auto body = wire::encodeVote(message);
    Seed vote = Seed(fuzz::Input::Vote).byte(2).byte(0).byte(1).byte(0).byte(1).byte(8 + 5).byte(0);
    seeds.push_back(vote.byte(static_cast<uint8_t>(body.size())).bytes(body));
  }
  seeds.push_back(Seed(fuzz::Input::Records).byte(20).byte(3).byte(200).bytes(wire::Bytes(40)));
  wire::Rendezvous rendezvous;
  rendezvous.port = 1;
  rendezvous.addresses.resize(2);
  const auto id = wire::encode(rendezvous);
  seeds.push_back(Seed(fuzz::Input::Parsers).bytes(std::as_bytes(std::span(id.internal))));
  for (int kind = 1; kind <= 11; ++kind) {
    wire::Bytes frame;
    wire::append(frame, static_cast<wire::Kind>(kind), 1);
    seeds.push_back(Seed(fuzz::Input::Parsers).byte(static_cast<uint8_t>(frame.size())).bytes(frame));
  }

  Seed life = Seed(fuzz::Input::Script).join(3).step(fuzz::Step::Drain, 0);
  for (uint8_t rank = 0; rank < 3; ++rank) life.frame(rank, wire::Kind::Gather, 1, 4);
  life.frame(1, wire::Kind::Refused, 1, 16);
  for (uint8_t rank = 0; rank < 3; ++rank) life.frame(rank, wire::Kind::Bye, 0, 0);
  seeds.push_back(life.step(fuzz::Step::Drain, 0));
  seeds.push_back(Seed(fuzz::Input::Script)
                      .join(2)
                      .frame(0, wire::Kind::Gather, 1, 4)
                      .frame(1, wire::Kind::Gather, 1, 5)
                      .frame(0, wire::Kind::News, 0, 6));
  seeds.push_back(Seed(fuzz::Input::Script).join(2).step(fuzz::Step::Close, 1).step(fuzz::Step::Pass, 0, {200}));
  seeds.push_back(Seed(fuzz::Input::Script)
                      .step(fuzz::Step::Open, 0)
                      .step(fuzz::Step::Hello, 0, {0, 2, 10, 0})
                      .step(fuzz::Step::Pass, 0, {11})
                      .step(fuzz::Step::Open, 1)
                      .step(fuzz::Step::Foreign, 1, {1, 2, 3}));
  seeds.push_back(Seed(fuzz::Input::Script).step(fuzz::Step::Open, 2).step(fuzz::Step::Raw, 2, {3, 'G', 'E', 'T'}));
  return seeds;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  std::filesystem::create_directories(folder);
  int number = 0;
  for (const Seed& seed : makeSeeds()) {
    const auto path = folder / ("seed" + std::to_string(number++));
    if (seed.write(path)) continue;
    std::fprintf(stderr, "cannot write %s\n", path.c_str());
    return 1;
  }
  return 0;
}
