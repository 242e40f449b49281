// Package projectionstest compares projected rows with their aggregates, for
// tests. It uses only the names of tables, rows and columns, so that it does
// not share the faults of the code that writes them.
package projectionstest
