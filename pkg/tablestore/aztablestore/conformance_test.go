package aztablestore_test

import (
	"testing"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/aztablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// TestStore runs the suite that every table store has to pass. Each write is a
// request, so the races are shorter.
func TestStore(t *testing.T) {
	t.Parallel()
	features := storetest.Features{Durable: true, Walks: true, Effort: 10}
	storetest.Run(t, features, func(t testing.TB) storetest.Harness {
		names := tables(t)
		options := aztablestore.Options{Connection: connection(t), Tables: names[:]}
		return storetest.Harness{
			Store:  open(t, options),
			Reopen: func(t testing.TB) tablestore.Store { return open(t, options) },
			Tables: names,
		}
	})
}
