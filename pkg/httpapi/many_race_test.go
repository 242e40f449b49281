//go:build race

package httpapi_test

// manyFinished is how many jobs have ended when TestCounts_AreAnsweredWithoutAReadOfTheStore asks.
// One client makes them one after the other: the race detector sees the same accesses for each.
const manyFinished = 100
