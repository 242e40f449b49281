package sim

import (
	"context"

	"github.com/lucius-project/lucius/pkg/projections"
	"github.com/lucius-project/lucius/pkg/projections/projectionstest"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// unshown says in what the projected rows differ from the jobs. While there is
// work they may be behind; when all is done they show all that is there.
func (w *world) unshown() []string {
	if !w.scenario.table {
		return nil
	}
	found, err := projectionstest.Compare(
		context.Background(), w.store.(tablestore.Walker), tableLedger, projections.Tables{})
	if err != nil {
		return []string{err.Error()}
	}
	return found
}
