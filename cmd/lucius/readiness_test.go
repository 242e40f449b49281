package main

import (
	"errors"
	"fmt"
	"testing"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

// refusing is a store that can be read and takes no writes.
type refusing struct {
	tablestore.Store

	why error
}

func (r refusing) Writable() error { return r.why }

// TestReadiness_OfAStoreThatTakesNoWrites asks whether a server is ready whose
// store answers reads alone: as long as commands are refused it is not, and says
// why, without what the store says to operators.
func TestReadiness_OfAStoreThatTakesNoWrites(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		why    error
		detail string
	}{
		"too little space": {
			fmt.Errorf("%w: %w: 63 MiB are free", tablestore.ErrUnavailable, pebblestore.ErrNoSpace),
			"The store takes no writes: less disk space is free than its reserve.",
		},
		"another reason": {tablestore.ErrUnavailable, "The store takes no writes."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := refusing{memstore.New(memstore.Options{}), test.why}
			l, err := ledger.Open(t.Context(), ledger.Config{Store: store})
			if err != nil {
				t.Fatal(err)
			}
			_, err = readiness{&system{ledger: l, writable: writableOf(store)}}.Ready(t.Context())
			told, ok := errors.AsType[*problem.Error](err)
			if !ok || told.Code != problem.StoreUnavailable || told.Detail != test.detail || told.RetryAfter <= 0 {
				t.Errorf("Ready: %v, want store_unavailable and %q", err, test.detail)
			}
			if !errors.Is(err, test.why) {
				t.Errorf("the log is not told the cause: %v", err)
			}
		})
	}
}

func TestReadiness_OfAStoreThatDoesNotTellIsNotDoubted(t *testing.T) {
	t.Parallel()
	if err := writableOf(memstore.New(memstore.Options{}))(); err != nil {
		t.Errorf("writable: %v", err)
	}
}
