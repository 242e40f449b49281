//go:build !race

package sim_test

// defaultSeeds is how many fresh seeds a run tries.
const defaultSeeds = 300

// raceDetector reports whether the tests run under the race detector.
const raceDetector = false
