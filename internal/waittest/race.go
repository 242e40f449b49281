//go:build race

package waittest

import "time"

// quiet is how long [work] takes on a quiet machine of two cores. The race detector makes it take
// seven times as long; the servers that tests start are built without it, and its cost says
// nothing about the machine.
const quiet = 500 * time.Millisecond
