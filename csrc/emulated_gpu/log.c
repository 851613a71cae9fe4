/* A stand-in that was generated returns 0 and writes nothing.  If the caller expected data, that is
 * where to look first: GPULEDGER_EMULATED_TRACE=FILE appends each such function's name at its first
 * call. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "emulated_gpu.h"

void log_generic_call(const char* function) {
  const char* path = getenv("GPULEDGER_EMULATED_TRACE");
  if (!path || !*path) return;
  int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (file < 0) return;
  char line[256];
  int length = snprintf(line, sizeof line, "%s\n", function);
  if (write(file, line, (size_t)length) !=
      length) { /* the trace is a help, never a reason to fail */
  }
  close(file);
}
