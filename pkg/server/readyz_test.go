package server_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/server"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
)

// What a process cannot read of pauses and limits holds everything back, so that it tells.
func TestReadyz_TellsThatNothingGoesOut(t *testing.T) {
	t.Parallel()
	const want = "the pauses and limits cannot be read, so nothing is dispatched or started: see the log"
	for kind, bad := range map[string]tablestore.Property{
		"pause": {Name: "pause_id", Value: tablestore.String("?")},
		"limit": {Name: "buckets", Value: tablestore.String("{")},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New(memstore.Options{})
				s, stop := serve(t, server.Config{Store: store})
				defer stop()
				key := tablestore.Key{Table: s.UseCases().Ledger.Tables().Queue, Partition: "admission", Row: kind + ":x"}
				_, err := store.Commit(t.Context(), tablestore.Batch{{Verb: tablestore.Insert, Key: key, Properties: tablestore.Properties{bad}}})
				musttest.NoError(t, err)
				time.Sleep(2 * time.Second)
				if got := get[api.Readiness](t, s, "/readyz").Warnings; slices.Contains(got, want) {
					t.Errorf("after one failed read it warns %q", got)
				}
				time.Sleep(10 * time.Second)
				if got := get[api.Readiness](t, s, "/readyz").Warnings; !slices.Contains(got, want) {
					t.Errorf("it warns %q", got)
				}
			})
		})
	}
}
