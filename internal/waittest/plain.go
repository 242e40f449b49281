//go:build !race

package waittest

import "time"

// quiet is how long [work] takes on a quiet machine of two cores.
const quiet = 75 * time.Millisecond
