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
	for partition, of := range map[string]struct {
		table string
		bad   tablestore.Property
		want  string
	}{
		"pauses": {"schedule", tablestore.Property{Name: "pause_id", Value: tablestore.String("?")}, "the pauses cannot be read, so nothing is dispatched: see the log"},
		"limits": {"queue", tablestore.Property{Name: "buckets", Value: tablestore.String("{")}, "the limits cannot be read, so nothing starts: see the log"},
	} {
		t.Run(partition, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New(memstore.Options{})
				s, stop := serve(t, server.Config{Store: store})
				defer stop()
				tables := s.UseCases().Ledger.Tables()
				table := map[string]string{"schedule": tables.Schedule, "queue": tables.Queue}[of.table]
				key := tablestore.Key{Table: table, Partition: partition, Row: "x"}
				_, err := store.Commit(t.Context(), tablestore.Batch{{Verb: tablestore.Insert, Key: key, Properties: tablestore.Properties{of.bad}}})
				musttest.NoError(t, err)
				time.Sleep(2 * time.Second)
				if got := get[api.Readiness](t, s, "/readyz").Warnings; slices.Contains(got, of.want) {
					t.Errorf("after one failed read it warns %q", got)
				}
				time.Sleep(10 * time.Second)
				if got := get[api.Readiness](t, s, "/readyz").Warnings; !slices.Contains(got, of.want) {
					t.Errorf("it warns %q", got)
				}
			})
		})
	}
}
