//go:build !race

package search_test

// histories is how many random histories TestCounts_AreTrueAfterEveryChange runs.
const histories uint64 = 8
