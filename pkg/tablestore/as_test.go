package tablestore_test

import (
	"testing"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// telling is a store that sends hints, and wrapping is a store that wraps another.
type (
	telling struct {
		tablestore.Store
		tablestore.Notifier
	}
	wrapping struct{ tablestore.Store }
)

func (w wrapping) Unwrap() tablestore.Store { return w.Store }

func TestAs_LooksInsideWrappers(t *testing.T) {
	t.Parallel()
	inner := &telling{}
	for name, store := range map[string]tablestore.Store{"itself": inner, "wrapped twice": wrapping{wrapping{inner}}} {
		if found, ok := tablestore.As[tablestore.Notifier](store); !ok || found != tablestore.Notifier(inner) {
			t.Errorf("%s: %v, %t", name, found, ok)
		}
	}
	if _, ok := tablestore.As[tablestore.Walker](wrapping{inner}); ok {
		t.Error("a store is a Walker that is none")
	}
}
