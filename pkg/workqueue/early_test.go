package workqueue_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// slow is an atomic store whose writes are applied at once, and durable when they are
// released. If it fails, the outcome of writes in progress is unknown, and it can no longer
// be read.
type slow struct {
	release chan struct{} // nil: without a delay
	failed  error
	held    atomic.Int64
}

func (s *slow) hook(ctx context.Context, r *storetest.Request, do func(context.Context) error) error {
	if r.Call != storetest.CommitCall && s.failed != nil {
		return tablestore.ErrUnavailable
	}
	err := do(ctx)
	if r.Call != storetest.CommitCall || s.release == nil || err != nil {
		return err
	}
	s.held.Add(1)
	<-s.release
	return s.failed
}

// The next change of a job need not wait until the previous one is durable: both become
// durable together. Neither is answered earlier, and if the store fails, neither is
// reported as done.
func TestChanges_ShareASync(t *testing.T) {
	t.Parallel()
	for name, failed := range map[string]error{"durable": nil, "failed": tablestore.ErrUnknown} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := &slow{}
				b := reopen(t, storetest.Hooked(ledgertest.Atomic(), store.hook))
				b.work()
				b.claim(t, "w0", "c0", 1, true)

				store.release = make(chan struct{})
				results := make(chan error, 2)
				go func() {
					_, err := b.ledger.Accept(t.Context(), b.command("tenant_a", "ocr", "OCR"))
					results <- err
				}()
				synctest.Wait()
				go func() {
					views, err := b.Claim(t.Context(), workqueue.ClaimRequest{Owner: "w1", RequestID: "c1", Max: 1, Start: true})
					if err == nil && len(views) != 1 {
						err = fmt.Errorf("claimed %d items", len(views))
					}
					results <- err
				}()
				synctest.Wait()
				if held := store.held.Load(); held != 2 {
					t.Errorf("%d writes are on their way to the disk, want those of the accept and of the claim", held)
				}
				if len(results) > 0 {
					t.Error("answered before it was durable")
				}
				store.failed = failed
				close(store.release)
				for range 2 {
					if err := <-results; (err == nil) != (failed == nil) {
						t.Errorf("answered with %v", err)
					}
				}
			})
		})
	}
}
