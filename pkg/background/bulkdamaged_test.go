package background_test

import (
	"context"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
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

// A damaged job is one of those that an operation selects, which then says that it failed. A preview
// counts it, but cannot show it.
func TestCreate_SelectsADamagedJob(t *testing.T) {
	t.Parallel()
	for kind, add := range map[background.Kind]func(w *world) string{
		background.KindCancel: func(w *world) string { return w.accept("t", "OCR") },
		background.KindRetry:  func(w *world) string { return w.fail("t", "x") },
	} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			w := open(t, ledgertest.Split())
			all := []string{add(w), add(w), add(w)}
			service := damagedOperations(t, w, &damaged{OperationsLedger: w.Ledger, jobID: all[1], job: true})
			request := background.BulkRequest{Kind: kind, All: true, Reason: "why"}
			preview, err := service.Preview(t.Context(), request)
			if err != nil || preview.Matched != 3 || len(preview.Sample) != 2 {
				t.Errorf("%+v, %v", preview, err)
			}
			op := create(t, service, "", request)
			runOnce(t, runner(t, service))
			page := get(t, service, op.ID)
			if op.Matched != 3 || page.State != background.OperationDone || page.Counts != (background.Counts{Applied: 2, Failed: 1}) {
				t.Errorf("%+v, items %+v", page.Operation, page.Items)
			}
		})
	}
}

// A preview passes over a job whose rerun it cannot plan, because its payload is damaged.
func TestPreview_PassesOverADamagedPayload(t *testing.T) {
	t.Parallel()
	w := open(t, ledgertest.Split())
	bad := w.fail("t", "x")
	w.fail("t", "x")
	store := storetest.Hooked(w.Store, func(ctx context.Context, r *storetest.Request, do func(context.Context) error) error {
		if key := r.Key(); key.Partition == tablestore.Escape(bad) && strings.HasPrefix(key.Row, "COMMAND") {
			return tablestore.ErrCorrupt
		}
		return do(ctx)
	})
	preview, err := open(t, store).Preview(t.Context(), background.BulkRequest{All: true})
	if err != nil || preview.Matched != 2 || len(preview.Sample) != 1 || preview.Sample[0].Job.ID == bad {
		t.Errorf("%+v, %v", preview, err)
	}
}

func damagedOperations(t *testing.T, w *world, rows *damaged) *background.Operations {
	t.Helper()
	return background.NewOperations(background.OperationsConfig{
		Ledger: rows, Commands: accepting(t, w.Ledger), Store: w.Store, Table: table,
	})
}
