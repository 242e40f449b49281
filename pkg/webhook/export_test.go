package webhook

// These are exported for the tests alone.
var (
	ParseRetryAfter = parseRetryAfter
	HostOf          = hostOf
)
