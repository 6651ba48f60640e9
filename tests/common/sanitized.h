// Whether a sanitizer is active: it needs all address space, and ends a program that allocates too much.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SEQPAR_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SEQPAR_SANITIZED
#endif
#endif
