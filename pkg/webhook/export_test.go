package webhook

// ParseRetryAfter is exported for the tests alone.
var ParseRetryAfter = parseRetryAfter
