package projectionstest

import (
	"strings"
	"testing"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/projections"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// TableLayout is the test of a package that runs its other tests in the layout
// "table".
const TableLayout = "TestTableLayout"

// Projector is that of the layout that the test runs in: the projections for one
// under [TableLayout], nil for any other. So a fixture serves both.
func Projector(t testing.TB, store tablestore.Store) ledger.Projector {
	t.Helper()
	if !strings.HasPrefix(t.Name(), TableLayout+"/") {
		return nil
	}
	return projections.New(store, projections.Tables{})
}
