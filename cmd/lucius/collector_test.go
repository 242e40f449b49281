package main

import (
	"math"
	"testing"
)

// The collector works harder from a bound on, and never so near to what is alive
// that it would do nothing else.
func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	for alive, want := range map[uint64]int64{
		0: collectHarderAt, 100 << 20: collectHarderAt, collectHarderAt: 2 * collectHarderAt, 1 << 40: 2 << 40,
		math.MaxUint64: math.MaxInt64 - 1,
	} {
		if got := memoryLimit(alive); got != want {
			t.Errorf("with %d bytes alive it is %d, want %d", alive, got, want)
		}
	}
}
