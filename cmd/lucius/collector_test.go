package main

import (
	"math"
	"testing"
)

// The collector works harder from a bound on, and never so near to what is alive
// that it would do nothing else: stacks, which it cannot free, do not take the room
// of the heap.
func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		alive, stacks uint64
		want          int64
	}{
		{0, 0, collectHarderAt},
		{100 << 20, 0, collectHarderAt},
		{100 << 20, 100 << 20, collectHarderAt},
		{collectHarderAt, 0, 2 * collectHarderAt},
		{collectHarderAt, collectHarderAt, 3 * collectHarderAt},
		{0, 2 * collectHarderAt, 2 * collectHarderAt},
		{1 << 40, 1 << 30, 2<<40 + 1<<30},
		{math.MaxUint64, 0, math.MaxInt64 - 1},
		{math.MaxUint64, math.MaxUint64, math.MaxInt64},
	} {
		if got := memoryLimit(test.alive, test.stacks); got != test.want {
			t.Errorf("with %d bytes alive and %d of stacks it is %d, want %d", test.alive, test.stacks, got, test.want)
		}
	}
}
