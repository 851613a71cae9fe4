/* An ordered table of disjoint address ranges, found by binary search.  PyTorch asks the device for
 * segments, not tensors, so a table holds hundreds of entries, rarely more than a few thousand. */
#include <stdlib.h>
#include <string.h>

#include "emulated_gpu.h"

/* Position of the first range that starts above `address`. */
size_t range_position(const RangeTable* table, uint64_t address) {
  size_t low = 0, high = table->count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (table->items[middle].address <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

Range* range_containing(const RangeTable* table, uint64_t address) {
  size_t position = range_position(table, address);
  if (position == 0) return NULL;
  Range* range = &table->items[position - 1];
  return address < range->address + range->bytes ? range : NULL;
}

int range_insert(RangeTable* table, Range range) {
  if (table->count == table->capacity) {
    size_t capacity = table->capacity ? 2 * table->capacity : 1024;
    Range* items = realloc(table->items, capacity * sizeof *items);
    if (!items) return 0;
    table->items = items;
    table->capacity = capacity;
  }
  size_t position = range_position(table, range.address);
  memmove(table->items + position + 1, table->items + position,
          (table->count - position) * sizeof *table->items);
  table->items[position] = range;
  table->count++;
  return 1;
}

int range_remove(RangeTable* table, uint64_t address, Range* removed) {
  Range* range = range_containing(table, address);
  if (!range || range->address != address) return 0;
  if (removed) *removed = *range;
  size_t position = (size_t)(range - table->items);
  memmove(range, range + 1, (table->count - position - 1) * sizeof *range);
  table->count--;
  return 1;
}
