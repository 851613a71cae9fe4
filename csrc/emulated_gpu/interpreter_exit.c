/* A clean end of the Python process.
 *
 * On the emulated GPU backward is over so soon that autograd's device thread may still be letting
 * go of its last graph when the interpreter finalizes.  It then asks for the interpreter's lock,
 * and CPython before 3.14 ends it with pthread_exit, which unwinds through noexcept C++ frames:
 * "terminate called without an active exception", and the program's exit status is lost.
 * CPython 3.14 lets such a thread hang instead; so does this, for every version.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

typedef int (*Question)(void);
typedef void (*Exit)(void*) __attribute__((noreturn));

static int interpreter_is_finalizing(void) {
  Question question = (Question)dlsym(RTLD_DEFAULT, "Py_IsFinalizing");        /* 3.13 and later */
  if (!question) question = (Question)dlsym(RTLD_DEFAULT, "_Py_IsFinalizing"); /* before */
  return question && question();
}

void pthread_exit(void* value) {
  if (interpreter_is_finalizing())
    for (;;) pause();
  Exit real = (Exit)dlsym(RTLD_NEXT, "pthread_exit");
  if (!real) abort();
  real(value);
}
