package cli

import (
	"fmt"
	"time"
)

// progressPause is the time between two changes of what is shown of a progress.
const progressPause = 100 * time.Millisecond

// Progress shows a person how many bytes of something are done, on a line that the second
// function removes. Without a person both do nothing.
func (e *Env) Progress(what string) (set func(done, total int64), end func()) {
	var shown time.Time
	set = func(done, total int64) {
		if now := time.Now(); e.Interactive && now.Sub(shown) >= progressPause {
			shown = now
			fmt.Fprintf(e.Stderr, "\r%s: %d %% of %s\x1b[K", what, 100*done/max(total, 1), Size(total))
		}
	}
	return set, func() {
		if !shown.IsZero() {
			fmt.Fprint(e.Stderr, "\r\x1b[K")
		}
	}
}

// Size returns a number of bytes for people.
func Size(bytes int64) string {
	value, unit := float64(bytes), "B"
	for _, larger := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if value < 1024 {
			break
		}
		value, unit = value/1024, larger
	}
	if unit == "B" || value >= 100 {
		return fmt.Sprintf("%.0f %s", value, unit)
	}
	return fmt.Sprintf("%.1f %s", value, unit)
}
