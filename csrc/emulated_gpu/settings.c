/* What is emulated: read once from the environment.  The defaults are an H100 80GB SXM. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulated_gpu.h"

static Settings the_settings;
static pthread_once_t read_once = PTHREAD_ONCE_INIT;

static uint64_t number(const char* variable, uint64_t otherwise) {
  const char* text = getenv(variable);
  return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

/* CUDA_VISIBLE_DEVICES=0,1 hides the others; the list ends at the first entry that is no device. */
static int visible_devices(int installed) {
  const char* text = getenv("CUDA_VISIBLE_DEVICES");
  if (!text) return installed;
  int visible = 0;
  while (*text && visible < installed) {
    char* end;
    long index = strtol(text, &end, 10);
    if (end == text || index < 0 || index >= installed) break;
    visible++;
    text = *end == ',' ? end + 1 : end;
    if (*end != ',') break;
  }
  return visible;
}

static void read_settings(void) {
  Settings* s = &the_settings;
  const char* name = getenv("GPULEDGER_EMULATED_NAME");
  snprintf(s->name, sizeof s->name, "%s", name && *name ? name : "NVIDIA H100 80GB HBM3");
  const char* capability = getenv("GPULEDGER_EMULATED_CAPABILITY");
  s->capability_major = 9;
  s->capability_minor = 0;
  if (capability) sscanf(capability, "%d.%d", &s->capability_major, &s->capability_minor);
  s->num_sms = (int)number("GPULEDGER_EMULATED_SMS", 132);
  s->total_bytes = number("GPULEDGER_EMULATED_TOTAL_BYTES", 85028765696ULL);
  s->context_bytes = number("GPULEDGER_EMULATED_CONTEXT_BYTES", 0);
  int devices = (int)number("GPULEDGER_EMULATED_DEVICES", 1);
  s->num_devices = visible_devices(devices > MAX_DEVICES ? MAX_DEVICES : devices);
}

const Settings* settings(void) {
  pthread_once(&read_once, read_settings);
  return &the_settings;
}
