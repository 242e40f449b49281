//go:build race

package background_test

// manyReruns is how many jobs TestBulk_RerunsManyJobs repeats. The race detector sees the same
// accesses for each.
const manyReruns = 1000
