//go:build race

package sim_test

// defaultSeeds is how many fresh seeds a run tries. The race detector sees the same accesses
// in each seed, and makes each take seven times as long.
const defaultSeeds = 40

// defaultSchedules is how many schedules of a line a run explores.
const defaultSchedules = 100
