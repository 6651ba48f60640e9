// libstdc++.a of Debian 12 calls glibc 2.36's arc4random(), so without this definition wheels would need glibc 2.36.
// Weak, because several parts of a program may define it.
#include <sys/random.h>

unsigned arc4random(void);

__attribute__((weak, visibility("hidden"))) unsigned arc4random(void) {
  unsigned value;
  while (getrandom(&value, sizeof value, 0) != (ssize_t)sizeof value) {
  }
  return value;
}
