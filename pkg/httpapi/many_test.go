//go:build !race

package httpapi_test

// manyFinished is how many jobs have ended when TestCounts_AreAnsweredWithoutAReadOfTheStore asks.
const manyFinished = 1000
