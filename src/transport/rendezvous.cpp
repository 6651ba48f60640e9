#include "transport/rendezvous.h"

#include <cstring>

namespace seqpar {

void sendRts(Mailbox& mail, int to, uint64_t where) {
  copyTo(mail.acquire(to, sizeof(where)), &where, sizeof(where));
  mail.commit();
}

uint64_t receiveRts(Mailbox& mail, int from) {
  uint64_t where = 0;
  std::memcpy(&where, mail.receive(from, sizeof(where)), sizeof(where));
  mail.release(from);
  return where;
}

void sendFin(Mailbox& mail, int to) {
  sendEmpty(mail, to);
}

void awaitFin(Mailbox& mail, int from) {
  receiveEmpty(mail, from);
}

}  // namespace seqpar
