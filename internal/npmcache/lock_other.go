//go:build !unix

package npmcache

import "context"

// lock does nothing here: concurrent installations cost time, and the first complete
// one is kept.
func lock(context.Context, string) (unlock func(), err error) { return func() {}, nil }
