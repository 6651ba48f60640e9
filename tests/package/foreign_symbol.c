/* A library that exports what it must not: shows that symbols.sh notices. */
#include "foreign_symbol.h"

void foreign(void) {}
