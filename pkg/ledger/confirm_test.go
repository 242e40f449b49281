package ledger_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// unconfirmed is a store that cannot tell whether a failover loses what it shows.
type unconfirmed struct {
	tablestore.Store
	asked int
}

func (u *unconfirmed) Confirm(context.Context) error {
	u.asked++
	return tablestore.ErrUnavailable
}

// TestARepeatIsAcknowledgedOnlyOnceItIsConfirmed repeats requests whose first try was committed.
// A repeat writes nothing, and its answer rests on what it reads.
func TestARepeatIsAcknowledgedOnlyOnceItIsConfirmed(t *testing.T) {
	t.Parallel()
	unsure := &unconfirmed{Store: ledgertest.Atomic()}
	b, err := ledger.Open(t.Context(), ledger.Config{Store: unsure, Hold: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	cmd := command("h")
	accepted, err := b.Accept(t.Context(), cmd)
	if err != nil || unsure.asked != 0 {
		t.Fatalf("asked %d times: %v", unsure.asked, err)
	}
	if _, err := b.Change(t.Context(), accepted.Job.ID, statemachine.Cancel{}); err != nil || unsure.asked != 0 {
		t.Fatalf("asked %d times: %v", unsure.asked, err)
	}
	for name, repeat := range map[string]func() error{
		"accept": func() error { _, err := b.Accept(t.Context(), cmd); return err },
		"replay": func() error { _, _, err := b.Replay(t.Context(), cmd); return err },
		"cancel": func() error {
			_, err := b.Change(t.Context(), accepted.Job.ID, statemachine.Cancel{})
			return err
		},
	} {
		if err := repeat(); !errors.Is(err, tablestore.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, found, err := b.Replay(t.Context(), command("other")); found || err != nil {
		t.Errorf("a command without a job: %t, %v", found, err)
	}
}
