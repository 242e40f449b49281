//go:build !race

package sim_test

// defaultSeeds is how many fresh seeds a run tries.
const defaultSeeds = 300
