// libstdc++.a of Debian 12 calls glibc 2.36's arc4random(), which would keep wheels from systems that they run on
// otherwise. Weak, because every part of a program that has it may bring it.
#include <sys/random.h>

unsigned arc4random(void);

__attribute__((weak, visibility("hidden"))) unsigned arc4random(void) {
  unsigned value;
  while (getrandom(&value, sizeof value, 0) != (ssize_t)sizeof value) {
  }
  return value;
}
