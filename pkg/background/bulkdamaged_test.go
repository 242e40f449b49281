package background_test

import (
	"context"
	"testing"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// damaged is a ledger that cannot decode some rows of one job.
type damaged struct {
	background.OperationsLedger
	jobID                    string
	job, history, superseded bool // which rows
}

func (d *damaged) bad(jobID string, rows bool) error {
	if rows && jobID == d.jobID {
		return tablestore.ErrCorrupt
	}
	return nil
}

func (d *damaged) Job(ctx context.Context, jobID string) (*statemachine.Aggregate, error) {
	if err := d.bad(jobID, d.job); err != nil {
		return nil, err
	}
	return d.OperationsLedger.Job(ctx, jobID)
}

func (d *damaged) History(ctx context.Context, jobID string, after int64, limit int) ([]ledger.HistoryEntry, int64, error) {
	if err := d.bad(jobID, d.history); err != nil {
		return nil, 0, err
	}
	return d.OperationsLedger.History(ctx, jobID, after, limit)
}

func (d *damaged) SupersededBy(ctx context.Context, job *statemachine.Job) (string, error) {
	if err := d.bad(job.ID, d.superseded); err != nil {
		return "", err
	}
	return d.OperationsLedger.SupersededBy(ctx, job)
}

// Rows that cannot be decoded stay so: their job fails, and the operation ends.
func TestBulk_ADamagedJobFails(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		kind background.Kind
		rows damaged
	}{
		"the history of a live job":     {background.KindCancel, damaged{history: true}},
		"the reruns of one that failed": {background.KindRetry, damaged{superseded: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := open(t, ledgertest.Split())
			var all []string
			for range 3 {
				if test.kind == background.KindRetry {
					all = append(all, w.fail("t", "x"))
				} else {
					all = append(all, w.accept("t", "OCR"))
				}
			}
			test.rows.OperationsLedger, test.rows.jobID = w.Ledger, all[1]
			service := damagedOperations(t, w, &test.rows)
			op := create(t, service, "", background.BulkRequest{Kind: test.kind, Reason: "why"})
			runOnce(t, runner(t, service))
			page := get(t, service, op.ID)
			if page.State != background.OperationDone || page.Counts != (background.Counts{Applied: 2, Failed: 1}) {
				t.Fatalf("%+v, items %+v", page.Operation, page.Items)
			}
			for _, item := range page.Items {
				if (item.Outcome == background.ItemFailed) != (item.JobID == all[1]) {
					t.Errorf("%+v", item)
				}
			}
		})
	}
}

func damagedOperations(t *testing.T, w *world, rows *damaged) *background.Operations {
	t.Helper()
	return musttest.Make(t, background.NewOperations, background.OperationsConfig{
		Ledger: rows, Commands: accepting(t, w.Ledger), Store: w.Store, Table: table,
	})
}
