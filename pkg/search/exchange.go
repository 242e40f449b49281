package search

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

const (
	countsPartition = "counts"
	countsColumn    = "figures"
	// silence is the age at which the row of a process that no longer stores it is deleted.
	// Its events are then older than the windows.
	silence = 2 * hour
	// fresh is the most age of a row whose workers may still wait: a process that is polled
	// stores its row in each interval.
	fresh = 30 * time.Second
	// maxPollers bounds the pollers in a row.
	maxPollers = 500
	// maxRowChars bounds the characters of a row, which take two bytes each. A longer row
	// loses its pollers, then the counts by day, and then those by protocol.
	maxRowChars = tablestore.MaxRowBytes/2 - 16<<10
)

func (c *Counts) key() tablestore.Key {
	return tablestore.Key{Table: c.cfg.Table, Partition: countsPartition, Row: tablestore.Join(c.cfg.Replica)}
}

// Open reads the stored figures. If the store is exclusive, they are those of the last
// process, which this one continues. The error is the store's.
func (c *Counts) Open(ctx context.Context) error {
	if err := c.openWorkers(ctx); err != nil {
		return err
	}
	if !c.cfg.Exclusive {
		return c.read(ctx)
	}
	row, err := c.cfg.Store.Get(ctx, c.key())
	if errors.Is(err, tablestore.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the counts: %w", err)
	}
	if stored := c.decode(ctx, &row); stored != nil {
		c.mu.Lock()
		if c.own = stored; !stored.Whole {
			c.own.lose(tablestore.Now())
		}
		for k := range stored.Attempts {
			c.bounded(k)
		}
		c.mu.Unlock()
	}
	return c.store(ctx, false) // After a crash, the row must not count as whole.
}

// pollers returns the workers that poll this process, the most recent first.
func (c *Counts) pollers() []workqueue.Poller {
	if c.cfg.Queue == nil {
		return nil
	}
	return c.cfg.Queue.Pollers()
}

// RunOnce stores the own figures if they have changed, and reads those of other processes.
// It also stores unchanged figures in time to keep others from deleting them. One call runs
// at a time.
func (c *Counts) RunOnce(ctx context.Context) error {
	pollers := c.pollers()
	c.mu.Lock()
	changed := c.dirty || !c.cfg.Exclusive && (len(pollers) > 0 && pollers[0].LastPoll.After(c.own.AsOf) ||
		time.Since(c.own.AsOf) > silence/4)
	c.mu.Unlock()
	if changed {
		if err := c.store(ctx, false); err != nil {
			return err
		}
	}
	if c.workers.polled(pollers, true); c.workers.due(tablestore.Now()) {
		if err := c.storeWorkers(ctx); err != nil {
			return err
		}
	}
	if c.cfg.Exclusive {
		return nil
	}
	return c.read(ctx)
}

// Close stores the own figures for the next start, after the last RunOnce. orderly says that
// this process will change no further job.
func (c *Counts) Close(ctx context.Context, orderly bool) error {
	c.workers.polled(c.pollers(), true)
	err := c.store(ctx, orderly)
	if c.workers.idle() {
		return err
	}
	return errors.Join(err, c.storeWorkers(ctx))
}

// store writes the own row. whole says that the figures will miss no event until the next
// start. An earlier write that lands late is overwritten by the next one.
func (c *Counts) store(ctx context.Context, whole bool) error {
	var pollers, polls []workqueue.Poller
	if !c.cfg.Exclusive && c.cfg.Queue != nil {
		pollers, polls = c.pollers(), c.cfg.Queue.LastPolls()
	}
	c.mu.Lock()
	now := tablestore.Now()
	if c.live.whole {
		c.own.Live = c.live.gauges(now, c.cfg.Paused(), c.counted)
	}
	for _, w := range c.own.windows() {
		w.prune(now)
	}
	for _, of := range c.own.days() {
		of.prune(now)
	}
	if !c.own.AsOf.IsZero() && !c.cfg.Exclusive && now.Sub(c.own.AsOf) > silence {
		c.own.dropDays(now) // Another process may have adopted them.
	}
	c.own.AsOf, c.own.Whole, c.own.Pollers, c.own.Polls = now, whole, pollers[:min(len(pollers), maxPollers)], polls
	data, err := encode(*c.own)
	c.dirty = false
	c.mu.Unlock()
	if err == nil {
		_, err = c.cfg.Store.Commit(ctx, tablestore.Batch{{
			Verb: tablestore.Put, Key: c.key(), Properties: tablestore.AppendLarge(nil, countsColumn, data),
		}})
	}
	if err != nil {
		c.mu.Lock()
		c.dirty = true
		c.mu.Unlock()
		return fmt.Errorf("store the counts: %w", err)
	}
	return nil
}

// encode returns the figures in JSON.
func encode(f figures) ([]byte, error) {
	data, err := json.Marshal(&f)
	for err == nil && len(data) > maxRowChars {
		switch {
		case len(f.Pollers) > 0:
			f.Pollers = nil
		case len(f.Polls) > 0:
			f.Polls = f.Polls[:len(f.Polls)/2]
		case f.DaySince.Before(f.AsOf):
			f.dropDays(f.AsOf)
		default:
			f.Attempts = maps.Clone(f.Attempts)
			maps.DeleteFunc(f.Attempts, func(k kind, _ *attempts) bool { return k.Protocol != "" })
			f.Ended = maps.Clone(f.Ended)
			maps.DeleteFunc(f.Ended, func(e ending, _ *ends) bool { return e.Protocol != "" })
			return json.Marshal(&f)
		}
		data, err = json.Marshal(&f)
	}
	return data, err
}

// dropDays forgets what was counted by day, without a change to attempts and ends that others share.
func (f *figures) dropDays(now time.Time) {
	f.DaySince, f.Attempts, f.Ended = now, maps.Clone(f.Attempts), maps.Clone(f.Ended)
	for k, of := range f.Attempts {
		without := *of
		without.DayTook, without.DayWaited, f.Attempts[k] = nil, nil, &without
	}
	for e, of := range f.Ended {
		f.Ended[e] = &ends{window: of.window}
	}
}

// adopt takes over what a process whose row is deleted has counted by day. The caller holds mu.
func (c *Counts) adopt(other *figures, now time.Time) {
	c.dirty = true
	if other.DaySince.Before(c.own.DaySince) {
		c.own.DaySince = other.DaySince
	}
	for _, of := range other.days() {
		of.prune(now) // What was last seen a day ago takes none of the room for kinds and ends.
	}
	for k, from := range other.Attempts {
		if len(from.DayTook)+len(from.DayWaited) > 0 {
			to := entry(c.own.Attempts, c.bounded(k))
			to.DayTook.add(from.DayTook)
			to.DayWaited.add(from.DayWaited)
		}
	}
	for e, from := range other.Ended {
		if to := c.endsOf(e); to != nil {
			to.Day.add(from.Day)
		}
	}
}

// read reads the rows of the other processes. It deletes those that have not been stored for
// two hours; then the totals lack what their processes counted, but for the counts by day, which it adopts.
func (c *Counts) read(ctx context.Context) error {
	rows, err := tablestore.ScanAll(ctx, c.cfg.Store, tablestore.Query{Table: c.cfg.Table, Partition: countsPartition})
	if err != nil {
		return fmt.Errorf("read the counts: %w", err)
	}
	now, own, lost := tablestore.Now(), c.key(), time.Time{}
	var others, left []*figures
	var polls []workqueue.Poller
	var gone tablestore.Batch
	for i := range rows {
		if rows[i].Key == own {
			continue
		}
		one := c.decode(ctx, &rows[i])
		switch {
		case one != nil && now.Sub(one.AsOf) <= silence:
			others, polls = append(others, one), append(polls, one.Polls...)
		case len(gone) < tablestore.MaxBatchOps:
			gone = append(gone, tablestore.Op{Verb: tablestore.Delete, Key: rows[i].Key, ETag: rows[i].ETag})
			at := now
			if one != nil {
				at, left = one.AsOf.Add(fresh), append(left, one)
			}
			if at.After(lost) {
				lost = at
			}
		}
	}
	if c.cfg.Queue != nil {
		c.cfg.Queue.PolledElsewhere(polls)
	}
	c.mu.Lock()
	if c.others = others; lost.After(c.own.Lost) {
		c.own.Lost, c.dirty = lost, true // The own row tells the others.
	}
	c.mu.Unlock()
	if len(gone) == 0 {
		return nil
	}
	_, err = c.cfg.Store.Commit(ctx, gone)
	if errors.Is(err, tablestore.ErrConflict) {
		return nil // Another process deletes and adopts them, or theirs lives.
	}
	if err != nil {
		return fmt.Errorf("delete the counts of ended processes: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range left {
		c.adopt(one, now)
	}
	return nil
}

// decode returns the figures of a row, and nil if it cannot be read, such as one of another
// release.
func (c *Counts) decode(ctx context.Context, row *tablestore.Row) *figures {
	f := newFigures(time.Time{})
	if err := json.Unmarshal(tablestore.Large(row.Properties, countsColumn), f); err != nil {
		c.cfg.Logger.WarnContext(ctx, "stored counts cannot be read; counting again", "row", row.Key.String(), "error", err)
		return nil
	}
	return f
}
