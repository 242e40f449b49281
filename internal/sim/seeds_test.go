//go:build !race

package sim_test

// defaultSeeds is how many fresh seeds a run tries.
const defaultSeeds = 300

// defaultSchedules is how many schedules of a line a run explores.
const defaultSchedules = 2_000
