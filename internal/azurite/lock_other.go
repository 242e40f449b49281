//go:build !unix

package azurite

import "context"

// lock does nothing here: two installations at once cost time, and the first
// that is complete is kept.
func lock(context.Context, string) (unlock func(), err error) { return func() {}, nil }
