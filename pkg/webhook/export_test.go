package webhook

// What the tests look at from outside.
var (
	ParseRetryAfter = parseRetryAfter
	HostOf          = hostOf
)
