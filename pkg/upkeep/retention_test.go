package upkeep_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/upkeep"
)

// backlog is a ledger of two shards with jobs to purge.
type backlog struct {
	mu     sync.Mutex
	shards [2][]string
	bad    string // the job that cannot be purged
	down   error
	purged []string
}

func (b *backlog) Shards() int { return len(b.shards) }

func (b *backlog) Due(_ context.Context, kind ledger.Kind, shard int, _ time.Time, limit int, _ string,
) ([]ledger.Entry, string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down != nil || kind != ledger.Retention {
		return nil, "", b.down
	}
	var entries []ledger.Entry
	for _, id := range b.shards[shard][:min(limit, len(b.shards[shard]))] {
		entries = append(entries, ledger.Entry{Kind: kind, Shard: shard, JobID: id})
	}
	return entries, "", nil
}

func (b *backlog) Purge(_ context.Context, entry ledger.Entry) (ledger.Purged, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if entry.JobID == b.bad {
		return 0, errors.New("no")
	}
	b.shards[entry.Shard] = slices.DeleteFunc(b.shards[entry.Shard], func(id string) bool { return id == entry.JobID })
	b.purged = append(b.purged, entry.JobID)
	return ledger.PurgeDone, nil
}

func TestRetention_PurgesSoManyAndGoesOn(t *testing.T) {
	t.Parallel()
	b := &backlog{shards: [2][]string{{"a", "b", "c"}, {"d", "e"}}, bad: "b"}
	observed := 0
	p, err := upkeep.NewRetention(upkeep.RetentionConfig{
		Ledger: b, PassLimit: 2, Observe: func(ledger.Purged) { observed++ },
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if pass, err := p.RunOnce(t.Context()); err != nil || pass.Done > 2 {
			t.Errorf("a pass purged %d, %v", pass.Done, err)
		}
	}
	if slices.Sort(b.purged); !slices.Equal(b.purged, []string{"a", "c", "d", "e"}) || observed != 4 {
		t.Errorf("purged %v, observed %d", b.purged, observed)
	}
}

func TestRetention_OutlivesAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &backlog{shards: [2][]string{slices.Repeat([]string{"x"}, 1)}, down: errors.New("away")}
		p, err := upkeep.NewRetention(upkeep.RetentionConfig{Ledger: b})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Loop().Run(ctx) }()
		time.Sleep(10 * time.Second)
		b.mu.Lock()
		b.down = nil
		b.mu.Unlock()
		time.Sleep(6 * time.Second)
		cancel()
		if err := <-done; err != nil || len(b.purged) != 1 {
			t.Errorf("purged %v, %v", b.purged, err)
		}
	})
}

func TestNewRetention_NamesTheField(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]upkeep.RetentionConfig{
		"no ledger": {}, "negative limit": {Ledger: &backlog{}, PassLimit: -1},
	} {
		if _, err := upkeep.NewRetention(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
