package webhooks

// What the tests look at from outside.
var (
	ParseRetryAfter = parseRetryAfter
	HostOf          = hostOf
)
