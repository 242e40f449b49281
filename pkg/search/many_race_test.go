//go:build race

package search_test

// histories is how many random histories TestCounts_AreTrueAfterEveryChange runs. Each has one
// client: the race detector sees the same accesses in all of them.
const histories uint64 = 2
