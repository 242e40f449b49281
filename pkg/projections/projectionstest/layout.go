package projectionstest

import (
	"strings"
	"testing"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/projections"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// TableLayout is the name of a test that runs its package's other tests in the
// layout "table".
const TableLayout = "TestTableLayout"

// Projector returns the projections for a test under [TableLayout], and nil for
// any other, so that one fixture serves both layouts.
func Projector(t testing.TB, store tablestore.Store) ledger.Projector {
	t.Helper()
	if !strings.HasPrefix(t.Name(), TableLayout+"/") {
		return nil
	}
	return projections.New(store, projections.Tables{}, nil)
}
