//go:build !race

package main

// manyWaiting is the backlog of TestServe_CountsABacklogOfAnySize.
const manyWaiting = 3000
