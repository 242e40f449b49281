package sim

import (
	"context"
	"slices"
	"strings"

	"github.com/lucius-project/lucius/pkg/projections/projectionstest"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// staleProjections returns how the projected rows differ from the jobs. They may lag only
// while there is work.
func (w *world) staleProjections() []string {
	if !w.scenario.table {
		return nil
	}
	found, err := projectionstest.Compare(context.Background(), w.store.(tablestore.Walker), tableLedger)
	if err != nil {
		return []string{err.Error()}
	}
	return slices.DeleteFunc(found, func(difference string) bool {
		key, missing := strings.CutSuffix(difference, " shows an object that does not exist")
		return missing && w.check.outlived[key]
	})
}
