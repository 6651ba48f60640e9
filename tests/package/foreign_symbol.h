/* Declares a function that no library has; see foreign_symbol.c. */
#ifndef FOREIGN_SYMBOL_H_
#define FOREIGN_SYMBOL_H_

#define SEQPAR_API

SEQPAR_API void seqparDeclaredOnly(void);

void foreign(void);

#endif
