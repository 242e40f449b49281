//go:build race

package main

// manyWaiting is the backlog of TestServe_CountsABacklogOfAnySize. One client submits it: the race
// detector sees the same accesses for each job.
const manyWaiting = 300
