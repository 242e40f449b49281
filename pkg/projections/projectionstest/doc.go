// Package projectionstest compares projected rows with the aggregates that they
// show, by the names of tables, rows and columns alone: it is not blind where the
// code that writes them is. It is for tests.
package projectionstest
