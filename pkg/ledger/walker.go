package ledger

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"
)

// Schedule finds due entries. A [Ledger] is one.
type Schedule interface {
	Shards() int
	// Due returns a page of entries and the start of the next one. If the page cannot be read, the
	// entries are nil. Otherwise an error joins those of rows that cannot be decoded, which are skipped.
	Due(ctx context.Context, kind Kind, shard int, now time.Time, limit int, from string) ([]Entry, string, error)
}

// Walker walks the due entries of one kind in passes:
//
//	shard 000  ──▶ page ──▶ page ──▶ …    continues after the last entry that was read, so
//	shard 001  ──▶ (nothing due)          that entries that stay do not hide those after them
//	   …                                  starts at a random shard
//
// One pass runs at a time.
type Walker struct {
	// Schedule holds the entries, and Kind is the kind to walk. Required.
	Schedule Schedule
	Kind     Kind
	// Page is the most entries that are read at once, and Limit the most that a pass reads
	// from one shard, so that no shard waits for another's backlog. Optional. They default
	// to 256 and 4096.
	Page, Limit int
	// Parallel is how many shards are walked concurrently. Optional. Defaults to 1.
	Parallel int
	// Random returns numbers in [0, 1), for the shard at which a pass begins. Optional.
	// Defaults to math/rand/v2.
	Random func() float64

	next []string // by shard: where the next pass begins, empty at its start
}

// Pass calls do with each page, concurrently for several shards. A page has at most room
// entries, and the pass ends if there is no room; a shard ends if do returns false. The error
// is the first of reading, which ends only its shard, or else of a row that cannot be decoded,
// which ends nothing.
func (w *Walker) Pass(ctx context.Context, room func() int, do func([]Entry) (more bool)) error {
	now, shards, random := time.Now(), w.Schedule.Shards(), w.Random
	if random == nil {
		random = rand.Float64
	}
	if w.next == nil {
		w.next = make([]string, shards)
	}
	start := int(random() * float64(shards))
	errs := make([]error, 2*shards) // of reading, then of rows
	var group errgroup.Group
	group.SetLimit(max(w.Parallel, 1))
	for i := range shards {
		group.Go(func() error {
			errs[i], errs[shards+i] = w.shard(ctx, (start+i)%shards, now, room, do)
			return nil
		})
	}
	_ = group.Wait() // Each shard has its own error.
	return cmp.Or(errs...)
}

// shard walks one shard. bad is the first error of rows that cannot be decoded.
func (w *Walker) shard(ctx context.Context, shard int, now time.Time, room func() int, do func([]Entry) bool) (err, bad error) {
	for left := cmp.Or(w.Limit, 4096); left > 0 && ctx.Err() == nil; {
		page := min(room(), left, cmp.Or(w.Page, 256))
		if page <= 0 {
			return nil, bad
		}
		entries, next, err := w.Schedule.Due(ctx, w.Kind, shard, now, page, w.next[shard])
		switch {
		case err != nil && entries == nil:
			return err, bad
		case err != nil: // A row that cannot be decoded must not hide those after it.
			left, bad = left-page, cmp.Or(bad, err)
		default:
			left -= len(entries)
		}
		w.next[shard] = next
		if more := len(entries) == 0 || do(entries); !more || next == "" {
			return nil, bad
		}
	}
	return nil, bad
}
